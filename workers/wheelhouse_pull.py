"""Wheels from another worker's wheelhouse: a folder (mounted, copied) or what a static web server gives out of it.

What arrives is held against its hash before it gets its name. An interrupted pull keeps what has arrived of a file and
goes on there, where the server can (`python -m http.server` cannot, and begins that file again).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pydantic import ValidationError

from farm.errors import FarmError, InfrastructureFailed, UsageError
from farm.installer import redact
from farm.model import KeptWheel, LockedPackage, WheelhouseManifest
from farm.settings import Home
from workers.wheel_transport import open_url
from workers.wheelhouse import place_of, publish, pulling, put, sha256_of

__all__ = ["Pulled", "pull"]

#: A manifest of a thousand wheels and fifty environments has 2 MB.
MAX_MANIFEST_BYTES = 64 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Pulled:
    """What a pull brought."""

    wheels: tuple[KeptWheel, ...]
    there: int
    """Wheels that were here already."""
    failed: dict[str, str]
    """Wheel to the reason."""


def pull(place: str, home: Home, say: Callable[[str], None], *, releases: Sequence[str] = ()) -> Pulled:
    """Copy what the wheelhouse at ``place`` has and this one lacks; ``releases`` ("2.12.1") limit it to what they need.

    ``say`` is called with every wheel. Raises UsageError where there is no wheelhouse or no such release,
    InfrastructureFailed where it cannot be read; a single wheel that cannot be had is in the answer.
    """
    source: _Folder | _Server = _Server(place) if "://" in place else _Folder(Path(place).expanduser())
    wanted = _chosen(source, source.manifest(), releases)
    lacking = [one for one in wanted if not _is_whole(place_of(one, home), one)]
    brought: list[KeptWheel] = []
    failed: dict[str, str] = {}
    if lacking:
        with pulling(home) as folder:
            for count, one in enumerate(lacking, start=1):
                say(f"{count} of {len(lacking)}: {one.wheel} ({one.size_bytes / 1e6:.1f} MB)")
                part = folder / f"{one.sha256}.part"
                try:
                    source.bring(one, part)
                    if sha256_of(part) != one.sha256:
                        part.unlink()
                        raise InfrastructureFailed("what arrived has another hash than its manifest says")
                    kept = put(part, _locked(one), home, pulled_from=source.name)
                except FileNotFoundError:
                    failed[one.wheel] = "it is in the manifest and not there"
                except FarmError as error:
                    failed[one.wheel] = str(error)
                except OSError as error:
                    raise InfrastructureFailed(
                        f"'{one.wheel}' cannot be kept in '{home.wheelhouse}': {error.strerror or error}; what has "
                        "arrived stays, the same command goes on"
                    ) from error
                else:
                    brought.append(kept)
            publish(home)
    return Pulled(tuple(brought), len(wanted) - len(lacking), failed)


class _Folder:
    """A wheelhouse that lies in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root / "wheelhouse" if (root / "wheelhouse").is_dir() else root
        self.name = str(self.root.absolute())

    def manifest(self) -> WheelhouseManifest:
        if not self.root.is_dir():
            raise UsageError(f"there is no folder '{self.root}'; name a wheelhouse, the home that it is in, or a URL")
        path = self.root / "wheelhouse.json"
        try:
            return _parsed(path.read_bytes(), self.name)
        except FileNotFoundError:
            raise UsageError(f"'{self.root}' is no wheelhouse: it has no wheelhouse.json") from None
        except OSError as error:
            raise InfrastructureFailed(f"'{path}' cannot be read: {error.strerror}") from error

    def bring(self, wheel: KeptWheel, part: Path) -> None:
        # Never linked: what another worker keeps is a second copy or it is none.
        shutil.copyfile(self.root / wheel.place, part)


class _Server:
    """A wheelhouse that a web server gives out."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"'{redact(url)}' is neither a folder nor an http or https address")
        self.url = url.removesuffix("index.html").rstrip("/")
        self.name = redact(self.url)

    def manifest(self) -> WheelhouseManifest:
        try:
            with open_url(f"{self.url}/wheelhouse.json") as answer:
                content = answer.read(MAX_MANIFEST_BYTES + 1)
        except FileNotFoundError:
            raise UsageError(
                f"'{self.name}' serves no wheelhouse.json; serve the wheelhouse folder itself: python -m http.server"
            ) from None
        if len(content) > MAX_MANIFEST_BYTES:
            raise InfrastructureFailed(f"'{self.name}/wheelhouse.json' is larger than any manifest")
        return _parsed(content, self.name)

    def bring(self, wheel: KeptWheel, part: Path) -> None:
        arrived = part.stat().st_size if part.exists() else 0
        if arrived >= wheel.size_bytes:
            # Whole, or more than there can be; the hash says which.
            if arrived == wheel.size_bytes:
                return
            arrived = 0
        with open_url(f"{self.url}/{quote(wheel.place)}", from_byte=arrived) as answer:
            goes_on = answer.status == 206
            with part.open("ab" if goes_on else "wb") as file:
                left = wheel.size_bytes - (arrived if goes_on else 0)
                # One byte more than was announced is enough to know.
                while left >= 0 and (chunk := answer.read(min(CHUNK_BYTES, left + 1))):
                    file.write(chunk)
                    left -= len(chunk)
        if left > 0:
            raise InfrastructureFailed("the connection ended early; the same command goes on there")


def _parsed(content: bytes, where: str) -> WheelhouseManifest:
    try:
        return WheelhouseManifest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise UsageError(f"'{where}/wheelhouse.json' is not a wheelhouse's manifest: {at}: {first['msg']}") from error


def _chosen(source: _Folder | _Server, manifest: WheelhouseManifest, releases: Sequence[str]) -> list[KeptWheel]:
    if not releases:
        return list(manifest.wheels)
    needed: set[str] = set()
    known = {use.environment.release.identity for use in manifest.environments}
    for text in releases:
        found = [
            use
            for use in manifest.environments
            if text in (use.environment.release.version, use.environment.release.identity)
        ]
        if not found:
            has = ", ".join(sorted(known)) or "no release"
            raise UsageError(f"'{source.name}' has nothing for release '{text}'; it has {has}")
        needed |= {package.sha256 for use in found for package in use.environment.packages}
    return [wheel for wheel in manifest.wheels if wheel.sha256 in needed]


def _is_whole(path: Path, wheel: KeptWheel) -> bool:
    with suppress(OSError):
        return path.stat().st_size == wheel.size_bytes and sha256_of(path) == wheel.sha256
    return False


def _locked(wheel: KeptWheel) -> LockedPackage:
    return LockedPackage(
        name=wheel.name, version=wheel.version, wheel=wheel.wheel, sha256=wheel.sha256, url=redact(wheel.origin)
    )
