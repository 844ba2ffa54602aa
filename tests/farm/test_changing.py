"""What would change a decision is said with the one figure that it hangs on, and how far that is from turning."""

from __future__ import annotations

import math

import pytest

from farm.changing import beyond, nearest, would_change
from farm.model import CellVerdicts, Figure, Gate, Question, Status, Verdict

REQUIRED = (Gate.CORRECTNESS, Gate.LATENCY, Gate.THROUGHPUT, Gate.DETERMINISM, Gate.COMPILE_EXPORT, Gate.ROLLBACK)


def verdict(gate: Gate, figure: Figure | None = None, status: Status = Status.PASS, reason: str = "words") -> Verdict:
    return Verdict(gate=gate, status=status, reason=reason, figure=figure)


def cell(*verdicts: Verdict) -> CellVerdicts:
    return CellVerdicts(
        cell_id="block/infer@cpu",
        workload="block",
        case="infer",
        backend="cpu",
        track="production",
        production_shape=True,
        question=Question.VERSION,
        arm="candidate",
        reference="baseline",
        tier="serving",
        verdicts=verdicts,
    )


def ratio(value: float, half: float = 0.0, *, limit: float = 1.03, name: str = "p50 ratio", n: int = 6) -> Figure:
    return Figure(name=name, value=value, low=value - half, high=value + half, limit=limit, restarts=n)


def seconds(value: float) -> Figure:
    return Figure(name="rehearsal", value=value, limit=120.0, unit="s")


# -- the verdict with the least to spare ---------------------------------------------------------------------------


def test_the_share_of_the_allowance_that_is_left_says_which_verdict_is_nearest() -> None:
    def nearer(back_s: float, programs: float) -> Gate:
        cold = Figure(name="cold compile ratio", value=programs, limit=1.25)
        both = cell(verdict(Gate.ROLLBACK, seconds(back_s)), verdict(Gate.COMPILE_EXPORT, cold))
        found = nearest([both], REQUIRED)
        assert found is not None
        return found[1].gate

    # 24 % of an allowed 25 % beside 20 s of an allowed 120.
    assert nearer(20.0, 1.24) is Gate.COMPILE_EXPORT
    assert nearer(119.0, 1.1) is Gate.ROLLBACK


def test_what_the_next_measurement_may_turn_comes_first() -> None:
    error = verdict(Gate.CORRECTNESS, Figure(name="error of 'y' over the allowed", value=0.99, limit=1.0))
    found = nearest([cell(error, verdict(Gate.LATENCY, ratio(1.0)))], REQUIRED)
    assert found is not None
    assert found[1].gate is Gate.LATENCY
    alone = nearest([cell(error)], REQUIRED)
    assert alone is not None
    assert alone[1] is error


def test_the_bound_counts_that_was_judged() -> None:
    wide, narrow = verdict(Gate.LATENCY, ratio(1.0, 0.029)), verdict(Gate.LATENCY, ratio(1.02))
    found = nearest([cell(narrow), cell(wide)], REQUIRED)
    assert found is not None
    assert found[1] is wide
    # Of throughput the lower bound, and less is nearer.
    items = verdict(Gate.THROUGHPUT, ratio(1.0, 0.025, limit=0.97, name="throughput ratio"))
    found = nearest([cell(narrow, items)], REQUIRED)
    assert found is not None
    assert found[1] is items


def test_other_figures_of_a_verdict_count_where_they_have_a_limit() -> None:
    tail = ratio(1.049, limit=1.05, name="p95 ratio")
    both = Verdict(gate=Gate.LATENCY, status=Status.PASS, reason="", figure=ratio(1.0), others=(tail,))
    found = nearest([cell(both)], REQUIRED)
    assert found is not None
    assert found[2] == tail
    shown = tail.model_copy(update={"limit": None})
    found = nearest([cell(both.model_copy(update={"others": (shown,)}))], REQUIRED)
    assert found is not None
    assert found[2] == ratio(1.0)


@pytest.mark.parametrize(
    "other",
    [
        verdict(Gate.DETERMINISM, Figure(name="distinct results", value=1, limit=1.0)),
        verdict(Gate.PEAK_MEMORY, ratio(1.0299)),
        verdict(Gate.LATENCY, ratio(1.0299), Status.INCONCLUSIVE),
        verdict(Gate.COMPILE_EXPORT, Figure(name="more graph breaks", value=0, limit=0)),
        verdict(Gate.LATENCY, Figure(name="p50 ratio", value=1.02)),
        verdict(Gate.CORRECTNESS),
    ],
    ids=["yes or no", "not required", "no pass", "nothing allowed", "no limit", "no figure"],
)
def test_what_has_no_distance_to_a_limit_is_not_the_nearest(other: Verdict) -> None:
    back = verdict(Gate.ROLLBACK, seconds(20.0))
    found = nearest([cell(other, back)], REQUIRED)
    assert found is not None
    assert found[1] is back
    assert nearest([cell(other)], REQUIRED) is None


# -- words ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            verdict(Gate.LATENCY, ratio(1.041, 0.005), Status.FAIL),
            "latency of block/infer@cpu within its limit (+3.0 %): it is +4.1 % [+3.6 %, +4.6 %]",
        ),
        (
            verdict(Gate.THROUGHPUT, ratio(0.9, 0.01, limit=0.97, name="throughput ratio"), Status.FAIL),
            "throughput of block/infer@cpu within its limit (-3.0 %): it is -10.0 % [-11.0 %, -9.0 %]",
        ),
        (
            verdict(Gate.ROLLBACK, seconds(131.0), Status.FAIL),
            "rollback of block/infer@cpu within its limit (120.0 s): it is 131.0 s",
        ),
        (
            verdict(Gate.COMPILE_EXPORT, Figure(name="more graph breaks", value=2, limit=0), Status.FAIL),
            "compile_export of block/infer@cpu within its limit (0): it is 2",
        ),
        # Back in time, and for another reason no proof: the figure is not what it fails by.
        (
            verdict(Gate.ROLLBACK, seconds(10.0), Status.FAIL, "the control differs"),
            "rollback of block/infer@cpu passing",
        ),
        (
            verdict(Gate.CORRECTNESS, Figure(name="error", value=math.nan, limit=1.0), Status.FAIL, "not finite"),
            "correctness of block/infer@cpu passing",
        ),
        (
            verdict(Gate.LATENCY, None, Status.FAIL, "candidate crashed: signal 11"),
            "latency of block/infer@cpu passing",
        ),
        (
            verdict(Gate.LATENCY, None, Status.UNTESTED, "no worker"),
            "latency of block/infer@cpu measured",
        ),
        (
            verdict(
                Gate.COMPILE_EXPORT, ratio(1.3, limit=1.25, name="cold compile ratio"), Status.INCONCLUSIVE, "once"
            ),
            "compile_export of block/infer@cpu settled",
        ),
    ],
    ids=lambda given: None if isinstance(given, str) else f"{given.gate}-{given.status}",
)
def test_what_would_turn_a_verdict_is_said(given: Verdict, words: str) -> None:
    assert would_change(cell(given), given) == words


def test_an_adoption_is_changed_by_a_figure_beyond_its_limit_or_by_a_gate_that_fails() -> None:
    assert beyond(cell(), verdict(Gate.LATENCY, ratio(1.01, 0.005))) == (
        "latency of block/infer@cpu beyond its limit (+3.0 %): it is +1.0 % [+0.5 %, +1.5 %]"
    )
    assert beyond(cell(), verdict(Gate.CORRECTNESS)) == "correctness of block/infer@cpu failing"


# -- how many restarts ---------------------------------------------------------------------------------------------


def doubt(figure: Figure) -> str:
    given = verdict(Gate.LATENCY, figure, Status.INCONCLUSIVE)
    return would_change(cell(given), given)


def test_restarts_that_would_settle_an_interval_follow_from_its_width() -> None:
    # Twice as wide as the distance to the limit: four times the restarts.
    distance = math.log(1.03 / 1.01)
    high, low = 1.01 * math.exp(2 * distance), 1.01 * math.exp(-2 * distance)
    figure = Figure(name="p50 ratio", value=1.01, low=low, high=high, limit=1.03, restarts=6)
    assert doubt(figure).startswith("more restarts, about 24 in place of 6; latency of block/infer@cpu against its")
    # Beyond the limit it is the lower bound that has to come over it.
    figure = Figure(name="p50 ratio", value=1.05, low=1.029, high=1.5, limit=1.03, restarts=6)
    assert doubt(figure).startswith("more restarts, about 7 in place of 6; ")


def test_an_estimate_at_its_limit_is_settled_by_no_number_of_restarts() -> None:
    for value in (1.03, 1.0299):
        figure = Figure(name="p50 ratio", value=value, low=1.0, high=1.06, limit=1.03, restarts=12)
        assert doubt(figure).startswith("another limit, or a quieter machine: the estimate lies too near for restarts")


def test_where_there_is_no_interval_or_the_answer_did_not_stand_it_is_to_be_settled() -> None:
    bare = Figure(name="p50 ratio", value=1.01, limit=1.03, restarts=2)
    settled = "latency of block/infer@cpu settled, by more restarts or a quieter machine"
    assert doubt(bare) == settled
    # Beyond its limit and not confirmed: no limit lies inside.
    assert doubt(ratio(1.1, 0.01)) == settled
