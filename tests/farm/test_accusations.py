"""What a run of many cells accuses, and what it takes for chance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from farm.accusations import rejected, withhold
from farm.judge import judge
from farm.model import Gate, Measuring, Status
from farm.statistics import signed_rank_p_value
from tests.evidence import cell, evidence, restarts, result, tier


def test_p_values_are_those_of_the_exact_test() -> None:
    """Six values above: 1 / 2**6. One below with the smallest rank: two of the 64 signs are as extreme."""
    assert signed_rank_p_value([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.0) == 1 / 64
    assert signed_rank_p_value([-1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.0) == 2 / 64
    assert signed_rank_p_value([0.0, 0.0], 0.0) == 1.0


def test_p_values_of_nothing_are_seldom_small() -> None:
    draws = np.random.default_rng(20261202).normal(size=(4000, 12))
    found = np.array([signed_rank_p_value(list(row), 0.0) for row in draws])
    for level in (0.01, 0.05, 0.2):
        assert (found <= level).mean() <= level + 3 * math.sqrt(level / 4000)


def test_findings_are_those_of_benjamini_and_hochberg() -> None:
    """The example of their paper: of fifteen, four at q = 0.05."""
    paper = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240]
    paper += [0.4262, 0.5719, 0.6528, 0.7590, 1.0]
    assert rejected(dict(enumerate(paper)), len(paper), 0.05) == {0, 1, 2, 3}


def test_tests_that_found_nothing_count_all_the_same() -> None:
    assert rejected({0: 0.004}, 10) == {0}
    assert rejected({0: 0.006}, 10) == set()


def run_of(slow: int, fine: int, confirming: int) -> list[Status]:
    """Return the latency verdicts of the slow cells, 10 % each, among fine ones."""
    measuring = Measuring(confirming=confirming)
    cells = [cell(f"w{number}", measuring=measuring, gates=(Gate.LATENCY,)) for number in range(slow + fine)]
    results = []
    for number, of in enumerate(cells):
        times = {"baseline": 10.0, "candidate": 11.0 if number < slow else 10.0}
        repeat = [r.model_copy(update={"purpose": "confirming"}) for r in restarts(times, confirming)]
        results.append(result(of, times=times, restarts=(*restarts(times), *repeat)))
    made = evidence(list(zip(cells, results, strict=True)), tier(required=(Gate.LATENCY,)))
    judged = judge(made).cells
    return [v.status for c in judged[:slow] for v in c.verdicts if v.gate is Gate.LATENCY]


@pytest.mark.parametrize(
    ("slow", "fine", "confirming", "status"),
    [
        (1, 0, 0, Status.FAIL),
        (1, 200, 0, Status.FAIL),
        (1, 150, 6, Status.FAIL),
        (1, 250, 6, Status.INCONCLUSIVE),
        (8, 242, 6, Status.FAIL),
    ],
    ids=["alone", "no repeat was planned", "one of 150", "one of too many for twelve restarts", "eight of as many"],
)
def test_one_of_many_needs_more_than_one_of_few(slow: int, fine: int, confirming: int, status: Status) -> None:
    assert set(run_of(slow, fine, confirming)) == {status}


def test_nothing_but_times_is_withheld() -> None:
    of = cell("w")
    judged = judge(evidence([(of, result(of))])).cells
    assert withhold(judged, {of.id: result(of)}, {of.id}) == list(judged)
