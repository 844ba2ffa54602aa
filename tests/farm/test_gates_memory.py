"""Peak memory: ratios of what was read, budgets in bytes, and no pass from a sensor that says nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest

from farm.gates import judge_gate
from farm.model import Gate, Memory, Outcome, Status, Verdict
from tests.evidence import ask, ended, memory, ok, tier

MIB = 2**20


def verdict(candidate: Memory | None, baseline: Memory | None = None, path: str = "", **limits: Any) -> Verdict:
    baseline = baseline or memory()
    arms = {"baseline": ok(memory=baseline), "candidate": ok(memory=baseline if path else candidate)}
    if path:
        arms[f"candidate+{path}"] = ok(memory=candidate)
    return judge_gate(Gate.PEAK_MEMORY, ask(arms, limits=tier(**limits), path=path))


@pytest.mark.parametrize(
    ("candidate", "status"),
    [
        (memory(), Status.PASS),
        (memory(17 * MIB), Status.FAIL),
        (memory(step=None), Status.UNTESTED),
        (memory(step=0), Status.UNTESTED),
        (memory(step=-5), Status.UNTESTED),
        (memory(process=(0, 0, 0)), Status.UNTESTED),
        (memory(process=()), Status.UNTESTED),
        (memory(process=(300 * MIB,) * 3), Status.FAIL),
        (memory(process=(250 * MIB, 260 * MIB, 300 * MIB)), Status.INCONCLUSIVE),
        (None, Status.UNTESTED),
    ],
)
def test_peaks_are_judged_where_they_were_read(candidate: Memory | None, status: Status) -> None:
    assert verdict(candidate).status is status


def test_a_reference_that_reads_zero_is_implausible() -> None:
    for baseline in (memory(step=0), memory(step=-1), memory(process=(0,)), memory(process=())):
        assert verdict(memory(), baseline).status is Status.UNTESTED


def test_a_machine_that_tells_no_process_peak_is_judged_by_the_step() -> None:
    assert verdict(memory(process=()), memory(process=())).status is Status.PASS


def test_a_budget_in_bytes_is_held_against_every_peak() -> None:
    budget = {"peak_memory_bytes": 512 * MIB}
    assert verdict(memory(), **budget).status is Status.PASS
    reserved = verdict(memory(reserved=600 * MIB), memory(reserved=600 * MIB), **budget)
    assert (reserved.status, reserved.reason) == (
        Status.FAIL,
        "the reserved peak is 600.00 MiB, its budget is 512.00 MiB",
    )
    assert verdict(memory(600 * MIB, process=()), memory(600 * MIB, process=()), **budget).status is Status.FAIL
    assert verdict(memory(0, process=()), **budget).status is Status.UNTESTED
    # A sensor that reads nothing is within no budget, though the process's peak is (CASES.md M11).
    assert verdict(memory(0), **budget).status is Status.UNTESTED


def test_a_budget_holds_although_the_reference_did_not_run() -> None:
    def found(candidate: Memory | None, **limits: Any) -> Status:
        asked = ask({"baseline": ended(Outcome.CRASHED), "candidate": ok(memory=candidate)}, limits=tier(**limits))
        return judge_gate(Gate.PEAK_MEMORY, asked).status

    assert found(memory()) is Status.NOT_APPLICABLE
    assert found(memory(), peak_memory_bytes=128 * MIB) is Status.FAIL
    assert found(memory(), peak_memory_bytes=512 * MIB) is Status.NOT_APPLICABLE
    assert found(None, peak_memory_bytes=512 * MIB) is Status.UNTESTED
    assert found(memory(0), peak_memory_bytes=512 * MIB) is Status.UNTESTED


def test_a_limit_that_is_no_number_passes_nothing() -> None:
    assert verdict(memory(), peak_memory_ratio=math.nan).status is Status.FAIL


def test_a_feature_is_judged_by_its_own_step() -> None:
    heavy = memory(process=(600 * MIB,) * 3)
    assert verdict(heavy, path="new").status is Status.PASS
    assert verdict(memory(32 * MIB), path="new").status is Status.FAIL


def test_a_workspace_is_shown_apart_from_what_lives_and_what_is_reserved() -> None:
    """CASES.md M12: a library's workspace became visible; nothing that the step allocates grew."""
    was = memory(2**24, reserved=2**25).model_copy(update={"outside_bytes": 2**30, "allocated_bytes": 2**26})
    now = was.model_copy(update={"outside_bytes": 3 * 2**30})
    found = judge_gate(Gate.PEAK_MEMORY, ask({"baseline": ok(memory=was), "candidate": ok(memory=now)}))
    assert found.status is Status.PASS
    named = {figure.name: (figure.value, figure.limit) for figure in found.others}
    assert named["outside the allocator ratio"] == (3.0, None)
    assert named["reserved peak ratio"] == (1.0, None)
    assert named["allocated bytes ratio"] == (1.0, None)
