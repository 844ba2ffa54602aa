"""Intervals that are exact, and the rules that come before any interval."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.model import Measuring, Restart, Window
from farm.statistics import (
    STEADY_TOLERANCE,
    Interval,
    Quantity,
    block_medians,
    drift,
    hodges_lehmann,
    is_steady,
    least_restarts,
    ratio_interval,
    restart_log_ratios,
    settled,
    signed_rank_interval,
    two_modes,
)
from tests.evidence import life, restarts, window

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


# -- restarts as they are measured ---------------------------------------------------------------------------------

QUANTITIES: tuple[Quantity, ...] = ("p50", "p95", "mean", "cpu")

#: For each restart, for both arms, the steps of four windows in two blocks.
STEPS = st.lists(st.integers(1_000, 10_000_000), min_size=1, max_size=6)
DRAWN = st.lists(st.lists(st.lists(STEPS, min_size=4, max_size=4), min_size=2, max_size=2), min_size=1, max_size=7)

Drawn = list[list[list[list[int]]]]


def restart(**arms: Sequence[Window]) -> Restart:
    """Return a restart in which every arm has the windows given."""
    lives = {name: life(1.0).model_copy(update={"windows": tuple(windows)}) for name, windows in arms.items()}
    return Restart(index=0, order=tuple(arms), arms=lives)


def session(numbers: Drawn, factor: int = 1) -> list[Restart]:
    """Return the restarts in ``numbers`` on a machine that takes ``factor`` times as long for everything."""
    return [
        restart(
            **{
                name: [window(place // 2, [factor * step for step in steps]) for place, steps in enumerate(windows)]
                for name, windows in zip(("baseline", "candidate"), arms, strict=True)
            }
        )
        for arms in numbers
    ]


def interval(measured: Sequence[Restart], quantity: Quantity = "p50", *, inverted: bool = False) -> Interval:
    arms = ("baseline", "candidate") if inverted else ("candidate", "baseline")
    found = ratio_interval(measured, *arms, quantity, ALPHA)
    assert found is not None
    return found


@pytest.mark.parametrize("quantity", QUANTITIES)
@settings(max_examples=30)
@given(numbers=DRAWN)
def test_the_interval_of_the_inverted_ratio_is_the_inverted_interval(quantity: Quantity, numbers: Drawn) -> None:
    ratio, inverted = interval(session(numbers), quantity), interval(session(numbers), quantity, inverted=True)
    assert inverted.value == pytest.approx(1 / ratio.value)
    assert inverted.restarts == ratio.restarts == len(numbers)
    if ratio.bounded:
        assert (inverted.low, inverted.high) == pytest.approx((1 / ratio.high, 1 / ratio.low))


@pytest.mark.parametrize("quantity", QUANTITIES)
@settings(max_examples=30)
@given(numbers=DRAWN, factor=st.integers(2, 1000))
def test_a_machine_that_is_slower_at_everything_has_the_same_ratio(
    quantity: Quantity, numbers: Drawn, factor: int
) -> None:
    here, there = interval(session(numbers), quantity), interval(session(numbers, factor), quantity)
    assert (there.value, there.low, there.high) == pytest.approx((here.value, here.low, here.high))


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_a_candidate_that_takes_five_percent_more_has_a_ratio_of_1_05(quantity: Quantity) -> None:
    found = interval(restarts({"baseline": 10.0, "candidate": 10.5}), quantity)
    assert (found.value, found.low, found.high) == pytest.approx((1.05, 1.05, 1.05))


def test_arms_of_two_restarts_are_never_compared() -> None:
    measured = restarts({"baseline": [10.0, 20.0, 30.0, 40.0, 50.0, 60.0], "candidate": [11.0, 22.0, 33.0]})
    assert restart_log_ratios(measured, "candidate", "baseline", "p50") == pytest.approx([math.log(1.1)] * 3)


def test_steps_are_compared_within_their_block() -> None:
    """The machine is half as fast in the second block; the ratio is the same in both."""
    measured = restart(
        baseline=[window(0, [100]), window(1, [200]), window(2, [7])],
        candidate=[window(1, [220]), window(0, [110])],
    )
    assert restart_log_ratios([measured], "candidate", "baseline", "p50") == pytest.approx([math.log(1.1)])
    assert block_medians([window(0, [1, 2]), window(3, [7]), window(0, [9])]) == {0: 2.0, 3: 7.0}


def test_a_slow_tail_is_in_p95_and_in_the_mean_and_not_in_p50() -> None:
    measured = [restart(baseline=[window(0, [100] * 20)], candidate=[window(0, [100] * 18 + [300] * 2)])]
    assert interval(measured, "p50").value == 1.0
    assert interval(measured, "p95").value == pytest.approx(3.0)
    assert interval(measured, "mean").value == pytest.approx(1.2)


@pytest.mark.parametrize("windows", [[], [window(0, [])], [window(0, [0, 0])]], ids=["none", "empty", "no time"])
@pytest.mark.parametrize("quantity", QUANTITIES)
def test_a_restart_without_a_time_has_no_ratio(quantity: Quantity, windows: list[Window]) -> None:
    broken = restart(baseline=[window(0, [100])], candidate=windows)
    good = restart(baseline=[window(0, [100])], candidate=[window(0, [110])])
    assert restart_log_ratios([broken], "candidate", "baseline", quantity) == []
    assert interval([broken, good], quantity).restarts == 1


# -- exactly as often as it was agreed -----------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(1, 11))
@pytest.mark.parametrize("alpha", [0.016, 0.032, 0.1, 0.3])
def test_each_side_misses_as_often_as_an_exact_test_may_and_no_more(n: int, alpha: float) -> None:
    """Where the truth is 0, every value is as likely above as below it: count all the ways."""
    sizes = [math.sqrt(2 + rank) for rank in range(n)]
    ways = list(itertools.product((-1, 1), repeat=n))
    bounds = [signed_rank_interval([sign * size for sign, size in zip(way, sizes, strict=True)], alpha) for way in ways]
    sums = np.array([sum(rank for rank, sign in enumerate(way, 1) if sign > 0) for way in ways])
    allowed = [share for w in range(n * (n + 1) // 2) if (share := float((sums <= w).mean())) <= alpha]
    known = [bound for bound in bounds if bound is not None]
    assert len(known) == (len(ways) if allowed else 0)
    assert sum(low > 0 for low, _ in known) == sum(high < 0 for _, high in known) == max(allowed, default=0) * len(ways)


@pytest.mark.parametrize("noise", ["laplace", "standard_cauchy"])
def test_a_tail_of_unlucky_processes_does_not_make_it_miss_more_often(noise: str) -> None:
    draws = getattr(np.random.default_rng(20260701), noise)(size=(2000, 10))
    bounds = [signed_rank_interval(row, ALPHA) or (0.0, 0.0) for row in draws]
    for missed in (sum(low > 0 for low, _ in bounds), sum(high < 0 for _, high in bounds)):
        assert 0 < missed / len(draws) <= ALPHA + 3 * math.sqrt(ALPHA / len(draws))


def verdict(values: np.ndarray, limit: float) -> str:
    """Return what the planned looks make of a session: pass, fail, or in doubt at the last."""
    for look in Measuring().looks:
        low, high = signed_rank_interval(values[:look], ALPHA) or (-math.inf, math.inf)
        if low > math.log(limit):
            return "fail"
        if high < math.log(limit):
            return "pass"
    return "in doubt"


def test_a_slowdown_at_the_limit_passes_in_one_of_twenty_at_most_although_it_is_looked_at_four_times() -> None:
    draws = np.random.default_rng(20260702).normal(math.log(1.02), 0.006, (1000, 12))
    found = [verdict(row, 1.02) for row in draws]
    assert found.count("pass") / len(found) < 0.05
    assert found.count("fail") / len(found) < 0.05


@pytest.mark.parametrize(
    ("slowdown", "answer", "least"), [(1.0, "pass", 0.95), (1.03, "fail", 0.80), (1.05, "fail", 0.99)]
)
def test_at_a_limit_of_two_percent_equals_pass_and_what_is_slower_fails(
    slowdown: float, answer: str, least: float
) -> None:
    """The noise is that of a settled machine in STATISTICS.md: 0.6 % between restarts."""
    draws = np.random.default_rng(20260703).normal(math.log(slowdown), 0.006, (500, 12))
    found = [verdict(row, 1.02) for row in draws]
    assert found.count(answer) / len(found) > least
    assert set(found) <= {answer, "in doubt"}


def test_a_number_that_is_none_settles_nothing() -> None:
    assert math.isnan(hodges_lehmann([0.1, math.nan, 0.2]))
    assert not settled(Interval(math.nan, math.nan, math.nan, 6), 1.03)
    assert signed_rank_interval([], ALPHA) is None


# -- before any interval -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "medians",
    [[], [10.0] * 4, [0.0] * 5, [10.0, 10.0, 10.0, 0.0, 10.0], [10.0, 10.0, math.nan, 10.0, 10.0], [10.0] * 4 + [-1.0]],
)
def test_windows_without_a_time_are_never_steady(medians: list[float]) -> None:
    assert not is_steady(medians)


@given(
    st.floats(1e3, 1e10),
    st.lists(st.floats(1e3, 1e10), max_size=6),
    st.lists(st.floats(-1, 1), min_size=5, max_size=5),
)
def test_windows_within_the_tolerance_are_steady_whatever_came_before(
    level: float, before: list[float], wobble: list[float]
) -> None:
    assert is_steady([*before, *(level * (1 + 0.49 * STEADY_TOLERANCE * part) for part in wobble)])


@given(st.floats(0.02, 0.5), st.booleans())
def test_a_trend_of_two_percent_a_window_is_never_steady(rate: float, rising: bool) -> None:
    factor = 1 + rate if rising else 1 / (1 + rate)
    assert not is_steady([1e6 * factor**n for n in range(9)])


@given(st.lists(st.floats(0.97, 1.03), min_size=2, max_size=6), st.lists(st.floats(0.97, 1.03), min_size=2, max_size=6))
def test_two_groups_far_apart_are_two_modes_in_any_order(fast: list[float], slow: list[float]) -> None:
    found = two_modes([*(4 * value for value in slow), *fast])
    assert found == pytest.approx((float(np.exp(np.median(np.log(fast)))), float(4 * np.exp(np.median(np.log(slow))))))


@pytest.mark.parametrize(
    "values",
    [[], [1.0] * 8, [1.0, 1.0, 1.02, 1.02], [1.00, 1.02, 1.04, 1.06, 1.08], [1.0, 1.05, 1.10, 1.20, 1.25, 1.30]],
    ids=["none", "equal", "too near", "a slope", "a gap no wider than the groups"],
)
def test_one_cloud_is_not_two_modes(values: list[float]) -> None:
    assert two_modes(values) is None


def test_calm_noise_is_hardly_ever_taken_for_two_modes() -> None:
    draws = np.random.default_rng(20260704).normal(0, 0.006, (500, 12))
    assert sum(two_modes(np.exp(row)) is not None for row in draws) == 0


# -- drift -----------------------------------------------------------------------------------------------------------


def test_a_drift_is_a_change_in_order_from_the_first_third_to_the_last() -> None:
    assert drift([10.0, 10.1, 10.3, 10.6, 10.8, 11.0]) == pytest.approx(10.9 / 10.05, rel=1e-3)
    assert drift([11.0, 10.8, 10.6, 10.3, 10.1, 10.0]) == pytest.approx(10.05 / 10.9, rel=1e-3)
    assert drift([10.0, 11.0, 10.1, 10.9, 11.1, 10.2]) == 1.0
    assert drift([10.0, 10.1, 10.3, 10.6, 10.8]) == 1.0
    assert drift([10.0] * 12) == 1.0


def test_a_machine_that_stands_still_seldom_drifts() -> None:
    generator = np.random.default_rng(20260701)
    moved = [drift(generator.lognormal(0.0, 0.02, 6).tolist()) != 1.0 for _ in range(4000)]
    assert 0.04 < np.mean(moved) < 0.13
