"""A run measures the baseline against itself in a few of its cells, and says how often it was accused."""

from __future__ import annotations

from collections.abc import Callable

from farm.matrix import Matrix
from farm.model import Cell, Gate, Plan
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
        measured = [cell for cell in plan.cells if cell.kind == "measure"]
        assert len(measured) in (6, 24)
        assert [cell.capability for cell in controls(plan)] == ["cpu", "cuda.sm90"]
    half = planned(changed(("budget_s = 120.0", "budget_s = 120.0\naa_share = 0.5")))
    assert len(controls(half)) == 1
    third = planned(changed(("budget_s = 240.0", "budget_s = 240.0\naa_share = 0.3")), suite="standard")
    assert len(controls(third)) == 3
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
