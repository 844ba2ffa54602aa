"""Every mark of a chart lies where its number says, on an axis that people can read."""

from __future__ import annotations

import numpy as np
import pytest

from farm.report.charts import LEFT, RIGHT, Ratios, Samples, distribution_chart, ratio_chart


def test_every_mark_of_a_ratio_lies_on_the_axis_and_labels_do_not_touch() -> None:
    limits = ((1.03, "serving"), (1.05, "training"), (1.15, "research"))
    chart = ratio_chart([Ratios("p50 ratio", (0.9, 1.0, 1.2), 1.0, 0.9, 1.2, limits)], "candidate", "baseline")
    assert chart is not None
    lane = chart.lanes[0]
    assert all(LEFT <= x <= RIGHT for x in (*lane.dots, chart.one, *(mark.x for mark in lane.limits)))
    assert "1.00" in [tick.label for tick in chart.ticks]
    for one in lane.limits:
        for other in lane.limits:
            if one is not other and one.label_y == other.label_y:
                assert abs(one.label_x - other.label_x) > 6 * (len(one.label) + len(other.label)) / 2


def test_a_ratio_without_an_interval_has_none_drawn() -> None:
    chart = ratio_chart([Ratios("p50 ratio", (1.1,), 1.1, None, None, ())], "candidate", "baseline")
    assert chart is not None
    assert (chart.lanes[0].low, chart.lanes[0].high) == (None, None)
    assert ratio_chart([Ratios("p50 ratio", (), None, None, None, ())], "candidate", "baseline") is None


@pytest.mark.parametrize("spread", [1.02, 3.0, 40.0, 5000.0])
def test_an_axis_has_a_few_ticks_at_any_spread(spread: float) -> None:
    chart = ratio_chart([Ratios("p50 ratio", (1.0, spread), spread, None, None, ())], "candidate", "baseline")
    assert chart is not None
    assert 2 <= len(chart.ticks) <= 10


def test_one_stall_does_not_squeeze_a_distribution() -> None:
    steps = np.random.default_rng(1).normal(3.0, 0.05, 1000)
    stalled = np.append(steps, 900.0)
    chart = distribution_chart(Samples("baseline", steps, 6), Samples("candidate", stalled, 6))
    assert chart is not None
    assert "1 beyond the axis" not in chart.curves[0].legend
    assert float(chart.ticks[-1].label) < 4.0
    assert chart.curves[1].median == pytest.approx(chart.curves[0].median, abs=5)


def test_steps_of_one_duration_still_make_a_picture() -> None:
    same = Samples("baseline", np.full(10, 2.0), 1)
    chart = distribution_chart(same, Samples("candidate", np.empty(0), 0))
    assert chart is not None
    assert [curve.role for curve in chart.curves] == ["reference"]
    assert distribution_chart(*[Samples("candidate", np.empty(0), 0)] * 2) is None
