"""A waiver turns what a verdict does, never the verdict; it has an owner, a reason and a last day, and always shows."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from farm.judge import judge
from farm.model import Decision, Evidence, Gate, Judgement, Question, Status, Waiver
from farm.rejudging import rejudge
from farm.report.html import to_html
from farm.report.markdown import to_markdown
from farm.report.table import summary
from tests.evidence import cell, ended, evidence, ok, output, plan, rehearsed, restarts, result, tier

#: Plans of tests.evidence are made on 2026-07-01.
BLOCK, OTHER = cell("block"), cell("other")
SLOW = {"baseline": 10.0, "candidate": 11.0}
ALONE = {"required": (Gate.CORRECTNESS, Gate.LATENCY)}


def waiver(**changed: Any) -> Waiver:
    given: dict[str, Any] = {
        "tier": "serving",
        "workload": "block",
        "backend": "cpu",
        "gate": Gate.LATENCY,
        "owner": "ada@example.org",
        "reason": "the new kernels come in September",
        "expires": "2026-12-31",
    }
    return Waiver(**given | changed)


def slow(*waivers: Waiver, **more: Any) -> Evidence:
    limits = tier(**ALONE, **more)
    return evidence([(BLOCK, result(BLOCK, times=SLOW)), (OTHER, result(OTHER))], limits, waivers=waivers)


def row(judgement: Judgement, workload: str = "block") -> Any:
    (found,) = [one for one in judgement.rows if one.workload == workload]
    return found


def test_a_waived_verdict_stays_what_it_is_and_holds_nothing_back() -> None:
    judgement = judge(slow(waiver()))
    verdict = next(v for c in judgement.cells if c.workload == "block" for v in c.verdicts if v.gate is Gate.LATENCY)
    assert verdict.status is Status.FAIL
    found = row(judgement)
    assert (found.decision, found.decided_by) == (Decision.ADOPT, Gate.LATENCY)
    assert found.reason == "every required gate passes or is waived"
    assert found.would_change == "the end of the waiver by ada@example.org, after 2026-12-31"
    assert found.warnings[0].startswith(
        "waived by ada@example.org until 2026-12-31 (the new kernels come in September)"
    )
    assert "latency of block/infer@cpu fail: p50 +10.0 %" in found.warnings[0]
    assert judgement.tiers[0].decision is Decision.ADOPT
    assert judgement.tiers[0].reason.endswith("waived until 2026-12-31: serving: latency of block/* on cpu")
    assert row(judgement, "other").warnings == ()


@pytest.mark.parametrize(
    "other",
    [
        {"tier": "training"},
        {"workload": "other"},
        {"case": "train*"},
        {"backend": "cuda"},
        {"gate": Gate.THROUGHPUT},
        {"question": Question.FEATURE},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_it_is_for_what_it_names_alone(other: dict[str, Any]) -> None:
    judgement = judge(slow(waiver(**other)))
    assert row(judgement).decision is not Decision.ADOPT
    assert [use.state for use in judgement.waivers] == ["unused"]


def test_a_pattern_names_cases() -> None:
    assert row(judge(slow(waiver(case="inf*")))).decision is Decision.ADOPT


@pytest.mark.parametrize("unsettled", ["inconclusive", "untested"])
def test_what_is_in_doubt_or_untested_can_be_waived_too(unsettled: str) -> None:
    lives = restarts({"baseline": 10.0, "candidate": 10.0}, count=2 if unsettled == "inconclusive" else 0)
    found = evidence([(BLOCK, result(BLOCK, restarts=lives))], tier(**ALONE), waivers=(waiver(),))
    told = row(judge(found))
    assert (told.decision, told.waived[0].status) == (Decision.ADOPT, unsettled)


def test_it_holds_on_its_last_day_and_is_a_failure_after_it() -> None:
    assert row(judge(slow(waiver(expires="2026-07-01")))).decision is Decision.ADOPT
    judgement = judge(slow(waiver(expires="2026-06-30")))
    found = row(judgement)
    assert (found.decision, found.would) == (Decision.DEFER, Decision.ISOLATE)
    assert "the waiver by ada@example.org expired on 2026-06-30" in found.warnings[0]
    assert judgement.waivers[0].state == "expired"
    assert judgement.tiers[0].decision is Decision.DEFER


def test_an_expired_one_that_nobody_needs_is_a_failure_all_the_same() -> None:
    found = evidence([(BLOCK, result(BLOCK))], tier(**ALONE), waivers=(waiver(expires="2026-06-30"),))
    told = row(judge(found))
    assert (told.decision, told.would) == (Decision.DEFER, Decision.ADOPT)
    assert told.reason == ("the waiver by ada@example.org expired on 2026-06-30: serving: latency of block/* on cpu")
    assert told.would_change == "the waiver renewed with a reason, or removed"


def test_an_expired_one_is_no_reason_to_roll_back() -> None:
    found = evidence([(BLOCK, result(BLOCK))], tier(**ALONE, in_service=True), waivers=(waiver(expires="2026-06-30"),))
    assert row(judge(found)).decision is Decision.DEFER


def test_without_the_day_of_the_plan_none_is_in_force() -> None:
    found = slow(waiver())
    undated = found.model_copy(update={"plan": found.plan.model_copy(update={"created": ""})})
    assert judge(undated).waivers[0].state == "expired"


def test_of_two_the_one_in_force_holds() -> None:
    judgement = judge(slow(waiver(expires="2026-06-30"), waiver(case="infer")))
    assert row(judgement).decision is Decision.ADOPT
    assert [use.state for use in judgement.waivers] == ["expired", "used"]


def test_one_gate_waived_leaves_the_others() -> None:
    wrong = ok(outputs={"y": output(rms_error=1e-3)})
    found = evidence([(BLOCK, result(BLOCK, {"candidate": wrong}, SLOW))], tier(**ALONE), waivers=(waiver(),))
    told = row(judge(found))
    assert (told.decision, told.decided_by) == (Decision.DEFER, Gate.CORRECTNESS)


def test_a_slow_canary_whose_slowness_is_waived_stays() -> None:
    assert row(judge(slow(waiver(), in_service=True))).decision is Decision.ADOPT


def test_wrong_results_in_service_are_nobodys_to_waive() -> None:
    wrong = result(BLOCK, {"candidate": ok(outputs={"y": output(rms_error=1e-3)})})
    mine = (waiver(gate=Gate.CORRECTNESS),)
    before = judge(evidence([(BLOCK, wrong)], tier(**ALONE), waivers=mine))
    assert row(before).decision is Decision.ADOPT
    within = judge(evidence([(BLOCK, wrong)], tier(**ALONE, in_service=True), waivers=mine))
    assert row(within).decision is Decision.ROLLBACK
    assert within.waivers[0].state == "not waivable"
    assert any("not waived, wrong results" in warning for warning in row(within).warnings)


def test_a_broken_control_an_aa_run_and_missing_shapes_are_never_waived() -> None:
    broken = BLOCK.model_copy(update={"broken_control": "build variants differ"})
    for of, planned in (
        (broken, {}),
        (BLOCK, {"aa": True}),
        (BLOCK.model_copy(update={"production_shape": False}), {}),
    ):
        found = evidence([(of, result(of, times=SLOW))], tier(**ALONE), waivers=(waiver(),), **planned)
        assert row(judge(found)).decision is Decision.DEFER


def test_a_way_back_that_is_waived_still_warns_those_in_service() -> None:
    back = rehearsed(mismatches=("torch",))
    limits = tier(required=(Gate.ROLLBACK,), in_service=True)
    found = evidence([(BLOCK, result(BLOCK))], limits, way_back=back, waivers=(waiver(gate=Gate.ROLLBACK),))
    told = row(judge(found))
    assert told.decision is Decision.ADOPT
    assert any(warning.startswith("rollback blocked") for warning in told.warnings)


def test_a_workload_that_is_waived_does_not_stand_in_the_way_of_keeping_another_apart() -> None:
    limits = tier(**ALONE)
    failing = [(of, result(of, {"candidate": ended()})) for of in (OTHER,)]
    found = evidence([(BLOCK, result(BLOCK, times=SLOW)), *failing], limits, waivers=(waiver(),))
    assert row(judge(found), "other").decision is Decision.ISOLATE


def test_every_report_shows_it_needed_or_not() -> None:
    for mine, state in ((waiver(), "used for block/infer@cpu"), (waiver(workload="other"), "unused")):
        found = slow(mine)
        judgement = judge(found)
        line = f"serving: latency of {mine.workload}/* on cpu: {state}; ada@example.org until 2026-12-31"
        for text in (summary(found, judgement, width=None), to_markdown(found, judgement), to_html(found, judgement)):
            assert line in text.replace("\\", "")
        assert Judgement.model_validate_json(judgement.model_dump_json()).waivers[0].waiver == mine


def test_it_is_part_of_the_question() -> None:
    limits = tier()
    digests = {plan([BLOCK], [limits], waivers=w).plan_digest for w in ((), (waiver(),), (waiver(owner="bob"),))}
    assert len(digests) == 3


def test_one_that_is_written_afterwards_is_no_registered_answer() -> None:
    found = slow()
    again = rejudge(found, found.plan.tiers, "other", waivers=(waiver(),))
    assert not again.judgement.registered
    assert row(again.judgement).decision is Decision.ADOPT
    assert {(flip.what, flip.after) for flip in again.flips} >= {("row", "adopt"), ("tier", "adopt")}
    assert rejudge(found, found.plan.tiers, "other", waivers=()).judgement.registered


@pytest.mark.parametrize("lost", [{"owner": ""}, {"reason": ""}, {"expires": "soon"}])
def test_evidence_by_hand_cannot_do_without_its_parts(lost: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        waiver(**lost)
