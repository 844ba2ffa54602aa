"""Whether upstream still serves what the baselines need: indexes drop old releases, and nightlies after some weeks."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name
from packaging.version import Version

from farm.errors import InfrastructureFailed
from farm.installer import InstallerError, no_index, run_uv
from farm.model import LockedPackage, Served, Side, WatchedWheel, WheelUse
from farm.pip_settings import installer_environment
from farm.settings import Home
from workers.wheel_transport import exists
from workers.wheelhouse import place_of, sha256_of, uses
from workers.wheelhouse_care import label

__all__ = ["watch"]

#: What uv's failure means of one wheel; any other means that nobody could say.
GONE = {"missing", "absent", "platform", "yanked"}


@dataclass
class _Needed:
    package: LockedPackage
    by: list[str]
    direct: bool


def watch(home: Home) -> tuple[WatchedWheel, ...]:
    """Return, for every wheel that a baseline built here needs, whether the configured indexes still serve it.

    Indexes are asked anew: no cached answer counts. What is asked is name, version and hash; nothing is downloaded.
    """
    found: list[WatchedWheel] = []
    targets: dict[tuple[str, str], dict[str, _Needed]] = {}
    for use in uses(home):
        if Side.BASELINE in use.sides:
            _add(targets.setdefault((use.environment.python, use.environment.release.platform), {}), use)
    for (python, platform), needed in targets.items():
        asked = [one.package for one in needed.values() if not one.direct]
        answers = _ask(asked, python, platform)
        answers |= {one.package.sha256: _ask_address(one.package) for one in needed.values() if one.direct}
        for one in needed.values():
            package = one.package
            served, words = answers[package.sha256]
            # What upstream still has is not hashed for this.
            place = place_of(package, home)
            kept = place.is_file() and (served == "served" or sha256_of(place) == package.sha256)
            found.append(
                WatchedWheel(
                    name=package.name,
                    version=package.version,
                    wheel=package.wheel,
                    sha256=package.sha256,
                    origin=package.url,
                    needed_by=tuple(one.by),
                    served=served,
                    kept=kept,
                    words=_advice(package, served, words, kept=kept),
                )
            )
    return tuple(sorted(found, key=lambda wheel: (wheel.name, wheel.version)))


def _add(needed: dict[str, _Needed], use: WheelUse) -> None:
    for package in use.environment.packages:
        direct = package.name == "torch" and use.environment.release.requirement.startswith("torch @")
        entry = needed.setdefault(package.sha256, _Needed(package, [], direct))
        entry.by.append(label(use))


def _ask(packages: list[LockedPackage], python: str, platform: str) -> dict[str, tuple[Served, str]]:
    """Return the answer by hash: all in one question, and where that fails one by one."""
    try:
        files = _served(packages, python, platform)
    except InstallerError as error:
        if error.kind not in GONE:
            return {
                package.sha256: ("could not ask", str(error).removeprefix("asking the index: ")) for package in packages
            }
        if len(packages) == 1:
            return {packages[0].sha256: ("no longer served", "")}
        answers: dict[str, tuple[Served, str]] = {}
        for package in packages:
            answers |= _ask([package], python, platform)
        return answers
    return {package.sha256: (_answer(package, files.get(package.name, {})), "") for package in packages}


def _answer(package: LockedPackage, files: dict[str, str | None]) -> Served:
    """Return what ``files``, wheel to hash, say of ``package``; an index need not tell hashes."""
    if package.sha256 in files.values() or (package.wheel in files and files[package.wheel] is None):
        return "served"
    return "served with another hash" if package.wheel in files else "no longer served"


def _served(packages: Iterable[LockedPackage], python: str, platform: str) -> dict[str, dict[str, str | None]]:
    """Return wheel to hash, by name, of what is served for the versions of ``packages``."""
    settings = {name: value for name, value in installer_environment().items() if name != "UV_CONSTRAINT"}
    arguments = ["pip", "compile", "-", "--format", "pylock.toml", "--no-header", "--no-deps", "--refresh"]
    arguments += ["--python-version", python, "--python-platform", platform, "--only-binary", ":all:"]
    arguments += ["--prerelease", "allow", *no_index(settings)]
    if platform.endswith("apple-darwin"):
        settings.setdefault("MACOSX_DEPLOYMENT_TARGET", "14.0")
    lines = "".join(f"{package.name}==={package.version}\n" for package in packages)
    finished = run_uv(arguments, stdin=lines, environment=settings, what="asking the index")
    found: dict[str, dict[str, str | None]] = {}
    for package in tomllib.loads(finished.stdout).get("packages", []):
        files = found.setdefault(canonicalize_name(package["name"]), {})
        for wheel in package.get("wheels", []):
            files[_name(wheel)] = wheel.get("hashes", {}).get("sha256")
    return found


def _name(wheel: dict[str, Any]) -> str:
    where = wheel.get("name") or wheel.get("url") or wheel.get("path", "")
    return unquote(urlsplit(str(where)).path.rsplit("/", 1)[-1])


def _ask_address(package: LockedPackage) -> tuple[Served, str]:
    """Return whether a wheel that was named by path or URL is still there."""
    parts = urlsplit(package.url)
    if parts.scheme == "file":
        path = Path(unquote(parts.path))
        if not path.is_file():
            return "no longer served", ""
        return ("served" if sha256_of(path) == package.sha256 else "served with another hash"), ""
    try:
        return ("served" if exists(package.url) else "no longer served"), ""
    except InfrastructureFailed as error:
        return "could not ask", str(error)


def _advice(package: LockedPackage, served: Served, words: str, *, kept: bool) -> str:
    if served == "served":
        return ""
    if served == "could not ask":
        return f"{words or 'the index did not answer'}; ask again later"
    gone = "expired upstream" if Version(package.version).is_devrelease and served == "no longer served" else served
    if kept:
        return f"{gone}, kept here: the way back works from here; copy it elsewhere with farm wheelhouse pull"
    return (
        f"{gone}, and not kept here: the way back is gone; pull it from another worker (farm wheelhouse pull PLACE), "
        "or move the baseline to a release that is served"
    )
