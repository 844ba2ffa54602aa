"""What makes a restart, a cell, or the times of one of its arms mean nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from farm.gates import judge_gate
from farm.model import Gate, Restart, Status, Validity
from tests.evidence import ask, restarts, window
from workers.validity import against_restart, validity_of
from workers.watch import Watch

NAMES = ("baseline", "candidate", "candidate+new")
#: What CASES.md M3 saw: one side flips from process to process.
FLIPPING = (2.9, 3.4, 3.0, 2.95, 3.41, 2.92, 3.39, 3.4)


def measured(**never_steady: int) -> list[Restart]:
    """Six restarts of three arms; each named arm is unsteady in that many of them."""
    found = []
    for restart in restarts(dict.fromkeys(NAMES, 7.0)):
        arms = {
            name: life.model_copy(update={"steady": restart.index >= never_steady.get(name, 0)})
            for name, life in restart.arms.items()
        }
        found.append(restart.model_copy(update={"arms": arms}))
    return found


def windowed(restart: Restart, *arms: str, steps: Sequence[int] | np.ndarray | None = None, **fields: Any) -> Restart:
    """The restart with other windows for ``arms`` (default: all): other steps, or other fields of each window."""
    changed = {}
    for name, life in restart.arms.items():
        windows = life.windows if steps is None else (window(0, steps),)
        if not arms or name in arms:
            windows = tuple(each.model_copy(update=fields) for each in windows)
            changed[name] = life.model_copy(update={"windows": windows})
    return restart.model_copy(update={"arms": restart.arms | changed})


def thrown(restart: Restart, reason: str, **fields: Any) -> Restart:
    return restart.model_copy(update={"invalid": reason, **fields})


# -- the cell ------------------------------------------------------------------------------------------------------


def test_quiet_clocks_and_steady_arms_are_valid() -> None:
    assert validity_of([], Watch(), measured()) == Validity(valid=True)


def test_a_cell_without_restarts_is_valid_whatever_was_wanted() -> None:
    assert validity_of([], Watch(), [], wanted=6) == Validity(valid=True)


def test_a_broken_control_invalidates_the_cell() -> None:
    found = validity_of(["control broken: numpy differs between the arms"], Watch(), measured())
    assert not found.valid
    assert found.reasons == ("control broken: numpy differs between the arms",)


def test_a_clock_that_jumps_invalidates_the_cell() -> None:
    clocks = iter([(0.0, 0.0, 0.0), (60.0, 60.0, 3660.0)])
    found = validity_of([], Watch(lambda: next(clocks)), [])
    assert (found.valid, found.reasons) == (False, ("clock jumped by +3600 s",))


def test_a_restart_that_was_thrown_away_and_repeated_is_told_and_leaves_the_cell_valid() -> None:
    found = measured()
    found[1] = thrown(found[1], "on battery")
    assert validity_of([], Watch(), found, wanted=5) == Validity(valid=True, repeated=("restart 2: on battery",))


def test_too_few_valid_restarts_make_the_cell_invalid_with_the_commonest_reasons() -> None:
    found = measured()
    for index, percent in enumerate((63, 71, 68)):
        found[index] = thrown(found[index], f"interference: its threads waited {percent} % of the time for a processor")
    found[3] = thrown(found[3], "machine suspended for 40 s; on battery")
    made = validity_of([], Watch(), found, wanted=6)
    assert not made.valid
    assert made.reasons == (
        "interference: its threads waited 63 % of the time for a processor (in 3 of 6 restarts; 2 of 6 valid ones)",
        "machine suspended for 40 s (in 1 of 6 restarts; 2 of 6 valid ones)",
        "on battery (in 1 of 6 restarts; 2 of 6 valid ones)",
    )
    assert len(made.repeated) == 4


def test_a_confirming_restart_that_was_thrown_away_does_not_count_against_the_judging_ones() -> None:
    found = measured()
    extra = thrown(found[0], "on battery", index=6, purpose="confirming")
    made = validity_of([], Watch(), [*found, extra], wanted=6)
    assert made == Validity(valid=True, repeated=("restart 7 (confirming): on battery",))


@pytest.mark.parametrize("wanted", [1, 6])
def test_invalid_restarts_say_nothing_against_an_arm(wanted: int) -> None:
    found = [thrown(restart, "on battery") for restart in measured(candidate=6)]
    assert validity_of([], Watch(), found, wanted=wanted).arms == {}


# -- the baseline over the cell ------------------------------------------------------------------------------------


def test_a_baseline_that_slows_down_and_down_is_throttled() -> None:
    slowing = [7.0, 7.2, 7.5, 7.9, 8.4, 8.8]
    found = validity_of([], Watch(), restarts(dict.fromkeys(NAMES, slowing)))
    assert (found.valid, found.reasons) == (False, ("throttled: the baseline slowed by 21 % over the cell",))


@pytest.mark.parametrize(
    "times",
    [
        [7.0, 7.1, 7.2, 7.3, 7.4, 7.5],  # a little
        [7.0, 9.0, 7.0, 9.1, 7.1, 8.9],  # up and down
        [8.8, 8.4, 7.9, 7.5, 7.2, 7.0],  # faster
        [7.0, 8.0, 9.0],  # too few to say
    ],
)
def test_what_is_no_slow_down_is_none(times: list[float]) -> None:
    assert validity_of([], Watch(), restarts({"baseline": times, "candidate": times})).reasons == ()


def test_a_neighbour_that_comes_is_not_heat() -> None:
    found = list(restarts({name: [7.0, 7.0, 7.0, 7.0, 14.0, 14.0] for name in NAMES}))
    for index in (4, 5):
        wall = found[index].arms["baseline"].windows[0].wall_ns
        found[index] = windowed(found[index], waited_ns=wall // 2, cpu_ns=wall // 2)
    assert validity_of([], Watch(), found).reasons == ()


# -- one arm -------------------------------------------------------------------------------------------------------


def test_an_arm_that_is_seldom_unsteady_is_valid() -> None:
    assert validity_of([], Watch(), measured(candidate=3)).arms == {}


def test_an_arm_that_never_gets_steady_takes_only_its_own_comparisons_along() -> None:
    found = validity_of([], Watch(), measured(**{"candidate+new": 4}))
    assert found.valid
    assert found.arms == {"candidate+new": ("never steady in 4 of 6 restarts",)}

    def status(path: str) -> Status:
        return judge_gate(Gate.LATENCY, ask(path=path, validity=found)).status

    assert status("") is Status.PASS
    assert status("new") is Status.UNTESTED


def test_a_step_of_no_time_is_no_time() -> None:
    """CASES.md A5."""
    broken = measured()
    life = broken[2].arms["candidate"]
    zero = life.model_copy(update={"windows": (*life.windows, window(9, [7_000_000, 0]))})
    broken[2] = broken[2].model_copy(update={"arms": broken[2].arms | {"candidate": zero}})
    assert validity_of([], Watch(), broken).arms == {"candidate": ("sensor implausible: a step took 0 ns",)}
    assert against_restart(broken[2]) == ""


FAULTS = [
    ({"steps": [7_000_000] * 24}, "sensor implausible: all 24 steps took 7000000 ns"),
    (
        {"steps": [7_000_000, 7_000_001], "wall_ns": 7_000_000, "cpu_ns": 0},
        "sensor implausible: the steps of a window took longer than the window",
    ),
    ({"cpu_ns": 336_000_000}, "sensor implausible: 8.0 processors' time on 4"),
    ({"sync_ns": 21_000_000}, "device not synchronised: one more wait took 50 % of the windows"),
    ({"device_ns": 420_000_000}, "device not synchronised: its own clock counts 840 ms, the wall clock 84 ms"),
]


@pytest.mark.parametrize(("change", "words"), FAULTS)
def test_what_all_arms_show_is_held_against_the_restart(change: dict[str, Any], words: str) -> None:
    assert against_restart(windowed(measured()[0], **change), cores=4) == words


@pytest.mark.parametrize(("change", "words"), FAULTS)
def test_what_one_arm_shows_is_held_against_that_arm(
    change: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    found = [windowed(restart, "candidate", **change) for restart in measured()]
    assert against_restart(found[0]) == ""
    assert validity_of([], Watch(), found).arms == {"candidate": (words,)}


def test_a_synchronised_device_whose_clock_agrees_is_believed() -> None:
    assert against_restart(windowed(measured()[0], sync_ns=20_000, device_ns=41_500_000)) == ""


# -- two modes -----------------------------------------------------------------------------------------------------


def test_an_arm_that_flips_alone_has_two_modes() -> None:
    """CASES.md M3."""
    found = validity_of([], Watch(), restarts({"baseline": 3.0, "candidate": FLIPPING}, count=8))
    assert found.valid
    assert found.arms == {"candidate": ("two modes from process to process: 2.935 ms and 3.4 ms",)}


def test_a_mix_of_cold_and_warm_caches_is_two_modes() -> None:
    """CASES.md M1."""
    mixed = [3.161950, 3.739150, 3.177650, 3.657400, 3.166400, 3.773350]
    found = validity_of([], Watch(), restarts({"baseline": 3.16, "candidate": mixed}))
    assert found.arms == {"candidate": ("two modes from process to process: 3.166 ms and 3.739 ms",)}


def test_a_machine_that_flips_for_all_arms_alike_is_not_two_modes_of_an_arm() -> None:
    alike = {"baseline": FLIPPING, "candidate": [time * 1.02 for time in FLIPPING]}
    assert validity_of([], Watch(), restarts(alike)).arms == {}


def test_arms_that_flip_each_on_their_own_have_two_modes_each() -> None:
    first = [2.9, 3.4, 2.91, 3.41, 2.92, 3.4, 2.9, 3.39]
    second = [2.9, 2.91, 3.4, 3.41, 2.9, 2.92, 3.39, 3.4]
    found = validity_of([], Watch(), restarts({"baseline": first, "candidate": second}))
    assert set(found.arms) == {"baseline", "candidate"}


# -- interference --------------------------------------------------------------------------------------------------


def interfered(waited: float, foreign: float, stolen: float) -> Restart:
    """A restart on two cores with these shares of its wall time, as a busy thread beside neighbours has them."""
    restart = measured()[0]
    wall = restart.arms["baseline"].windows[0].wall_ns
    return windowed(
        restart,
        waited_ns=round(waited * wall),
        cpu_ns=round((1 - waited) * wall),
        foreign_ns=round(foreign * 2 * wall),
        stolen_ns=round(stolen * 2 * wall),
    )


@pytest.mark.parametrize(
    ("waited", "foreign"), [(0.0, 0.001), (0.004, 0.501), (0.383, 0.699), (0.494, 0.71)], ids=lambda share: f"{share}"
)
def test_what_alternating_windows_stand_is_let_through(waited: float, foreign: float) -> None:
    """Recorded beside no, one and two busy neighbours on two cores."""
    assert against_restart(interfered(waited, foreign, 0.0), cores=2) == ""


def test_three_busy_neighbours_on_two_cores_are_too_many() -> None:
    assert against_restart(interfered(0.733, 0.881, 0.005), cores=2) == (
        "interference: its threads waited 73 % of the time for a processor; "
        "interference: others kept 88 % of the processors busy"
    )


def test_a_hypervisor_that_gives_the_processors_away_is_named() -> None:
    assert against_restart(interfered(0.0, 0.0, 0.25), cores=2) == (
        "interference: the hypervisor gave 33 % of the processor time to others"
    )


def test_a_runner_that_sleeps_while_its_device_works_does_not_wait() -> None:
    assert against_restart(windowed(measured()[0], waited_ns=2_000_000, cpu_ns=1_000_000), cores=2) == ""


def test_several_threads_wait_as_a_share_of_what_they_wanted() -> None:
    wall = 42_000_000
    assert against_restart(windowed(measured()[0], waited_ns=2 * wall, cpu_ns=4 * wall), cores=8) == ""


def test_hidden_sensors_say_nothing() -> None:
    assert against_restart(windowed(measured()[0], waited_ns=None, foreign_ns=None, stolen_ns=None), cores=2) == ""
