"""The wheels of what was measured, kept on the worker by hash: what was installed once can be installed again.

    wheelhouse/<first 16 digits of the hash>/<wheel>       the wheel, and beside it <wheel>.json, its record
    wheelhouse/environments/<key>.json                     an environment that was built here: what needs which wheel
    wheelhouse/wheelhouse.json, index.html                 what another worker pulls by

A wheel gets its name when its hash was checked and not before: under its name it is whole. Whoever uses wheels holds a
shared lock, so that none is thrown away under them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from pydantic import ValidationError

from farm.errors import EnvironmentFailed, FarmError, Incomplete
from farm.model import Environment, KeptWheel, LockedPackage, Side, WheelhouseManifest, WheelUse
from farm.owners import owner_name, remove_orphans
from farm.settings import Home, wheelhouse_limit
from workers.wheel_fetching import fetch

__all__ = [
    "alone",
    "debris",
    "delta",
    "flat_folder",
    "folders_of",
    "held",
    "keep",
    "keep_closure",
    "kept_environments",
    "kept_wheels",
    "place_of",
    "publish",
    "pulling",
    "put",
    "remember",
    "sha256_of",
    "uses",
    "using",
]

#: Wheels of one closure that are fetched at once; most of the time goes into few large ones.
AT_ONCE = 4
#: A closure with CUDA libraries takes 4.6 GB unpacked (2.12.1+cu130), and is unpacked after its wheels were kept: what
#: would leave less than that is not kept. What the way back needs is kept all the same.
RESERVE_BYTES = 6 * 10**9


def delta(wanted: Environment, instead_of: Environment) -> tuple[LockedPackage, ...]:
    """Return the wheels that turn ``instead_of`` into ``wanted``."""
    there = {package.sha256 for package in instead_of.packages}
    return tuple(package for package in wanted.packages if package.sha256 not in there)


def keep(packages: Iterable[LockedPackage], home: Home, requirement: str) -> None:
    """Fetch every wheel that the wheelhouse lacks; ``requirement`` is the release's own, for a wheel by URL.

    Raises EnvironmentFailed naming the wheel that cannot be had.
    """
    lacking = [package for package in packages if held(package, home) is None]
    if not lacking:
        return
    package = lacking[0]
    try:
        with _fetching(home) as folder:
            for package in lacking:
                # Another worker may have fetched it while this one waited for its turn.
                if held(package, home) is None:
                    put(fetch(package, folder, requirement, lend=True), package, home)
            publish(home)
    except OSError as error:
        raise EnvironmentFailed(
            f"'{package.wheel}' cannot be kept in '{home.wheelhouse}': {error.strerror or error}"
        ) from error


def keep_closure(environment: Environment, home: Home, sides: Sequence[Side] = ()) -> dict[str, str]:
    """Keep every wheel of ``environment`` that can be kept; return why not, by wheel.

    Nothing is raised: an environment can be built without. What could not be kept once is not tried again with every
    cell; `farm wheelhouse verify --repair` tries it. A wheel counts as there by its size, its hash is checked when it
    is used.
    """
    before = _use(home, environment.key)
    reasons = dict(before.not_kept) if before else {}
    lacking = [package for package in environment.packages if not _there(package, home)]
    reasons = {wheel: why for wheel, why in reasons.items() if wheel in {one.wheel for one in lacking}}
    wanted = [package for package in lacking if package.wheel not in reasons]
    requirement = environment.release.requirement

    def keep_one(package: LockedPackage, folder: Path) -> None:
        try:
            if _there(package, home):
                return
            why = _no_room(home, 0)
            if why is None:
                found = fetch(package, folder, requirement, lend=True)
                why = _no_room(home, found.stat().st_size)
            if why is None:
                put(found, package, home)
        except FarmError as error:
            why = str(error)
        except OSError as error:
            why = error.strerror or str(error)
        if why is not None:
            reasons[package.wheel] = why

    if wanted:
        try:
            with _fetching(home) as folder, ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
                list(pool.map(lambda package: keep_one(package, folder), wanted))
        except OSError as error:
            reasons |= {package.wheel: error.strerror or str(error) for package in wanted}
    remember(environment, home, sides, reasons)
    return reasons


def remember(environment: Environment, home: Home, sides: Sequence[Side], not_kept: dict[str, str]) -> None:
    """Write down that ``environment`` is used here; what cannot be written is not known, and nothing fails for it."""
    before = _use(home, environment.key)
    sides = tuple(side for side in Side if side in {*sides, *(before.sides if before else ())})
    use = WheelUse(environment=environment, sides=sides, used=_now(), not_kept=not_kept)
    try:
        _write(home.wheelhouse / "environments" / f"{environment.key}.json", use.model_dump_json(indent=1))
        publish(home)
    except OSError:
        return


def held(package: LockedPackage, home: Home) -> Path | None:
    """Return the wheel of ``package`` in the wheelhouse; None where it is not there or not what was locked."""
    path = place_of(package, home)
    return path if path.is_file() and sha256_of(path) == package.sha256 else None


def flat_folder(packages: Iterable[LockedPackage], home: Home, folder: Path) -> Path:
    """Return ``folder`` with a link to every one of ``packages`` that the wheelhouse holds."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in packages:
        path = place_of(package, home)
        if path.is_file():
            (folder / package.wheel).symlink_to(path.absolute())
    return folder


def folders_of(packages: Iterable[LockedPackage], home: Home) -> list[Path] | None:
    """Return the folders that hold ``packages``; None where one is not there.

    An installer that is given these unpacks each wheel once for all environments: it knows a wheel by its path.
    """
    packages = tuple(packages)
    if not all(_there(package, home) for package in packages):
        return None
    return [place_of(package, home).parent.absolute() for package in packages]


def kept_environments(home: Home) -> tuple[Environment, ...]:
    """Return the locks that were built here and whose every wheel is kept, the last used first."""
    whole = [use for use in uses(home) if all(_there(package, home) for package in use.environment.packages)]
    return tuple(use.environment for use in sorted(whole, key=lambda use: use.used, reverse=True))


def uses(home: Home) -> tuple[WheelUse, ...]:
    """Return the environments that were built here; a record that cannot be read counts as none."""
    found = (_read_use(path) for path in sorted((home.wheelhouse / "environments").glob("*.json")))
    return tuple(use for use in found if use is not None)


def kept_wheels(home: Home) -> tuple[KeptWheel, ...]:
    """Return what lies here, by its records; a wheel that has none and another hash than its folder is not kept."""
    records = ((path, _record(path)) for path in sorted(home.wheelhouse.glob("*/*.whl")) if _is_place(path))
    return tuple(record for path, record in records if path == place_of(record, home))


def debris(home: Home) -> tuple[Path, ...]:
    """Return files that lie where wheels do and are none that is kept."""
    kept = {place_of(record, home) for record in kept_wheels(home)}
    return tuple(path for path in sorted(home.wheelhouse.glob("*/*.whl")) if path not in kept)


def place_of(package: LockedPackage | KeptWheel, home: Home) -> Path:
    """Return where the wheel of ``package`` lies, or would lie."""
    return home.wheelhouse / package.sha256[:16] / package.wheel


def put(found: Path, package: LockedPackage, home: Home, *, pulled_from: str = "") -> KeptWheel:
    """Take over ``found``, a file on the wheelhouse's own file system whose hash was checked; return its record."""
    path = place_of(package, home)
    path.parent.mkdir(parents=True, exist_ok=True)
    size = found.stat().st_size
    # On the disk before it has its name: after a power cut a name may be there without what it names.
    with found.open("rb") as file:
        os.fsync(file.fileno())
    record = KeptWheel(
        name=package.name,
        version=package.version,
        wheel=package.wheel,
        sha256=package.sha256,
        size_bytes=size,
        origin=package.url,
        kept=_now(),
        pulled_from=pulled_from,
    )
    # The record first: a wheel that is there and has none would be without an origin.
    _write(path.with_name(f"{path.name}.json"), record.model_dump_json(indent=1))
    found.replace(path)
    return record


def publish(home: Home) -> None:
    """Write what another worker pulls by: the manifest, and a page of links for any static web server."""
    wheels = kept_wheels(home)
    manifest = WheelhouseManifest(wheels=wheels, environments=uses(home))
    links = [f'<a href="{escape(one.place)}#sha256={one.sha256}">{escape(one.wheel)}</a><br>' for one in wheels]
    page = ["<!DOCTYPE html>", '<html><head><meta charset="utf-8"><title>wheelhouse</title></head><body>', *links]
    _write(home.wheelhouse / "index.html", "\n".join([*page, "</body></html>", ""]))
    _write(home.wheelhouse / "wheelhouse.json", manifest.model_dump_json(indent=1))


@contextmanager
def using(home: Home) -> Iterator[None]:
    """Hold the wheelhouse: nothing in it is thrown away meanwhile."""
    with _locked(home, "lock", fcntl.LOCK_SH):
        yield


@contextmanager
def alone(home: Home) -> Iterator[None]:
    """Have the wheelhouse to oneself. Raises Incomplete where another process uses it."""
    try:
        with _locked(home, "lock", fcntl.LOCK_EX | fcntl.LOCK_NB):
            yield
    except BlockingIOError:
        raise Incomplete(
            f"another process uses the wheelhouse '{home.wheelhouse}' (a worker, a rollback, a pull); try again when "
            "it is done: farm status"
        ) from None


@contextmanager
def pulling(home: Home) -> Iterator[Path]:
    """Give the folder that pulled files arrive in, to one process at a time; what has arrived stays for the next."""
    with using(home), _locked(home, "pulling.lock", fcntl.LOCK_EX):
        folder = home.wheelhouse / ".arriving"
        folder.mkdir(exist_ok=True)
        yield folder
        if not any(folder.iterdir()):
            folder.rmdir()


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _fetching(home: Home) -> Iterator[Path]:
    """Give a folder to fetch into, to one process at a time: two workers never fetch the same wheels twice."""
    with using(home), _locked(home, "fetching.lock", fcntl.LOCK_EX):
        remove_orphans(home.wheelhouse)
        with tempfile.TemporaryDirectory(prefix=f"{owner_name('fetching')}-", dir=home.wheelhouse) as folder:
            yield Path(folder)


@contextmanager
def _locked(home: Home, name: str, how: int) -> Iterator[None]:
    home.wheelhouse.mkdir(parents=True, exist_ok=True)
    with (home.wheelhouse / name).open("a") as file:
        fcntl.flock(file, how)
        yield


def _there(package: LockedPackage, home: Home) -> bool:
    path = place_of(package, home)
    if not path.is_file():
        return False
    record = _record(path)
    return (record.sha256, record.size_bytes) == (package.sha256, path.stat().st_size)


def _no_room(home: Home, coming_bytes: int) -> str | None:
    """Return why ``coming_bytes`` more are not kept: the limit, or the disk."""
    limit = wheelhouse_limit()
    if limit is not None:
        held_bytes = sum(wheel.size_bytes for wheel in kept_wheels(home)) + coming_bytes
        if held_bytes > limit or (not coming_bytes and held_bytes >= limit):
            return (
                f"the wheelhouse would hold {held_bytes / 1e9:.2f} GB, beyond its limit of {limit / 1e9:.2f} GB "
                "(farm wheelhouse prune, or a higher wheelhouse_limit)"
            )
    free = shutil.disk_usage(home.wheelhouse).free
    if free < RESERVE_BYTES + coming_bytes:
        return f"only {free / 1e9:.1f} GB are free at '{home.wheelhouse}', and environments need them"
    return None


def _record(path: Path) -> KeptWheel:
    """Return what is written beside the wheel at ``path``, else what its name says."""
    try:
        record = KeptWheel.model_validate_json(path.with_name(f"{path.name}.json").read_text())
        if (record.sha256[:16], record.wheel) == (path.parent.name, path.name):
            return record
    except (OSError, ValidationError, UnicodeDecodeError):
        pass
    name, version, _, _ = parse_wheel_filename(path.name)
    digest, status = sha256_of(path), path.stat()
    record = KeptWheel(
        name=name,
        version=str(version),
        wheel=path.name,
        sha256=digest,
        size_bytes=status.st_size,
        origin="",
        kept=datetime.fromtimestamp(status.st_mtime, UTC).isoformat(timespec="seconds"),
    )
    if digest.startswith(path.parent.name):
        # Hashing half a gigabyte with every look would be felt.
        _write(path.with_name(f"{path.name}.json"), record.model_dump_json(indent=1))
    return record


def _is_place(path: Path) -> bool:
    try:
        parse_wheel_filename(path.name)
    except InvalidWheelFilename:
        return False
    return len(path.parent.name) == 16 and path.is_file()


def _use(home: Home, key: str) -> WheelUse | None:
    return _read_use(home.wheelhouse / "environments" / f"{key}.json")


def _read_use(path: Path) -> WheelUse | None:
    try:
        return WheelUse.model_validate_json(path.read_text())
    except (OSError, ValidationError, UnicodeDecodeError):
        return None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".writing-", delete=False) as file:
        try:
            file.write(text)
            file.flush()
            # A page that a web server of another user gives out.
            Path(file.name).chmod(0o644)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
