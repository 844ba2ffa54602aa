"""Windows of the arms of one restart: how long, in which order, when they count (STATISTICS.md, The procedure).

Nothing else runs in the driver during a window: it sleeps on a pipe.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.model import Measuring, Window, pack_ns
from farm.statistics import STEADY_WINDOWS, is_steady
from workers.session import ArmEnded, RunnerSession
from workers.surroundings import Surroundings

__all__ = ["DROP_FIRST_FROM", "MAX_SAMPLES", "SLOW_STEP_NS", "VERY_SLOW_STEP_NS", "InArm", "WindowPlan", "Windows"]

#: A window with at least this many steps drops its first one: caches are cold after the switch.
DROP_FIRST_FROM = 5
#: Steps longer than this get windows of one or two, and none is dropped.
SLOW_STEP_NS = 40_000_000
#: Steps longer than this leave the budget to restarts: one step a window, and each arm once a block.
VERY_SLOW_STEP_NS = 2_000_000_000
#: A step so many times slower than that is slow, whatever interrupted it; others are looked at again.
INTERRUPTED = 10
#: Steps that are kept of a window, evenly spaced: 800 windows of a standard cell stay below what an envelope may hold.
MAX_SAMPLES = 1000


class InArm(Exception):
    """Says which arm ended, inside a window."""

    def __init__(self, arm: str, ended: ArmEnded) -> None:
        super().__init__(arm)
        self.arm = arm
        self.ended = ended


@dataclass(frozen=True)
class WindowPlan:
    """The same for all arms of a restart."""

    steps: int
    once: bool
    """A block holds one window of each arm, by coin: AB or BA. Else there and back: ABBA or BAAB."""


class Windows:
    """Takes windows of the runners ``sessions`` (by arm) of one restart."""

    def __init__(
        self,
        sessions: Mapping[str, RunnerSession],
        measuring: Measuring,
        rng: random.Random,
        surroundings: Surroundings,
        cancelled: Callable[[], bool],
    ) -> None:
        self._sessions = sessions
        self._measuring = measuring
        self._random = rng
        self._surroundings = surroundings
        self._cancelled = cancelled
        self._slow_steps: dict[str, list[float]] = {}
        """What planning has already seen of steps that fill a window each."""

    def take(self, arm: str, steps: int) -> tuple[np.ndarray, dict[str, Any]]:
        """Return the counted steps (ns) of one window of ``arm`` and what was said beside them.

        Raises InArm where the arm ends.
        """
        before = self._surroundings.reading()
        try:
            reply = self._sessions[arm].request("window", self._measuring.step_timeout_s, steps=steps)
        except ArmEnded as ended:
            raise InArm(arm, ended) from ended
        foreign, stolen = self._surroundings.between(before, self._surroundings.reading(), reply["cpu_ns"])
        samples = np.frombuffer(reply["steps_ns"], dtype="<u8")
        kept = samples[1:] if steps >= DROP_FIRST_FROM else samples
        return kept[:: math.ceil(len(kept) / MAX_SAMPLES) or 1], reply | {"foreign_ns": foreign, "stolen_ns": stolen}

    def plan(self) -> WindowPlan:
        """Return the plan for all arms, from the slowest arm's first steps."""
        slowest = max(1.0, *(self._step_ns(arm) for arm in self._sessions))
        if slowest > VERY_SLOW_STEP_NS:
            return WindowPlan(1, once=True)
        fitting = int(self._measuring.window_ms * 1e6 / slowest)
        if slowest > SLOW_STEP_NS:
            return WindowPlan(max(1, min(2, fitting)), once=False)
        return WindowPlan(max(DROP_FIRST_FROM, fitting), once=False)

    def _step_ns(self, arm: str) -> float:
        """Return how long a step takes about: one may be cold, and one may have been interrupted."""
        samples, reply = self.take(arm, 2)
        if samples[-1] < INTERRUPTED * SLOW_STEP_NS:
            samples, reply = self.take(arm, 4)
        else:
            self._slow_steps[arm] = [float(step) for step in samples]
        # By the wall clock at the least: a device that was not waited for stamps nothing, and a window would never end.
        return max(float(np.median(samples)), float(reply["wall_ns"]) / (2 * len(samples)))

    def warm_up(self, plan: WindowPlan) -> tuple[dict[str, int], dict[str, bool]]:
        """Run windows of every arm in turn until none shows a trend, or the cap; as many at least as the rule looks at.

        Return the time inside them (ns) and whether it became steady, by arm.
        """
        # Steps that fill a window each are windows of the warm-up: five of 0.9 s an arm are a third of a restart.
        seen = self._slow_steps if plan.steps == 1 else {}
        medians = {arm: list(seen.get(arm, ())) for arm in self._sessions}
        spent = dict.fromkeys(self._sessions, 0)
        deadline = time.monotonic() + self._measuring.warmup_s * len(self._sessions)
        while True:
            for arm in self._sessions:
                samples, reply = self.take(arm, plan.steps)
                medians[arm].append(float(np.median(samples)))
                spent[arm] += reply["wall_ns"]
            steady = {arm: is_steady(medians[arm]) for arm in self._sessions}
            # A slow step's cap can be over before five windows are: it would never be steady.
            asked = all(len(found) >= STEADY_WINDOWS for found in medians.values())
            if all(steady.values()) or (asked and time.monotonic() > deadline):
                return spent, steady

    def measure(self, windows: dict[str, list[Window]], plan: WindowPlan, seconds: float) -> int:
        """Add blocks to ``windows`` until ``seconds`` were inside them; return the time inside (ns)."""
        arms = list(windows)
        inside = 0
        block = max((window.block for kept in windows.values() for window in kept), default=-1) + 1
        while inside < seconds * 1e9 and not self._cancelled():
            self._random.shuffle(arms)
            for position, arm in enumerate(arms if plan.once else arms + arms[::-1]):
                samples, reply = self.take(arm, plan.steps)
                windows[arm].append(_window(block, position, samples, reply))
                inside += reply["wall_ns"]
            block += 1
        return inside


def _window(block: int, position: int, samples: Sequence[int] | np.ndarray, reply: Mapping[str, Any]) -> Window:
    return Window(
        block=block,
        position=position,
        steps_ns=pack_ns(np.asarray(samples)),
        wall_ns=reply["wall_ns"],
        cpu_ns=reply["cpu_ns"],
        minor_faults=reply["minor_faults"],
        device_ns=reply.get("device_ns"),
        sync_ns=reply.get("sync_ns", 0),
        waited_ns=reply.get("waited_ns"),
        foreign_ns=reply["foreign_ns"],
        stolen_ns=reply["stolen_ns"],
    )
