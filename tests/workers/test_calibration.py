"""A calibration is an A/A cell of as many restarts as the budget holds, and says so where that is too few."""

from __future__ import annotations

import math

import pytest

from farm.errors import Incomplete, UsageError
from farm.matrix import load_matrix
from farm.model import Outcome, Side
from farm.settings import Home
from tests.evidence import ENVIRONMENTS, restarts
from workers.calibration import CASE, LEAST_BUDGET_S, WORKLOAD, _calibration, calibrate, shaped
from workers.duet import Timing
from workers.session import ArmEnded

STANDARD = load_matrix().deciding
RELEASE = ENVIRONMENTS[Side.BASELINE]
LOGS = [0.004, -0.006, 0.002, 0.010, -0.003, 0.001, -0.008, 0.005]


def timed(logs: list[float], window_s: float = 7.0) -> Timing:
    found = restarts({"baseline": [10.0] * len(logs), "candidate": [10.0 * math.exp(log) for log in logs]})
    return Timing(restarts=list(found), measured_ns=round(window_s * 1e9 * len(logs)))


def test_what_is_measured_is_in_the_matrix() -> None:
    (workload,) = (w for w in load_matrix().workloads if w.spec.name == WORKLOAD)
    (case,) = (case for case in workload.cases if case.name == CASE)
    assert {"smoke", "standard"} <= set(case.suites)


@pytest.mark.parametrize(
    ("budget_s", "restarts", "restart_s"),
    [(30.0, 6, 2.0), (40.0, 8, 2.0), (60.0, 12, 2.0), (120.0, 12, 7.0), (600.0, 12, 8.0)],
)
def test_restarts_become_shorter_before_they_become_fewer_and_six_remain(
    budget_s: float, restarts: int, restart_s: float
) -> None:
    given = shaped(STANDARD, budget_s)
    assert (given.looks, given.restart_s, given.budget_s) == ((restarts,), restart_s, budget_s)
    assert (given.window_ms, given.warmup_s, given.alpha) == (STANDARD.window_ms, STANDARD.warmup_s, STANDARD.alpha)


def test_a_budget_that_holds_no_six_restarts_is_refused(tmp_path) -> None:
    with pytest.raises(UsageError, match=f"holds no six restarts; give at least {LEAST_BUDGET_S:g}"):
        calibrate("2.12", Home(tmp_path), load_matrix(), 29.0, lambda seen: None)


def test_noise_is_that_of_the_restarts_and_the_ratio_has_its_interval() -> None:
    found = _calibration(timed(LOGS), STANDARD, RELEASE, wall_s=80.0)
    mean = sum(LOGS) / len(LOGS)
    assert found.sd == pytest.approx(math.sqrt(sum((log - mean) ** 2 for log in LOGS) / 7), rel=1e-4)
    assert (found.restarts, found.restart_s, found.window_s) == (8, 10.0, 7.0)
    assert found.low < 1.0 < found.high
    assert found.low <= found.ratio <= found.high
    assert (found.release, found.workload) == ("2.12.1+cpu", "transformer_block/infer-fp32")


def test_restarts_in_which_something_happened_to_the_machine_do_not_count() -> None:
    timing = timed([*LOGS, 0.9])
    timing.restarts[-1] = timing.restarts[-1].model_copy(update={"invalid": "another process took 80 % of a core"})
    found = _calibration(timing, STANDARD, RELEASE, wall_s=90.0)
    assert (found.restarts, found.restart_s) == (8, 10.0)
    assert found.sd < 0.01


def test_too_few_restarts_give_no_calibration_and_the_way_to_one() -> None:
    with pytest.raises(Incomplete, match=r"5 restarts fitted into 240 s, and an interval needs 6; .*--budget 480"):
        _calibration(timed(LOGS[:5]), STANDARD, RELEASE, wall_s=240.0)
    with pytest.raises(Incomplete, match="0 restarts fitted"):
        _calibration(Timing(), STANDARD, RELEASE, wall_s=1.0)


def test_an_arm_that_ends_gives_no_calibration() -> None:
    timing = timed(LOGS)
    timing.ended["candidate"] = ArmEnded(Outcome.CRASHED, "signal 11 (restart 3)")
    with pytest.raises(Incomplete, match="candidate crashed: signal 11"):
        _calibration(timing, STANDARD, RELEASE, wall_s=1.0)


def test_a_machine_that_was_always_disturbed_is_told_why_and_not_to_give_more_time() -> None:
    made = timed(LOGS)
    made.restarts = [restart.model_copy(update={"invalid": "on battery"}) for restart in made.restarts]
    with pytest.raises(Incomplete, match=r"disturbed in 8 of 8 restarts \(8 times: on battery\); see farm doctor"):
        _calibration(made, STANDARD, RELEASE, 80.0)


def test_an_arm_that_is_never_steady_is_no_noise_of_the_machine() -> None:
    made = timed(LOGS)
    made.restarts = [
        restart.model_copy(
            update={"arms": {name: life.model_copy(update={"steady": False}) for name, life in restart.arms.items()}}
        )
        for restart in made.restarts
    ]
    with pytest.raises(Incomplete, match="never steady in 8 of 8 restarts"):
        _calibration(made, STANDARD, RELEASE, 80.0)
