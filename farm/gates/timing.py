"""Latency and throughput: the ratio of step times with its exact interval over restarts, beside the tier's limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from farm.gates.question import GateQuestion
from farm.model import Figure, Gate, Question, Restart, Status, Verdict, unpack_ns
from farm.statistics import (
    Interval,
    Quantity,
    least_restarts,
    ratio_interval,
    restart_log_ratios,
    two_modes,
)

__all__ = ["implausible", "latency", "throughput"]

Found = TypeVar("Found")


def latency(asked: GateQuestion) -> Verdict:
    """Return the verdict on the median step and, where the tier asks, on the 95th percentile.

    The version question asks for no worse than the limit; the feature question asks the median for the gain that the
    tier set beforehand, or for its gain in memory at a median that is no worse.
    """
    unusable = _unusable(Gate.LATENCY, asked)
    if unusable is not None:
        return unusable
    tier = asked.tier
    gain = asked.question is Question.FEATURE and not _memory_earns(asked)
    p50_limit = tier.feature_gain if gain else tier.p50_ratio
    parts = [_part(asked, "p50", p50_limit)]
    if tier.p95_ratio is not None:
        parts.append(_part(asked, "p95", tier.p95_ratio))
    else:
        parts.append((Status.PASS, _figure(asked, "p95", None), ""))
    return _worst(Gate.LATENCY, asked, parts, asks_gain=gain)


def throughput(asked: GateQuestion) -> Verdict:
    """Return the verdict on items per second: no fewer than the tier's ratio.

    The feature question asks it for the gain where the tier does not ask its latency.
    """
    unusable = _unusable(Gate.THROUGHPUT, asked)
    if unusable is not None:
        return unusable
    gain = asked.question is Question.FEATURE and Gate.LATENCY not in asked.tier.required and not _memory_earns(asked)
    limit = 1 / asked.tier.feature_gain if gain else asked.tier.throughput_ratio
    interval = _interval(asked, "mean")
    if interval is None:
        return Verdict(gate=Gate.THROUGHPUT, status=Status.UNTESTED, reason="no restart measured both arms")
    items = _items(asked)
    if items is None:
        reason = "sensor implausible: a step of 0 items"
        return Verdict(gate=Gate.THROUGHPUT, status=Status.UNTESTED, reason=reason)
    low = items / interval.high if math.isfinite(interval.high) else None
    high = items / interval.low if interval.low > 0 else None
    figure = Figure(name="throughput ratio", value=items / interval.value, low=low, high=high, limit=limit)
    if low is None or high is None:
        status = Status.INCONCLUSIVE
    else:
        status = Status.PASS if low >= limit else Status.FAIL if high < limit else Status.INCONCLUSIVE
    return _worst(Gate.THROUGHPUT, asked, [(status, figure, "throughput")], asks_gain=gain)


def _part(asked: GateQuestion, quantity: Quantity, limit: float) -> tuple[Status, Figure | None, str]:
    interval = _interval(asked, quantity)
    if interval is None:
        return Status.UNTESTED, None, quantity
    figure = _figure(asked, quantity, limit)
    if not interval.bounded:
        return Status.INCONCLUSIVE, figure, quantity
    if interval.high <= limit:
        return Status.PASS, figure, quantity
    return (Status.FAIL if interval.low > limit else Status.INCONCLUSIVE), figure, quantity


def _figure(asked: GateQuestion, quantity: Quantity, limit: float | None) -> Figure | None:
    interval = _interval(asked, quantity)
    if interval is None:
        return None
    low, high = (interval.low, interval.high) if interval.bounded else (None, None)
    return Figure(name=f"{quantity} ratio", value=interval.value, low=low, high=high, limit=limit)


def _interval(asked: GateQuestion, quantity: Quantity) -> Interval | None:
    assert asked.result is not None
    restarts, alpha = asked.result.restarts, asked.cell.measuring.alpha
    return _once(asked, quantity, lambda: ratio_interval(restarts, asked.arm, asked.reference, quantity, alpha))


def _worst(
    gate: Gate, asked: GateQuestion, parts: list[tuple[Status, Figure | None, str]], *, asks_gain: bool
) -> Verdict:
    order = [Status.FAIL, Status.UNTESTED, Status.INCONCLUSIVE, Status.PASS]
    status, figure, quantity = min(parts, key=lambda part: order.index(part[0]))
    others = tuple(other for _, other, _ in parts if other is not None and other is not figure)
    return Verdict(
        gate=gate,
        status=status,
        reason=_reason(asked, status, figure, quantity, asks_gain),
        figure=figure,
        others=others,
    )


def _reason(asked: GateQuestion, status: Status, figure: Figure | None, quantity: str, asks_gain: bool) -> str:
    assert asked.result is not None
    if figure is None:
        return "no restart measured both arms"
    change = _percent(figure.value)
    if status is Status.INCONCLUSIVE and figure.low is None:
        needed = least_restarts(asked.cell.measuring.alpha)
        both = _interval(asked, "mean")
        measured = f"after {both.restarts if both else 0} restarts ({asked.result.stopped_because})"
        return f"{quantity} {change} {measured}; an interval needs {needed}"
    if status is Status.INCONCLUSIVE:
        return f"{quantity} {change}: the interval holds the limit ({asked.result.stopped_because})"
    if asks_gain:
        wanted = _percent(figure.limit or 1.0)
        said = "brings the gain asked for" if status is Status.PASS else f"the tier asks for {wanted}"
        return f"{quantity} {change}: {said}"
    better = figure.high is not None and (figure.high < 1.0 if quantity != "throughput" else (figure.low or 0) > 1.0)
    word = "better" if better else "no worse than the limit"
    return f"{quantity} {change}: {'beyond the limit' if status is Status.FAIL else word}"


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f} %"


def implausible(restarts: Sequence[Restart], arms: Sequence[str]) -> str:
    """Return what no clock can have said of ``arms``: a step of 0 ns or less, a window without steps; else nothing."""
    for restart in restarts:
        for name in arms:
            for window in restart.arms[name].windows if name in restart.arms else ():
                try:
                    # A negative time of a clock that went back is a huge number among unsigned ones.
                    samples = unpack_ns(window.steps_ns).astype(np.int64)
                except ValueError as error:
                    return f"{name}: {error}"
                if not len(samples):
                    return f"sensor implausible: a window of {name} holds no steps"
                if samples.min() <= 0:
                    return f"sensor implausible: a step of {name} took {samples.min()} ns"
    return ""


def _once(asked: GateQuestion, what: str, work: Callable[[], Found]) -> Found:
    """Return what ``work`` gives for this pair of arms; it is the same for every tier, and done for the first."""
    key = (asked.arm, asked.reference, what)
    if key not in asked.known:
        asked.known[key] = work()
    found: Found = asked.known[key]
    return found


def _unusable(gate: Gate, asked: GateQuestion) -> Verdict | None:
    """Return the verdict where times cannot be what they say, or fall into two modes; None where they can be judged."""
    assert asked.result is not None
    restarts, against = asked.result.restarts, asked.result.validity.arms
    for name in (asked.arm, asked.reference):
        if name in against:
            return Verdict(gate=gate, status=Status.UNTESTED, reason=f"invalid: {name} {'; '.join(against[name])}")
    reason = _once(asked, "implausible", lambda: implausible(restarts, (asked.arm, asked.reference)))
    if reason:
        return Verdict(gate=gate, status=Status.UNTESTED, reason=f"invalid: {reason}")
    return _modes(gate, asked)


def _modes(gate: Gate, asked: GateQuestion) -> Verdict | None:
    """Return the verdict where the ratio falls into two modes: a mean of both is a number that never happens."""
    assert asked.result is not None
    restarts = asked.result.restarts
    ratios = _once(asked, "ratios", lambda: restart_log_ratios(restarts, asked.arm, asked.reference, "p50"))
    modes = two_modes([math.exp(ratio) for ratio in ratios])
    if modes is None:
        return None
    reason = f"two modes from process to process, {modes[0]:.3f} and {modes[1]:.3f}: no verdict on a mean of both"
    return Verdict(gate=gate, status=Status.UNTESTED, reason=reason)


def _items(asked: GateQuestion) -> float | None:
    """Return how many items the challenger's step has for each of the reference's; None where that cannot be."""
    arm, reference = asked.challenger.examination, asked.other.examination
    if arm is None or reference is None:
        return 1.0
    counts = (arm.items_per_step, reference.items_per_step)
    if not all(math.isfinite(count) and count > 0 for count in counts):
        return None
    return counts[0] / counts[1]


def _memory_earns(asked: GateQuestion) -> bool:
    """Return whether the feature's peak memory alone is the gain that the tier asks for."""
    wanted = asked.tier.feature_memory_gain
    arm, reference = asked.challenger.examination, asked.other.examination
    if wanted is None or arm is None or reference is None or arm.memory is None or reference.memory is None:
        return False
    above, below = arm.memory.allocator_peak_bytes, reference.memory.allocator_peak_bytes
    return above is not None and below is not None and above > 0 and below > 0 and above / below <= wanted
