"""An environment that somebody else made and lives with: what it is, what is in it, who runs from it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import Distribution
from pathlib import Path

import psutil
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from farm.errors import UsageError
from farm.model import TorchIdentity
from workers.installed import damaged_files, found_in
from workers.probe import TRIPLES

__all__ = ["UserEnvironment", "clean_variables", "inspect"]

ASK = """
import json, os, platform, sys, sysconfig
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2], "full": platform.python_version(), "name": sys.implementation.name,
    "free": "t" if "t" in getattr(sys, "abiflags", "") else "", "system": sys.platform, "machine": platform.machine(),
    "sites": [sysconfig.get_path("platlib"), sysconfig.get_path("purelib")], "prefix": sys.prefix,
    "base": sys.base_prefix, "scripts": sysconfig.get_path("scripts"),
}))
"""
#: An interpreter on a network drive took 8 s to start.
ASK_TIMEOUT_S = 60.0

#: Names under which people keep a project's environment in its folder.
USUAL = (".venv", "venv", "env", ".env")
#: Processes that are named.
SHOWN = 5


@dataclass(frozen=True)
class UserEnvironment:
    """A virtual environment on this machine."""

    root: Path
    python: Path
    version: str
    """Minor version of CPython, "3.11"; "3.14t" where it is free-threaded."""
    platform: str
    """uv's target triple."""
    sites: tuple[Path, ...]
    """Where packages are; one folder, or two where pure packages are kept apart."""
    scripts: Path
    markers: Mapping[str, str]
    """What requirements' markers are evaluated with."""

    @cached_property
    def packages(self) -> dict[str, Distribution]:
        """Every distribution by normalised name, as found on disk when it was first asked."""
        return found_in(self.sites)

    def damaged(self, name: str) -> list[str]:
        """Return the files of an installed package that are not as its RECORD says; each package is read once."""
        if name not in self._damaged:
            distribution = self.packages[name]
            self._damaged[name] = damaged_files(Path(str(distribution.locate_file(""))), distribution)
        return self._damaged[name]

    @cached_property
    def _damaged(self) -> dict[str, list[str]]:
        return {}

    def needs(self, distribution: Distribution, extras: Iterable[str] = ()) -> list[Requirement]:
        """Return what ``distribution`` with ``extras`` requires here."""
        return self.applying(distribution.requires or (), extras)

    def applying(self, lines: Iterable[str], extras: Iterable[str] = ()) -> list[Requirement]:
        """Return those of the requirements ``lines`` that hold in this environment with ``extras``."""
        asked = ("", *extras)
        found = []
        for line in lines:
            try:
                requirement = Requirement(line)
            except InvalidRequirement:
                continue
            marker = requirement.marker
            if marker is None or any(marker.evaluate({**self.markers, "extra": extra}) for extra in asked):
                found.append(requirement)
        return found

    def torch(self) -> TorchIdentity | None:
        """Return which torch is here, from its files alone; None where there is none, or its metadata are lost."""
        distribution = self.packages.get("torch")
        if distribution is None:
            return None
        said = self._torch_says()
        try:
            version, words = Version(distribution.version), Version(said.get("__version__") or distribution.version)
        except InvalidVersion:
            return None
        variant = version.local or (words.local if words.public == version.public else None)
        if variant is None:
            cuda, hip = said.get("cuda"), said.get("hip")
            variant = f"cu{cuda.replace('.', '')}" if cuda else "rocm" if hip else "cpu"
        installer = (distribution.read_text("INSTALLER") or "").strip()
        return TorchIdentity(version=version.public, variant=variant, installer=installer)

    def _torch_says(self) -> dict[str, str]:
        """Return the texts that torch/version.py assigns, without running it."""
        for site in self.sites:
            try:
                text = (site / "torch/version.py").read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            return {m[1]: m[3] for m in re.finditer(r"^(\w+)(?:\s*:[^=\n]+)?\s*=\s*(['\"])(.*?)\2", text, re.M)}
        return {}

    def in_use(self) -> tuple[str, ...]:
        """Return the processes that run from this environment, as far as they can be seen: "4711 python train.py"."""
        root = f"{self.root.resolve()}{os.sep}"
        found = []
        for process in psutil.process_iter(["pid", "cmdline"]):
            command = process.info["cmdline"] or []
            if process.pid == os.getpid() or not command:
                continue
            by_name = os.sep not in command[0] and command[0].startswith("python") and _activated(process, root)
            if _inside(command[0], root, str(self.root)) or by_name or _maps(process.pid, root):
                found.append(f"{process.pid} {' '.join(command)[:60]}")
        more = (f"and {len(found) - SHOWN} more",) if len(found) > SHOWN else ()
        return (*found[:SHOWN], *more)


def inspect(path: Path) -> UserEnvironment:
    """Return the environment at ``path``. Raises UsageError for what the farm does not change, and says why."""
    root = Path(os.path.normpath(path.expanduser().absolute()))
    _refuse_what_is_none(root, path)
    python = root / "bin/python"
    if not python.exists():
        raise UsageError(f"the interpreter of '{path}' is gone ('{python}'); make the environment again")
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", ASK],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env=clean_variables(),
            timeout=ASK_TIMEOUT_S,
        )
        said = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise UsageError(
            f"the interpreter of '{path}' does not answer ({error}); make the environment again"
        ) from error
    return _environment(root, python, path, said)


def _environment(root: Path, python: Path, path: Path, said: Mapping[str, str]) -> UserEnvironment:
    if said["name"] != "cpython":
        raise UsageError(f"'{path}' is an environment of {said['name']}; torch has wheels for CPython only")
    if (said["system"], said["machine"]) not in TRIPLES:
        raise UsageError(f"'{path}' is for {said['system']} {said['machine']}, where torch has no wheels")
    if said["prefix"] == said["base"]:
        raise UsageError(
            f"'{python}' runs outside of '{path}': its pyvenv.cfg does not hold; make the environment again"
        )
    sites: dict[str, Path] = {}
    for site in map(Path, said["sites"]):
        # lib64 is a link to lib in most environments.
        sites.setdefault(os.path.realpath(site), site)
        if not _inside(os.path.realpath(site), f"{root.resolve()}{os.sep}"):
            raise UsageError(
                f"the packages of '{path}' are in '{site}', outside of it; name the environment they are in"
            )
    return UserEnvironment(
        root=root,
        python=python,
        version=said["version"] + said["free"],
        platform=TRIPLES[said["system"], said["machine"]],
        sites=tuple(sites.values()),
        scripts=Path(said["scripts"]),
        markers={"python_version": said["version"], "python_full_version": said["full"]},
    )


def _refuse_what_is_none(root: Path, path: Path) -> None:
    if not root.exists():
        raise UsageError(f"there is nothing at '{path}'; name the folder of a virtual environment")
    if not root.is_dir():
        inside = root.parent.name in ("bin", "Scripts")
        hint = f"; its folder is '{root.parent.parent}'" if inside else "; name the folder of a virtual environment"
        raise UsageError(f"'{path}' is a file{hint}")
    if (root / "conda-meta").is_dir():
        raise UsageError(
            f"'{path}' is a conda environment, whose packages conda keeps; go back there with conda, by 'conda install "
            "--revision N' (conda list --revisions shows them)"
        )
    if (root / "pyvenv.cfg").is_file():
        return
    marker = next(root.glob("lib/python3*/EXTERNALLY-MANAGED"), None)
    if marker is not None:
        raise UsageError(
            f"the Python at '{path}' is managed by its system ({marker.name}); the farm changes none of it"
        )
    if any((root / "bin").glob("python3*")):
        raise UsageError(
            f"'{path}' is a Python installation and no virtual environment: other programs may live in it, and the "
            "farm changes none; name a virtual environment"
        )
    inner = [name for name in USUAL if (root / name / "pyvenv.cfg").is_file()]
    hint = f"; did you mean '{path / inner[0]}'?" if inner else ": it holds no pyvenv.cfg"
    raise UsageError(f"'{path}' is no virtual environment{hint}")


def clean_variables() -> dict[str, str]:
    """Return what a process needs of ours and nothing that could lead it to other packages or libraries."""
    names = ("PATH", "HOME", "TMPDIR", "LANG", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    return {name: os.environ[name] for name in names if name in os.environ}


def canonical(name: str) -> str:
    """Return a requirement's name as packages are keyed."""
    return str(canonicalize_name(name))


def _inside(path: str, *roots: str) -> bool:
    return any(path.startswith(root if root.endswith(os.sep) else f"{root}{os.sep}") for root in roots)


def _activated(process: psutil.Process, root: str) -> bool:
    """Return whether a process was started with the environment at ``root`` activated; of others' it is not shown."""
    try:
        activated = process.environ().get("VIRTUAL_ENV")
    except psutil.Error:
        return False
    return activated is not None and f"{os.path.realpath(activated)}{os.sep}" == root


def _maps(pid: int, root: str) -> bool:
    """Return whether a process has a file below ``root`` in memory (Linux; of others' processes it is not shown)."""
    if sys.platform != "linux":
        return False
    try:
        return f" {root}" in Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return False
