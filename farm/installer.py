"""uv, asked for a lock, an environment or an installation; its failures in one line with its own last words."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from packaging.utils import canonicalize_name, parse_wheel_filename
from uv import find_uv_bin

from farm.errors import EnvironmentFailed
from farm.model import LockedPackage
from farm.pip_settings import installer_environment

__all__ = ["InstallerError", "lock", "no_index", "redact", "run_uv", "unserved"]

#: Lines of the installer's output that are kept as its last words.
LAST_LINES = 15

#: What uv (and pip, of a download) says, and the fact that it means; the first match counts.
CAUSES = (
    (r"No space left on device|os error 28|disk quota", "no space", "no space left on the disk; free some"),
    (
        r"no wheels with a matching|no wheels are usable|not compatible with|has no usable wheels"
        r"|is incompatible with the current platform|The wheel is compatible with",
        "platform",
        "no wheel for this platform",
    ),
    (r"does not satisfy Python", "platform", "not made for this Python"),
    (r"is yanked", "yanked", "the version was yanked"),
    (r"401 Unauthorized|403 Forbidden", "credentials", "the index refuses the credentials"),
    (r"network was disabled", "network", "no network"),
    (r"client error \(404|Distribution not found at", "absent", "there is nothing at that address"),
    (
        r"there is no version of|there are no versions of|was not found in|only .* is available"
        r"|we can conclude that your requirements are unsatisfiable|No matching distribution found",
        "missing",
        "no such version",
    ),
    (r"Failed to fetch|error sending request|Connection refused|dns error|timed out|network", "network", "no network"),
    (
        r"[Hh]ash mismatch|DO NOT MATCH THE HASHES",
        "hash",
        "what the index serves is not what was locked: the hash differs",
    ),
    (r"Permission denied|Read-only file system", "permission", "the folder cannot be written"),
)

#: How uv names what it found nothing for, when something else needs it.
UNSERVED = (
    r"there (?:is no version|are no versions) of (\S+)",
    r"Because (\S+) was not found in",
    r"only the following versions of (\S+) are available",
    r"only (\S+?) is available",
    r"(\S+) has no wheels with a matching",
    r"(\S+) (?:has no usable wheels|was yanked)",
)


class InstallerError(EnvironmentFailed):
    """Raised when uv fails; ``kind`` is one word for the cause ("missing", "network", "platform", …)."""

    def __init__(self, message: str, last_words: str, kind: str) -> None:
        super().__init__(message, last_words)
        self.kind = kind


@dataclass(frozen=True)
class _Finished:
    stdout: str
    stderr: str


def run_uv(
    arguments: Sequence[str],
    *,
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    what: str = "uv",
    timeout_s: float | None = None,
) -> _Finished:
    """Run uv and return what it said. ``prefix`` is a command that wraps it, such as one that cuts the network.

    Raises InstallerError: ``what`` failed, the cause in words, and the last words.
    """
    environment = installer_environment() if environment is None else environment
    try:
        done = subprocess.run(
            [*prefix, find_uv_bin(), *arguments],
            # Without an input of its own it has none: what would ask a human fails.
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            env={**environment, "NO_COLOR": "1", "UV_NO_PROGRESS": "1"},
        )
    except subprocess.TimeoutExpired as error:
        raise InstallerError(f"{what}: it hangs, for over {timeout_s:.0f} s", "", "timeout") from error
    if done.returncode != 0:
        kind, cause = classify(done.stderr)
        words = redact_text("\n".join(done.stderr.strip().splitlines()[-LAST_LINES:]))
        raise InstallerError(redact_text(f"{what}: {cause}"), words, kind)
    return _Finished(done.stdout, done.stderr)


def classify(stderr: str) -> tuple[str, str]:
    """Return one word and one phrase for what uv complained of."""
    for pattern, kind, phrase in CAUSES:
        if re.search(pattern, stderr):
            return kind, phrase
    lines = [line for line in stderr.strip().splitlines() if line.strip()]
    return "unknown", redact_text(lines[-1].strip()) if lines else "uv said nothing"


def unserved(last_words: str) -> tuple[str, str] | None:
    """Return the requirement that uv found nothing for, and who has it ("torch==2.12.1"); None where uv blames none."""
    words = " ".join(last_words.split())
    for pattern in UNSERVED:
        blamed = re.search(pattern, words)
        if blamed is None:
            continue
        needs = re.finditer(r"(?:all versions of )?(\S+) depends? on (\S+?),? (?=and|we|then)", words)
        for need in needs:
            if _name_of(need[2]) == _name_of(blamed[1]):
                return need[2].rstrip(","), need[1]
    return None


def _name_of(requirement: str) -> str:
    return canonicalize_name(re.split(r"[=<>!~\[]", requirement, maxsplit=1)[0])


def no_index(environment: Mapping[str, str]) -> list[str]:
    """Return the option that keeps uv from every index where ``environment`` wants none: uv has no variable for it."""
    return ["--no-index"] if environment.get("UV_NO_INDEX", "").lower() in {"1", "true", "yes", "on"} else []


def lock(
    requirements: Sequence[str],
    *,
    platform: str,
    python: str,
    constraints: Sequence[str] = (),
    prerelease: bool = False,
    alone: bool = False,
) -> tuple[LockedPackage, ...]:
    """Return the closure of ``requirements`` for one platform, each package with the hash of its wheel.

    With ``alone`` it is the requirements without what they need themselves.
    """
    arguments = ["pip", "compile", "-", "--format", "pylock.toml", "--no-header", "--no-annotate"]
    arguments += ["--python-version", python, "--python-platform", platform, "--only-binary", ":all:"]
    if prerelease:
        arguments += ["--prerelease", "allow"]
    if alone:
        arguments += ["--no-deps"]
    environment = installer_environment()
    arguments += no_index(environment)
    if platform.endswith("apple-darwin"):
        # torch's wheels ask for macOS 14 (TORCH.md 1.4); uv assumes 13 unless told.
        environment.setdefault("MACOSX_DEPLOYMENT_TARGET", "14.0")
    text = "\n".join([*requirements, *(f"{pin}" for pin in constraints)])
    finished = run_uv(arguments, stdin=text, environment=environment, what=f"resolving '{requirements[0]}'")
    yanked = re.search(r"`?torch==([^`\s]+)`? is yanked.*", finished.stderr)
    if yanked:
        raise InstallerError(f"torch {yanked[1]} was yanked; choose another version", redact_text(yanked[0]), "yanked")
    packages = tomllib.loads(finished.stdout).get("packages", [])
    return tuple(sorted((_locked(package) for package in packages), key=lambda package: package.name))


def _locked(package: Mapping[str, Any]) -> LockedPackage:
    source = package["archive"] if "archive" in package else package["wheels"][0]
    where = source.get("url") or Path(source["path"]).absolute().as_uri()
    wheel = unquote(urlsplit(where).path.rsplit("/", 1)[-1])
    version = package.get("version") or str(parse_wheel_filename(wheel)[1])
    return LockedPackage(
        name=canonicalize_name(package["name"]),
        version=version,
        wheel=wheel,
        sha256=source["hashes"]["sha256"],
        url=redact(where),
    )


def redact(url: str) -> str:
    """Return ``url`` without user, password and query: what may stand in evidence."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.port:
        host = f"{host}:{parts.port}"
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def redact_text(text: str) -> str:
    """Return ``text`` with the credentials of every URL in it removed."""
    # Up to the last @ before the path: a password may hold one.
    return re.sub(r"(\w+://)[^/\s]+@", r"\1", text)


def base_python() -> str:
    """Return the interpreter under this one: environments are made from it, not from ours."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)
