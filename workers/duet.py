"""Arms measured in short alternating windows over several process restarts (STATISTICS.md, The procedure).

One number comes from each restart, a fresh process an arm; blocks of windows inside it are ABBA or BAAB by coin,
or for more arms a random permutation and its reverse. Nothing else runs here during a window: the driver sleeps
on a pipe.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from farm.model import ArmTiming, Measuring, Restart, Window, pack_ns
from farm.statistics import Interval, Quantity, block_medians, is_steady, ratio_interval, settled
from workers.session import ArmEnded, RunnerSession

__all__ = ["Duet", "Pair", "Timing"]

#: A window with at least this many steps drops its first one: caches are cold after the switch.
DROP_FIRST_FROM = 5
#: Steps longer than this get windows of one or two, and none is dropped.
SLOW_STEP_NS = 40_000_000
#: Steps longer than this leave the budget to restarts: one step a window.
VERY_SLOW_STEP_NS = 2_000_000_000
#: Steps that are kept of a window, evenly spaced: 800 windows of a standard cell stay below what an envelope may hold.
MAX_SAMPLES = 1000
#: First and last third of a restart may differ by this much before it counts as unsteady.
UNSTEADY = math.log(1.02)
#: An unsteady restart is measured this much longer, once.
EXTENSION = 0.5
#: torch's import takes 2.3 s here; a cold disk took 20 s.
START_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Pair:
    """A challenger beside its reference, and the p50 ratios at which a gate is settled."""

    challenger: str
    reference: str
    limits: tuple[float, ...]
    p95_limits: tuple[float, ...] = ()
    mean_limits: tuple[float, ...] = ()


@dataclass
class Timing:
    """What the timed part of a cell gave."""

    restarts: list[Restart] = field(default_factory=list)
    ended: dict[str, ArmEnded] = field(default_factory=dict)
    """Arms that could not go on, with the restart's number in the reason."""
    measured_ns: int = 0
    stopped_because: str = ""


@dataclass(frozen=True)
class _Runner:
    session: RunnerSession
    import_ns: int
    setup_ns: int
    first_step_ns: int
    output_digest: str


class Duet:
    """Measures the arms of one cell.

    ``start(arm, restart)`` starts a fresh runner of an arm and returns its session before torch is imported;
    ``setup`` holds the fields of its set-up request. ``progress(restarts, interval, limit, seconds_left)`` is called
    between restarts, ``cancelled()`` between windows.
    """

    def __init__(
        self,
        arms: Sequence[str],
        pairs: Sequence[Pair],
        measuring: Measuring,
        start: Callable[[str, int], RunnerSession],
        setup: Mapping[str, dict[str, Any]],
        *,
        seed: int,
        progress: Callable[[int, Interval | None, float | None, float], None],
        cancelled: Callable[[], bool],
    ) -> None:
        self.arms = list(arms)
        self.pairs = list(pairs)
        self.measuring = measuring
        self._start = start
        self._setup = setup
        self._random = random.Random(seed)
        self._progress = progress
        self._cancelled = cancelled

    def run(self) -> Timing:
        """Measure until every limit is settled at a planned look, the restarts are used up or the budget ends."""
        timing = Timing()
        start = time.monotonic()
        deadline = start + self.measuring.budget_s
        longest = 0.0
        last = max(self.measuring.looks)
        while len(timing.restarts) < last:
            began = time.monotonic()
            if timing.restarts and began + longest > deadline:
                timing.stopped_because = "budget ended"
                return timing
            if self._cancelled():
                timing.stopped_because = "cancelled"
                return timing
            self._measure_restart(len(timing.restarts), timing)
            if not self._live_pairs():
                timing.stopped_because = "an arm ended"
                return timing
            longest = max(longest, time.monotonic() - began)
            interval, limit = self._closest(timing.restarts)
            done = len(timing.restarts)
            left = min((last - done) * (time.monotonic() - start) / max(done, 1), deadline - time.monotonic())
            self._progress(done, interval, limit, max(0.0, left))
            if len(timing.restarts) in self.measuring.looks and self._all_settled(timing.restarts):
                timing.stopped_because = "settled"
                return timing
        timing.stopped_because = "restarts used up"
        return timing

    # -- one restart --------------------------------------------------------------------------------------------

    def _measure_restart(self, index: int, timing: Timing) -> None:
        order = self.arms[:]
        self._random.shuffle(order)
        sessions: dict[str, RunnerSession] = {}
        try:
            for arm in order:
                with self._guard(arm, index, timing):
                    sessions[arm] = self._start(arm, index)
            runners: dict[str, _Runner] = {}
            hellos: dict[str, dict[str, Any]] = {}
            # Imports run side by side, set-ups one after the other: a compiling set-up must not slow a neighbour's.
            for arm in self._living(order):
                with self._guard(arm, index, timing):
                    hellos[arm] = sessions[arm].hello(START_TIMEOUT_S)
            for arm in self._living(order):
                with self._guard(arm, index, timing):
                    runners[arm] = self._set_up(arm, sessions[arm], hellos[arm])
            if not self._live_pairs():
                return
            measured = self._measure_living(index, order, runners, timing)
            if measured is not None:
                timing.restarts.append(measured)
        finally:
            for session in sessions.values():
                session.close()

    @contextmanager
    def _guard(self, arm: str, index: int, timing: Timing) -> Iterator[None]:
        """An arm that ends in the block leaves the cell with its outcome, and the others go on."""
        try:
            yield
        except ArmEnded as ended:
            timing.ended[arm] = ArmEnded(ended.outcome, f"{ended.reason} (restart {index + 1})", ended.log_tail)
            self.arms.remove(arm)

    def _living(self, order: Sequence[str]) -> list[str]:
        return [arm for arm in order if arm in self.arms]

    def _live_pairs(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.challenger in self.arms and pair.reference in self.arms]

    def _set_up(self, arm: str, session: RunnerSession, hello: dict[str, Any]) -> _Runner:
        reply = session.request("setup", self.measuring.step_timeout_s, **self._setup[arm])
        return _Runner(session, hello["import_ns"], reply["setup_ns"], reply["first_step_ns"], reply["output_digest"])

    def _measure_living(
        self, index: int, order: Sequence[str], runners: Mapping[str, _Runner], timing: Timing
    ) -> Restart | None:
        try:
            steps = self._steps_per_window(order, runners)
            warmup_ns, steady = self._warm_up(order, runners, steps)
            windows: dict[str, list[Window]] = {arm: [] for arm in self._living(order)}
            self._measure_blocks(windows, runners, steps, self.measuring.restart_s, timing)
            unsteady = self._unsteady(windows)
            if unsteady:
                self._measure_blocks(windows, runners, steps, self.measuring.restart_s * EXTENSION, timing)
        except _InArm as failure:
            arm, ended = failure.arm, failure.ended
            timing.ended[arm] = ArmEnded(ended.outcome, f"{ended.reason} (restart {index + 1})", ended.log_tail)
            self.arms.remove(arm)
            return None
        arms = {
            arm: ArmTiming(
                import_ns=runners[arm].import_ns,
                setup_ns=runners[arm].setup_ns,
                first_step_ns=runners[arm].first_step_ns,
                warmup_ns=warmup_ns[arm],
                steady=steady[arm],
                output_digest=runners[arm].output_digest,
                windows=tuple(windows[arm]),
            )
            for arm in self._living(order)
        }
        return Restart(index=index, order=tuple(order), arms=arms, unsteady=unsteady)

    def _window(self, arm: str, runners: Mapping[str, _Runner], steps: int) -> tuple[np.ndarray, dict[str, Any]]:
        try:
            reply = runners[arm].session.request("window", self.measuring.step_timeout_s, steps=steps)
        except ArmEnded as ended:
            raise _InArm(arm, ended) from ended
        samples = np.frombuffer(reply["steps_ns"], dtype="<u8")
        kept = samples[1:] if steps >= DROP_FIRST_FROM else samples
        return kept[:: math.ceil(len(kept) / MAX_SAMPLES) or 1], reply

    def _steps_per_window(self, order: Sequence[str], runners: Mapping[str, _Runner]) -> int:
        """Return one number of steps for all arms, from the slowest arm's second step."""
        slowest = 1.0
        for arm in self._living(order):
            samples, _ = self._window(arm, runners, 2)
            slowest = max(slowest, float(samples[-1]))
        if slowest > VERY_SLOW_STEP_NS:
            return 1
        fitting = int(self.measuring.window_ms * 1e6 / slowest)
        return max(1, min(2, fitting)) if slowest > SLOW_STEP_NS else max(DROP_FIRST_FROM, fitting)

    def _warm_up(
        self, order: Sequence[str], runners: Mapping[str, _Runner], steps: int
    ) -> tuple[dict[str, int], dict[str, bool]]:
        """Run windows of every arm in turn until none shows a trend, or the cap."""
        living = self._living(order)
        medians: dict[str, list[float]] = {arm: [] for arm in living}
        spent = dict.fromkeys(living, 0)
        deadline = time.monotonic() + self.measuring.warmup_s * len(living)
        while True:
            for arm in living:
                samples, reply = self._window(arm, runners, steps)
                medians[arm].append(float(np.median(samples)))
                spent[arm] += reply["wall_ns"]
            steady = {arm: is_steady(medians[arm]) for arm in living}
            if all(steady.values()) or time.monotonic() > deadline:
                return spent, steady

    def _measure_blocks(
        self,
        windows: dict[str, list[Window]],
        runners: Mapping[str, _Runner],
        steps: int,
        seconds: float,
        timing: Timing,
    ) -> None:
        arms = list(windows)
        measured = 0
        block = max((w.block for kept in windows.values() for w in kept), default=-1) + 1
        while measured < seconds * 1e9:
            if self._cancelled():
                return
            self._random.shuffle(arms)
            for position, arm in enumerate(arms + arms[::-1]):
                samples, reply = self._window(arm, runners, steps)
                windows[arm].append(
                    Window(
                        block=block,
                        position=position,
                        steps_ns=pack_ns(samples),
                        wall_ns=reply["wall_ns"],
                        cpu_ns=reply["cpu_ns"],
                        minor_faults=reply["minor_faults"],
                    )
                )
                measured += reply["wall_ns"]
            block += 1
        timing.measured_ns += measured

    def _unsteady(self, windows: Mapping[str, Sequence[Window]]) -> bool:
        """Return whether a pair's ratio moved between the first and the last third of the restart."""
        for pair in self._live_pairs():
            ratios = block_log_ratios(windows[pair.challenger], windows[pair.reference])
            third = len(ratios) // 3
            if third and abs(float(np.median(ratios[-third:]) - np.median(ratios[:third]))) > UNSTEADY:
                return True
        return False

    # -- looking ------------------------------------------------------------------------------------------------

    def _intervals(self, restarts: Sequence[Restart], pair: Pair, quantity: Quantity) -> Interval | None:
        return ratio_interval(restarts, pair.challenger, pair.reference, quantity, self.measuring.alpha)

    def _all_settled(self, restarts: Sequence[Restart]) -> bool:
        for pair in self._live_pairs():
            asked: dict[Quantity, tuple[float, ...]]
            asked = {"p50": pair.limits, "mean": pair.mean_limits, "p95": pair.p95_limits}
            for quantity, limits in asked.items():
                interval = self._intervals(restarts, pair, quantity) if limits else None
                if limits and (interval is None or not all(settled(interval, limit) for limit in limits)):
                    return False
        return True

    def _closest(self, restarts: Sequence[Restart]) -> tuple[Interval | None, float | None]:
        """Return the first pair's p50 interval and the limit nearest to it, for the progress display."""
        pair = self._live_pairs()[0]
        interval = self._intervals(restarts, pair, "p50")
        if interval is None or not pair.limits:
            return interval, pair.limits[0] if pair.limits else None
        return interval, min(pair.limits, key=lambda limit: abs(limit - interval.value))


class _InArm(Exception):
    """Says which arm ended, inside a window."""

    def __init__(self, arm: str, ended: ArmEnded) -> None:
        super().__init__(arm)
        self.arm = arm
        self.ended = ended


def block_log_ratios(challenger: Sequence[Window], reference: Sequence[Window]) -> np.ndarray:
    """Return ln(median challenger / median reference) of every block that both have windows in."""
    upper, lower = block_medians(challenger), block_medians(reference)
    return np.array([math.log(upper[b] / lower[b]) for b in sorted(upper.keys() & lower.keys())])
