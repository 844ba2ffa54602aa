"""The gates see what they are for: each fault is real torch code that ran in both releases."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from farm.model import Decision, Gate, Outcome, Question, Status

pytestmark = pytest.mark.torch

#: Workload, the path with the fault.
FAULTS = [
    ("mask_off_by_one", "shifted_mask"),
    ("wrong_scale", "padded"),
    ("dropped_bias", "functional"),
    ("gradients_scaled", "scaled"),
]


@pytest.mark.parametrize(("name", "path"), FAULTS)
def test_wrong_results_fail_correctness_in_every_dtype(measure: Callable, name: str, path: str) -> None:
    found = measure({"name": name, "candidate_path": path})
    assert len(found.cells()) >= 2
    for cell in found.cells():
        verdict = next(verdict for verdict in cell.verdicts if verdict.gate is Gate.CORRECTNESS)
        assert verdict.status is Status.FAIL, (cell.cell_id, verdict)
        assert verdict.figure is not None
        assert verdict.figure.value > 1.0


def test_a_reordered_sum_passes_in_every_dtype(measure: Callable) -> None:
    found = measure({"name": "reordered_sum", "candidate_path": "backwards"})
    assert len(found.cells()) == 2
    for cell in found.cells():
        verdict = next(verdict for verdict in cell.verdicts if verdict.gate is Gate.CORRECTNESS)
        assert verdict.status is Status.PASS, (cell.cell_id, verdict)
    changed = [
        output
        for result in found.evidence.results
        for output in result.arms["candidate"].examination.outputs.values()
        if not output.against_reference.bitwise_equal
    ]
    assert changed, "a sum in another order that is bitwise the same shows nothing"


def test_colliding_writes_at_two_threads_fail_determinism(measure: Callable) -> None:
    found = measure({"name": "index_put_accumulate", "cases": ["fp32"]}, gates="correctness determinism")
    verdicts = found.verdicts("index_put_accumulate")
    assert verdicts[Gate.DETERMINISM].status is Status.FAIL
    assert "does not repeat" in verdicts[Gate.DETERMINISM].reason
    assert verdicts[Gate.CORRECTNESS].status is Status.PASS


def test_five_percent_more_arithmetic_fails_latency_and_throughput_there_and_nowhere_else(measure: Callable) -> None:
    found = measure(
        {"name": "slowed", "cases": ["fp32"], "candidate_path": "slowed"},
        {"name": "transformer_block", "cases": ["infer-fp32"]},
        gates="correctness latency throughput",
        looks="6, 8, 10, 12",
        restart_s=1.2,
        # Within 5 %, and far enough from it for a machine that has other work.
        slack=0.02,
    )
    slowed, block = found.verdicts("slowed"), found.verdicts("transformer_block")
    for gate in (Gate.LATENCY, Gate.THROUGHPUT):
        assert slowed[gate].status is Status.FAIL, slowed[gate]
        assert block[gate].status is not Status.FAIL, block[gate]
    assert slowed[Gate.CORRECTNESS].status is block[Gate.CORRECTNESS].status is Status.PASS
    # What was slowed is named where the plan is read, and where the evidence is.
    arms = {arm.name: arm.path for cell in found.plan.cells for arm in cell.arms if cell.workload == "slowed"}
    assert arms == {"baseline": "as_is", "candidate": "slowed"}
    row = next(row for row in found.judgement.rows if row.workload == "slowed")
    assert (row.question, row.decision, row.decided_by) == (Question.VERSION, Decision.DEFER, Gate.LATENCY)


def test_a_run_measures_its_baseline_against_itself_and_counts_what_that_accuses(measure: Callable) -> None:
    found = measure(
        {"name": "slowed", "cases": ["fp32"], "candidate_path": "slowed"},
        gates="correctness latency throughput",
        aa_share=0.1,
        slack=0.2,
    )
    control = found.result("aa/slowed-fp32@cpu")
    assert control.validity.valid
    assert {arm.outcome for arm in control.arms.values()} == {Outcome.OK}
    assert len(control.restarts) == 6
    alarms = found.judgement.false_alarms
    assert alarms is not None
    assert (alarms.cells, alarms.failed) == (1, 0)
    assert found.judgement.coverage.cells == 1
    assert {row.cell_id for row in found.judgement.rows} == {"slowed/fp32@cpu"}


def test_a_release_that_computes_the_same_is_no_failure_of_any_gate(measure: Callable) -> None:
    found = measure({"name": "linear_cross_entropy", "cases": ["train-fp32"]}, gates="correctness determinism")
    verdicts = found.verdicts("linear_cross_entropy")
    assert {verdicts[gate].status for gate in (Gate.CORRECTNESS, Gate.DETERMINISM)} == {Status.PASS}
