"""Determinism, compile and export, rollback, and what outcomes answer before any figure does."""

from __future__ import annotations

import math
from typing import Any

import pytest

from farm.gates import judge_gate
from farm.model import Gate, KeptState, Outcome, Status, Validity, Verdict
from tests.evidence import (
    ask,
    cell,
    comparison,
    ended,
    life,
    ok,
    program,
    rehearsal_cell,
    rehearsed,
    restarts,
    result,
    tier,
)

NOT_ROLLBACK = [gate for gate in Gate if gate is not Gate.ROLLBACK]
RELATIVE = (Gate.LATENCY, Gate.THROUGHPUT, Gate.PEAK_MEMORY, Gate.COMPILE_EXPORT)

# -- determinism ---------------------------------------------------------------------------------------------------


def repeats(candidate: tuple[str, ...], baseline: tuple[str, ...] = ("a", "a"), **more: Any) -> Verdict:
    arms = {"candidate": ok(repeat_digests=candidate), "baseline": ok(repeat_digests=baseline)}
    limits = tier(determinism=more.pop("kind", "bitwise"))
    return judge_gate(Gate.DETERMINISM, ask(arms, limits=limits, **more))


@pytest.mark.parametrize(
    ("kind", "candidate", "baseline", "status"),
    [
        ("bitwise", "aaa", "bbb", Status.PASS),
        ("bitwise", "aab", "bbb", Status.FAIL),
        ("bitwise", "aab", "aab", Status.FAIL),
        ("bitwise", "a", "aaa", Status.UNTESTED),
        ("bitwise", "", "aaa", Status.UNTESTED),
        ("no worse", "aab", "aab", Status.PASS),
        ("no worse", "aab", "aaa", Status.FAIL),
        ("no worse", "aab", "", Status.UNTESTED),
        ("off", "aab", "aaa", Status.NOT_APPLICABLE),
    ],
)
def test_repeats_are_judged_within_a_release(kind: str, candidate: str, baseline: str, status: Status) -> None:
    assert repeats(tuple(candidate), tuple(baseline), kind=kind).status is status


def test_restarts_that_differ_do_not_repeat() -> None:
    made = restarts({"baseline": 10.0, "candidate": 10.0})
    other = made[0].model_copy(update={"arms": made[0].arms | {"candidate": life(10.0, digest="other")}})
    found = repeats(("a", "a"), restarts=(other, *made[1:]))
    assert (found.status, found.reason) == (Status.FAIL, "does not repeat: 2 different results of 6 restarts")


def test_without_restarts_none_are_claimed() -> None:
    assert repeats(("a", "a"), restarts=()).reason == "bitwise repeatable at 2 threads"


# -- compile and export --------------------------------------------------------------------------------------------


def compiled(baseline: dict[str, Any] | None = None, limits: dict[str, Any] | None = None, **candidate: Any) -> Verdict:
    arms = {"candidate": ok(program(**candidate)), "baseline": ok(program(**baseline or {}))}
    return judge_gate(Gate.COMPILE_EXPORT, ask(arms, limits=tier(**limits or {})))


@pytest.mark.parametrize(
    ("candidate", "status"),
    [
        ({}, Status.PASS),
        ({"compile_outcome": Outcome.CRASHED}, Status.FAIL),
        ({"export_outcome": Outcome.FAILED}, Status.FAIL),
        ({"graph_breaks": 1}, Status.FAIL),
        ({"graph_breaks": None}, Status.UNTESTED),
        ({"cold_ns": 9 * 10**9}, Status.PASS),
        ({"cold_ns": 12 * 10**9}, Status.INCONCLUSIVE),
        ({"cold_ns": 20 * 10**9}, Status.FAIL),
        ({"cold_ns": None}, Status.UNTESTED),
        ({"cold_ns": 0}, Status.UNTESTED),
        ({"cold_ns": -(10**9)}, Status.UNTESTED),
        ({"compiled": {}}, Status.UNTESTED),
        ({"reloaded": {}}, Status.UNTESTED),
        ({"compiled": {"y": comparison(rms_error=1e-3)}}, Status.FAIL),
        ({"compiled": {"y": comparison(rms_error=math.nan)}}, Status.FAIL),
        ({"compiled_warm": {"y": comparison()}}, Status.PASS),
        # CASES.md V10: a stale cache gives another program than the one that was compiled.
        ({"compiled_warm": {"y": comparison(rms_error=1e-3)}}, Status.FAIL),
        ({"reloaded": {"y": comparison(finite=False, rms_error=math.nan)}}, Status.FAIL),
    ],
)
def test_programs_are_judged_where_they_were_made_and_read(candidate: dict[str, Any], status: Status) -> None:
    assert compiled(**candidate).status is status


def test_what_ends_in_both_arms_is_untested() -> None:
    gone = {"compile_outcome": Outcome.FAILED, "compile_reason": "no C++ compiler"}
    assert compiled(gone, **gone).status is Status.UNTESTED


def test_a_compilation_that_the_candidate_fixes_is_judged_by_itself() -> None:
    failed = {"compile_outcome": Outcome.FAILED, "graph_breaks": None, "graphs": None, "cold_ns": None, "warm_ns": None}
    assert compiled(failed).status is Status.PASS


def test_a_baseline_that_counted_nothing_is_no_measure() -> None:
    assert compiled({"cold_ns": 0}).status is Status.UNTESTED
    assert compiled({"graph_breaks": None}).status is Status.UNTESTED


def test_a_workload_without_a_program_is_not_asked() -> None:
    of = cell(gates=(Gate.CORRECTNESS,))
    assert judge_gate(Gate.COMPILE_EXPORT, ask(of=of)).status is Status.NOT_APPLICABLE


# -- rollback ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({}, Status.PASS),
        ({"outcome": Outcome.FAILED, "reason": "no wheel of filelock"}, Status.FAIL),
        ({"outcome": Outcome.NO_ENVIRONMENT, "reason": "an arm has none"}, Status.UNTESTED),
        ({"control_equal": False}, Status.FAIL),
        ({"control_equal": None}, Status.FAIL),
        ({"mismatches": ("torch 2.13.0",)}, Status.FAIL),
        ({"steps_ns": {"reinstall": 200 * 10**9}}, Status.FAIL),
        ({"steps_ns": {}}, Status.UNTESTED),
        ({"steps_ns": {"reinstall": -1}}, Status.UNTESTED),
        ({"steps_ns": {"reinstall": 9, "control": -1}}, Status.UNTESTED),
        ({"network_off_by": ""}, Status.UNTESTED),
    ],
)
def test_the_way_back_is_passed_only_where_it_was_walked_and_proven(said: dict[str, Any], status: Status) -> None:
    assert judge_gate(Gate.ROLLBACK, ask(way_back=rehearsed(**said))).status is status


def test_the_time_to_be_back_is_without_the_preparation() -> None:
    found = judge_gate(Gate.ROLLBACK, ask(way_back=rehearsed()))
    assert found.figure is not None
    assert found.figure.value == 10.0


def test_a_rehearsal_that_is_missing_or_invalid_is_untested_with_its_reason() -> None:
    assert judge_gate(Gate.ROLLBACK, ask()).reason == "no rehearsal was run"
    bare = result(rehearsal_cell())
    assert judge_gate(Gate.ROLLBACK, ask(way_back=bare)).status is Status.UNTESTED
    asleep = rehearsed().model_copy(update={"validity": Validity(valid=False, reasons=("machine suspended for 9 s",))})
    found = judge_gate(Gate.ROLLBACK, ask(way_back=asleep))
    assert (found.status, found.reason) == (Status.UNTESTED, "invalid: machine suspended for 9 s")


@pytest.mark.parametrize(
    ("missing", "status"),
    [
        (("baseline",), Status.FAIL),
        (("candidate",), Status.UNTESTED),
        (("baseline", "candidate"), Status.UNTESTED),
    ],
)
def test_a_baseline_that_is_no_longer_served_fails_the_way_back_today(missing: tuple[str, ...], status: Status) -> None:
    """CASES.md V5."""
    reason = "no wheel of nvidia-cublas==13.1.1 is served"
    arms = {name: ended(Outcome.NO_ENVIRONMENT, reason) for name in missing}
    walked = rehearsed(outcome=Outcome.NO_ENVIRONMENT, reason=f"{missing[0]}: {reason}")
    found = judge_gate(Gate.ROLLBACK, ask(way_back=walked.model_copy(update={"arms": arms})))
    assert found.status is status
    assert "nvidia-cublas==13.1.1" in found.reason


@pytest.mark.parametrize(
    ("kept", "status", "said"),
    [
        (KeptState(result="readable"), Status.PASS, "back in"),
        (KeptState(result="rebuilt"), Status.PASS, "back in"),
        (
            KeptState(result="unreadable", reason="version 9"),
            Status.FAIL,
            "convert first: exported program (version 9)",
        ),
        (KeptState(result="not written", reason="no compiler"), Status.UNTESTED, "not written: no compiler"),
        (None, Status.UNTESTED, "exported program: not asked of the rehearsal"),
    ],
)
def test_state_that_the_tier_needs_must_come_back(kept: KeptState | None, status: Status, said: str) -> None:
    state = {"checkpoint": KeptState(result="readable")} | ({"exported program": kept} if kept else {})
    needs = tier(state_required=("checkpoint", "exported program"))
    found = judge_gate(Gate.ROLLBACK, ask(limits=needs, way_back=rehearsed(state=state)))
    assert found.status is status
    assert said in found.reason
    # Who does not need it is not held up by it.
    assert judge_gate(Gate.ROLLBACK, ask(way_back=rehearsed(state=state))).status is Status.PASS


def test_a_limit_that_is_no_number_passes_no_rehearsal() -> None:
    found = judge_gate(Gate.ROLLBACK, ask(limits=tier(rollback_s=math.nan), way_back=rehearsed()))
    assert found.status is Status.FAIL


def test_a_feature_is_turned_off_and_not_uninstalled() -> None:
    assert judge_gate(Gate.ROLLBACK, ask(path="new")).status is Status.NOT_APPLICABLE


# -- outcomes before figures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("gate", NOT_ROLLBACK)
@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
def test_how_an_arm_ended_answers_before_any_figure(gate: Gate, outcome: Outcome) -> None:
    def status(arms: dict[str, Any]) -> Status:
        return judge_gate(gate, ask(arms)).status

    nowhere = outcome is Outcome.NO_ENVIRONMENT
    assert status({"candidate": ended(outcome)}) is (Status.UNTESTED if nowhere else Status.FAIL)
    assert status({"candidate": ended(outcome), "baseline": ended(outcome)}) is Status.UNTESTED
    fixed = Status.NOT_APPLICABLE if gate in RELATIVE else Status.PASS
    assert status({"baseline": ended(outcome)}) is (Status.UNTESTED if nowhere else fixed)


@pytest.mark.parametrize("gate", NOT_ROLLBACK)
def test_an_invalid_cell_or_an_answer_for_other_arms_is_untested(gate: Gate) -> None:
    never = Validity(valid=False, reasons=("never steady: baseline in 4 of 6 restarts",))
    found = judge_gate(gate, ask({"candidate": ended()}, validity=never))
    assert found.status is Status.UNTESTED
    assert "never steady" in found.reason
    asked = ask()
    assert asked.result is not None
    for name in ("baseline", "candidate"):
        arms = {key: arm for key, arm in asked.result.arms.items() if key != name}
        lone = ask(of=asked.cell)
        object.__setattr__(lone, "result", asked.result.model_copy(update={"arms": arms}))
        assert judge_gate(gate, lone).status is Status.UNTESTED


@pytest.mark.parametrize("gate", [gate for gate in NOT_ROLLBACK if gate is not Gate.COMPILE_EXPORT])
def test_a_gate_that_the_matrix_does_not_ask_is_untested_and_not_passed(gate: Gate) -> None:
    of = cell(gates=tuple(other for other in NOT_ROLLBACK if other is not gate))
    assert judge_gate(gate, ask(of=of)).status is Status.UNTESTED


@pytest.mark.parametrize("gate", [Gate.LATENCY, Gate.THROUGHPUT, Gate.PEAK_MEMORY])
def test_a_feature_beside_an_old_path_that_ended_shows_no_gain(gate: Gate) -> None:
    found = judge_gate(gate, ask({"candidate": ended()}, path="new"))
    assert found.status is Status.UNTESTED
    assert found.reason == "no gain to measure: candidate crashed: signal 11"
