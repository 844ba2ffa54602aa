"""One wheel, had again by hash: linked where it is a local file, else downloaded by pip, which has the settings."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from farm.errors import EnvironmentFailed
from farm.installer import LAST_LINES, classify, no_index, redact_text
from farm.model import LockedPackage
from farm.pip_settings import installer_environment

__all__ = ["fetch"]

#: torch's CUDA wheels are half a gigabyte.
DOWNLOAD_TIMEOUT_S = 1800.0


def fetch(package: LockedPackage, folder: Path, requirement: str, *, lend: bool = False) -> Path:
    """Return the wheel of ``package`` in a folder of its own under ``folder``, its hash checked.

    ``requirement`` is the release's own, for a wheel by URL. With ``lend`` a wheel of a local index is linked and
    costs nothing: such files are replaced and never written to. Raises EnvironmentFailed naming the wheel.
    """
    into = Path(tempfile.mkdtemp(dir=folder))
    direct = package.name == "torch" and requirement.startswith("torch @")
    local = _local(package)
    if local is not None:
        # A wheel that was named by its path is somebody's build, and the next build may be written over it.
        return _copied(local, into / package.wheel, link=lend and not direct)
    return _downloaded(package, into, f"torch @ {package.url}" if direct else f"{package.name}==={package.version}")


def _local(package: LockedPackage) -> Path | None:
    """Return the file that ``package`` was found at, if it is one and still what was locked."""
    parts = urlsplit(package.url)
    if parts.scheme != "file":
        return None
    path = Path(unquote(parts.path))
    try:
        return path if path.is_file() and _sha256(path) == package.sha256 else None
    except OSError:
        return None


def _copied(path: Path, to: Path, *, link: bool) -> Path:
    if link:
        try:
            # Of what a link points to: a link to a link would go with it.
            to.hardlink_to(path.resolve())
            return to
        except OSError:
            # Another file system, or another owner's file.
            pass
    shutil.copyfile(path, to)
    return to


def _downloaded(package: LockedPackage, into: Path, what: str) -> Path:
    lines = into / "requirements.txt"
    lines.write_text(f"{what} --hash=sha256:{package.sha256}\n")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    # What pip would cache is kept here anyway.
    command += ["--only-binary", ":all:", "--require-hashes", "--no-cache-dir", "--dest", str(into / "wheels")]
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
    found = list((into / "wheels").glob("*.whl")) if done.returncode == 0 else []
    if not found:
        words = redact_text("\n".join(done.stderr.strip().splitlines()[-LAST_LINES:]))
        raise EnvironmentFailed(f"'{package.wheel}' cannot be fetched again: {classify(done.stderr)[1]}", words)
    if _sha256(found[0]) != package.sha256:
        raise EnvironmentFailed(f"'{package.wheel}' as served now has another hash than was locked")
    return found[0]


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
