"""The wheelhouse looked after: what lies there and for whom, whether it is still whole, and what may go."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from packaging.version import InvalidVersion, Version

from farm.errors import EnvironmentFailed, UsageError
from farm.model import KeptWheel, LockedPackage, RunState, Side, WheelState, WheelUse
from farm.settings import Home
from farm.store import Store
from workers.wheelhouse import alone, debris, keep, kept_wheels, place_of, publish, sha256_of, uses, using

__all__ = ["Pruning", "inventory", "label", "prune", "verify"]


def label(use: WheelUse) -> str:
    """Return an environment in words: "baseline 2.12.1+cu130 (41eef522748e)"."""
    sides = " and ".join(use.sides) or "built"
    return f"{sides} {use.environment.release.identity} ({use.environment.key[:12]})"


def inventory(home: Home) -> tuple[WheelState, ...]:
    """Return every wheel that is here or needed, by name and version; nothing is hashed."""
    return _states(home, lambda wheel: place_of(wheel, home).stat().st_size == wheel.size_bytes)


def verify(home: Home, say: Callable[[str], None], *, repair: bool = False) -> tuple[WheelState, ...]:
    """Return the same with every wheel hashed; with ``repair`` what is damaged or missing is fetched again first.

    ``say`` is called with every wheel that is fetched.
    """

    def whole(wheel: KeptWheel) -> bool:
        return sha256_of(place_of(wheel, home)) == wheel.sha256

    with using(home):
        found = _states(home, whole)
        if not repair:
            return found
        known = {package.sha256: (package, use) for use in uses(home) for package in use.environment.packages}
        why: dict[str, str] = {}
        for state in found:
            if state.condition == "whole":
                continue
            say(f"fetching {state.wheel}")
            try:
                package, requirement = _wanted(state, known)
                keep([package], home, requirement)
            except EnvironmentFailed as error:
                why[state.sha256] = str(error)
        return tuple(
            state if state.condition == "whole" else state.model_copy(update={"reason": why.get(state.sha256, "")})
            for state in _states(home, whole)
        )


@dataclass(frozen=True)
class Pruning:
    """What was or would be thrown away, and what stays, with the reason why."""

    wheels: tuple[KeptWheel, ...]
    environments: tuple[str, ...]
    """Labels of those that are forgotten: their wheels are needed by nobody here any more."""
    staying: dict[str, str]
    """Label to the reason why it stays."""

    @property
    def size_bytes(self) -> int:
        return sum(wheel.size_bytes for wheel in self.wheels)


def prune(home: Home, *, unused_for: timedelta, keep_releases: Collection[str] = (), do: bool = False) -> Pruning:
    """Return what no environment in use needs; with ``do`` it is thrown away.

    In use is what was used within ``unused_for``, the baseline that was used last, what a run of this home that is
    under way or was the last one needs, and the releases of ``keep_releases`` ("2.12.1", "2.12.1+cu130").

    Raises Incomplete where another process uses the wheelhouse, UsageError for a release that is none.
    """
    wanted = [_release(text) for text in keep_releases]
    with alone(home):
        since = datetime.now(UTC) - unused_for
        found = uses(home)
        runs = _runs(home)
        baselines = [use for use in found if Side.BASELINE in use.sides]
        last = max(baselines, key=lambda use: use.used).environment.key if baselines else ""
        staying: dict[str, str] = {}
        going: list[WheelUse] = []
        for use in found:
            release = use.environment.release
            if any(_is(release.version, release.variant, one) for one in wanted):
                staying[label(use)] = "named by --keep-releases"
            elif use.environment.key in runs:
                staying[label(use)] = f"needed by run {runs[use.environment.key]}"
            elif use.environment.key == last:
                staying[label(use)] = "the baseline that was used last"
            elif datetime.fromisoformat(use.used) > since:
                staying[label(use)] = f"used on {use.used[:10]}"
            else:
                going.append(use)
        gone = {use.environment.key for use in going}
        needed = {
            package.sha256 for use in found if use.environment.key not in gone for package in use.environment.packages
        }
        # What nobody here needs may have been pulled for what comes next: it has the same time.
        wheels = tuple(
            wheel
            for wheel in kept_wheels(home)
            if wheel.sha256 not in needed
            and not any(_is(wheel.version, "", one) for one in wanted if wheel.name == "torch")
            and (_needed_by(wheel, going) or datetime.fromisoformat(wheel.kept) <= since)
        )
        if do:
            for wheel in wheels:
                path = place_of(wheel, home)
                path.unlink(missing_ok=True)
                path.with_name(f"{path.name}.json").unlink(missing_ok=True)
                if not any(path.parent.glob("*.whl")):
                    shutil.rmtree(path.parent, ignore_errors=True)
            for path in debris(home):
                path.unlink(missing_ok=True)
            for use in going:
                (home.wheelhouse / "environments" / f"{use.environment.key}.json").unlink(missing_ok=True)
            publish(home)
        return Pruning(wheels, tuple(label(use) for use in going), staying)


def _states(home: Home, whole: Callable[[KeptWheel], bool]) -> tuple[WheelState, ...]:
    needed: dict[str, tuple[LockedPackage, list[str], str]] = {}
    for use in uses(home):
        for package in use.environment.packages:
            entry = needed.setdefault(package.sha256, (package, [], use.not_kept.get(package.wheel, "")))
            entry[1].append(label(use))
    found: dict[str, WheelState] = {}
    for wheel in kept_wheels(home):
        by = tuple(needed[wheel.sha256][1]) if wheel.sha256 in needed else ()
        good = _whole(whole, wheel)
        found[wheel.sha256] = WheelState(
            name=wheel.name,
            version=wheel.version,
            wheel=wheel.wheel,
            sha256=wheel.sha256,
            condition="whole" if good else "damaged",
            reason="" if good else "it is not what was kept",
            size_bytes=wheel.size_bytes,
            origin=wheel.origin,
            kept=wheel.kept,
            needed_by=by,
        )
    for sha256, (package, by_whom, why) in needed.items():
        if sha256 not in found:
            found[sha256] = WheelState(
                name=package.name,
                version=package.version,
                wheel=package.wheel,
                sha256=sha256,
                condition="missing",
                reason=why or "it was not kept, or somebody removed it",
                origin=package.url,
                needed_by=tuple(by_whom),
            )
    return tuple(sorted(found.values(), key=lambda state: (state.name, state.version, state.wheel)))


def _whole(whole: Callable[[KeptWheel], bool], wheel: KeptWheel) -> bool:
    try:
        return whole(wheel)
    except OSError:
        return False


def _wanted(state: WheelState, known: dict[str, tuple[LockedPackage, WheelUse]]) -> tuple[LockedPackage, str]:
    if state.sha256 in known:
        package, use = known[state.sha256]
        return package, use.environment.release.requirement
    package = LockedPackage(
        name=state.name, version=state.version, wheel=state.wheel, sha256=state.sha256, url=state.origin
    )
    return package, ""


def _needed_by(wheel: KeptWheel, going: list[WheelUse]) -> bool:
    return any(wheel.sha256 == package.sha256 for use in going for package in use.environment.packages)


def _runs(home: Home) -> dict[str, str]:
    """Return environment key to run, of the runs of this home that are under way and of the newest."""
    if not home.database.is_file():
        return {}
    store = Store.open(home)
    try:
        rows = store.runs()
        wanted = {row.run_id for row in rows if row.state is RunState.RUNNING} | {row.run_id for row in rows[:1]}
        return {key: run for run in sorted(wanted) for key in store.plan(run).environments}
    finally:
        store.close()


def _release(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise UsageError(f"--keep-releases '{text}' is not a release; write 2.12.1, or 2.12.1+cu130") from None


def _is(version: str, variant: str, wanted: Version) -> bool:
    return Version(version).public == wanted.public and wanted.local in (None, variant, Version(version).local)
