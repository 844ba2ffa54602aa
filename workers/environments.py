"""The environments that are measured: one per arm, addressed by its lock, proven by what is installed in it.

A build that did not reach its marker is never used: it is thrown away and made again.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from farm.errors import EnvironmentFailed
from farm.installer import LAST_LINES, InstallerError, base_python, no_index, redact_text, run_uv
from farm.model import Environment, LockedPackage, Side
from farm.pip_settings import installer_environment
from farm.releases import is_torch_family
from farm.settings import Home
from workers.wheelhouse import folders_of, keep_closure, using

__all__ = [
    "BuiltEnvironment",
    "build",
    "differences",
    "discard",
    "installed_packages",
    "make_venv",
    "mismatches",
    "requirement_lines",
    "sync",
]

MARKER = "farm-environment.json"

#: What proves an environment. Runners write no bytecode, so it is written here for all that torch.compile loads late:
#: without it the first compilation of every process read 3 s of sources.
PROOF = """
import compileall, importlib.util, json, pathlib
import msgpack, numpy, torch
for name in ("torch", "sympy", "mpmath", "networkx"):
    found = importlib.util.find_spec(name)
    if found is not None:
        compileall.compile_dir(pathlib.Path(found.origin).parent, quiet=2, workers=2)
print(json.dumps({"version": str(torch.__version__), "cuda": torch.version.cuda, "hip": torch.version.hip}))
"""

PROOF_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class BuiltEnvironment:
    """An environment on this machine, checked."""

    python: Path
    root: Path
    installed: dict[str, str]
    """Version of every distribution, by normalised name, as found on disk."""
    reused: bool


def build(environment: Environment, home: Home, sides: Sequence[Side] | None = ()) -> BuiltEnvironment:
    """Return the environment of ``environment``'s lock, made if need be, its wheels kept. Raises EnvironmentFailed.

    ``sides`` are those on which it stands: what a baseline needs is watched and kept longer. None: it answers one
    question and goes, and the wheelhouse, which would offer its lock as its release's, never knows of it.
    """
    root = home.environments / environment.key
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        with _locked(root.with_suffix(".lock")), using(home):
            # Before it is installed: what is fetched for keeping is then not fetched again for installing.
            if sides is not None:
                keep_closure(environment, home, sides)
            # The interpreter under an environment can go away with an upgrade of the system.
            if (root / MARKER).is_file() and _python(root).exists():
                found = installed_packages(root)
                if not mismatches(environment.packages, found):
                    return BuiltEnvironment(_python(root), root, found, reused=True)
            return _make(environment, root, home)
    except OSError as error:
        raise EnvironmentFailed(f"environment of torch {environment.release.version}: {error}") from error


def discard(environment: Environment, home: Home) -> None:
    """Remove the environment of ``environment``'s lock and all that was compiled with it."""
    root = home.environments / environment.key
    if root.parent.is_dir():
        with _locked(root.with_suffix(".lock")):
            # First of all what says that it is whole: this may be interrupted half-way.
            (root / MARKER).unlink(missing_ok=True)
            shutil.rmtree(root, ignore_errors=True)
    shutil.rmtree(home.caches / environment.key, ignore_errors=True)


def differences(one: BuiltEnvironment, other: BuiltEnvironment) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what moved with torch, and what differs and should not, from what is installed in both."""
    moved: list[str] = []
    strangers: list[str] = []
    for name in sorted(one.installed.keys() | other.installed.keys()):
        before, after = one.installed.get(name, "none"), other.installed.get(name, "none")
        if before != after and name != "torch":
            (moved if is_torch_family(name) else strangers).append(f"{name} {before} -> {after}")
    return tuple(moved), tuple(strangers)


def installed_packages(root: Path) -> dict[str, str]:
    """Return version by normalised name of every distribution under ``root``, read from disk."""
    found: dict[str, str] = {}
    for distribution in distributions(path=[str(site_packages(root))]):
        # Metadata that was lost or damaged: whatever it is now, it is not what was locked.
        known = {key.lower() for key in distribution.metadata} >= {"name", "version"}
        name = distribution.metadata["Name"] if known else "a package without metadata"
        found[canonicalize_name(name)] = distribution.version if known else "unknown"
    return found


def mismatches(packages: Sequence[LockedPackage], installed: Mapping[str, str]) -> list[str]:
    """Return where ``installed`` differs from the lock: missing, other version, not in the lock."""
    found = []
    for package in packages:
        version = installed.get(package.name)
        if version is None:
            found.append(f"{package.name} {package.version} is missing")
        # Metadata may leave the local part out (CASES.md V11: the index says 2.12.1, torch says 2.12.1+cu130).
        elif version == "unknown" or _differ(Version(version), Version(package.version)):
            found.append(f"{package.name} is {version}, locked is {package.version}")
    strangers = sorted(installed.keys() - {package.name for package in packages})
    return found + [f"{name} {installed[name]} is not in the lock" for name in strangers]


def _differ(installed: Version, locked: Version) -> bool:
    two_builds = None not in (installed.local, locked.local) and installed.local != locked.local
    return installed.public != locked.public or two_builds


def make_venv(root: Path) -> None:
    """Make an empty environment at ``root`` from the interpreter under this one."""
    run_uv(
        ["venv", "--quiet", "--no-project", "--python", base_python(), "--no-python-downloads", str(root)],
        what=f"making environment '{root.name}'",
    )


def sync(environment: Environment, root: Path, home: Home) -> None:
    """Install exactly the lock of ``environment`` at ``root``: from uv's cache, the wheelhouse, or the index.

    A cache that has all costs nothing; the wheelhouse has what no index serves any more. Raises InstallerError.
    """
    try:
        _sync(environment, root, ["--offline"])
        return
    except InstallerError as error:
        if error.kind in ("no space", "permission"):
            raise
    folders = folders_of(environment.packages, home)
    if folders is not None:
        places = [word for folder in folders for word in ("--find-links", str(folder))]
        try:
            _sync(environment, root, ["--offline", "--no-index", *places], kept=True)
            return
        except InstallerError as error:
            if error.kind in ("no space", "permission"):
                raise
            # A kept wheel that went bad: the index may have it.
    _sync(environment, root, [])


def _sync(environment: Environment, root: Path, options: list[str], *, kept: bool = False) -> None:
    lines = root / "farm-requirements.txt"
    lines.write_text(requirement_lines(environment, by_name=kept))
    # A lock is narrower than any constraint, and uv takes no constraint without a hash beside hashed requirements.
    settings = {name: value for name, value in installer_environment().items() if name != "UV_CONSTRAINT"}
    if not kept:
        options = [*options, *no_index(settings)]
    run_uv(
        ["pip", "sync", "--quiet", "--python", str(_python(root)), "--require-hashes", *options, str(lines)],
        environment=settings,
        what=f"installing torch {environment.release.version} ({environment.release.variant})",
    )


def requirement_lines(environment: Environment, *, by_name: bool = False) -> str:
    """Return the lock as hashed requirements; ``by_name`` leaves out where a wheel came from.

    `===` picks the build without a local version where that is what was locked (TORCH.md 1.4).
    """
    lines = []
    for package in environment.packages:
        direct = package.name == "torch" and environment.release.requirement.startswith("torch @")
        what = f"torch @ {package.url}" if direct and not by_name else f"{package.name}==={package.version}"
        lines.append(f"{what} --hash=sha256:{package.sha256}")
    return "\n".join(lines) + "\n"


def site_packages(root: Path) -> Path:
    """Return the folder that distributions of the environment at ``root`` are in."""
    found = sorted((root / "lib").glob("python3.*/site-packages"))
    return found[0] if found else root / "lib"


def _make(environment: Environment, root: Path, home: Home) -> BuiltEnvironment:
    release = environment.release
    shutil.rmtree(root, ignore_errors=True)
    try:
        make_venv(root)
        sync(environment, root, home)
        found = installed_packages(root)
        wrong = mismatches(environment.packages, found)
        if wrong:
            raise EnvironmentFailed(f"torch {release.version}: installed is not what was locked: {'; '.join(wrong)}")
        _prove(environment, root)
        (root / MARKER).write_text(json.dumps({"key": environment.key, "torch": release.version}))
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        raise
    return BuiltEnvironment(_python(root), root, found, reused=False)


def _prove(environment: Environment, root: Path) -> None:
    """Import torch once and hold what it says of itself against the lock."""
    release = environment.release
    clean = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    try:
        done = subprocess.run(
            # Isolated: whoever stands in a checkout of torch would import that.
            [str(_python(root)), "-I", "-c", PROOF],
            capture_output=True,
            text=True,
            check=False,
            env=clean,
            timeout=PROOF_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFailed(f"torch {release.version}: importing it took over {PROOF_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        words = redact_text("\n".join(done.stderr.strip().splitlines()[-LAST_LINES:]))
        raise EnvironmentFailed(f"torch {release.version} is installed and cannot be imported", words)
    expected = release.local or release.variant
    words = json.loads(done.stdout.strip().splitlines()[-1])["version"]
    try:
        said = Version(words)
    except InvalidVersion as error:
        raise EnvironmentFailed(f"torch calls itself '{words}', locked is {release.version} ({expected})") from error
    if said.public != release.version or said.local not in (None, expected):
        raise EnvironmentFailed(
            f"torch calls itself {said}, locked is {release.version} ({expected}); another build was installed"
        )


def _python(root: Path) -> Path:
    return root / "bin" / "python"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock, so that two workers never build one environment at once."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
