"""A noisy machine is given what its limits need, as far as the suite lets it, and what remains is said beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from farm.budget import (
    Need,
    calibrations_for,
    cell_s,
    confirming_restarts,
    fitted,
    minutes,
    need_words,
    percent_apart,
    resolved,
    restart_s,
    sd_at,
    tightest,
)
from farm.matrix import Matrix, load_matrix
from farm.model import Calibration, Gate, Host, Measuring, Plan
from farm.power import passes, restarts_needed
from tests import evidence as made
from tests.farm.test_plan import build, changed, host, planned

__all__ = ["changed"]

STANDARD = load_matrix().suite("standard").model_copy(update={"p50_limits": (1.03, 1.05, 1.15)})


def calibration(sd: float = 0.006, **more: Any) -> Calibration:
    fields: dict[str, Any] = {
        "measured": "2026-07-01T08:00:00+00:00",
        "release": "2.12.1+cpu",
        "workload": "transformer_block/infer-fp32",
        "restarts": 12,
        "restart_s": 10.0,
        "window_s": 8.0,
        "ratio": 1.0,
        "low": 0.995,
        "high": 1.005,
    }
    return Calibration(sd=sd, **fields | more)


def noisy(sd: float, *capabilities: str, name: str = "bench-1", **more: Any) -> Host:
    known = calibration(sd, **more)
    return host(*(capabilities or ("cpu",))).model_copy(update={"name": name, "calibration": known})


# -- what a machine's noise means for a cell -----------------------------------------------------------------------


def test_shorter_windows_are_noisier_and_longer_ones_only_as_far_as_processes_are_alike() -> None:
    known = calibration()
    assert sd_at(known, STANDARD) == pytest.approx(known.sd)
    assert sd_at(known, load_matrix().suite("smoke")) == pytest.approx(2.18 * known.sd, rel=0.01)
    endless = STANDARD.model_copy(update={"restart_s": 1e9})
    assert sd_at(known, endless) == pytest.approx(math.sqrt(0.5841) * known.sd, rel=1e-3)
    # Three arms share the windows of a restart.
    assert sd_at(known, STANDARD, 3) > sd_at(known, STANDARD)


def test_a_restart_takes_what_it_took_when_the_machine_was_calibrated() -> None:
    assert restart_s(STANDARD, 2, calibration()) == 10.0
    assert restart_s(STANDARD, 3, calibration()) == 11.0
    assert restart_s(STANDARD, 2) == pytest.approx(10.3)


def test_a_calibration_says_nothing_of_devices_nor_where_it_cannot_be_true() -> None:
    machine = noisy(0.006, "cpu", "cuda.sm90")
    assert calibrations_for("cpu", [machine, host("cpu")]) == {"bench-1": machine.calibration}
    assert calibrations_for("cuda", [machine]) == {}
    for wrong in (math.nan, math.inf, -0.1, 0.0):
        assert calibrations_for("cpu", [noisy(wrong)]) == {}
    assert calibrations_for("cpu", [noisy(0.01, restart_s=1.0)]) == {}


def test_the_tightest_limit_is_the_nearest_to_1_whichever_way_it_lies() -> None:
    assert tightest(()) is None
    assert tightest((1.15, 1.03, 1.05)) == 1.03
    assert tightest((1.05, 0.98)) == 0.98


# -- what it is given ----------------------------------------------------------------------------------------------


def test_a_quiet_machine_changes_nothing_and_leaves_nothing_unsaid() -> None:
    assert fitted(STANDARD, 2, 480.0, {"a": calibration(0.003)}) == (STANDARD, [])
    assert fitted(STANDARD, 2, 480.0, {}) == (STANDARD, [])
    without = STANDARD.model_copy(update={"p50_limits": ()})
    assert fitted(without, 2, 480.0, {"a": calibration(0.1)}) == (without, [])


def test_a_noisier_machine_gets_the_restarts_and_the_seconds_that_its_limit_needs() -> None:
    given, unmet = fitted(STANDARD, 2, 480.0, {"a": calibration(0.03), "b": calibration(0.006)})
    needed = restarts_needed(1.03, 0.03, STANDARD.looks, STANDARD.alpha)
    assert needed is not None
    assert given.looks == (6, 10, 14, 18)
    assert given.looks[-1] == needed
    assert passes(1.03, 0.03, given.looks, given.alpha) >= 0.95
    assert STANDARD.budget_s <= given.budget_s <= 480.0
    assert given.budget_s >= needed * 10.0
    assert unmet == []


def test_without_room_to_grow_it_is_said_what_will_be_missing() -> None:
    for ceiling in (None, 240.0):
        given, unmet = fitted(STANDARD, 2, ceiling, {"a": calibration(0.03)})
        assert given == STANDARD
        (need,) = unmet
        assert (need.host, need.limit, need.seconds) == ("a", 1.03, pytest.approx(18 * 12.0))
    assert need_words(unmet) == ["a: 3 % needs 3.6 min a cell, the suite gives 2.4 min: expect 'inconclusive' there"]


def test_a_very_noisy_machine_gets_all_there_is_and_is_said_to_need_more() -> None:
    given, unmet = fitted(STANDARD, 2, 480.0, {"a": calibration(0.08)})
    assert given.looks == (6, 12, 18, 24)
    assert unmet[0].seconds > 480.0
    slow, unmet = fitted(STANDARD, 2, 480.0, {"a": calibration(0.03, restart_s=38.0)})
    # 480 s hold ten of its restarts; the suite's own looks stay, and the budget ends before them.
    assert (slow.looks, slow.budget_s) == (STANDARD.looks, 480.0)
    assert unmet[0].given_s == 480.0


def test_a_limit_of_nothing_cannot_be_settled_by_any_number_of_restarts() -> None:
    on_it = STANDARD.model_copy(update={"p50_limits": (1.0,)})
    given, unmet = fitted(on_it, 2, 480.0, {"a": calibration()})
    assert given.looks == on_it.looks
    assert need_words(unmet) == [
        "a: 0 % cannot be settled at all, the suite gives 2.4 min: expect 'inconclusive' there"
    ]


def test_of_several_cells_the_one_that_needs_most_speaks_for_a_machine_and_a_limit() -> None:
    words = need_words([Need("a", 1.02, 300.0, 240.0), Need("a", 1.02, 540.0, 240.0), Need("b", 1.05, 900.0, 240.0)])
    assert words == [
        "a: 2 % needs 9 min a cell, the suite gives 4 min: expect 'inconclusive' there",
        "b: 5 % needs 15 min a cell, the suite gives 4 min: expect 'inconclusive' there",
    ]


@pytest.mark.parametrize(
    ("cells", "looks", "expected"),
    [(1, (6, 8), 6), (200, (6, 8), 6), (205, (6, 8), 7), (3, (5,), 5), (1000, (5,), 10), (0, (5,), 5), (1, (4, 8), 6)],
)
def test_the_repeat_can_reject_one_clear_case_among_all_cells(
    cells: int, looks: tuple[int, ...], expected: int
) -> None:
    repeat = confirming_restarts(cells, looks, 0.032 if looks[0] == 5 else 0.016)
    assert repeat == expected
    assert 2.0 ** -(looks[0] + repeat) <= 0.05 / max(cells, 1)


# -- in a plan -----------------------------------------------------------------------------------------------------


def measuring(plan: Plan, cell_id: str = "transformer_block/infer-fp32@cpu") -> Measuring:
    return next(cell.measuring for cell in plan.cells if cell.id == cell_id)


def test_a_plan_for_a_noisy_machine_measures_longer_within_the_suites_bound() -> None:
    usual = planned(suite="standard")
    found = planned(suite="standard", hosts=(noisy(0.03),))
    assert measuring(usual).looks == (6, 8, 10, 12)
    assert measuring(found).looks == (6, 10, 14, 18)
    assert measuring(found).budget_s <= 480.0
    controls = [cell for cell in found.cells if cell.kind == "aa"]
    assert controls
    for control in controls:
        of = control.id.removeprefix("aa/").replace("-", "/", 1)
        assert control.measuring.looks == measuring(found, of).looks
    assert found.plan_digest != usual.plan_digest


def test_a_plan_says_beforehand_what_a_machine_cannot_resolve() -> None:
    found = planned(suite="standard", hosts=(noisy(0.08), host("cpu").model_copy(update={"name": "other"})))
    (note,) = (note for note in found.resolution_notes if "bench-1" in note)
    assert note.startswith("bench-1: 3 % needs ")
    assert note.endswith("min: expect 'inconclusive' there")
    smoke = planned(hosts=(noisy(0.08),))
    assert measuring(smoke).looks == (5,)
    assert any(note.startswith("bench-1: 3 % needs ") for note in smoke.resolution_notes)


def test_devices_are_planned_as_if_the_machine_had_not_been_calibrated() -> None:
    plan = planned(hosts=(noisy(0.08, "cuda.sm90"),), suite="standard", resolve=build)
    assert (
        plan.resolution_notes == planned(hosts=(host("cuda.sm90"),), suite="standard", resolve=build).resolution_notes
    )
    assert {cell.measuring.looks for cell in plan.cells} == {(6, 8, 10, 12)}


def test_every_cell_is_repeated_before_it_is_accused_unless_the_suite_says_otherwise(
    changed: Callable[..., Matrix],
) -> None:
    assert {cell.measuring.confirming for cell in planned(suite="standard").cells} == {6}
    assert {cell.measuring.confirming for cell in planned().cells} == {5}
    none = planned(changed(("budget_s = 120.0", "budget_s = 120.0\nconfirm = false")))
    assert {cell.measuring.confirming for cell in none.cells} == {0}


def test_the_standard_suite_times_the_allocator_as_it_comes_too() -> None:
    as_it_comes = {(cell.kind, cell.measuring.as_it_comes) for cell in planned(suite="standard").cells}
    assert as_it_comes == {("measure", 6), ("aa", 0), ("rehearsal", 6)}
    assert {cell.measuring.as_it_comes for cell in planned().cells} == {0}


# -- how long it takes ---------------------------------------------------------------------------------------------


def test_a_cell_takes_its_examination_its_programs_and_its_restarts() -> None:
    of = made.cell(measuring=STANDARD, gates=(Gate.CORRECTNESS, Gate.LATENCY))
    assert cell_s(of) == pytest.approx(4.0 + 12 * 10.3)
    compiled = made.cell(measuring=STANDARD, gates=(Gate.LATENCY, Gate.COMPILE_EXPORT))
    assert cell_s(compiled) == pytest.approx(54.0 + 12 * 10.3)
    bounded = made.cell(measuring=STANDARD.model_copy(update={"budget_s": 60.0}), gates=(Gate.LATENCY,))
    assert cell_s(bounded) == 64.0
    # A quiet machine settles 3 % at the first look, where no limit of the tail asks for more.
    assert cell_s(of, calibration(0.002)) == pytest.approx(4.0 + 6 * 10.0)
    tail = made.cell(measuring=STANDARD.model_copy(update={"p95_limits": (1.05,)}), gates=(Gate.LATENCY,))
    assert cell_s(tail, calibration(0.002)) == pytest.approx(4.0 + 12 * 10.0)
    assert cell_s(made.rehearsal_cell()) == 15.0


def test_what_a_machine_resolves_grows_with_its_noise() -> None:
    assert 1.0 < resolved(calibration(0.003), STANDARD) < resolved(calibration(0.006), STANDARD) < 1.01


def test_minutes_and_percents_are_as_people_say_them() -> None:
    assert [minutes(s) for s in (14.2, 60, 90, 540, 900)] == ["14 s", "1 min", "1.5 min", "9 min", "15 min"]
    assert [percent_apart(ratio) for ratio in (1.03, 0.97, 1.0125, 1.0)] == ["3 %", "3 %", "1.25 %", "0 %"]
