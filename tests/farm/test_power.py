"""What can be resolved is known beforehand, and agrees with the procedure run by brute force."""

from __future__ import annotations

import math

import pytest

from farm.power import noise_fence


def test_the_fence_is_three_interquartile_distances_beyond_the_third_quartile() -> None:
    logs = [0.001 * n for n in range(1, 10)]  # quartiles 0.003 and 0.007
    assert noise_fence([math.exp(log) for log in logs]) == pytest.approx(math.exp(0.007 + 3 * 0.004))
    assert noise_fence([math.exp(-log) for log in logs]) == pytest.approx(math.exp(0.019))


def test_a_history_that_is_too_short_or_no_ratio_at_all_has_no_fence() -> None:
    assert noise_fence([1.01] * 7) is None
    assert noise_fence([1.01] * 7 + [0.0, -1.0, math.nan, math.inf]) is None
    assert noise_fence([1.01] * 8) == pytest.approx(1.01)


def test_m10_a_noise_of_ten_percent_reaches_beyond_the_change() -> None:
    """CASES.md M10: 0.19809 s to 0.21859 s on a cell whose own A/A noise is above 10 %."""
    history = [1.0, 1.11, 0.97, 1.04, 0.9, 1.08, 1.02, 0.93]
    fence = noise_fence(history)
    assert fence is not None
    assert fence > 0.21859 / 0.19809
