"""Determinism, compile and export, rollback, and what outcomes answer before any figure does."""

from __future__ import annotations

import math
from typing import Any

import pytest

from farm.gates import judge_gate
from farm.model import (
    Gate,
    KeptState,
    Loaded,
    Outcome,
    Recompiles,
    SavedProgram,
    ShapeCall,
    Status,
    Validity,
    Verdict,
    WrongInput,
)
from tests.evidence import (
    ask,
    cell,
    comparison,
    compiled_over,
    ended,
    life,
    loaded,
    ok,
    program,
    rehearsal_cell,
    rehearsed,
    restarts,
    result,
    saved,
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
        ({"compile_outcome": None}, Status.UNTESTED),
        ({"graph_breaks": 1}, Status.FAIL),
        ({"graph_breaks": None}, Status.UNTESTED),
        # Given up on in silence: it runs, eager.
        ({"graphs": 0}, Status.FAIL),
        ({"cold_ns": 9 * 10**9}, Status.PASS),
        ({"cold_ns": 12 * 10**9}, Status.INCONCLUSIVE),
        ({"cold_ns": 20 * 10**9}, Status.FAIL),
        # Once more it was as quick as ever: what else the machine does only ever adds.
        ({"cold_ns": 20 * 10**9, "cold_again_ns": (9 * 10**9, 14 * 10**9)}, Status.PASS),
        ({"cold_ns": 20 * 10**9, "cold_again_ns": (19 * 10**9, 21 * 10**9)}, Status.FAIL),
        ({"cold_again_ns": (0,)}, Status.UNTESTED),
        ({"cold_ns": None}, Status.UNTESTED),
        ({"cold_ns": 0}, Status.UNTESTED),
        ({"cold_ns": -(10**9)}, Status.UNTESTED),
        ({"compiled": {}}, Status.UNTESTED),
        ({"programs": {}}, Status.UNTESTED),
        ({"compiled": {"y": comparison(rms_error=1e-3)}}, Status.FAIL),
        ({"compiled": {"y": comparison(rms_error=math.nan)}}, Status.FAIL),
        ({"compiled_warm": {"y": comparison()}}, Status.PASS),
        # CASES.md V10: a stale cache gives another program than the one that was compiled.
        ({"compiled_warm": {"y": comparison(rms_error=1e-3)}}, Status.FAIL),
        # CASES.md M1: what is found is not compiled.
        ({"cold_cache": "warm"}, Status.UNTESTED),
        ({"cold_cache": "mixed"}, Status.UNTESTED),
        ({"cold_cache": "cold", "warm_cache": "cold"}, Status.PASS),
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


def test_outputs_that_are_wrong_in_both_arms_are_no_worse_and_not_right() -> None:
    off = {"compiled": {"y": comparison(rms_error=1e-3)}}
    assert compiled(off, **off).status is Status.UNTESTED


def test_a_break_more_is_told_with_its_reason_and_another_reason_is_a_note() -> None:
    found = compiled({"graph_breaks": 1, "break_reasons": {"print": 1}}, graph_breaks=2, break_reasons={"item": 2})
    assert (found.status, found.reason) == (Status.FAIL, "2 graph breaks, were 1: item")
    found = compiled({"graph_breaks": 1, "break_reasons": {"print": 1}}, graph_breaks=1, break_reasons={"item": 1})
    assert found.status is Status.PASS
    assert "breaks for other reasons: item" in found.reason


def test_warm_is_compared_with_warm_alone() -> None:
    def names(**candidate: Any) -> list[str]:
        found = compiled({"warm_cache": "warm"}, **candidate)
        return [figure.name for figure in (found.figure, *found.others) if figure]

    assert "warm compile ratio" in names(warm_cache="warm")
    assert "warm compile ratio" not in names(warm_cache="cold")
    assert "compiles again" in compiled({"warm_cache": "warm"}, warm_cache="cold").reason


# -- over shapes that really come ----------------------------------------------------------------------------------


def over_shapes(
    candidate: Recompiles | None, baseline: Recompiles | None = None, limits: dict[str, Any] | None = None
) -> Verdict:
    before = {"recompiles": () if baseline is None else (baseline,)}
    return compiled(before, limits, recompiles=() if candidate is None else (candidate,))


def eager_from(place: int, *new_graphs: int) -> Recompiles:
    """Return a compilation that gave up at the call ``place`` without a word of the library's."""
    found = compiled_over(*new_graphs, dynamic="False")
    calls = [
        call.model_copy(update={"ran": "eager" if at >= place else "compiled"}) for at, call in enumerate(found.calls)
    ]
    return found.model_copy(update={"calls": tuple(calls), "limit_hit": "recompile limit exceeded at 1x4"})


FAR = ShapeCall(shape="1x2", new_graphs=1, ran="compiled", outputs={"y": comparison(rms_error=1e-3)})
SHORTER = compiled_over(1, 1)


@pytest.mark.parametrize(
    ("candidate", "baseline", "limits", "status", "said"),
    [
        (compiled_over(1, 1, 0), compiled_over(1, 1, 0), {}, Status.PASS, "over 3 shapes 2 with dynamic=None graphs"),
        (compiled_over(1, 1, 1), compiled_over(1, 1, 0), {}, Status.FAIL, "3 graphs over 3 shapes, were 2"),
        (compiled_over(1, 1, 1), compiled_over(1, 1, 0), {"recompiles": 1}, Status.PASS, ""),
        (compiled_over(1, 0, 0), compiled_over(1, 1, 0), {}, Status.PASS, ""),
        (eager_from(2, 1, 1, 0), compiled_over(1, 1, 1, dynamic="False"), {}, Status.FAIL, "never in the baseline"),
        (eager_from(2, 1, 1, 0), eager_from(2, 1, 1, 0), {}, Status.PASS, "1 shapes run eager, as before"),
        (eager_from(1, 1, 0, 0), eager_from(2, 1, 1, 0), {}, Status.FAIL, "2 of 3 shapes run eager (1x3), were 1"),
        (compiled_over(1, calls=(FAR,)), compiled_over(1), {}, Status.FAIL, "1x2 compiled with dynamic=None 'y'"),
        (compiled_over(1, calls=(FAR,)), compiled_over(1, calls=(FAR,)), {}, Status.UNTESTED, "nor is it"),
        (SHORTER, compiled_over(1, 1, 0), {}, Status.UNTESTED, "different shapes"),
        (None, compiled_over(1), {}, Status.UNTESTED, "in different ways"),
        (
            Recompiles(dynamic="True", outcome=Outcome.CRASHED, reason="SIGSEGV"),
            compiled_over(1, dynamic="True"),
            {},
            Status.FAIL,
            "compile with dynamic=True crashed: SIGSEGV",
        ),
    ],
)
def test_compiling_over_shapes_is_judged_by_graphs_limits_and_outputs(
    candidate: Recompiles | None, baseline: Recompiles, limits: dict[str, Any], status: Status, said: str
) -> None:
    found = over_shapes(candidate, baseline, limits)
    assert found.status is status
    assert said in found.reason


# -- programs that leave -------------------------------------------------------------------------------------------

OFF = comparison(rms_error=1e-3)
LOST = Loaded(outcome=Outcome.FAILED, reason="schema 9 is not known")
GONE = SavedProgram(outcome=Outcome.FAILED, reason="operators aten.det: no shim", operators=("aten.det",))


def leaving(candidate: SavedProgram | None, baseline: SavedProgram, kind: str = "exported program") -> Verdict:
    rest = {"exported program": saved()}
    return compiled({"programs": rest | {kind: baseline}}, programs=rest | ({kind: candidate} if candidate else {}))


@pytest.mark.parametrize(
    ("candidate", "baseline", "status", "said"),
    [
        (saved(), saved(), Status.PASS, "exported program: saved, loaded and loaded by the other release agree"),
        (GONE, saved(), Status.FAIL, "exported program: failed: operators aten.det: no shim; it works in the baseline"),
        (GONE, GONE, Status.UNTESTED, "ends in both arms"),
        (saved(), GONE, Status.PASS, ""),
        (saved(elsewhere=None), saved(), Status.PASS, "exported program: saved and loaded agree"),
        (saved(loaded=LOST), saved(), Status.FAIL, "exported program, loaded: failed: schema 9"),
        (saved(loaded=None), saved(), Status.UNTESTED, "no output of the loaded exported program"),
        (saved(loaded=loaded(y=OFF)), saved(), Status.FAIL, "exported program, loaded, 1x37: 'y' is not the eager one"),
        (saved(loaded=loaded(y=OFF)), saved(loaded=loaded(y=OFF)), Status.UNTESTED, "nor is it in the baseline"),
        # Both ways across: what is served must stay readable, and what is written meanwhile must be readable back.
        (saved(), saved(elsewhere=LOST), Status.FAIL, "of baseline, loaded by candidate: failed: schema 9"),
        (saved(elsewhere=LOST), saved(), Status.FAIL, "of candidate, loaded by baseline: failed: schema 9"),
        (saved(elsewhere=loaded(y=OFF)), saved(), Status.FAIL, "of candidate, loaded by baseline, 1x37: 'y' is not"),
        (saved(operators=("mine.twice",)), saved(), Status.PASS, "outside Core ATen that were not there: mine.twice"),
    ],
)
def test_a_saved_program_is_judged_where_it_is_loaded_by_either_release(
    candidate: SavedProgram, baseline: SavedProgram, status: Status, said: str
) -> None:
    found = leaving(candidate, baseline)
    assert found.status is status
    assert said in found.reason


def test_a_program_that_the_baseline_alone_has_is_untested() -> None:
    assert leaving(None, saved(), "dynamic program").status is Status.UNTESTED


MET = ["refused", "accepted", "aborted", "no answer"]


@pytest.mark.parametrize("before", MET)
@pytest.mark.parametrize("now", MET)
def test_a_wrong_input_is_met_as_before_or_refused(now: str, before: str) -> None:
    def package(result: str) -> SavedProgram:
        return saved(wrong_inputs={"wrong dtype": WrongInput(result=result, words="SIGABRT")})  # type: ignore[arg-type]

    found = leaving(package(now), package(before), "compiled package")
    if now in (before, "refused"):
        assert found.status is Status.PASS
        assert ("wrong dtype now refused" in found.reason) == (now != before)
    else:
        assert (found.status, found.reason) == (
            Status.FAIL,
            f"compiled package: wrong dtype is {now}, was {before} (SIGABRT)",
        )


def test_onnx_without_its_exporter_is_said_and_holds_nothing_up() -> None:
    absent = SavedProgram(outcome=Outcome.UNSUPPORTED, reason="no onnxscript")
    found = leaving(absent, absent, "ONNX model")
    assert found.status is Status.PASS
    assert "ONNX model untested (no onnxscript)" in found.reason
    assert leaving(absent, saved(), "ONNX model").status is Status.FAIL


def test_a_package_that_was_asked_for_and_not_made_is_untested() -> None:
    of = cell(programs=("compile", "export", "package"))
    found = judge_gate(Gate.COMPILE_EXPORT, ask(of=of))
    assert (found.status, found.reason) == (Status.UNTESTED, "the compiled package was not tried")


def test_a_workload_that_does_not_export_is_not_asked_to() -> None:
    of = cell(programs=("compile",))
    arms = {name: ok(program(programs={})) for name in ("candidate", "baseline")}
    assert judge_gate(Gate.COMPILE_EXPORT, ask(arms, of=of)).status is Status.PASS


def test_what_fails_outweighs_what_ends_in_both_arms() -> None:
    gone = {"compile_outcome": Outcome.FAILED, "compile_reason": "no C++ compiler"}
    found = compiled(gone, **gone, programs={"exported program": saved(loaded=LOST)})
    assert found.status is Status.FAIL


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
