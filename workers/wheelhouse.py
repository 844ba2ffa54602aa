"""The baseline's wheels, kept on the worker by hash, so that the way back needs no network."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from farm.errors import EnvironmentFailed
from farm.installer import LAST_LINES, classify, no_index, redact_text
from farm.model import Environment, LockedPackage
from farm.pip_settings import installer_environment
from farm.settings import Home

__all__ = ["delta", "flat_folder", "held", "keep"]

#: torch's CUDA wheels are half a gigabyte.
DOWNLOAD_TIMEOUT_S = 1800.0


def delta(wanted: Environment, instead_of: Environment) -> tuple[LockedPackage, ...]:
    """Return the wheels that turn ``instead_of`` into ``wanted``."""
    there = {package.sha256 for package in instead_of.packages}
    return tuple(package for package in wanted.packages if package.sha256 not in there)


def keep(packages: Iterable[LockedPackage], home: Home, requirement: str) -> None:
    """Fetch every wheel that the wheelhouse lacks; ``requirement`` is the release's own, for a wheel by URL.

    Raises EnvironmentFailed naming the wheel that cannot be had.
    """
    for package in packages:
        if held(package, home) is not None:
            continue
        path = _path(home, package)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=path.parent) as folder:
            fetched = _fetch(package, Path(folder), requirement)
            fetched.replace(path)


def held(package: LockedPackage, home: Home) -> Path | None:
    """Return the wheel of ``package`` in the wheelhouse; None where it is not there or not what was locked."""
    path = _path(home, package)
    return path if path.is_file() and _sha256(path) == package.sha256 else None


def flat_folder(packages: Iterable[LockedPackage], home: Home, folder: Path) -> Path:
    """Return ``folder`` with a link to every one of ``packages`` that the wheelhouse holds."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in packages:
        path = _path(home, package)
        if path.is_file():
            (folder / package.wheel).symlink_to(path.absolute())
    return folder


def _path(home: Home, package: LockedPackage) -> Path:
    return home.wheelhouse / package.sha256[:16] / package.wheel


def _fetch(package: LockedPackage, folder: Path, requirement: str) -> Path:
    """Download one wheel with pip, which has the index settings and checks the hash."""
    direct = package.name == "torch" and requirement.startswith("torch @")
    what = f"torch @ {package.url}" if direct else f"{package.name}==={package.version}"
    lines = folder / "requirements.txt"
    lines.write_text(f"{what} --hash=sha256:{package.sha256}\n")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--require-hashes", "--dest", str(folder / "wheels")]
    settings = installer_environment()
    for place in filter(None, settings.get("UV_FIND_LINKS", "").split(",")):
        command += ["--find-links", place]
    try:
        done = subprocess.run(
            [*command, *no_index(settings), "-r", str(lines)],
            capture_output=True,
            text=True,
            check=False,
            timeout=DOWNLOAD_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **_pip_indexes(settings), "PIP_NO_INPUT": "1"},
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFailed(f"fetching '{package.wheel}' took over {DOWNLOAD_TIMEOUT_S:.0f} s") from error
    found = list((folder / "wheels").glob("*.whl")) if done.returncode == 0 else []
    if not found:
        words = redact_text("\n".join(done.stderr.strip().splitlines()[-LAST_LINES:]))
        raise EnvironmentFailed(f"'{package.wheel}' cannot be fetched again: {classify(done.stderr)[1]}", words)
    if _sha256(found[0]) != package.sha256:
        raise EnvironmentFailed(f"'{package.wheel}' as served now has another hash than was locked")
    kept = folder / package.wheel
    shutil.move(found[0], kept)
    return kept


def _pip_indexes(settings: Mapping[str, str]) -> dict[str, str]:
    """Return uv's indexes in pip's words, as variables: both look in the same places, and no password is in a `ps`."""
    default = settings.get("UV_DEFAULT_INDEX") or settings.get("UV_INDEX_URL")
    extra = settings.get("UV_INDEX") or settings.get("UV_EXTRA_INDEX_URL")
    said = {"PIP_INDEX_URL": default, "PIP_EXTRA_INDEX_URL": extra}
    # uv lets an index have a name, "pytorch=https://…".
    return {key: re.sub(r"(^|\s)[\w.-]+=(?=\w+:)", r"\1", value) for key, value in said.items() if value}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
