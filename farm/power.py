"""What a measurement can resolve: error rates of the sequential procedure, from the noise between restarts.

The procedure looks at a limit after planned numbers of restarts, with the exact signed-rank interval each time
(farm.statistics; STATISTICS.md, The procedure). That interval moves and stretches with the data, so everything here
depends on one number alone: the distance ln(limit / true ratio) in units of ``sd``, the standard deviation of ln ratio
from restart to restart. One simulated set of sessions for each (looks, alpha) answers every question. Rates are those
of one limit and one cell, before the confirming repeat.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from farm.statistics import signed_rank_distribution

__all__ = [
    "FOUND",
    "MOST_RESTARTS",
    "expected_restarts",
    "finds",
    "noise_fence",
    "noise_floor",
    "passes",
    "resolvable",
    "restarts_needed",
    "sd_bounds",
    "stretched",
]

#: Sessions simulated for one (looks, alpha): a rate of 95 % is known to 0.3 %, in 0.02 s for looks up to 12.
SESSIONS = 4096
SEED = 20260701
#: How often "found" and "passes" are meant where nothing else is said: of twenty clear cells nineteen are settled.
FOUND = 0.95
#: More restarts than this buy little: the interval shrinks with the root of their number.
MOST_RESTARTS = 24
#: Distances, in units of sd, between which an answer is sought.
FARTHEST = 64.0

#: Fewer past ratios say nothing of their own quartiles.
FENCE_FROM = 8
#: rustc-perf's fence: beyond the third quartile by three times the distance between the quartiles.
FENCE_IQRS = 3.0


# -- rates ---------------------------------------------------------------------------------------------------------


def passes(limit: float, sd: float, looks: Sequence[int], alpha: float, *, ratio: float = 1.0) -> float:
    """Return how often a cell whose true ratio is ``ratio`` passes ``limit``; by default one that is clean."""
    return _settles_below(_distance(limit / ratio, sd), tuple(looks), alpha)


def finds(ratio: float, limit: float, sd: float, looks: Sequence[int], alpha: float) -> float:
    """Return how often a cell whose true ratio is ``ratio`` fails ``limit``: with ratio 1, how often it is accused."""
    # The mirror image: noise has no side, and neither has the interval.
    return _settles_below(_distance(ratio / limit, sd), tuple(looks), alpha)


def resolvable(sd: float, looks: Sequence[int], alpha: float, chance: float = FOUND) -> float:
    """Return the smallest ratio that can be told from 1 with ``chance``, 1.012 for 1.2 %.

    It is two things at once: the change that is found, and the limit that a clean cell passes. A slowdown beyond a
    limit is found with ``chance`` from limit × this on.
    """
    return math.exp(_distance_settled(tuple(looks), alpha, chance) * sd)


def restarts_needed(limit: float, sd: float, looks: Sequence[int], alpha: float, chance: float = FOUND) -> int | None:
    """Return the restarts after which a clean cell has passed ``limit`` with ``chance``; None where none suffice.

    Looks of the suite are kept as far as they suffice, and `stretched` beyond. Above `MOST_RESTARTS` the answer is
    carried on with the root of their number.
    """
    wanted = abs(_distance(limit, sd))
    if wanted == 0:
        return None
    plans = [tuple(looks[: count + 1]) for count in range(len(looks))]
    plans += [stretched(looks, last) for last in range(max(looks) // 2 * 2 + 2, MOST_RESTARTS + 1, 2)]
    # More restarts resolve less distance: the first plan whose distance is small enough.
    place = bisect_left(plans, True, key=lambda plan: _distance_settled(plan, alpha, chance) <= wanted)
    if place < len(plans):
        return plans[place][-1]
    last = plans[-1][-1]
    return 2 * math.ceil(last * (_distance_settled(plans[-1], alpha, chance) / wanted) ** 2 / 2)


def expected_restarts(limit: float, sd: float, looks: Sequence[int], alpha: float) -> float:
    """Return how many restarts a clean cell takes on average until ``limit`` is settled or the last look is over."""
    distance = _distance(limit, sd)
    low, high = _sessions(tuple(looks), alpha)
    decided = (high < distance) | (low > distance)
    decided[-1] = True
    return float(np.asarray(looks)[np.argmax(decided, axis=0)].mean())


def stretched(looks: Sequence[int], last: int) -> tuple[int, ...]:
    """Return as many looks as ``looks``, from its first to ``last``, the later ones at even numbers.

    Their number stays: each further look would be another chance to err (four looks at 0.016 pass a cell that lies on
    its limit with 3.4 to 4.3 %, ten with 5.6 %).
    """
    first, count = looks[0], len(looks)
    if count == 1:
        return (last,)
    between = [2 * round((first + (last - first) * place / (count - 1)) / 2) for place in range(1, count - 1)]
    return tuple(sorted({first, *between, last}))


def _distance(ratio: float, sd: float) -> float:
    """Return ln ``ratio`` in units of ``sd``; without any noise everything is far."""
    log = math.log(ratio)
    return max(-FARTHEST, min(FARTHEST, log / sd)) if sd > 0 else math.copysign(FARTHEST, log) if log else 0.0


# -- simulation ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _sessions(looks: tuple[int, ...], alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Return lower and upper bounds (look × session) of sessions without a change, in units of sd."""
    restarts = np.random.default_rng(SEED).standard_normal((SESSIONS, max(looks)), dtype=np.float32)
    low = np.full((len(looks), SESSIONS), -np.inf, dtype=np.float32)
    high = np.full((len(looks), SESSIONS), np.inf, dtype=np.float32)
    for place, count in enumerate(looks):
        # The same rank as farm.statistics.signed_rank_interval takes: P(W+ <= rank - 1) <= alpha.
        rank = int(np.searchsorted(np.cumsum(signed_rank_distribution(count)), alpha * (1 + 1e-12), side="right"))
        if rank == 0:
            continue
        walsh = _walsh(restarts[:, :count])
        walsh.partition((rank - 1, walsh.shape[1] - rank), axis=1)
        low[place], high[place] = walsh[:, rank - 1], walsh[:, -rank]
    return low, high


def _walsh(restarts: np.ndarray) -> np.ndarray:
    """Return all pairwise means of every session (session × pair)."""
    one, other = np.triu_indices(restarts.shape[1])
    averages: np.ndarray = (restarts[:, one] + restarts[:, other]) / 2
    return averages


def _settles_below(distance: float, looks: tuple[int, ...], alpha: float) -> float:
    """Return the share of sessions whose first settled look lies below a limit at ``distance``."""
    low, high = _sessions(looks, alpha)
    below, above = high < distance, low > distance
    first = np.argmax(below | above, axis=0)
    return float(np.take_along_axis(below, first[np.newaxis], axis=0).mean())


@lru_cache(maxsize=256)
def _distance_settled(looks: tuple[int, ...], alpha: float, chance: float) -> float:
    """Return the distance at which ``chance`` of the sessions settle below it."""
    near, far = 0.0, FARTHEST
    while far - near > 1e-3:
        middle = (near + far) / 2
        near, far = (near, middle) if _settles_below(middle, looks, alpha) >= chance else (middle, far)
    return far


# -- noise ---------------------------------------------------------------------------------------------------------


def noise_floor(sd: float, restarts: int, chance: float = 0.975) -> float:
    """Return the ratio within which the estimate of an A/A cell of ``restarts`` stays with ``chance``, 1.005."""
    return math.exp(_estimate_quantile(restarts, chance) * sd)


@lru_cache(maxsize=32)
def _estimate_quantile(restarts: int, chance: float) -> float:
    drawn = np.random.default_rng(SEED).standard_normal((SESSIONS, restarts), dtype=np.float32)
    return float(np.quantile(np.abs(np.median(_walsh(drawn), axis=1)), chance))


def sd_bounds(sd: float, restarts: int) -> tuple[float, float]:
    """Return the 95 % interval of a standard deviation from ``restarts``: from 8 of them, 0.66 to 2.04 times.

    By Wilson and Hilferty's approximation of chi square (1931), good to 2 % from five restarts on.
    """
    free = restarts - 1
    if free < 1:
        return 0.0, math.inf
    spread = 1.959964 * math.sqrt(2 / (9 * free))
    most, least = (max(0.0, 1 - 2 / (9 * free) + side * spread) ** 1.5 for side in (1, -1))
    return sd / most, sd / least if least > 0 else math.inf


def noise_fence(ratios: Sequence[float]) -> float | None:
    """Return the ratio up to which a cell's own A/A history reaches, 1.021 for 2.1 %; None for fewer than 8 ratios.

    The fence is Q3 + 3 IQR of |ln ratio| (rustc-perf, docs/comparison-analysis.md), both ways alike: a slowdown within
    it, or a limit within it, cannot be told from this cell's noise. Ratios that no clock can have given are left out.
    """
    logs = [abs(math.log(ratio)) for ratio in ratios if ratio > 0 and math.isfinite(ratio)]
    if len(logs) < FENCE_FROM:
        return None
    lower, upper = np.quantile(logs, [0.25, 0.75])
    return math.exp(float(upper + FENCE_IQRS * (upper - lower)))
