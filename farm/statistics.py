"""Ratios of two arms with exact intervals, from restarts (Kalibera & Jones, ISMM 2013; STATISTICS.md).

One number a restart: the median over blocks of ln(challenger / reference). Over restarts: the Hodges-Lehmann
estimate with the exact interval of the Wilcoxon signed-rank test. Steps are never pooled across processes, since
processes of the same program differ by more than their own windows say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from farm.model import ArmTiming, Restart, Window, unpack_ns

__all__ = [
    "STEADY_WINDOWS",
    "Interval",
    "Quantity",
    "arm_modes",
    "block_medians",
    "counted",
    "drift",
    "hodges_lehmann",
    "is_steady",
    "least_restarts",
    "pooled_samples",
    "ratio_interval",
    "repeat_agrees",
    "restart_log_ratios",
    "settled",
    "signed_rank_distribution",
    "signed_rank_interval",
    "signed_rank_p_value",
    "two_modes",
]

Quantity = Literal["p50", "p95", "mean", "cpu", "first step", "import"]
"""Of steady steps, but for the last two: one time of each process."""

#: Windows that the warm-up rule looks at.
STEADY_WINDOWS = 5
#: The last windows may differ by this much between their two halves, and by no more than their own scatter.
STEADY_TOLERANCE = 0.02
#: A gap between sorted values that is this many times the standard deviation inside both groups makes two modes, by
#: their number: the 99.5 % quantile of what one normal cloud shows (60,000 simulations each).
MODE_GAP = {4: 23.5, 5: 13.3, 6: 9.5, 7: 7.2, 8: 6.0, 9: 5.1, 10: 4.5, 11: 3.7, 12: 3.5, 13: 3.2, 14: 2.9, 15: 2.7}
#: The same of more values.
MODE_GAP_OF_MANY = 2.5
#: An arm's flip is the machine's where the other arms move with it by at least this share, in log.
SHARED_FLIP = 0.5
#: Fewest restarts that can show a drift.
DRIFT_FROM = 6
#: Rank correlation (Spearman) of a time with its restart's number that makes a change a drift; with six restarts chance
#: reaches it in 3 % either way.
DRIFT_RANK = 0.8
#: The smaller group holds at least this share of the values: a lone outlier is not a mode.
MODE_SHARE = 0.2
#: Two modes closer than this are one: 3 % is below what the coarsest tier would ask about.
MODE_RATIO = 1.03


@dataclass(frozen=True)
class Interval:
    """A ratio challenger / reference with its bounds, one-sided error ``alpha`` each; 1.05 is 5 % more time.

    ``low`` and ``high`` are 0 and infinity where there are too few restarts to bound it at all.
    """

    value: float
    low: float
    high: float
    restarts: int

    @property
    def bounded(self) -> bool:
        return self.low > 0 and math.isfinite(self.high)


def hodges_lehmann(values: Sequence[float]) -> float:
    """Return the median of all pairwise means (Walsh averages), each value paired with itself too."""
    return float(np.median(_walsh(values)))


def signed_rank_interval(values: Sequence[float], alpha: float) -> tuple[float, float] | None:
    """Return the exact interval of the Hodges-Lehmann estimate, or None where ``values`` are too few.

    ``alpha`` is the error of each side. The bounds are Walsh averages: the k-th smallest and the k-th largest, with
    the largest k for which P(W+ <= k - 1) <= alpha (Lehmann, Nonparametrics, 1975).
    """
    n = len(values)
    if n == 0 or n < least_restarts(alpha):
        return None
    cumulative = np.cumsum(signed_rank_distribution(n))
    k = int(np.searchsorted(cumulative, alpha * (1 + 1e-12), side="right"))
    walsh = np.sort(_walsh(values))
    return float(walsh[k - 1]), float(walsh[-k])


def least_restarts(alpha: float) -> int:
    """Return the fewest restarts that can bound anything at ``alpha`` a side: 6 for 0.016, since 2**-6 = 0.0156."""
    return math.ceil(-math.log2(alpha) - 1e-9)


def signed_rank_p_value(values: Sequence[float], beyond: float) -> float:
    """Return the exact one-sided p value of the Wilcoxon signed-rank test that ``values`` lie above ``beyond``.

    Values equal to ``beyond`` are left out and ties share their mean rank; what is rounded errs towards no finding.
    """
    moved = np.asarray(values, dtype=float) - beyond
    moved = moved[moved != 0]
    if not len(moved):
        return 1.0
    sizes = np.abs(moved)
    ordered = np.sort(sizes)
    ranks = (np.searchsorted(ordered, sizes, "left") + 1 + np.searchsorted(ordered, sizes, "right")) / 2
    statistic = math.floor(float(ranks[moved > 0].sum()))
    return float(signed_rank_distribution(len(moved))[statistic:].sum())


@lru_cache(maxsize=64)
def signed_rank_distribution(n: int) -> np.ndarray:
    """Return P(W+ = w) for w = 0 … n(n+1)/2 under symmetry, by convolution."""
    counts = np.ones(1)
    for rank in range(1, n + 1):
        grown = np.zeros(len(counts) + rank)
        grown[: len(counts)] += counts
        grown[rank:] += counts
        counts = grown
    probabilities: np.ndarray = counts / 2.0**n
    return probabilities


def _walsh(values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    upper = np.triu_indices(len(array))
    averages: np.ndarray = (array[upper[0]] + array[upper[1]]) / 2
    return averages


def counted(restarts: Sequence[Restart], purpose: str = "judging") -> list[Restart]:
    """Return the restarts of ``purpose`` that count: those in which something happened to the machine do not."""
    return [restart for restart in restarts if restart.purpose == purpose and not restart.invalid]


# -- from windows to one number a restart --------------------------------------------------------------------------


def block_medians(windows: Sequence[Window]) -> dict[int, float]:
    """Return the median step (ns) of every block: over both windows that an arm has in it."""
    return _by_block(windows, lambda samples: float(np.median(samples)))


def _by_block(windows: Sequence[Window], estimate: Callable[[np.ndarray], float]) -> dict[int, float]:
    blocks: dict[int, list[np.ndarray]] = {}
    for window in windows:
        blocks.setdefault(window.block, []).append(unpack_ns(window.steps_ns).astype(float))
    joined = {block: np.concatenate(samples) for block, samples in blocks.items()}
    return {block: estimate(samples) for block, samples in joined.items() if len(samples)}


def _cpu_by_block(windows: Sequence[Window]) -> dict[int, float]:
    blocks: dict[int, list[int]] = {}
    for window in windows:
        blocks.setdefault(window.block, []).append(window.cpu_ns)
    return {block: float(sum(cpu)) for block, cpu in blocks.items()}


def _restart_log_ratio(challenger: ArmTiming, reference: ArmTiming, quantity: Quantity) -> float | None:
    if quantity == "first step":
        return _log_ratio(challenger.first_step_ns, reference.first_step_ns)
    if quantity == "import":
        return _log_ratio(challenger.import_ns, reference.import_ns)
    if quantity == "p95":
        # A block holds too few steps for a tail: the quantile is taken over the restart's windows, both arms alike.
        upper, lower = pooled_samples(challenger), pooled_samples(reference)
        if not len(upper) or not len(lower):
            return None
        return _log_ratio(float(np.quantile(upper, 0.95)), float(np.quantile(lower, 0.95)))
    if quantity == "mean":
        # All time counts: a median over blocks would leave out a stall that comes in one of ten.
        above, below = _block_means(challenger.windows), _block_means(reference.windows)
        both = above.keys() & below.keys()
        return _log_ratio(sum(above[block] for block in both), sum(below[block] for block in both))
    estimate = _cpu_by_block if quantity == "cpu" else block_medians
    above, below = estimate(challenger.windows), estimate(reference.windows)
    ratios = [_log_ratio(above[block], below[block]) for block in above.keys() & below.keys()]
    known = [ratio for ratio in ratios if ratio is not None]
    return float(np.median(known)) if known else None


def _block_means(windows: Sequence[Window]) -> dict[int, float]:
    return _by_block(windows, lambda samples: float(samples.mean()))


def _log_ratio(above: float, below: float) -> float | None:
    return math.log(above / below) if above > 0 and below > 0 else None


def pooled_samples(timing: ArmTiming) -> np.ndarray:
    """Return every counted step (ns) of one restart of one arm."""
    parts = [unpack_ns(window.steps_ns) for window in timing.windows]
    return np.concatenate(parts).astype(float) if parts else np.empty(0)


def restart_log_ratios(restarts: Sequence[Restart], challenger: str, reference: str, quantity: Quantity) -> list[float]:
    """Return ln(challenger / reference), one number for every restart in which both arms were measured."""
    found = []
    for restart in restarts:
        if challenger in restart.arms and reference in restart.arms:
            ratio = _restart_log_ratio(restart.arms[challenger], restart.arms[reference], quantity)
            if ratio is not None:
                found.append(ratio)
    return found


def ratio_interval(
    restarts: Sequence[Restart], challenger: str, reference: str, quantity: Quantity, alpha: float
) -> Interval | None:
    """Return the ratio of ``quantity`` with its interval; None where no restart measured both arms."""
    ratios = restart_log_ratios(restarts, challenger, reference, quantity)
    if not ratios:
        return None
    bounds = signed_rank_interval(ratios, alpha)
    low, high = (math.exp(bounds[0]), math.exp(bounds[1])) if bounds else (0.0, math.inf)
    return Interval(math.exp(hodges_lehmann(ratios)), low, high, len(ratios))


def repeat_agrees(first: Sequence[float], repeat: Sequence[float], limit: float, alpha: float) -> bool:
    """Return whether a repeat confirms that ln ratios lie beyond ``limit`` (a ratio).

    Its own estimate does, and the interval over first answer and repeat together still does.
    """
    together = signed_rank_interval([*first, *repeat], alpha)
    beyond = math.log(limit)
    return bool(repeat) and hodges_lehmann(repeat) > beyond and together is not None and together[0] > beyond


def settled(interval: Interval, limit: float) -> bool:
    """Return whether the interval lies on one side of ``limit``: more restarts would not change the answer."""
    return interval.high < limit or interval.low > limit


# -- is it steady, is it one thing ---------------------------------------------------------------------------------


def is_steady(window_medians: Sequence[float]) -> bool:
    """Return whether the last `STEADY_WINDOWS` windows show no trend beyond their own scatter.

    Their later half may differ from their earlier half by `STEADY_TOLERANCE`, or by twice the standard error that
    their own scatter gives (a noisy machine is not a warming program).
    """
    recent = window_medians[-STEADY_WINDOWS:]
    if len(recent) < STEADY_WINDOWS or not all(median > 0 for median in recent):
        return False
    logs = np.log(np.asarray(recent, dtype=float))
    half = STEADY_WINDOWS // 2
    early, late = logs[:half], logs[-half:]
    drift = abs(float(late.mean() - early.mean()))
    scatter = float(np.median(np.abs(np.diff(logs)))) / math.sqrt(half)
    return drift <= max(STEADY_TOLERANCE, 2 * scatter)


def drift(times: Sequence[float]) -> float:
    """Return by what ratio ``times`` (positive, in the order of their restarts) moved over a cell; 1: they did not.

    It is the median of the last third over that of the first, and a drift only where the times rise or fall in order:
    processes of one program scatter, and that is no drift.
    """
    if len(times) < DRIFT_FROM:
        return 1.0
    logs = np.log(np.asarray(times, dtype=float))
    ranks = np.argsort(np.argsort(logs))
    if abs(float(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1])) < DRIFT_RANK:
        return 1.0
    third = len(logs) // 3
    return math.exp(float(np.median(logs[-third:]) - np.median(logs[:third])))


def two_modes(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the medians of two modes that ``values`` (positive) fall into, or None where they are one cloud.

    Values are split at their largest gap in log that leaves both groups two values and `MODE_SHARE` of all; the gap
    must be `MODE_GAP` times the standard deviation inside the groups and as wide as `MODE_RATIO`. A mean of two modes
    is a number that never happens.
    """
    count = len(values)
    least = max(2, math.ceil(MODE_SHARE * count))
    if count < 4:
        return None
    logs = np.sort(np.log(np.asarray(values, dtype=float)))
    split = least + int(np.argmax(np.diff(logs)[least - 1 : count - least]))
    lower, upper = logs[:split], logs[split:]
    inside = float(((lower - lower.mean()) ** 2).sum() + ((upper - upper.mean()) ** 2).sum())
    deviation = math.sqrt(inside / (count - 2))
    wanted = max(MODE_GAP.get(count, MODE_GAP_OF_MANY) * deviation, math.log(MODE_RATIO))
    if logs[split] - logs[split - 1] < wanted:
        return None
    return math.exp(float(np.median(lower))), math.exp(float(np.median(upper)))


def arm_modes(restarts: Sequence[Restart], arm: str) -> tuple[float, float] | None:
    """Return the two modes (median step, ns) that ``arm`` alone flips between from process to process, or None.

    A machine that changes its speed moves all arms of a restart together, and leaves their ratio alone: a flip is the
    arm's own where the others, in the same restarts, move by less than `SHARED_FLIP` of it.
    """
    medians = [
        {name: float(np.median(steps)) for name, life in restart.arms.items() if len(steps := pooled_samples(life))}
        for restart in restarts
    ]
    both = [found for found in medians if found.get(arm, 0.0) > 0 and len(found) > 1 and min(found.values()) > 0]
    modes = two_modes([found[arm] for found in both])
    if modes is None:
        return None
    middle = math.sqrt(modes[0] * modes[1])
    slow = [found for found in both if found[arm] > middle]
    fast = [found for found in both if found[arm] <= middle]

    def moved(name: str) -> float | None:
        logs = [[math.log(found[name]) for found in group if name in found] for group in (slow, fast)]
        return float(np.mean(logs[0]) - np.mean(logs[1])) if all(logs) else None

    flip = moved(arm)
    others = [
        shift for name in {name for found in both for name in found} - {arm} if (shift := moved(name)) is not None
    ]
    assert flip is not None
    return modes if others and float(np.median(others)) < SHARED_FLIP * flip else None
