"""Whether a cell's numbers mean anything, before any of them is shown (MLPerf's habit)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from farm.model import ArmTiming, Restart, Validity, unpack_ns

__all__ = ["Watch", "validity_of"]

#: Clocks may disagree by this much over a cell before something stood still or jumped.
CLOCK_TOLERANCE_S = 2.0
#: More than this share of an arm's restarts without a steady state makes it `never steady`.
UNSTEADY_SHARE = 0.5


class Watch:
    """Three clocks, started together: what each counts tells a suspended machine from a jumped clock."""

    def __init__(self) -> None:
        self._started = self._read()

    @staticmethod
    def _read() -> tuple[float, float, float]:
        # CLOCK_BOOTTIME goes on while the machine sleeps and CLOCK_MONOTONIC does not; macOS has it the other way
        # round with its own names, so where BOOTTIME is missing only the wall clock is watched.
        boot = time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
        return time.monotonic(), boot, time.time()

    def reasons(self) -> list[str]:
        """Return what the clocks say against this cell; empty where they agree."""
        monotonic, boot, wall = (now - then for now, then in zip(self._read(), self._started, strict=True))
        found = []
        if boot - monotonic > CLOCK_TOLERANCE_S:
            found.append(f"machine suspended for {boot - monotonic:.0f} s")
        if abs(wall - boot) > CLOCK_TOLERANCE_S:
            found.append(f"clock jumped by {wall - boot:+.0f} s")
        return found


def validity_of(reasons: Iterable[str], watch: Watch, restarts: Sequence[Restart]) -> Validity:
    """Return the validity of a cell from its broken controls and its clocks, and of its arms from their restarts."""
    found = [*reasons, *watch.reasons()]
    arms: dict[str, tuple[str, ...]] = {}
    for arm in sorted({name for restart in restarts for name in restart.arms}):
        against = _against([restart.arms[arm] for restart in restarts if arm in restart.arms])
        if against:
            arms[arm] = tuple(against)
    return Validity(valid=not found, reasons=tuple(found), arms=arms)


def _against(lives: Sequence[ArmTiming]) -> list[str]:
    """Return what one arm's runners say against its times. A step of 0 ns is no time (CASES.md A5)."""
    found = []
    unsteady = sum(not life.steady for life in lives)
    if unsteady > UNSTEADY_SHARE * len(lives):
        found.append(f"never steady in {unsteady} of {len(lives)} restarts")
    if any(bool((unpack_ns(window.steps_ns) == 0).any()) for life in lives for window in life.windows):
        found.append("sensor implausible: a step took 0 ns")
    return found
