"""What it takes to say that times fail: beyond the limit, beyond the cell's own noise, and once more in a repeat.

A run of hundreds of cells holds a few whose first answer lies beyond a limit by bad luck. So a first answer accuses
nothing: fresh processes are measured again, and both answers are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from farm.gates.question import GateQuestion
from farm.model import Question, Status
from farm.power import noise_fence
from farm.statistics import (
    Interval,
    Quantity,
    counted,
    least_restarts,
    ratio_interval,
    repeat_agrees,
    restart_log_ratios,
)

__all__ = ["Answer", "accused"]


@dataclass(frozen=True)
class Answer:
    """What becomes of a first answer beyond its limit, in words, with the repeat's own figure."""

    status: Status
    words: str = ""
    repeat: Interval | None = None


def accused(asked: GateQuestion, quantity: Quantity, first: Interval, limit: float) -> Answer:
    """Return whether ``first``, whose lower end lies beyond ``limit`` (a ratio of times), stands as an accusation.

    The repeat agrees where its own estimate is beyond the limit too and the interval over the first answer and the
    repeat together still is. The feature question accuses nobody: a gain that is not there is not there.
    """
    assert asked.result is not None
    if asked.question is Question.FEATURE:
        return Answer(Status.FAIL)
    fence = noise_fence(asked.result.noise)
    # A tail is no quieter than the median whose history this is.
    if fence is not None and first.value <= fence:
        words = f"within this cell's own noise: with itself it reaches {(fence - 1) * 100:+.1f} % on this machine"
        return Answer(Status.INCONCLUSIVE, words)
    measuring = asked.cell.measuring
    if not measuring.confirming:
        return Answer(Status.FAIL)
    restarts = counted(asked.result.restarts, "confirming")
    repeat = ratio_interval(restarts, asked.arm, asked.reference, quantity, measuring.alpha)
    needed = least_restarts(measuring.alpha)
    if repeat is None or repeat.restarts < needed:
        seen = repeat.restarts if repeat else 0
        words = f"not confirmed: the repeat has {seen} of the {needed} restarts that it needs"
        return Answer(Status.INCONCLUSIVE, words, repeat)
    logs = [
        restart_log_ratios(found, asked.arm, asked.reference, quantity)
        for found in (counted(asked.result.restarts), restarts)
    ]
    said = f"the repeat in {repeat.restarts} fresh processes says {(repeat.value - 1) * 100:+.1f} % time"
    if repeat_agrees(logs[0], logs[1], limit, measuring.alpha):
        return Answer(Status.FAIL, f"confirmed: {said}", repeat)
    return Answer(Status.INCONCLUSIVE, f"not confirmed: {said}", repeat)
