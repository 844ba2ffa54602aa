"""What a measurement can resolve: error rates of the sequential procedure, from the noise between restarts.

The procedure looks at a limit after planned numbers of restarts, with the exact signed-rank interval each time
(farm.statistics; STATISTICS.md, The procedure). That interval moves and stretches with the data, so everything here
depends on one number alone: the distance ln(limit / true ratio) in units of ``sd``, the standard deviation of ln ratio
from restart to restart. One simulated set of sessions for each (looks, alpha) answers every question.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

__all__ = ["noise_fence"]

#: Fewer past ratios say nothing of their own quartiles.
FENCE_FROM = 8
#: rustc-perf's fence: beyond the third quartile by three times the distance between the quartiles.
FENCE_IQRS = 3.0


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
