"""A judgement is a pure function of evidence: no traceback, no adoption without all of it, the same after storage."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.decision import PRECEDENCE
from farm.judge import _rows, _tier_decision, falls_short, judge
from farm.model import (
    ArmResult,
    Cell,
    CellResult,
    CellVerdicts,
    Decision,
    DecisionRow,
    Evidence,
    Gate,
    Judgement,
    Outcome,
    PlannedWorkload,
    Question,
    Status,
    TierDecision,
    Validity,
    Verdict,
)
from tests.evidence import (
    ENVIRONMENTS,
    HOST,
    cell,
    ended,
    evidence,
    life,
    memory,
    ok,
    output,
    plan,
    program,
    rehearsed,
    restarts,
    result,
    run_of,
    tier,
    window,
)

NAN = math.nan
BLOCK, ATTENTION = cell("block"), cell("attention")


def versions(judgement: Judgement) -> list[DecisionRow]:
    return [row for row in judgement.rows if row.question is Question.VERSION]


def features(judgement: Judgement) -> list[DecisionRow]:
    return [row for row in judgement.rows if row.question is Question.FEATURE]


def decided(judgement: Judgement) -> Decision:
    (only,) = judgement.tiers
    return only.decision


def test_a_run_in_which_all_is_well_is_adopted() -> None:
    judgement = judge(run_of(BLOCK, ATTENTION))
    assert [row.decision for row in judgement.rows] == [Decision.ADOPT] * 2
    assert decided(judgement) is Decision.ADOPT
    assert (judgement.coverage.cells, judgement.coverage.comparable, judgement.alarms) == (2, 2, ())


# -- what no careful engineer would adopt --------------------------------------------------------------------------

Fault = Callable[[CellResult], CellResult]


def candidate(arm: ArmResult) -> Fault:
    return lambda found: found.model_copy(update={"arms": found.arms | {"candidate": arm}})


def baseline(arm: ArmResult) -> Fault:
    return lambda found: found.model_copy(update={"arms": found.arms | {"baseline": arm}})


def field(**changed: Any) -> Fault:
    return lambda found: found.model_copy(update=changed)


def without(arm: str) -> Fault:
    return lambda found: found.model_copy(update={"arms": {k: v for k, v in found.arms.items() if k != arm}})


def timed(arm: str, *steps: int) -> Fault:
    broken = life(10.0).model_copy(update={"windows": (window(0, steps),) if steps else ()})
    return lambda found: found.model_copy(
        update={"restarts": tuple(r.model_copy(update={"arms": r.arms | {arm: broken}}) for r in found.restarts)}
    )


FAULTS: Mapping[str, Fault] = {
    "candidate crashed": candidate(ended()),
    "candidate out of memory": candidate(ended(Outcome.OUT_OF_MEMORY)),
    "candidate without environment": candidate(ended(Outcome.NO_ENVIRONMENT)),
    "baseline without environment": baseline(ended(Outcome.NO_ENVIRONMENT)),
    "candidate missing": without("candidate"),
    "baseline missing": without("baseline"),
    "no arms": field(arms={}),
    "invalid": field(validity=Validity(valid=False, reasons=("never steady",))),
    "invalid without a reason": field(validity=Validity(valid=False)),
    "another run": field(run_id="r-0"),
    "no restarts": field(restarts=()),
    "too few restarts": field(restarts=restarts({"baseline": 10.0, "candidate": 9.0}, count=5)),
    "baseline never timed": field(restarts=restarts({"candidate": 9.0})),
    "slower": field(restarts=restarts({"baseline": 10.0, "candidate": 12.0})),
    "zero time": timed("candidate", 0, 0),
    "zero time of the baseline": timed("baseline", 0),
    "negative time": timed("candidate", 2**64 - 10),
    "negative time of the baseline": timed("baseline", 2**64 - 10),
    "windows without steps": timed("candidate"),
    "not examined": candidate(ok().model_copy(update={"examination": None})),
    "baseline not examined": baseline(ok().model_copy(update={"examination": None})),
    "no outputs": candidate(ok(outputs={})),
    "NaN in the candidate": candidate(ok(outputs={"y": output(finite=False, rms_error=NAN, gain=NAN)})),
    "NaN in the baseline": baseline(ok(outputs={"y": output(finite=False, rms_error=NAN, gain=NAN)})),
    "NaN in the oracle": candidate(ok(outputs={"y": output(reference_finite=False, rms_error=NAN)})),
    "NaN error": candidate(ok(outputs={"y": output(rms_error=NAN)})),
    "NaN gain": candidate(ok(outputs={"y": output(gain=NAN)})),
    "infinite error": candidate(ok(outputs={"y": output(max_error=math.inf)})),
    "no memory": candidate(ok(memory=None)),
    "memory of zero": candidate(ok(memory=memory(0))),
    "negative memory": candidate(ok(memory=memory(-1))),
    "negative memory of the baseline": baseline(ok(memory=memory(-1))),
    "process of zero": candidate(ok(memory=memory(process=(0, 0)))),
    "no repeats": candidate(ok(repeat_digests=())),
    "another result in each repeat": candidate(ok(repeat_digests=("a", "b"))),
    "no items": candidate(ok(items_per_step=0.0)),
    "NaN items": candidate(ok(items_per_step=NAN)),
    "not compiled": candidate(ok().model_copy(update={"compile_export": None})),
    "nothing compared of the program": candidate(ok(program(compiled={}))),
    "no breaks counted": candidate(ok(program(graph_breaks=None))),
    "compiled in no time": candidate(ok(program(cold_ns=0))),
}


def faulty(*names: str, of: Cell = BLOCK) -> CellResult:
    found = result(of)
    for name in names:
        found = FAULTS[name](found)
    return found


@pytest.mark.parametrize("name", FAULTS)
def test_one_fault_keeps_a_run_from_being_adopted_and_says_why(name: str) -> None:
    judgement = judge(evidence([(BLOCK, faulty(name)), (ATTENTION, result(ATTENTION))]))
    row = next(row for row in judgement.rows if row.workload == "block")
    assert row.decision in (Decision.DEFER, Decision.ISOLATE)
    assert row.decided_by is not None
    assert row.reason.split(": ", 1)[1]
    assert decided(judgement) is row.decision


@pytest.mark.parametrize("name", FAULTS)
def test_only_what_is_known_to_fail_is_isolated_or_rolled_back(name: str) -> None:
    for in_service in (False, True):
        limits = tier(in_service=in_service)
        judgement = judge(evidence([(BLOCK, faulty(name)), (ATTENTION, result(ATTENTION))], limits))
        row = next(row for row in judgement.rows if row.workload == "block")
        if row.decision is not Decision.DEFER:
            assert row.reason.startswith("fail: ")


@settings(max_examples=60, deadline=None)
@given(names=st.lists(st.sampled_from(sorted(FAULTS)), min_size=1, max_size=4), in_service=st.booleans())
def test_faults_together_are_a_verdict_that_survives_storage(names: list[str], in_service: bool) -> None:
    made = evidence([(BLOCK, faulty(*names))], tier(in_service=in_service))
    judgement = judge(made)
    assert decided(judgement) in (Decision.DEFER, Decision.ROLLBACK)
    assert judge(made) == judgement
    assert judge(Evidence.model_validate_json(made.model_dump_json())) == judgement
    assert judge(Evidence.model_validate(msgpack.unpackb(msgpack.packb(made.model_dump())))) == judgement
    assert Judgement.model_validate_json(judgement.model_dump_json()) == judgement


def test_numbers_that_are_none_survive_json() -> None:
    made = evidence([(BLOCK, faulty("NaN in the candidate", "infinite error"))])
    wrong = result(BLOCK, {"candidate": ok(outputs={"y": output(rms_error=NAN, max_error=math.inf, gain=-math.inf)})})
    made = made.model_copy(update={"results": (wrong,)})
    again = Evidence.model_validate_json(made.model_dump_json()).results[0]
    examined = again.arms["candidate"].examination
    assert examined is not None
    error = examined.outputs["y"].against_oracle
    assert error is not None
    assert math.isnan(error.rms_error)
    assert (error.max_error, error.gain) == (math.inf, -math.inf)
    assert again.restarts == wrong.restarts


# -- which results count -------------------------------------------------------------------------------------------


def test_of_two_results_of_a_cell_the_first_counts() -> None:
    slow = result(BLOCK, times={"candidate": 12.0})
    made = run_of(BLOCK)
    assert judge(made.model_copy(update={"results": (*made.results, slow)})) == judge(made)
    first = judge(made.model_copy(update={"results": (slow, *made.results)}))
    assert decided(first) is Decision.DEFER


def test_results_of_cells_that_the_plan_does_not_have_are_not_counted() -> None:
    made = run_of(BLOCK)
    stranger = result(ATTENTION, {"candidate": ended()})
    assert judge(made.model_copy(update={"results": (*made.results, stranger), "extras": (stranger,)})) == judge(made)


def test_a_cell_without_a_result_says_why() -> None:
    made = evidence([(BLOCK, None), (ATTENTION, result(ATTENTION))], unfinished={BLOCK.id: "lost three times"})
    row = judge(made).rows[0]
    assert (row.decision, row.reason) == (Decision.DEFER, "untested: not run: lost three times")


def test_every_cell_missing_on_the_candidate_is_counted_and_deferred() -> None:
    judgement = judge(evidence([(of, faulty("candidate crashed", of=of)) for of in (BLOCK, ATTENTION)]))
    assert judgement.coverage.missing_on_candidate == 2
    assert judgement.coverage.comparable == 0
    assert {row.decision for row in judgement.rows} == {Decision.DEFER}
    assert decided(judgement) is Decision.DEFER


def test_a_run_of_nothing_is_deferred() -> None:
    judgement = judge(run_of())
    assert (judgement.rows[0].decision, judgement.rows[0].workload) == (Decision.DEFER, "(all)")
    assert judgement.tiers[0].reason == "untested: cpu (no cell of the tier runs there)"


def test_a_rehearsal_of_another_capability_does_not_count() -> None:
    made = evidence([(BLOCK, result(BLOCK))], way_back=rehearsed("cuda.sm90"))
    row = judge(made).rows[0]
    assert (row.decision, row.decided_by) == (Decision.DEFER, Gate.ROLLBACK)


def test_an_invalid_rehearsal_says_so() -> None:
    asleep = rehearsed().model_copy(update={"validity": Validity(valid=False, reasons=("machine suspended",))})
    row = judge(evidence([(BLOCK, result(BLOCK))], way_back=asleep)).rows[0]
    assert row.reason == "untested: invalid: machine suspended"


# -- one thing kept apart ------------------------------------------------------------------------------------------


def slow_run(*slow: Cell, fine: tuple[Cell, ...] = (), **more: Any) -> Judgement:
    pairs = [(of, result(of, times={"candidate": 12.0})) for of in slow] + [(of, result(of)) for of in fine]
    return judge(evidence(pairs, tier(backends=more.pop("backends", ("cpu",)), **more)))


def test_exactly_one_failing_workload_is_kept_apart() -> None:
    judgement = slow_run(BLOCK, fine=(ATTENTION,))
    assert [row.decision for row in judgement.rows] == [Decision.ISOLATE, Decision.ADOPT]
    assert (decided(judgement), judgement.tiers[0].kept_apart) == (Decision.ISOLATE, ("workload block",))


def carried(*gates: Gate, of: Cell = BLOCK, tier_name: str = "serving") -> dict[tuple[str, str, Gate], str]:
    return {(tier_name, of.id, gate): "companion triton 3.7.0" for gate in gates}


def both_slow() -> Evidence:
    pairs = [(of, result(of, times={"candidate": 12.0})) for of in (BLOCK, ATTENTION)]
    return evidence(pairs, tier(required=(Gate.LATENCY,)))


def test_a_companion_that_carries_every_failure_of_a_workload_is_kept_apart() -> None:
    slow = evidence([(BLOCK, result(BLOCK, times={"candidate": 12.0}))], tier(required=(Gate.LATENCY,)))
    assert decided(judge(slow)) is Decision.DEFER
    found = judge(slow, carried(Gate.LATENCY))
    assert (decided(found), found.tiers[0].kept_apart) == (Decision.ISOLATE, ("companion triton 3.7.0",))
    assert not found.registered
    assert judge(slow).registered


def test_what_a_companion_does_not_carry_still_defers() -> None:
    slow = evidence([(BLOCK, result(BLOCK, times={"candidate": 12.0}))], tier(required=(Gate.LATENCY, Gate.THROUGHPUT)))
    assert decided(judge(slow, carried(Gate.LATENCY))) is Decision.DEFER
    assert decided(judge(slow, carried(Gate.LATENCY, Gate.THROUGHPUT))) is Decision.ISOLATE
    assert decided(judge(slow, carried(Gate.LATENCY, Gate.THROUGHPUT, tier_name="other"))) is Decision.DEFER
    # One of two workloads is explained, the other is not.
    assert decided(judge(both_slow(), carried(Gate.LATENCY))) is Decision.DEFER
    explained = carried(Gate.LATENCY) | carried(Gate.LATENCY, of=ATTENTION)
    assert decided(judge(both_slow(), explained)) is Decision.ISOLATE


def test_in_service_a_companion_that_carries_a_failure_is_rolled_back_with_it() -> None:
    slow = evidence(
        [(BLOCK, result(BLOCK, times={"candidate": 12.0}))], tier(required=(Gate.LATENCY,), in_service=True)
    )
    assert decided(judge(slow)) is Decision.ROLLBACK
    assert decided(judge(slow, carried(Gate.LATENCY))) is Decision.ROLLBACK


def test_several_cases_of_one_workload_are_one_thing() -> None:
    judgement = slow_run(BLOCK, cell("block", "train"), fine=(ATTENTION,))
    assert decided(judgement) is Decision.ISOLATE


def test_two_failing_workloads_or_none_that_passes_defer() -> None:
    assert decided(slow_run(BLOCK, ATTENTION, fine=(cell("loss"),))) is Decision.DEFER
    assert decided(slow_run(BLOCK)) is Decision.DEFER


def test_a_workload_is_not_kept_apart_from_itself() -> None:
    elsewhere = cell("block", capability="cuda.sm90")
    assert decided(slow_run(BLOCK, fine=(elsewhere,), backends=("cpu", "cuda"))) is Decision.DEFER
    both = (elsewhere, ATTENTION, cell("attention", capability="cuda.sm90"))
    assert decided(slow_run(BLOCK, fine=both, backends=("cpu", "cuda"))) is Decision.ISOLATE


def test_nothing_is_kept_apart_beside_an_untested_workload() -> None:
    slow = result(BLOCK, times={"candidate": 12.0})
    assert decided(judge(evidence([(BLOCK, slow), (ATTENTION, None)]))) is Decision.DEFER


def test_a_way_back_that_fails_cannot_be_kept_apart() -> None:
    judgement = judge(evidence([(BLOCK, result(BLOCK))], way_back=rehearsed(control_equal=False)))
    assert (decided(judgement), judgement.rows[0].decided_by) == (Decision.DEFER, Gate.ROLLBACK)


def test_in_service_it_is_rolled_back() -> None:
    judgement = slow_run(BLOCK, fine=(ATTENTION,), in_service=True)
    assert [row.decision for row in judgement.rows] == [Decision.ROLLBACK, Decision.ADOPT]
    assert decided(judgement) is Decision.ROLLBACK


def test_a_prototype_is_isolated_at_best() -> None:
    mine = {"cutedsl": PlannedWorkload(owner="ada"), "block": PlannedWorkload()}
    judgement = judge(run_of(cell("cutedsl", track="prototype"), BLOCK, workloads=mine))
    assert decided(judgement) is Decision.ISOLATE
    assert judgement.tiers[0].kept_apart == ("prototype track: cutedsl",)


def test_a_prototype_that_nobody_answers_for_is_no_reason_against_a_tier_that_does_not_name_it() -> None:
    prototype = cell("cutedsl", track="prototype")
    judgement = judge(run_of(prototype, BLOCK))
    assert {row.workload: row.decision for row in judgement.rows if row.question is Question.VERSION} == {
        "cutedsl": Decision.DEFER,
        "block": Decision.ADOPT,
    }
    assert decided(judgement) is Decision.ADOPT
    assert not falls_short(judgement, Decision.ADOPT, ["cpu"])
    named = judge(run_of(prototype, BLOCK, tiers=(tier(workloads=("cutedsl", "block")),)))
    assert decided(named) is Decision.DEFER
    assert [row.workload for row in falls_short(named, Decision.ADOPT, ["cpu"])] == ["cutedsl"]
    assert decided(judge(run_of(prototype))) is Decision.DEFER


def test_a_prototype_is_no_reason_against_keeping_another_workload_apart() -> None:
    mine = {name: PlannedWorkload(owner="ada") for name in ("cutedsl", "block", "attention")}
    cells = [(cell("cutedsl", track="prototype"), {}), (BLOCK, {"candidate": 12.0}), (ATTENTION, {})]
    judgement = judge(evidence([(of, result(of, times=times)) for of, times in cells], workloads=mine))
    assert decided(judgement) is Decision.ISOLATE
    assert judgement.tiers[0].kept_apart == ("prototype track: cutedsl", "workload block")


def test_a_tier_names_the_verdict_that_decided_it_and_what_would_change_it() -> None:
    judgement = slow_run(BLOCK, fine=(ATTENTION,))
    (found,) = judgement.tiers
    assert (found.decided_by, found.cell_id) == (judgement.rows[0].decided_by, BLOCK.id)
    assert found.would_change == judgement.rows[0].would_change
    assert "latency of block/infer@cpu within its limit (+3.0 %): it is +20.0 %" in found.would_change
    unserved = judge(run_of(BLOCK, tiers=(tier(backends=("cpu", "cuda")),), unserved_backends={"cuda": "no worker"}))
    assert (unserved.tiers[0].decided_by, unserved.tiers[0].would_change) == (None, "a worker with backend cuda")
    nothing = judge(run_of()).tiers[0]
    assert nothing.would_change == "a case on cpu in suite standard"


def test_a_path_that_earns_nothing_is_named_where_the_version_can_be_moved_to() -> None:
    featured = cell("block", features=("new",))
    for times, apart in (({"candidate+new": 12.0}, "path new of block"), ({"candidate+new": 5.0}, "")):
        judgement = judge(evidence([(featured, result(featured, times=times))]))
        assert features(judgement)[0].kept_apart == apart
        assert judgement.tiers[0].kept_apart == ()
    both = judge(evidence([(featured, result(featured, times={"candidate": 20.0, "candidate+new": 30.0}))]))
    assert features(both)[0].kept_apart == ""


def test_the_page_names_all_that_can_be_kept_apart_with_its_decisions() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "decision-rule.md").read_text()
    lines = page.split("## What is kept apart")[1].split("\n## ")[0].splitlines()
    rows = [[part.strip() for part in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    told = {name.strip("`"): decision for name, _, decision in rows}
    mine = {"cutedsl": PlannedWorkload(owner="ada")}
    prototype = judge(run_of(cell("cutedsl", track="prototype"), BLOCK, workloads=mine))
    featured = cell("block", features=("new",))
    path = judge(evidence([(featured, result(featured, times={"candidate+new": 12.0}))]))
    slow = evidence([(BLOCK, result(BLOCK, times={"candidate": 12.0}))], tier(required=(Gate.LATENCY,)))
    companion = judge(slow, carried(Gate.LATENCY))
    found = {}
    for judged, generic in (
        (slow_run(BLOCK, fine=(ATTENTION,)), "workload W"),
        (prototype, "prototype track: W"),
        (path, "path P of W"),
        (companion, "companion C"),
    ):
        (row,) = [row for row in judged.rows if row.kept_apart]
        named = generic.replace("P", row.path).replace("W", row.workload).replace(" C", " triton 3.7.0")
        assert row.kept_apart == named
        found[generic] = (row.decision, decided(judged))
    assert found == {
        "workload W": (Decision.ISOLATE, Decision.ISOLATE),
        "prototype track: W": (Decision.ISOLATE, Decision.ISOLATE),
        "path P of W": (Decision.DEFER, Decision.ADOPT),
        "companion C": (Decision.ISOLATE, Decision.ISOLATE),
    }
    assert told == {
        "workload W": "row and tier `isolate`",
        "prototype track: W": "row and tier `isolate`",
        "path P of W": "row `defer`; the tier is not asked to wait",
        "companion C": "row and tier `isolate`",
    }


# -- features ------------------------------------------------------------------------------------------------------

FEATURED = cell("block", features=("new",))


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
@pytest.mark.parametrize("in_service", [False, True])
def test_a_feature_that_fails_never_drags_the_version(outcome: Outcome, in_service: bool) -> None:
    limits = tier(in_service=in_service)
    found = result(FEATURED, {"candidate+new": ended(outcome)})
    judgement = judge(evidence([(FEATURED, found)], limits))
    alone = judge(evidence([(BLOCK, result(BLOCK))], limits))
    assert versions(judgement) == versions(alone)
    assert judgement.tiers == alone.tiers
    assert judgement.coverage == alone.coverage
    (feature,) = features(judgement)
    assert feature.decision is Decision.DEFER


@pytest.mark.parametrize(
    "fault",
    [
        {"arms": {"candidate+new": ok(outputs={"y": output(finite=False)})}},
        {"times": {"candidate+new": 30.0}},
        {"times": {"candidate+new": []}},
        {"arms": {"candidate+new": ok(memory=memory(0))}, "times": {"candidate+new": 5.0}},
        {"arms": {"candidate+new": ok(repeat_digests=("a", "b"))}, "times": {"candidate+new": 5.0}},
    ],
)
def test_a_feature_that_is_wrong_or_slow_is_deferred_alone(fault: dict[str, Any]) -> None:
    judgement = judge(evidence([(FEATURED, result(FEATURED, **fault))]))
    assert decided(judgement) is Decision.ADOPT
    assert features(judgement)[0].decision is Decision.DEFER


def test_a_feature_arm_that_the_worker_did_not_answer_for_is_deferred_alone() -> None:
    judgement = judge(evidence([(FEATURED, without("candidate+new")(result(FEATURED)))]))
    assert decided(judgement) is Decision.ADOPT
    assert features(judgement)[0].decision is Decision.DEFER


def test_a_step_of_no_time_in_a_feature_is_its_own() -> None:
    judgement = judge(evidence([(FEATURED, timed("candidate+new", 0)(result(FEATURED)))]))
    assert decided(judgement) is Decision.ADOPT
    assert features(judgement)[0].decision is Decision.DEFER


@pytest.mark.parametrize("required", [(Gate.CORRECTNESS,), (Gate.CORRECTNESS, Gate.THROUGHPUT), tuple(Gate)])
def test_a_feature_is_adopted_by_its_gain_whatever_the_tier_requires(required: tuple[Gate, ...]) -> None:
    def found(new: float) -> Decision:
        made = evidence([(FEATURED, result(FEATURED, times={"candidate+new": new}))], tier(required=required))
        return features(judge(made))[0].decision

    assert found(8.0) is Decision.ADOPT
    assert found(9.8) is Decision.DEFER


def test_a_gain_over_an_old_path_that_crashed_is_none() -> None:
    found = result(FEATURED, {"candidate": ended()}, times={"candidate+new": 5.0})
    limits = tier(required=(Gate.CORRECTNESS, Gate.THROUGHPUT))
    assert features(judge(evidence([(FEATURED, found)], limits)))[0].decision is Decision.DEFER


# -- tiers ---------------------------------------------------------------------------------------------------------


def test_a_backend_that_nothing_of_the_tier_ran_on_makes_it_defer() -> None:
    on_device = cell("attention", capability="cuda.sm90")
    limits = tier(backends=("cpu", "cuda"), workloads=("block",))
    judgement = judge(run_of(BLOCK, on_device, tiers=(limits,)))
    assert (judgement.tiers[0].decision, judgement.tiers[0].would) == (Decision.DEFER, Decision.ADOPT)
    assert judgement.tiers[0].reason == "untested: cuda (no cell of the tier runs there)"
    unserved = judge(run_of(BLOCK, tiers=(limits,), unserved_backends={"cuda": "no worker"}))
    assert unserved.tiers[0].reason == "untested: cuda (no worker)"
    assert unserved.rows[-1].would_change == "a worker with backend cuda"


def test_a_workload_that_the_tier_lists_and_nothing_ran_makes_it_defer() -> None:
    judgement = judge(run_of(BLOCK, tiers=(tier(workloads=("block", "attention")),)))
    assert judgement.tiers[0].reason == "untested: attention on cpu (no case in suite standard)"
    assert judgement.tiers[0].decision is Decision.DEFER
    assert decided(judge(run_of(BLOCK, ATTENTION, tiers=(tier(workloads=("block",)),)))) is Decision.ADOPT


def test_workloads_that_were_not_requested_hold_a_tier_back_in_one_row() -> None:
    asked = {name: PlannedWorkload() for name in ("block", "decoder", "attention")}
    found = judge(run_of(BLOCK, tiers=(tier(),), workloads=asked, requested_workloads=("block",)))
    assert [(row.workload, row.decision) for row in found.rows] == [
        ("block", Decision.ADOPT),
        ("(others)", Decision.DEFER),
    ]
    assert found.tiers[0].decision is Decision.DEFER
    assert found.tiers[0].reason == "untested: (others) on cpu (not requested: decoder, attention)"
    assert found.tiers[0].would_change == "these workloads too: leave out --workload"


def test_a_workload_that_ran_on_one_backend_alone_is_not_adopted_on_the_other() -> None:
    asked = tier(backends=("cpu", "cuda"))
    cells = [cell("a"), cell("b"), cell("b", capability="cuda.sm90")]
    everywhere = {name: PlannedWorkload() for name in "ab"}
    found = judge(evidence([(of, result(of)) for of in cells], asked, workloads=everywhere))
    assert found.tiers[0].decision is Decision.DEFER
    (row,) = (row for row in found.rows if (row.workload, row.backend) == ("a", "cuda"))
    assert row.reason == "untested: no case in suite standard"
    kept = everywhere | {"a": PlannedWorkload(backends=("cpu",))}
    assert (
        judge(evidence([(of, result(of)) for of in cells], asked, workloads=kept)).tiers[0].decision is Decision.ADOPT
    )


def test_a_workload_of_the_matrix_without_a_cell_makes_a_tier_of_all_workloads_defer() -> None:
    of = cell("a")
    planned = {"a": PlannedWorkload(), "flex": PlannedWorkload()}
    found = judge(evidence([(of, result(of))], tier(), workloads=planned))
    assert found.tiers[0].decision is Decision.DEFER
    assert "flex on cpu (no case in suite standard)" in found.tiers[0].reason
    listed = judge(evidence([(of, result(of))], tier(workloads=("a",)), workloads=planned))
    assert listed.tiers[0].decision is Decision.ADOPT


def test_every_production_case_must_have_been_measured() -> None:
    of = cell("a", "train")
    planned = {"a": PlannedWorkload(production_cases=("infer", "train"))}
    found = judge(evidence([(of, result(of))], tier(), workloads=planned)).tiers[0]
    assert (found.decision, found.would) == (Decision.DEFER, Decision.ADOPT)


def test_a_failing_capability_of_a_backend_decides_its_row() -> None:
    old, new = cell(capability="cuda.sm80"), cell(capability="cuda.sm90")
    made = evidence([(old, result(old)), (new, faulty("slower", of=new))], tier(backends=("cuda",)))
    (row,) = judge(made).rows
    assert (row.decision, row.cell_id) == (Decision.DEFER, new.id)


def test_a_tier_without_gates_or_backends_adopts_nothing() -> None:
    for limits in (tier(required=()), tier(backends=())):
        assert decided(judge(run_of(BLOCK, tiers=(limits,)))) is Decision.DEFER


def test_a_tier_that_requires_what_the_matrix_does_not_ask_adopts_nothing() -> None:
    of = cell(gates=(Gate.CORRECTNESS,))
    judgement = judge(run_of(of, tiers=(tier(required=(Gate.CORRECTNESS, Gate.LATENCY)),)))
    assert (decided(judgement), judgement.rows[0].decided_by) == (Decision.DEFER, Gate.LATENCY)


def test_a_broken_control_is_deferred_also_in_service() -> None:
    broken = cell(broken_control="build variant differs")
    for limits in (tier(), tier(in_service=True)):
        for times in ({}, {"candidate": 12.0}):
            judgement = judge(evidence([(broken, result(broken, times=times))], limits))
            assert (decided(judgement), judgement.tiers[0].would) == (Decision.DEFER, None)
            assert "control broken: build variant differs" in judgement.rows[0].reason


def test_shapes_that_are_not_the_tiers_defer_with_what_would_have_been() -> None:
    (found,) = judge(run_of(cell(production_shape=False))).tiers
    assert (found.decision, found.would) == (Decision.DEFER, Decision.ADOPT)


# -- worse verdicts, whole tiers -----------------------------------------------------------------------------------

PLACES = [("a", "cpu"), ("a", "cuda"), ("b", "cpu")]
JUDGED = (Gate.CORRECTNESS, Gate.LATENCY, Gate.ROLLBACK)


def tier_of(statuses: list[list[Status]], **limits: Any) -> TierDecision:
    asked = tier(backends=("cpu", "cuda"), required=JUDGED, **limits)
    verdicts = [
        CellVerdicts(
            cell_id=f"{workload}/infer@{backend}",
            workload=workload,
            case="infer",
            backend=backend,  # type: ignore[arg-type]
            track="production",
            production_shape=True,
            question=Question.VERSION,
            arm="candidate",
            reference="baseline",
            tier=asked.name,
            verdicts=tuple(Verdict(gate=g, status=s, reason="words") for g, s in zip(JUDGED, found, strict=True)),
        )
        for (workload, backend), found in zip(PLACES, statuses, strict=True)
    ]
    return _tier_decision(asked, _rows(verdicts, asked, plan([], [asked]), {}, alarmed=False), [])


SEEN = st.sampled_from([Status.PASS, Status.PASS, Status.PASS, Status.FAIL, Status.INCONCLUSIVE, Status.UNTESTED])


@settings(max_examples=200, deadline=None)
@given(
    statuses=st.lists(st.lists(SEEN, min_size=3, max_size=3), min_size=3, max_size=3),
    place=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    worse=st.sampled_from([Status.FAIL, Status.INCONCLUSIVE, Status.UNTESTED]),
    in_service=st.booleans(),
)
def test_a_worse_verdict_never_makes_a_better_tier(
    statuses: list[list[Status]], place: tuple[int, int], worse: Status, in_service: bool
) -> None:
    statuses[place[0]][place[1]] = Status.PASS
    before = tier_of(statuses, in_service=in_service)
    statuses[place[0]][place[1]] = worse
    after = tier_of(statuses, in_service=in_service)
    assert PRECEDENCE.index(after.decision) <= PRECEDENCE.index(before.decision)


# -- what was asked for --------------------------------------------------------------------------------------------


def test_what_falls_short_is_what_was_requested_and_not_decided() -> None:
    judgement = slow_run(BLOCK, fine=(ATTENTION,))
    assert falls_short(judgement, Decision.ISOLATE, ["cpu"]) == []
    assert [row.workload for row in falls_short(judgement, Decision.ADOPT, ["cpu"])] == ["block"]
    assert falls_short(judge(run_of(BLOCK)), Decision.ADOPT, ["cpu"]) == []


def test_a_requested_backend_that_no_tier_asks_about_falls_short() -> None:
    judgement = judge(run_of(BLOCK))
    (row,) = falls_short(judgement, Decision.ISOLATE, ["cpu", "rocm"])
    assert (row.backend, row.reason) == ("rocm", "untested: no tier asks about this backend")


def test_a_feature_does_not_fall_short() -> None:
    judgement = judge(evidence([(FEATURED, result(FEATURED, {"candidate+new": ended()}))]))
    assert falls_short(judgement, Decision.ADOPT, ["cpu"]) == []


def test_one_wheel_in_one_cell_breaks_its_control_though_the_run_is_no_a_a() -> None:
    made = run_of(BLOCK, ATTENTION)
    key = ENVIRONMENTS["baseline"].key  # type: ignore[index]
    arms = tuple(arm.model_copy(update={"environments": {HOST.target: key}}) for arm in BLOCK.arms)
    cells = (BLOCK.model_copy(update={"arms": arms}), *made.plan.cells[1:])
    judgement = judge(made.model_copy(update={"plan": made.plan.model_copy(update={"cells": cells})}))
    assert judgement.rows[0].reason == f"control broken: both arms are one wheel on {HOST.target}"
    assert [row.decision for row in judgement.rows] == [Decision.DEFER, Decision.ADOPT]
