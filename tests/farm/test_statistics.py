"""Intervals that are exact, and the rules that come before any interval."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.statistics import (
    Interval,
    hodges_lehmann,
    is_steady,
    least_restarts,
    ratio_interval,
    settled,
    signed_rank_interval,
    two_modes,
)
from tests.evidence import restarts

ALPHA = 0.016
LOGS = st.lists(st.floats(-0.5, 0.5), min_size=6, max_size=12)


def brute_force(values: list[float], alpha: float) -> tuple[float, float]:
    """Return the interval by its definition: every shift that the signed-rank test does not reject, by enumeration."""
    n = len(values)
    sums = sorted(sum(r for r, on in zip(range(1, n + 1), signs, strict=True) if on) for signs in _signs(n))
    k = max(k for k in range(1, n * (n + 1) // 2 + 1) if sum(s <= k - 1 for s in sums) / 2**n <= alpha)
    walsh = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(values, 2))
    return walsh[k - 1], walsh[-k]


def _signs(n: int) -> itertools.product[tuple[bool, ...]]:
    return itertools.product((False, True), repeat=n)


@given(st.lists(st.floats(-0.5, 0.5), min_size=6, max_size=9))
def test_the_interval_is_the_one_of_its_definition(values: list[float]) -> None:
    assert signed_rank_interval(values, ALPHA) == pytest.approx(brute_force(values, ALPHA))


@given(LOGS)
def test_the_estimate_lies_in_its_interval_and_in_the_data(values: list[float]) -> None:
    found = signed_rank_interval(values, ALPHA)
    assert found is not None
    assert min(values) <= found[0] <= hodges_lehmann(values) + 1e-12
    assert hodges_lehmann(values) - 1e-12 <= found[1] <= max(values)


@given(LOGS)
def test_the_other_way_round_is_the_mirror_image(values: list[float]) -> None:
    low, high = signed_rank_interval(values, ALPHA) or (0.0, 0.0)
    mirrored = signed_rank_interval([-value for value in values], ALPHA)
    assert mirrored == pytest.approx((-high, -low))


@given(LOGS, st.floats(-1, 1))
def test_a_shift_shifts_the_interval(values: list[float], shift: float) -> None:
    low, high = signed_rank_interval(values, ALPHA) or (0.0, 0.0)
    shifted = signed_rank_interval([value + shift for value in values], ALPHA)
    assert shifted == pytest.approx((low + shift, high + shift))


@given(LOGS)
def test_more_certainty_is_a_wider_interval(values: list[float]) -> None:
    narrow, wide = signed_rank_interval(values, 0.1), signed_rank_interval(values, ALPHA)
    assert narrow is not None
    assert wide is not None
    assert wide[0] <= narrow[0]
    assert narrow[1] <= wide[1]


@pytest.mark.parametrize(("alpha", "least"), [(0.016, 6), (0.032, 5), (0.5, 1), (2**-6, 6), (2**-6 - 1e-6, 7)])
def test_fewer_restarts_than_can_bound_anything_give_no_interval(alpha: float, least: int) -> None:
    assert least_restarts(alpha) == least
    values = [0.01 * n for n in range(least)]
    assert signed_rank_interval(values, alpha) == (values[0], values[-1])
    assert signed_rank_interval(values[:-1], alpha) is None


def test_the_interval_covers_as_often_as_it_says() -> None:
    draws = np.random.default_rng(7).normal(0.0, 0.02, size=(4000, 8))
    missed = sum(low > 0 for low, _ in (signed_rank_interval(list(row), ALPHA) or (0, 0) for row in draws))
    # P(W+ <= k - 1) for n = 8 and k - 1 = 3 is 5 / 256: the largest that is no more than alpha is 4 / 256 at most.
    assert missed / len(draws) <= ALPHA + 3 * math.sqrt(ALPHA / len(draws))
    assert missed > 0


@given(st.floats(0.5, 2.0), st.floats(1.0, 50.0))
def test_a_ratio_is_challenger_over_reference_whatever_the_unit(ratio: float, unit: float) -> None:
    measured = restarts({"baseline": 7.0 * unit, "candidate": 7.0 * unit * ratio})
    found = ratio_interval(measured, "candidate", "baseline", "p50", ALPHA)
    assert found is not None
    assert found.bounded
    assert found.value == pytest.approx(ratio, rel=2e-2)


@pytest.mark.parametrize("quantity", ["p50", "p95", "mean", "cpu"])
def test_arms_that_never_met_have_no_ratio(quantity) -> None:
    assert ratio_interval(restarts({"baseline": 7.0}), "candidate", "baseline", quantity, ALPHA) is None
    assert ratio_interval([], "candidate", "baseline", quantity, ALPHA) is None


def test_few_restarts_have_an_estimate_and_no_bounds() -> None:
    found = ratio_interval(restarts({"baseline": 7.0, "candidate": 7.0}, 3), "candidate", "baseline", "p50", ALPHA)
    assert found is not None
    assert not found.bounded
    assert (found.low, found.high) == (0.0, math.inf)
    assert not settled(found, 1.03)


@pytest.mark.parametrize(
    ("low", "high", "answer"), [(0.99, 1.01, True), (1.04, 1.06, True), (1.02, 1.04, False), (1.03, 1.05, False)]
)
def test_an_interval_on_one_side_of_the_limit_is_settled(low: float, high: float, answer: bool) -> None:
    assert settled(Interval(value=(low + high) / 2, low=low, high=high, restarts=6), 1.03) is answer


def test_what_still_gets_faster_is_not_steady_and_what_scatters_is() -> None:
    warming = [10.0 * 0.97**n for n in range(12)]
    noise = np.random.default_rng(3).normal(1.0, 0.03, 12)
    assert not is_steady(warming)
    assert not is_steady(warming[:2])
    assert is_steady(list(10.0 * noise))
    assert is_steady([10.0] * 12)


def test_two_clouds_are_two_modes_and_one_cloud_is_one() -> None:
    assert two_modes([2.95, 2.97, 2.96, 3.40, 3.42]) == pytest.approx((2.96, 3.41), rel=1e-3)
    assert two_modes([1.00, 1.01, 0.99, 1.02, 1.00, 0.98]) is None
    assert two_modes([1.0, 1.0, 1.0, 1.4]) is None, "one value alone is an outlier, not a mode"
    assert two_modes([1.0, 1.4]) is None
