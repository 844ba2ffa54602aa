"""However a workload ends, it is an outcome of its arm with a reason: the cell is answered, and the worker lives."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import psutil
import pytest

from farm.judge import judge
from farm.model import CellOrder, Decision, Evidence, Gate, Outcome, RunState, Status
from farm.settings import Home
from workers.cell import run_cell

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("name", "outcome", "words"),
    [
        ("raises_third_step", Outcome.FAILED, "RuntimeError: the third batch has another shape"),
        ("dies_segv", Outcome.CRASHED, "SIGSEGV"),
        ("hangs", Outcome.TIMED_OUT, "5 s"),
        ("returns_nothing", Outcome.FAILED, "step 1 returned nothing"),
    ],
)
def test_what_ends_the_candidate_alone_is_its_outcome_and_fails(
    measure: Callable, name: str, outcome: Outcome, words: str
) -> None:
    found = measure({"name": name, "cases": ["fp32"], "candidate_path": "faulty"}, step_timeout_s=5.0)
    arms = found.result(name).arms
    assert arms["baseline"].outcome is Outcome.OK, arms["baseline"]
    assert arms["candidate"].outcome is outcome
    assert words in arms["candidate"].reason
    verdict = found.verdicts(name)[Gate.CORRECTNESS]
    assert verdict.status is Status.FAIL
    assert str(outcome) in verdict.reason


def test_a_segfault_leaves_the_stack_that_it_died_in(measure: Callable) -> None:
    found = measure({"name": "dies_segv", "cases": ["fp32"], "candidate_path": "faulty"})
    log = found.result("dies_segv").arms["candidate"].log_tail
    assert "Segmentation fault" in log
    assert "in step" in log


def test_noise_on_stdout_is_kept_as_evidence_and_changes_nothing(measure: Callable) -> None:
    found = measure({"name": "prints_to_stdout", "cases": ["fp32"], "candidate_path": "faulty"})
    arm = found.result("prints_to_stdout").arms["candidate"]
    assert arm.outcome is Outcome.OK
    assert arm.log_tail.strip()
    assert found.verdicts("prints_to_stdout")[Gate.CORRECTNESS].status is Status.PASS


def test_a_nan_in_the_candidate_alone_fails_correctness(measure: Callable) -> None:
    found = measure({"name": "returns_nan", "cases": ["fp32"], "candidate_path": "nothing"})
    verdict = found.verdicts("returns_nan")[Gate.CORRECTNESS]
    assert verdict.status is Status.FAIL
    assert "not finite" in verdict.reason


def test_a_runner_that_is_killed_in_a_window_is_an_outcome_of_its_arm(measure: Callable) -> None:
    """Kill one timed runner as soon as windows are measured."""
    killed: list[int] = []
    stop = threading.Event()
    # Runners of other tests are theirs.
    before = {child.pid for child in psutil.Process().children(recursive=True)}

    def kill_one() -> None:
        while not stop.is_set() and not killed:
            for child in psutil.Process().children(recursive=True):
                try:
                    line, age = " ".join(child.cmdline()), time.time() - child.create_time()
                except psutil.Error:
                    continue
                # Timed runners live longer than an examination of this workload, which takes about 4 s.
                if child.pid not in before and "runner" in line and restarted.is_set() and age > 4.0:
                    child.send_signal(signal.SIGKILL)
                    killed.append(child.pid)
                    return
            time.sleep(0.05)

    restarted = threading.Event()
    polls = []

    def cancelled() -> bool:
        # Asked once a restart and once a block: from the third time on windows are being measured.
        polls.append(1)
        if len(polls) >= 3:
            restarted.set()
        return False

    killer = threading.Thread(target=kill_one)
    killer.start()
    try:
        found = measure(
            {"name": "transformer_block", "cases": ["infer-fp32"]},
            gates="correctness latency",
            restart_s=6.0,
            cancelled=cancelled,
        )
    finally:
        stop.set()
        killer.join()
    assert killed
    ended = [arm for arm in found.result("transformer_block").arms.values() if arm.outcome is not Outcome.OK]
    assert len(ended) == 1
    assert ended[0].outcome is Outcome.CRASHED
    assert "SIGKILL" in ended[0].reason
    assert "restart 1" in ended[0].reason


def test_a_cuda_cell_on_a_machine_without_a_device_is_backend_unreachable(measure: Callable, shared_home) -> None:
    """CASES.md V8: neither a regression nor a pass."""
    found = measure({"name": "transformer_block", "cases": ["infer-fp32"]})
    cell = found.plan.cells[0].model_copy(
        update={"id": "transformer_block/infer-fp32@cuda.sm90", "backend": "cuda", "capability": "cuda.sm90"}
    )
    order = CellOrder(run_id="run", attempt=1, cell=cell, environments=found.plan.environments)
    result = run_cell(order, Home(shared_home), lambda progress: None, None, lambda: False, worker="here")
    assert {arm.outcome for arm in result.arms.values()} == {Outcome.BACKEND_UNREACHABLE}
    tiers = tuple(tier.model_copy(update={"backends": ("cuda",)}) for tier in found.plan.tiers)
    plan = found.plan.model_copy(update={"cells": (cell,), "tiers": tiers})
    judgement = judge(Evidence(run_id="run", state=RunState.COMPLETE, plan=plan, results=(result,)))
    verdict = next(verdict for verdict in judgement.cells[0].verdicts if verdict.gate is Gate.CORRECTNESS)
    assert verdict.status is Status.UNTESTED
    assert "backend unreachable" in verdict.reason
    assert judgement.rows[0].decision is Decision.DEFER
