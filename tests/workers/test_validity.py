"""What makes a cell, or the times of one of its arms, mean nothing."""

from __future__ import annotations

import time

import pytest

from farm.gates import judge_gate
from farm.model import Gate, Restart, Status, Validity
from tests.evidence import ask, restarts, window
from workers.validity import Watch, validity_of

NAMES = ("baseline", "candidate", "candidate+new")


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


def test_quiet_clocks_and_steady_arms_are_valid() -> None:
    assert validity_of([], Watch(), measured()) == Validity(valid=True)


def test_a_broken_control_invalidates_the_cell() -> None:
    found = validity_of(["control broken: numpy differs between the arms"], Watch(), measured())
    assert not found.valid
    assert found.reasons == ("control broken: numpy differs between the arms",)


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


def test_a_clock_that_jumps_invalidates_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    now = time.time
    monkeypatch.setattr("workers.validity.time.time", lambda: now() + 3600)
    found = validity_of([], watch, [])
    assert not found.valid
    assert "clock jumped by +3600 s" in found.reasons[0]
