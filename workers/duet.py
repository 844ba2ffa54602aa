"""Arms measured in short alternating windows over several process restarts (STATISTICS.md, The procedure).

One number comes from each restart, a fresh process an arm. Three stretches, each with the budget of the cell: the
first answer, ended at a planned look; where it accuses, its repeat in fresh processes; and where the arms allocate
differently, some restarts with the allocator as it comes, a condition of its own.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from farm.model import ArmTiming, Measuring, Restart, Window
from farm.statistics import Interval, Quantity, block_medians, counted, ratio_interval, settled
from workers.session import ArmEnded, RunnerSession
from workers.surroundings import Surroundings
from workers.windows import InArm, Windows

__all__ = ["START_TIMEOUT_S", "Duet", "Life", "Pair", "Standing", "Timing"]

Purpose = Literal["judging", "confirming", "as it comes"]

#: First and last third of a restart may differ by this much before it counts as unsteady.
UNSTEADY = math.log(1.02)
#: An unsteady restart is measured this much longer, once.
EXTENSION = 0.5
#: torch's import takes 2.3 s here; a cold disk took 20 s.
START_TIMEOUT_S = 120.0
#: Restarts that were disturbed are repeated; more of them than this times the last look, and the machine is unfit.
TRIES = 2
#: A tail whose interval at the last look would still reach this far around its limit is not waited for.
HOPELESS = 0.5


@dataclass(frozen=True)
class Pair:
    """A challenger beside its reference, and the ratios of times at which a gate is settled."""

    challenger: str
    reference: str
    limits: tuple[float, ...]
    p95_limits: tuple[float, ...] = ()
    mean_limits: tuple[float, ...] = ()
    accuses: bool = True
    """Beyond a limit is harm, which is measured again before it is said; else it is a gain that is not there."""


@dataclass(frozen=True)
class Life:
    """One runner that is to be started."""

    arm: str
    restart: int
    purpose: Purpose
    cores: tuple[int, ...] = ()


@dataclass
class Timing:
    """What the timed part of a cell gave."""

    restarts: list[Restart] = field(default_factory=list)
    ended: dict[str, ArmEnded] = field(default_factory=dict)
    """Arms that could not go on, with the restart's number in the reason."""
    measured_ns: int = 0
    stopped_because: str = ""


@dataclass(frozen=True)
class Standing:
    """Where a stretch stands after a restart."""

    purpose: Purpose
    done: int
    wanted: int
    interval: Interval | None
    """Of the first pair's median so far."""
    limit: float | None
    """The limit that it is nearest to."""
    left_s: float


@dataclass(frozen=True)
class _Runner:
    session: RunnerSession
    import_ns: int
    setup_ns: int
    first_step_ns: int
    output_digest: str


class _Again(Exception):
    """Says what disturbed a restart in which an arm ended."""


class Duet:
    """Measures the arms of one cell.

    ``start(life)`` starts a fresh runner of an arm and returns its session before torch is imported; ``setup`` holds
    the fields of its set-up request, ``has_programs(arm)`` says whether its cache folder holds compiled programs.
    ``progress(standing)`` is called between restarts, ``cancelled()`` between windows.
    """

    def __init__(
        self,
        arms: Sequence[str],
        pairs: Sequence[Pair],
        measuring: Measuring,
        start: Callable[[Life], RunnerSession],
        setup: Mapping[str, dict[str, Any]],
        *,
        seed: int,
        progress: Callable[[Standing], None],
        cancelled: Callable[[], bool],
        surroundings: Surroundings | None = None,
        has_programs: Callable[[str], bool] = lambda arm: False,
    ) -> None:
        self.arms = list(arms)
        self.pairs = list(pairs)
        self.measuring = measuring
        self._start = start
        self._setup = setup
        self._random = random.Random(seed)
        self._progress = progress
        self._cancelled = cancelled
        self._surroundings = surroundings or Surroundings()
        self._has_programs = has_programs
        self._repeated: set[str] = set()
        """Arms that ended once while the machine was disturbed."""

    def run(self, *, as_it_comes: bool = False) -> Timing:
        """Measure until every limit is settled at a planned look, the restarts are used up or the budget ends.

        What fails is measured again; ``as_it_comes`` asks for restarts without the settled allocator too.
        """
        timing = Timing()
        measuring = self.measuring
        timing.stopped_because = self._stretch(timing, "judging", max(measuring.looks))
        if self._accuses(timing) and measuring.confirming:
            self._stretch(timing, "confirming", measuring.confirming)
        if as_it_comes and measuring.as_it_comes and timing.restarts and self._live_pairs():
            self._stretch(timing, "as it comes", measuring.as_it_comes)
        return timing

    def _stretch(self, timing: Timing, purpose: Purpose, wanted: int) -> str:
        """Measure ``wanted`` restarts that count; return why it ended."""
        start = time.monotonic()
        deadline = start + self.measuring.budget_s
        longest = 0.0
        tried = 0
        while (done := len(counted(timing.restarts, purpose))) < wanted:
            began = time.monotonic()
            if done and began + longest > deadline:
                return "budget ended"
            if self._cancelled():
                return "cancelled"
            if tried >= TRIES * wanted or (tried and not done and began + longest > deadline):
                return f"disturbed in {tried - done} of {tried} restarts: {_commonest(timing.restarts)}"
            ended = len(timing.ended)
            self._measure_restart(len(timing.restarts), purpose, timing)
            tried += 1
            if not self._live_pairs():
                return "an arm ended"
            if len(timing.ended) > ended:
                # Until it was given up it may have taken all the time there is, and the others are not to blame.
                deadline += time.monotonic() - began
            else:
                longest = max(longest, time.monotonic() - began)
            answered = self._look(timing, purpose, done)
            self._say(timing, purpose, wanted, start, deadline)
            if answered:
                return answered
        return "restarts used up"

    def _look(self, timing: Timing, purpose: Purpose, before: int) -> str:
        """Return why the first answer is settled at a planned look; "" where it is not, or no look was planned."""
        now = len(counted(timing.restarts, purpose))
        if purpose != "judging" or now == before or now not in self.measuring.looks:
            return ""
        return "settled" if self._all_settled(counted(timing.restarts)) else ""

    def _say(self, timing: Timing, purpose: Purpose, wanted: int, start: float, deadline: float) -> None:
        interval, limit = self._closest(counted(timing.restarts))
        done = len(counted(timing.restarts, purpose))
        now = time.monotonic()
        left = min((wanted - done) * (now - start) / max(done, 1), deadline - now)
        self._progress(Standing(purpose, done, wanted, interval, limit, max(0.0, left)))

    # -- one restart --------------------------------------------------------------------------------------------

    def _measure_restart(self, index: int, purpose: Purpose, timing: Timing) -> None:
        order = self.arms[:]
        self._random.shuffle(order)
        began = time.monotonic()
        cores = self._surroundings.cores(index)
        had_programs = {arm: self._has_programs(arm) for arm in order}
        self._surroundings.mark()
        sessions: dict[str, RunnerSession] = {}
        try:
            for arm in order:
                with self._guard(arm, index, timing):
                    sessions[arm] = self._start(Life(arm, index, purpose, cores))
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
            with self._in_window(index, timing):
                restart = self._measure_living(index, order, runners, timing, had_programs, began)
                restart = restart.model_copy(update={"purpose": purpose, "cores": cores})
                said = filter(None, (_cold(restart), self._surroundings.against(restart)))
                timing.restarts.append(restart.model_copy(update={"invalid": "; ".join(said)}))
        except _Again as again:
            timing.restarts.append(
                Restart(index=index, purpose=purpose, order=tuple(order), arms={}, cores=cores, invalid=str(again))
            )
        finally:
            for session in sessions.values():
                session.close()

    @contextmanager
    def _guard(self, arm: str, index: int, timing: Timing) -> Iterator[None]:
        """An arm that ends in the block leaves the cell with its outcome, and the others go on.

        Where the machine was disturbed meanwhile the restart is repeated, once for each arm.
        """
        try:
            yield
        except ArmEnded as ended:
            empty = Restart(index=index, order=(), arms={})
            disturbed = self._surroundings.against(empty) if arm not in self._repeated else ""
            if disturbed:
                self._repeated.add(arm)
                raise _Again(f"{disturbed}; {arm} {ended.outcome}") from ended
            timing.ended[arm] = ArmEnded(ended.outcome, f"{ended.reason} (restart {index + 1})", ended.log_tail)
            self.arms.remove(arm)

    @contextmanager
    def _in_window(self, index: int, timing: Timing) -> Iterator[None]:
        """The same for an arm that ends in a window: the restart is lost with it."""
        try:
            yield
        except InArm as failure:
            with self._guard(failure.arm, index, timing):
                raise failure.ended from None

    def _living(self, order: Sequence[str]) -> list[str]:
        return [arm for arm in order if arm in self.arms]

    def _live_pairs(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.challenger in self.arms and pair.reference in self.arms]

    def _set_up(self, arm: str, session: RunnerSession, hello: dict[str, Any]) -> _Runner:
        reply = session.request("setup", self.measuring.step_timeout_s, **self._setup[arm])
        return _Runner(session, hello["import_ns"], reply["setup_ns"], reply["first_step_ns"], reply["output_digest"])

    def _measure_living(
        self,
        index: int,
        order: Sequence[str],
        runners: Mapping[str, _Runner],
        timing: Timing,
        had_programs: Mapping[str, bool],
        restart_began: float,
    ) -> Restart:
        living = self._living(order)
        sessions = {arm: runners[arm].session for arm in living}
        taking = Windows(sessions, self.measuring, self._random, self._surroundings, self._cancelled)
        plan = taking.plan()
        warmup_ns, steady = taking.warm_up(plan)
        windows: dict[str, list[Window]] = {arm: [] for arm in living}
        began = time.monotonic_ns()
        # The budget buys restarts before blocks: what starts and warms up slowly has fewer blocks, and one at least.
        share = self.measuring.budget_s / min(self.measuring.looks) - (time.monotonic() - restart_began)
        seconds = max(min(self.measuring.restart_s, share), 1e-9)
        timing.measured_ns += taking.measure(windows, plan, seconds)
        unsteady = self._unsteady(windows)
        if unsteady:
            timing.measured_ns += taking.measure(windows, plan, seconds * EXTENSION)
        blocks_ns = time.monotonic_ns() - began
        arms = {
            arm: ArmTiming(
                import_ns=runners[arm].import_ns,
                setup_ns=runners[arm].setup_ns,
                first_step_ns=runners[arm].first_step_ns,
                warmup_ns=warmup_ns[arm],
                steady=steady[arm],
                output_digest=runners[arm].output_digest,
                windows=tuple(windows[arm]),
                cache="warm" if had_programs[arm] else "cold" if self._has_programs(arm) else "none",
            )
            for arm in living
        }
        return Restart(index=index, order=tuple(order), arms=arms, unsteady=unsteady, blocks_ns=blocks_ns)

    def _unsteady(self, windows: Mapping[str, Sequence[Window]]) -> bool:
        """Return whether a pair's ratio moved between the first and the last third of the restart."""
        for pair in self._live_pairs():
            ratios = block_log_ratios(windows[pair.challenger], windows[pair.reference])
            third = len(ratios) // 3
            if third and abs(float(np.median(ratios[-third:]) - np.median(ratios[:third]))) > UNSTEADY:
                return True
        return False

    # -- looking ------------------------------------------------------------------------------------------------

    def _interval(self, restarts: Sequence[Restart], pair: Pair, quantity: Quantity) -> Interval | None:
        return ratio_interval(restarts, pair.challenger, pair.reference, quantity, self.measuring.alpha)

    def _all_settled(self, restarts: Sequence[Restart]) -> bool:
        for pair in self._live_pairs():
            for quantity, limits in _asked(pair).items():
                interval = self._interval(restarts, pair, quantity) if limits else None
                if limits and interval is None:
                    return False
                for limit in limits:
                    assert interval is not None
                    waits = quantity != "p95" or not self._hopeless(interval, limit)
                    if not settled(interval, limit) and waits:
                        return False
        return True

    def _hopeless(self, interval: Interval, limit: float) -> bool:
        """Return whether even the last look would hardly settle ``limit``: its interval narrows as a root at best."""
        if not interval.bounded:
            return False
        half = math.log(interval.high / interval.low) / 2
        projected = half * math.sqrt(interval.restarts / max(self.measuring.looks))
        return abs(math.log(interval.value / limit)) < HOPELESS * projected

    def _accuses(self, timing: Timing) -> bool:
        """Return whether the first answer has a pair of the version question beyond one of its limits."""
        restarts = counted(timing.restarts)
        for pair in self._live_pairs():
            for quantity, limits in _asked(pair).items() if pair.accuses else ():
                interval = self._interval(restarts, pair, quantity) if limits else None
                if interval is not None and interval.bounded and any(interval.low > limit for limit in limits):
                    return True
        return False

    def _closest(self, restarts: Sequence[Restart]) -> tuple[Interval | None, float | None]:
        """Return the first pair's p50 interval and the limit nearest to it, for the progress display."""
        pair = self._live_pairs()[0]
        interval = self._interval(restarts, pair, "p50")
        if interval is None or not pair.limits:
            return interval, pair.limits[0] if pair.limits else None
        return interval, min(pair.limits, key=lambda limit: abs(limit - interval.value))


def block_log_ratios(challenger: Sequence[Window], reference: Sequence[Window]) -> np.ndarray:
    """Return ln(median challenger / median reference) of every block that both have windows in."""
    upper, lower = block_medians(challenger), block_medians(reference)
    both = sorted(block for block in upper.keys() & lower.keys() if upper[block] > 0 and lower[block] > 0)
    return np.array([math.log(upper[block] / lower[block]) for block in both])


def _asked(pair: Pair) -> dict[Quantity, tuple[float, ...]]:
    return {"p50": pair.limits, "mean": pair.mean_limits, "p95": pair.p95_limits}


def _cold(restart: Restart) -> str:
    """Return the reason where an arm compiled what the next restart finds: cold is never judged beside warm."""
    cold = sorted(arm for arm, life in restart.arms.items() if life.cache == "cold")
    return f"the compile cache of {', '.join(cold)} was cold" if cold else ""


def _commonest(restarts: Sequence[Restart]) -> str:
    reasons = Counter(restart.invalid for restart in restarts if restart.invalid)
    return reasons.most_common(1)[0][0] if reasons else "nothing said"
