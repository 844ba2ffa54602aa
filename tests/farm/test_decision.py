"""The decision is one closed table and one precedence; worse verdicts never make a better decision."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.decision import PRECEDENCE, RowKey, decide_row, effect, required_gates, worst
from farm.model import (
    CellVerdicts,
    Decision,
    DecisionRow,
    Figure,
    Gate,
    PlannedWorkload,
    Question,
    Status,
    Tier,
    Verdict,
)
from tests.evidence import GATES, tier

PAGE = Path(__file__).parent.parent.parent / "docs" / "decision-rule.md"

#: From good to worse. What nobody knows is no better than what is known to be doubtful.
WORSE = {
    Status.PASS: (Status.INCONCLUSIVE, Status.UNTESTED, Status.FAIL),
    Status.INCONCLUSIVE: (Status.UNTESTED,),
    Status.UNTESTED: (),
    Status.FAIL: (),
    Status.NOT_APPLICABLE: (Status.INCONCLUSIVE, Status.UNTESTED, Status.FAIL),
}


def cell(*statuses: Status, gates: Sequence[Gate] = GATES, question: Question = Question.VERSION, **more: object):
    fields: dict[str, object] = {"track": "production", "production_shape": True}
    return CellVerdicts(
        cell_id="block/infer@cpu",
        workload="block",
        case="infer",
        backend="cpu",
        question=question,
        arm="candidate" if question is Question.VERSION else "candidate+new",
        reference="baseline" if question is Question.VERSION else "candidate",
        tier="serving",
        verdicts=tuple(
            Verdict(gate=gate, status=status, reason=f"{gate} words")
            for gate, status in zip(gates, statuses, strict=False)
        ),
        **fields | more,
    )


def passing(*, but: dict[Gate, Status] | None = None, **more: object) -> CellVerdicts:
    return cell(*((but or {}).get(gate, Status.PASS) for gate in GATES), **more)


def decide(
    *cells: CellVerdicts,
    limits: Tier | None = None,
    separable: bool = False,
    aa: bool = False,
    alarmed: bool = False,
    question: Question = Question.VERSION,
    **planned: object,
) -> DecisionRow:
    """``planned`` is what the matrix says of the workload; somebody answers for it unless it says otherwise."""
    path = "new" if question is Question.FEATURE else ""
    key = RowKey(question, "block", path, "cpu", "serving")
    asked = PlannedWorkload.model_validate({"owner": "ada"} | planned)
    return decide_row(key, cells, limits or tier(), separable=separable, aa=aa, alarmed=alarmed, planned=asked)


# -- the table -----------------------------------------------------------------------------------------------------


def table_rows() -> list[list[str]]:
    lines = PAGE.read_text().split("## The table")[1].split("## ")[0].splitlines()
    rows = [[part.strip().strip("`") for part in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert rows[0] == ["verdict", "question", "gate", "tier", "effect"]
    return rows[2:]


def fits(
    row: Sequence[str], status: Status, gate: Gate, limits: Tier, question: Question, *, separable: bool, within: bool
) -> bool:
    forgiven = gate in limits.may_be_inconclusive
    gates = {
        "any": True,
        "may be inconclusive, estimate within": forgiven and within,
        "may be inconclusive, estimate beyond": forgiven and not within,
        "must be conclusive": not forgiven,
        "rollback": gate is Gate.ROLLBACK,
        "any but rollback": gate is not Gate.ROLLBACK,
    }
    tiers = {
        "any": True,
        "in service": limits.in_service,
        "not in service, separable": not limits.in_service and separable,
        "not in service, not separable": not limits.in_service and not separable,
    }
    return row[0] == status and row[1] in ("any", question) and gates[row[2]] and tiers[row[3]]


def estimate(gate: Gate, *, within: bool) -> Figure:
    """More is better for throughput alone."""
    limit, other = (0.97, 0.90) if gate is Gate.THROUGHPUT else (1.03, 1.10)
    value = limit if within else other
    return Figure(name="ratio", value=value, low=value * 0.9, high=value * 1.1, limit=limit)


def test_the_page_says_what_the_function_does() -> None:
    rows = table_rows()
    used = set()
    for status, gate, question in itertools.product(Status, Gate, Question):
        for in_service, separable, forgiving, within in itertools.product((False, True), repeat=4):
            limits = tier(in_service=in_service, may_be_inconclusive=(gate,) if forgiving else ())
            asked = {"separable": separable, "within": within}
            found = [i for i, row in enumerate(rows) if fits(row, status, gate, limits, question, **asked)]
            assert len(found) == 1, (status, gate, question, in_service, separable, forgiving, within)
            verdict = Verdict(gate=gate, status=status, reason="", figure=estimate(gate, within=within))
            assert rows[found[0]][4] == effect(verdict, limits, question, separable=separable)
            used.add(found[0])
    assert used == set(range(len(rows)))


def test_the_page_says_the_precedence() -> None:
    assert ", ".join(f"`{decision}`" for decision in PRECEDENCE) in PAGE.read_text()


@given(st.lists(st.sampled_from(Decision), min_size=1))
def test_the_worst_decides(decisions: list[Decision]) -> None:
    assert PRECEDENCE.index(worst(decisions)) == min(map(PRECEDENCE.index, decisions))


# -- rows ----------------------------------------------------------------------------------------------------------


def test_all_well_on_production_shapes_is_adopted() -> None:
    row = decide(passing())
    assert (row.decision, row.would, row.decided_by) == (Decision.ADOPT, None, None)
    assert row.reason == "every required gate passes"


@pytest.mark.parametrize("status", [Status.FAIL, Status.INCONCLUSIVE, Status.UNTESTED])
@pytest.mark.parametrize("gate", GATES)
def test_one_required_gate_that_does_not_pass_defers_and_is_named(gate: Gate, status: Status) -> None:
    row = decide(passing(), passing(but={gate: status}))
    assert (row.decision, row.decided_by, row.reason) == (Decision.DEFER, gate, f"{status}: {gate} words")
    assert row.would_change


@pytest.mark.parametrize("gate", GATES)
def test_a_gate_that_the_tier_does_not_require_decides_nothing(gate: Gate) -> None:
    limits = tier(required=tuple(other for other in GATES if other is not gate))
    assert decide(passing(but={gate: Status.FAIL}), limits=limits).decision is Decision.ADOPT


def test_a_verdict_that_is_missing_is_untested() -> None:
    row = decide(cell(*[Status.PASS] * 6))
    assert (row.decision, row.decided_by, row.reason) == (Decision.DEFER, Gate.ROLLBACK, "untested: not judged")


def test_without_cells_or_required_gates_nothing_is_adopted() -> None:
    for row in (decide(), decide(passing(), limits=tier(required=()))):
        assert (row.decision, row.reason) == (Decision.DEFER, "no required gate was judged")


def test_a_cell_that_no_required_gate_fits_is_untested() -> None:
    limits = tier(required=(Gate.LATENCY, Gate.THROUGHPUT))
    nothing = passing(but=dict.fromkeys((Gate.LATENCY, Gate.THROUGHPUT), Status.NOT_APPLICABLE))
    row = decide(passing(), nothing, limits=limits)
    assert row.decision is Decision.DEFER
    assert row.reason == "untested: no required gate could be judged: latency words"
    one = passing(but={Gate.LATENCY: Status.NOT_APPLICABLE})
    assert decide(passing(), one, limits=limits).decision is Decision.ADOPT


def test_a_tier_may_forgive_doubt_and_nothing_else() -> None:
    limits = tier(may_be_inconclusive=(Gate.LATENCY,))

    def decided(status: Status, *, within: bool = True) -> Decision:
        found = passing()
        latency = Verdict(gate=Gate.LATENCY, status=status, reason="", figure=estimate(Gate.LATENCY, within=within))
        others = tuple(verdict for verdict in found.verdicts if verdict.gate is not Gate.LATENCY)
        return decide(found.model_copy(update={"verdicts": (latency, *others)}), limits=limits).decision

    assert decided(Status.INCONCLUSIVE) is Decision.ADOPT
    assert decided(Status.INCONCLUSIVE, within=False) is Decision.DEFER
    assert decided(Status.UNTESTED) is Decision.DEFER
    assert decided(Status.FAIL) is Decision.DEFER


def test_an_estimate_without_an_interval_is_not_forgiven() -> None:
    bare = Figure(name="p50 ratio", value=1.0, limit=1.03)
    doubt = Verdict(gate=Gate.LATENCY, status=Status.INCONCLUSIVE, reason="after 1 restarts", figure=bare)
    limits = tier(may_be_inconclusive=(Gate.LATENCY,))
    assert effect(doubt, limits, Question.VERSION, separable=False) is Decision.DEFER


def test_a_prototype_with_wrong_results_is_not_isolated_where_the_tier_asks_for_latency_alone() -> None:
    wrong = passing(but={Gate.CORRECTNESS: Status.FAIL}, track="prototype")
    row = decide(wrong, limits=tier(required=(Gate.LATENCY,)))
    assert (row.decision, row.decided_by) == (Decision.DEFER, Gate.CORRECTNESS)


def test_one_production_shape_does_not_stand_for_another() -> None:
    found = passing()
    assert decide(found, production_cases=(found.case,)).decision is Decision.ADOPT
    row = decide(found, production_cases=(found.case, "train-large"))
    assert (row.decision, row.would) == (Decision.DEFER, Decision.ADOPT)
    assert row.reason == "production shapes untested"
    assert row.would_change == "train-large of block measured on cpu, with the same verdicts"


@pytest.mark.parametrize("status", [Status.UNTESTED, Status.INCONCLUSIVE])
def test_a_tier_in_service_is_told_that_the_way_back_is_not_proven(status: Status) -> None:
    row = decide(passing(but={Gate.ROLLBACK: status}), limits=tier(in_service=True))
    assert any(warning.startswith("the way back is not proven") for warning in row.warnings)


def test_doubt_without_an_estimate_is_not_forgiven() -> None:
    doubtful = passing(but={Gate.LATENCY: Status.INCONCLUSIVE})
    assert decide(doubtful, limits=tier(may_be_inconclusive=(Gate.LATENCY,))).decision is Decision.DEFER


def test_a_feature_whose_gain_is_in_doubt_is_not_adopted() -> None:
    limits = tier(may_be_inconclusive=(Gate.LATENCY,))
    doubtful = passing(but={Gate.LATENCY: Status.INCONCLUSIVE}, question=Question.FEATURE)
    assert decide(doubtful, limits=limits, question=Question.FEATURE).decision is Decision.DEFER


def test_a_feature_is_always_asked_for_its_gain() -> None:
    limits = tier(required=(Gate.CORRECTNESS,))
    assert required_gates(limits, Question.FEATURE) == (Gate.CORRECTNESS, Gate.LATENCY)
    assert required_gates(limits, Question.VERSION) == (Gate.CORRECTNESS,)
    slow = passing(but={Gate.LATENCY: Status.FAIL}, question=Question.FEATURE)
    assert decide(slow, limits=limits, question=Question.FEATURE).decision is Decision.DEFER


def test_in_service_a_failing_gate_rolls_back_and_doubt_defers() -> None:
    limits = tier(in_service=True)
    assert decide(passing(but={Gate.LATENCY: Status.FAIL}), limits=limits).decision is Decision.ROLLBACK
    assert decide(passing(but={Gate.LATENCY: Status.UNTESTED}), limits=limits).decision is Decision.DEFER


def test_a_way_back_that_fails_blocks_the_rollback_and_says_so() -> None:
    limits = tier(in_service=True)
    row = decide(passing(but={Gate.ROLLBACK: Status.FAIL}), limits=limits)
    assert (row.decision, row.warnings) == (Decision.DEFER, ("rollback blocked: rollback words",))
    both = decide(passing(but={Gate.ROLLBACK: Status.FAIL, Gate.CORRECTNESS: Status.FAIL}), limits=limits)
    assert (both.decision, both.decided_by) == (Decision.ROLLBACK, Gate.CORRECTNESS)
    assert both.warnings == ("rollback blocked: rollback words",)


def test_a_feature_is_left_and_never_rolled_back() -> None:
    failing = passing(but={Gate.CORRECTNESS: Status.FAIL}, question=Question.FEATURE)
    for limits in (tier(), tier(in_service=True)):
        row = decide(failing, limits=limits, separable=True, question=Question.FEATURE)
        assert row.decision is Decision.DEFER


@pytest.mark.parametrize("gate", [Gate.LATENCY, Gate.THROUGHPUT])
def test_an_alarm_takes_rollbacks_by_time_back(gate: Gate) -> None:
    limits = tier(in_service=True)
    assert decide(passing(but={gate: Status.FAIL}), limits=limits, alarmed=True).decision is Decision.DEFER
    wrong = passing(but={gate: Status.FAIL, Gate.CORRECTNESS: Status.FAIL})
    assert decide(wrong, limits=limits, alarmed=True).decision is Decision.ROLLBACK


def test_a_broken_control_or_one_wheel_decides_nothing_but_defer() -> None:
    for limits in (tier(), tier(in_service=True)):
        for but in ({}, {Gate.LATENCY: Status.FAIL}, {Gate.LATENCY: Status.UNTESTED}):
            broken = decide(passing(but=but, broken_control="build variant differs"), limits=limits, separable=True)
            assert (broken.decision, broken.would) == (Decision.DEFER, None)
            assert broken.reason.startswith("control broken: build variant differs")
            same = decide(passing(but=but), limits=limits, separable=True, aa=True)
            assert same.decision is Decision.DEFER
            assert same.reason.startswith("A/A run: both arms are one wheel")
            assert same.would is not Decision.ROLLBACK


def test_shapes_that_nobody_serves_defer_with_what_would_have_been() -> None:
    row = decide(passing(production_shape=False))
    assert (row.decision, row.would, row.reason) == (Decision.DEFER, Decision.ADOPT, "production shapes untested")
    apart = decide(passing(production_shape=False, but={Gate.LATENCY: Status.FAIL}), separable=True)
    assert (apart.decision, apart.would) == (Decision.DEFER, Decision.ISOLATE)
    assert decide(passing(production_shape=False), passing()).decision is Decision.ADOPT


def test_a_prototype_earns_isolate_at_best_and_only_with_right_results() -> None:
    assert decide(passing(track="prototype")).decision is Decision.ISOLATE
    wrong = passing(track="prototype", but={Gate.CORRECTNESS: Status.FAIL})
    assert decide(wrong, separable=True).decision is Decision.DEFER
    held = decide(passing(track="prototype", production_shape=False))
    assert (held.decision, held.would) == (Decision.DEFER, Decision.ISOLATE)


def test_a_prototype_that_nobody_answers_for_stays_at_defer() -> None:
    for separable, but in ((False, {}), (True, {Gate.LATENCY: Status.FAIL})):
        row = decide(passing(track="prototype", but=but), separable=separable, owner="")
        assert (row.decision, row.would, row.decided_by) == (Decision.DEFER, Decision.ISOLATE, None)
        assert row.reason == "prototype without an owner: nobody would answer for it"
        assert row.would_change == "an owner of block in the matrix"
    assert decide(passing(), owner="").decision is Decision.ADOPT


def test_a_prototype_whose_kernels_the_team_maintains_is_adopted_like_other_work() -> None:
    row = decide(passing(track="prototype"))
    assert row.would_change == "maintains = true for block in the matrix, where ada maintains its kernels"
    assert decide(passing(track="prototype"), maintains=True).decision is Decision.ADOPT
    held = decide(passing(track="prototype", production_shape=False), maintains=True)
    assert (held.decision, held.would) == (Decision.DEFER, Decision.ADOPT)


# -- the verdict that a decision hangs on --------------------------------------------------------------------------


def with_figure(found: CellVerdicts, gate: Gate, status: Status, **figure: object) -> CellVerdicts:
    told = Verdict(gate=gate, status=status, reason="words", figure=Figure(name="p50 ratio", limit=1.03, **figure))
    return found.model_copy(update={"verdicts": tuple(told if v.gate is gate else v for v in found.verdicts)})


def test_an_adoption_names_the_verdict_with_the_least_to_spare() -> None:
    near = with_figure(passing(), Gate.THROUGHPUT, Status.PASS, value=1.01, high=1.02, low=1.0)
    both = with_figure(near, Gate.LATENCY, Status.PASS, value=1.0, high=1.01, low=0.99)
    row = decide(both)
    assert (row.decision, row.decided_by, row.reason) == (
        Decision.ADOPT,
        Gate.THROUGHPUT,
        "every required gate passes",
    )
    assert row.would_change == "throughput of block/infer@cpu beyond its limit (+3.0 %): it is +1.0 % [+0.0 %, +2.0 %]"
    assert row.figure is not None


def test_an_adoption_that_forgives_doubt_names_it() -> None:
    doubtful = with_figure(passing(), Gate.LATENCY, Status.INCONCLUSIVE, value=1.01, high=1.05, low=0.99)
    row = decide(doubtful, limits=tier(may_be_inconclusive=(Gate.LATENCY,)))
    assert (row.decision, row.decided_by) == (Decision.ADOPT, Gate.LATENCY)
    assert row.reason == "every required gate passes; of latency the tier forgives the doubt"
    assert row.would_change.startswith("latency of block/infer@cpu beyond its limit (+3.0 %)")


def test_what_holds_a_row_back_is_what_would_change_it() -> None:
    near = with_figure(passing(production_shape=False), Gate.LATENCY, Status.PASS, value=1.0, high=1.01, low=0.99)
    row = decide(near)
    assert (row.decision, row.decided_by) == (Decision.DEFER, None)
    assert row.would_change == (
        "a case that is marked as a production shape of block measured on cpu, with the same verdicts"
    )


# -- what is kept apart --------------------------------------------------------------------------------------------


def test_what_is_kept_apart_is_named_where_that_is_or_would_be_the_decision() -> None:
    failing = {Gate.LATENCY: Status.FAIL}
    assert decide(passing(but=failing), separable=True).kept_apart == "workload block"
    assert decide(passing(but=failing, production_shape=False), separable=True).kept_apart == "workload block"
    assert decide(passing(track="prototype")).kept_apart == "prototype track: block"
    for row in (decide(passing()), decide(passing(but=failing)), decide(passing(broken_control="x"), separable=True)):
        assert row.kept_apart == ""


def test_what_the_candidate_fixes_is_a_warning_about_the_way_back() -> None:
    fixed = Verdict(gate=Gate.LATENCY, status=Status.NOT_APPLICABLE, reason="fixed by the candidate: baseline crashed")
    made = passing()
    made = made.model_copy(update={"verdicts": tuple(fixed if v.gate is fixed.gate else v for v in made.verdicts)})
    row = decide(made)
    assert row.decision is Decision.ADOPT
    assert row.warnings == ("the way back has the fault: fixed by the candidate: baseline crashed",)


# -- monotone ------------------------------------------------------------------------------------------------------

statuses = st.lists(st.sampled_from(Status), min_size=len(GATES), max_size=len(GATES))
tiers = st.builds(
    lambda required, forgiven, in_service: tier(
        required=tuple(required), may_be_inconclusive=tuple(forgiven), in_service=in_service
    ),
    st.lists(st.sampled_from(Gate), min_size=1, unique=True),
    st.lists(st.sampled_from(Gate), unique=True),
    st.booleans(),
)


@given(
    rows=st.lists(statuses, min_size=1, max_size=3),
    limits=tiers,
    question=st.sampled_from(Question),
    flags=st.tuples(*[st.booleans()] * 5),
    data=st.data(),
)
def test_a_worse_verdict_never_makes_a_better_row(
    rows: list[list[Status]], limits: Tier, question: Question, flags: tuple[bool, ...], data: st.DataObject
) -> None:
    separable, aa, alarmed, shape, prototype = flags
    track = "prototype" if prototype else "production"
    which, gate = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.integers(0, len(GATES) - 1))
    worse = [list(row) for row in rows]
    if not WORSE[rows[which][gate]]:
        return
    worse[which][gate] = data.draw(st.sampled_from(WORSE[rows[which][gate]]))
    # A cell that no required gate fits is untested: one verdict that does fit may end that.
    nothing = all(rows[which][GATES.index(g)] is Status.NOT_APPLICABLE for g in required_gates(limits, question))

    def decided(of: list[list[Status]]) -> DecisionRow:
        cells = [cell(*row, question=question, track=track, production_shape=shape) for row in of]
        return decide(*cells, limits=limits, separable=separable, aa=aa, alarmed=alarmed, question=question)

    before, after = decided(rows), decided(worse)
    if not nothing:
        assert PRECEDENCE.index(after.decision) <= PRECEDENCE.index(before.decision)
        assert PRECEDENCE.index(after.would or after.decision) <= PRECEDENCE.index(before.would or before.decision)


@given(rows=st.lists(statuses, max_size=3), limits=tiers, flags=st.tuples(*[st.booleans()] * 5))
def test_nothing_is_adopted_but_by_passes(rows: list[list[Status]], limits: Tier, flags: tuple[bool, ...]) -> None:
    separable, aa, alarmed, shape, prototype = flags
    track = "prototype" if prototype else "production"
    cells = [cell(*row, track=track, production_shape=shape) for row in rows]
    row = decide(*cells, limits=limits, separable=separable, aa=aa, alarmed=alarmed)
    if row.decision is Decision.ADOPT:
        assert cells
        assert shape
        assert not aa
        assert not prototype
        for of in rows:
            given_ = [of[GATES.index(gate)] for gate in limits.required]
            assert set(given_) <= {Status.PASS, Status.NOT_APPLICABLE, Status.INCONCLUSIVE}
            assert set(given_) != {Status.NOT_APPLICABLE}
    if row.decision is Decision.ROLLBACK:
        assert limits.in_service
        assert not aa
