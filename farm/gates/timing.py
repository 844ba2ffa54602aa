"""Latency and throughput: the ratio of step times with its exact interval over restarts, beside the tier's limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from farm.gates.accusation import Answer, accused
from farm.gates.question import GateQuestion
from farm.model import Figure, Gate, Question, Restart, Status, Verdict, unpack_ns
from farm.statistics import (
    Interval,
    Quantity,
    arm_modes,
    counted,
    drift,
    least_restarts,
    pooled_samples,
    ratio_interval,
    restart_log_ratios,
    two_modes,
)

__all__ = ["implausible", "latency", "throughput"]

Found = TypeVar("Found")
#: How a figure of the repeat is named.
REPEAT = ", repeat"


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
    parts = [_part(asked, "p50", tier.feature_gain if gain else tier.p50_ratio)]
    if tier.p95_ratio is not None:
        parts.append(_part(asked, "p95", tier.p95_ratio))
    else:
        parts.append(_Part(Status.PASS, _figure("p95 ratio", _interval(asked, "p95"), None), ""))
    return _worst(Gate.LATENCY, asked, parts, asks_gain=gain, shown=_shown(asked))


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
    part = _held(asked, "mean", interval, items / limit)
    answered = part.answer.repeat if part.answer else None
    figure = _throughput("throughput ratio", interval, items, limit)
    repeat = (_throughput(f"throughput ratio{REPEAT}", answered, items, None),) if answered else ()
    found = _Part(part.status, figure, "throughput", part.answer, repeat)
    return _worst(Gate.THROUGHPUT, asked, [found], asks_gain=gain)


@dataclass(frozen=True)
class _Part:
    """One quantity held against one limit."""

    status: Status
    figure: Figure | None
    quantity: str
    answer: Answer | None = None
    """What became of it where the first answer lies beyond the limit."""
    others: tuple[Figure, ...] = ()


def _part(asked: GateQuestion, quantity: Quantity, limit: float) -> _Part:
    interval = _interval(asked, quantity)
    return _Part(Status.UNTESTED, None, quantity) if interval is None else _held(asked, quantity, interval, limit)


def _held(asked: GateQuestion, quantity: Quantity, interval: Interval, limit: float) -> _Part:
    """Return a ratio of times held against the greatest that is no worse."""
    figure = _figure(f"{quantity} ratio", interval, limit)
    if not interval.bounded:
        return _Part(Status.INCONCLUSIVE, figure, quantity)
    if interval.high <= limit:
        return _Part(Status.PASS, figure, quantity)
    if not interval.low > limit:
        return _Part(Status.INCONCLUSIVE, figure, quantity)
    answer = accused(asked, quantity, interval, limit)
    repeat = _figure(f"{quantity} ratio{REPEAT}", answer.repeat, None)
    return _Part(answer.status, figure, quantity, answer, (repeat,) if repeat else ())


def _shown(asked: GateQuestion) -> tuple[Figure, ...]:
    """Return what is shown beside the verdict and judged by nobody: starts, processor time, the unsettled allocator."""
    assert asked.result is not None
    quantities: tuple[Quantity, ...] = ("cpu", "first step", "import")
    found = [_figure(f"{quantity} ratio", _interval(asked, quantity), None) for quantity in quantities]
    unsettled = counted(asked.result.restarts, "as it comes")
    as_it_comes = ratio_interval(unsettled, asked.arm, asked.reference, "p50", asked.cell.measuring.alpha)
    found.append(_figure("p50 ratio, allocator as it comes", as_it_comes, None))
    return tuple(figure for figure in found if figure is not None)


def _figure(name: str, interval: Interval | None, limit: float | None) -> Figure | None:
    if interval is None:
        return None
    low, high = (interval.low, interval.high) if interval.bounded else (None, None)
    return Figure(name=name, value=interval.value, low=low, high=high, limit=limit, restarts=interval.restarts)


def _throughput(name: str, interval: Interval, items: float, limit: float | None) -> Figure:
    """Return a ratio of mean times as one of items per second."""
    low = items / interval.high if math.isfinite(interval.high) else None
    high = items / interval.low if interval.low > 0 else None
    return Figure(name=name, value=items / interval.value, low=low, high=high, limit=limit, restarts=interval.restarts)


def _interval(asked: GateQuestion, quantity: Quantity) -> Interval | None:
    assert asked.result is not None
    restarts, alpha = counted(asked.result.restarts), asked.cell.measuring.alpha
    return _once(asked, quantity, lambda: ratio_interval(restarts, asked.arm, asked.reference, quantity, alpha))


def _worst(
    gate: Gate,
    asked: GateQuestion,
    parts: list[_Part],
    *,
    asks_gain: bool,
    shown: tuple[Figure, ...] = (),
) -> Verdict:
    order = [Status.FAIL, Status.UNTESTED, Status.INCONCLUSIVE, Status.PASS]
    worst = min(parts, key=lambda part: order.index(part.status))
    others = [part.figure for part in parts if part.figure is not None and part is not worst]
    others += [figure for part in parts for figure in part.others]
    reason = _reason(asked, worst, asks_gain)
    return Verdict(gate=gate, status=worst.status, reason=reason, figure=worst.figure, others=(*others, *shown))


def _reason(asked: GateQuestion, part: _Part, asks_gain: bool) -> str:
    assert asked.result is not None
    status, figure, quantity = part.status, part.figure, part.quantity
    if figure is None:
        return "no restart measured both arms"
    change = _percent(figure.value)
    if status is Status.INCONCLUSIVE and part.answer is not None:
        return f"{quantity} {change}: {part.answer.words}"
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
    if status is Status.FAIL:
        words = part.answer.words if part.answer else ""
        return f"{quantity} {change}: beyond the limit{', ' + words if words else ''}"
    better = figure.high is not None and (figure.high < 1.0 if quantity != "throughput" else (figure.low or 0) > 1.0)
    return f"{quantity} {change}: {'better' if better else 'no worse than the limit'}"


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
    restarts, against = counted(asked.result.restarts), asked.result.validity.arms
    for name in (asked.arm, asked.reference):
        if name in against:
            return Verdict(gate=gate, status=Status.UNTESTED, reason=f"invalid: {name} {'; '.join(against[name])}")
    reason = _once(asked, "implausible", lambda: implausible(restarts, (asked.arm, asked.reference)))
    if reason:
        return Verdict(gate=gate, status=Status.UNTESTED, reason=f"invalid: {reason}")
    return _drifted(gate, asked) or _modes(gate, asked)


def _drifted(gate: Gate, asked: GateQuestion) -> Verdict | None:
    """Return the verdict where the control arm, which should not have moved, moved further than the tier allows.

    Alternating takes a drift out of the ratio, and leaves open of which machine it is: the cold or the hot one.
    """
    limit = asked.tier.drift_ratio
    if limit is None:
        return None
    moved = _once(asked, "drift", lambda: _drift(asked))
    if abs(math.log(moved)) <= math.log(limit):
        return None
    figure = Figure(name="drift ratio", value=moved, limit=limit)
    words = f"invalid: {asked.reference}, the control arm, drifted by {_percent(moved)} over the cell"
    return Verdict(gate=gate, status=Status.UNTESTED, reason=f"{words}: beyond the limit", figure=figure)


def _drift(asked: GateQuestion) -> float:
    assert asked.result is not None
    lives = [restart.arms.get(asked.reference) for restart in counted(asked.result.restarts)]
    samples = [pooled_samples(life) for life in lives if life is not None]
    return drift([float(np.median(steps)) for steps in samples if len(steps)])


def _modes(gate: Gate, asked: GateQuestion) -> Verdict | None:
    """Return the verdict where the ratio or an arm falls into two modes: a mean of both is a number that never happens.

    Programs compiled in some processes and found in the cache in others are two modes too (CASES.md M1).
    """
    assert asked.result is not None
    reason = _once(asked, "modes", lambda: _two_modes(asked))
    return Verdict(gate=gate, status=Status.UNTESTED, reason=reason) if reason else None


def _two_modes(asked: GateQuestion) -> str:
    assert asked.result is not None
    restarts = counted(asked.result.restarts)
    pair = [r for r in restarts if asked.arm in r.arms and asked.reference in r.arms]
    caches = {name: {r.arms[name].cache for r in pair} for name in (asked.arm, asked.reference)}
    for name, seen in caches.items():
        if len(seen) > 1:
            return (
                f"invalid: {name} ran with its compile cache {' and '.join(sorted(seen))}: two modes, no mean of both"
            )
    if caches[asked.arm] != caches[asked.reference] and {"cold"} in caches.values():
        return "invalid: the compile cache was cold in one arm and not in the other: these are not compared"
    ratios = restart_log_ratios(pair, asked.arm, asked.reference, "p50")
    modes = two_modes([math.exp(ratio) for ratio in ratios])
    if modes is not None:
        return f"two modes from process to process, {modes[0]:.3f} and {modes[1]:.3f}: no verdict on a mean of both"
    for name in (asked.arm, asked.reference):
        modes = arm_modes(pair, name)
        if modes is not None:
            steps = " and ".join(f"{mode / 1e6:.3g} ms" for mode in modes)
            return f"two modes of {name} from process to process, {steps}: no verdict on a mean of both"
    return ""


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
