"""A run measures the baseline against itself in a few of its cells, and says how often it was accused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from farm.judge import judge
from farm.matrix import Matrix
from farm.model import Cell, CellResult, Decision, FalseAlarms, Gate, Outcome, Plan, Status, Validity
from tests.evidence import aa_cell, cell, ended, evidence, ok, result, run_of, tier
from tests.farm.test_plan import ARM, BOTH, build, changed, host, planned, resolution

__all__ = ["changed"]


def controls(plan: Plan) -> list[Cell]:
    return [cell for cell in plan.cells if cell.kind == "aa"]


# -- planned -------------------------------------------------------------------------------------------------------


def test_an_aa_cell_is_its_case_with_the_baseline_in_both_arms_and_the_gates_that_noise_can_fail() -> None:
    plan = planned(hosts=(host("cpu"), ARM), resolve=build)
    (cell,) = controls(plan)
    of = next(other for other in plan.cells if other.id == cell.id.removeprefix("aa/").replace("-", "/", 1))
    assert [arm.name for arm in cell.arms] == ["baseline", "candidate"]
    assert {arm.path for arm in cell.arms} == {of.arms[0].path}
    assert [arm.environments for arm in cell.arms] == [of.arms[0].environments] * 2
    assert len(of.arms[0].environments) == 2
    assert cell.gates == (Gate.LATENCY, Gate.THROUGHPUT)
    assert (cell.parameters, cell.control, cell.capability) == (of.parameters, of.control, of.capability)
    assert cell.measuring.looks == of.measuring.looks
    assert cell.measuring.p50_limits == of.measuring.p50_limits


def test_every_capability_has_one_for_ten_measured_cells_and_one_at_least(changed: Callable[..., Matrix]) -> None:
    for suite in ("smoke", "standard"):
        plan = planned(hosts=(BOTH,), resolve=build, suite=suite)
        wanted = []
        for capability in ("cpu", "cuda.sm90"):
            measured = sum(cell.kind == "measure" and cell.capability == capability for cell in plan.cells)
            wanted += [capability] * max(1, measured // 10)
        assert [cell.capability for cell in controls(plan)] == wanted
    half = planned(changed(("budget_s = 120.0", "budget_s = 120.0\naa_share = 0.5")))
    assert len(controls(half)) == sum(cell.kind == "measure" for cell in half.cells) // 2
    third = planned(changed(("budget_s = 240.0", "budget_s = 240.0\naa_share = 0.3")), suite="standard")
    assert len(controls(third)) == int(0.3 * sum(cell.kind == "measure" for cell in third.cells) + 1e-9)
    none = planned(changed(("budget_s = 120.0", "budget_s = 120.0\naa_share = 0.0")))
    assert controls(none) == []


def test_a_plan_made_again_has_the_same_and_the_next_releases_have_others() -> None:
    plans = [
        planned(suite="standard", resolve=lambda b, h, minor=minor: resolution(f"2.{minor}.0")) for minor in (13, 13)
    ]
    assert plans[0].plan_digest == plans[1].plan_digest
    chosen = {
        controls(planned(suite="standard", resolve=lambda b, h, v=f"2.13.{patch}": resolution(v)))[0].id
        for patch in range(30)
    }
    assert len(chosen) >= 8


def test_an_aa_run_has_none_and_neither_has_a_baseline_that_cannot_be_installed() -> None:
    assert controls(planned(resolve=lambda backend, host: resolution(aa=True))) == []

    def without(backend: object, machine: object) -> object:
        found = resolution()
        return type(found)({side: env for side, env in found.environments.items() if side == "candidate"})

    assert controls(planned(resolve=without)) == []  # type: ignore[arg-type]


def test_where_no_gate_asks_for_time_there_is_nothing_to_accuse_falsely(changed: Callable[..., Matrix]) -> None:
    text = (
        'gates = ["correctness", "latency", "throughput", "peak_memory", "determinism", "compile_export", "rollback"]'
    )
    tiers = [
        ('required = ["correctness", "latency"]\nmay_be_inconclusive = ["latency"]', 'required = ["correctness"]'),
        ('required = ["correctness", "throughput", ', 'required = ["correctness", '),
        ('required = ["correctness", "latency", ', 'required = ["correctness", '),
        ('required = ["correctness", "throughput", ', 'required = ["correctness", '),
    ]
    matrix = changed((text, text.replace('"latency", "throughput", ', "")), *tiers)
    assert controls(planned(matrix)) == []


# -- judged --------------------------------------------------------------------------------------------------------

BLOCK = cell("block")
CONTROL = aa_cell(BLOCK)
TIMED = (Gate.LATENCY, Gate.THROUGHPUT)


def accused(step_ms: float = 10.0, **more: object) -> CellResult:
    """Return the answer to the A/A cell in which the second arm took ``step_ms`` in place of 10."""
    return result(CONTROL, times={"candidate": step_ms}, **more)


def test_a_control_that_finds_nothing_is_counted_and_decides_nothing() -> None:
    judgement = judge(evidence([(BLOCK, result(BLOCK)), (CONTROL, accused())], tier()))
    assert judgement.false_alarms == FalseAlarms(cells=1, failed=0, changed=0, on_record=0, on_record_beyond=0)
    assert judgement.alarms == ()
    assert judgement.coverage.cells == 1
    assert [row.decision for row in judgement.rows] == [Decision.ADOPT]
    verdicts = {found.cell_id: found.verdicts for found in judgement.cells}
    assert [verdict.gate for verdict in verdicts[CONTROL.id]] == list(TIMED)
    assert {verdict.status for verdict in verdicts[CONTROL.id]} == {Status.PASS}


def test_a_run_without_controls_says_nothing_of_them_and_in_an_aa_run_every_cell_is_one() -> None:
    assert judge(run_of(BLOCK)).false_alarms is None
    own = judge(run_of(BLOCK, cell("attention"), aa=True)).false_alarms
    assert own == FalseAlarms(cells=2, failed=0, changed=0, on_record=0, on_record_beyond=0)


def test_a_release_that_fails_against_itself_raises_an_alarm_and_no_rollback_rests_on_such_times() -> None:
    slower = result(BLOCK, times={"candidate": 12.0})
    limits = tier(required=TIMED, in_service=True)
    assert judge(evidence([(BLOCK, slower)], limits)).rows[0].decision is Decision.ROLLBACK
    judgement = judge(evidence([(BLOCK, slower), (CONTROL, accused(10.5))], limits, tier("second", p50_ratio=1.1)))
    assert judgement.false_alarms == FalseAlarms(cells=1, failed=1, changed=1, on_record=0, on_record_beyond=0)
    assert judgement.alarms == (
        "A/A on bench-1: aa/block-infer@cpu reads +5.0 % [+5.0 %, +5.0 %] with one release in both arms; "
        "believe no figure of this machine below 5 %",
    )
    assert judgement.rows[0].decision is Decision.DEFER
    assert judgement.tiers[0].decision is Decision.DEFER


def test_a_change_of_two_percent_within_the_limits_is_an_alarm_and_takes_no_rollback_back() -> None:
    slower = result(BLOCK, times={"candidate": 12.0})
    limits = tier(required=TIMED, in_service=True)
    for step_ms, alarms in ((9.7, 1), (10.25, 1), (10.15, 0)):
        judgement = judge(evidence([(BLOCK, slower), (CONTROL, accused(step_ms))], limits))
        assert judgement.false_alarms == FalseAlarms(cells=1, failed=0, changed=1, on_record=0, on_record_beyond=0)
        assert len(judgement.alarms) == alarms
        assert judgement.rows[0].decision is Decision.ROLLBACK


def test_an_arm_that_ends_while_its_twin_runs_is_a_false_accusation_too() -> None:
    crashed = result(CONTROL, {"candidate": ended(Outcome.CRASHED, "signal 11")}, times={})
    judgement = judge(evidence([(BLOCK, result(BLOCK)), (CONTROL, crashed)], tier()))
    assert judgement.false_alarms is not None
    assert (judgement.false_alarms.cells, judgement.false_alarms.failed) == (1, 1)
    (alarm,) = judgement.alarms
    assert alarm.startswith("A/A on bench-1: aa/block-infer@cpu fails with one release in both arms (candidate crashed")


@pytest.mark.parametrize(
    "answer",
    [
        None,
        accused(12.0, validity=Validity(valid=False, reasons=("never steady",))),
        result(CONTROL, {name: ended() for name in ("baseline", "candidate")}, times={}),
        result(CONTROL, {"candidate": ok()}, restarts=()),
    ],
    ids=["not run", "invalid", "both ended", "never timed"],
)
def test_a_control_without_a_valid_answer_is_neither_counted_nor_an_alarm(answer: CellResult | None) -> None:
    judgement = judge(evidence([(BLOCK, result(BLOCK)), (CONTROL, answer)], tier()))
    assert judgement.false_alarms == FalseAlarms(cells=0, failed=0, changed=0, on_record=0, on_record_beyond=0)
    assert judgement.alarms == ()


def test_controls_are_no_part_of_an_asymmetry() -> None:
    pairs = [(of, result(of, times={"candidate": 11.0})) for of in (cell(f"w{n}") for n in range(7))]
    assert not judge(evidence(pairs, tier())).alarms
    controls = [(aa_cell(of), result(aa_cell(of), times={"candidate": 11.0})) for of, _ in pairs]
    assert not [a for a in judge(evidence([*pairs, *controls], tier())).alarms if a.startswith("asymmetry")]


def test_the_record_is_counted_once_for_each_case_and_held_against_the_tightest_limit() -> None:
    history = (1.0, 1.02, 0.99, 1.031, 0.96)
    pairs = [
        (BLOCK, result(BLOCK, noise=history[:4])),
        (CONTROL, accused(noise=history)),
        (cell("attention"), result(cell("attention"), noise=(1.5,))),
    ]
    judgement = judge(evidence(pairs, tier(), tier("loose", p50_ratio=1.2)))
    assert judgement.false_alarms is not None
    assert (judgement.false_alarms.on_record, judgement.false_alarms.on_record_beyond) == (6, 3)


def test_m10_a_cell_whose_own_noise_is_wider_than_its_limit_is_listed_as_unstable() -> None:
    """CASES.md M10: 0.19809 s to 0.21859 s on a cell whose own A/A noise is above 10 %."""
    history = (1.0, 1.11, 0.97, 1.04, 0.9, 1.08, 1.02, 0.93)
    noisy = result(BLOCK, times={"baseline": 198.09, "candidate": 218.59}, noise=history)
    quiet = result(cell("attention"), noise=(1.001, 0.999) * 4)
    judgement = judge(evidence([(BLOCK, noisy), (cell("attention"), quiet), (CONTROL, accused(noise=history))], tier()))
    assert list(judgement.unstable) == [BLOCK.id]
    assert judgement.unstable[BLOCK.id].startswith("8 A/A ratios on bench-1 reach to ")
    assert judgement.unstable[BLOCK.id].endswith(", beyond the limit of 3 %")
    wide = judge(evidence([(BLOCK, noisy)], tier(p50_ratio=1.5)))
    assert wide.unstable == {}
    short = judge(evidence([(BLOCK, noisy.model_copy(update={"noise": history[:7]}))], tier()))
    assert short.unstable == {}
