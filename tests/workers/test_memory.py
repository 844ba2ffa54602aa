"""What a step holds and how often it allocates: exact where a counter tells, and never from a counter that does not."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workers.runner.memory import MEASURED_STEP, counted, of_events, sampled
from workers.runner_environment import runner_environment
from workers.session import RunnerSession
from workers.stage import make_stage

MIB = 2**20
START_S = 120.0
ANSWER_S = 60.0


# -- the CPU's allocator --------------------------------------------------------------------------------------------


def memory_event(ts: float, size: int, total: int, **more: Any) -> dict[str, Any]:
    """Return what Kineto writes for one allocation, or for one release where ``size`` is below 0."""
    arguments = {"Total Reserved": 0, "Total Allocated": total, "Bytes": size, "Addr": 140_000, "Device Id": -1}
    return {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": ts, "args": arguments | more}


def marked(*events: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a profile whose measured step goes from 100 to 200."""
    mark = {"ph": "X", "cat": "user_annotation", "name": MEASURED_STEP, "ts": 100.0, "dur": 100.0}
    return [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 101.5, "dur": 20.0}, *events, mark]


def test_the_peak_is_the_most_above_the_least_and_only_the_steps_own_allocations_count() -> None:
    found = of_events(
        marked(
            memory_event(50.0, 4096, 9096),
            memory_event(110.0, 1000, 10_096),
            memory_event(120.0, 3000, 13_096),
            memory_event(130.0, -1000, 12_096),
            memory_event(150.0, 500, 12_596),
            memory_event(210.0, -4096, 8500),
            memory_event(220.0, 64, 8564),
        )
    )
    assert found["allocator_peak_bytes"] == 13_096 - 8500
    assert (found["allocations"], found["allocated_bytes"]) == (3, 4500)


def test_what_a_device_allocates_is_not_the_cpus() -> None:
    found = of_events(marked(memory_event(110.0, 1000, 1000), memory_event(120.0, 9000, 9000, **{"Device Type": 1})))
    assert (found["allocations"], found["allocated_bytes"]) == (1, 1000)


def test_a_step_that_allocates_nothing_has_no_peak_rather_than_one_of_0() -> None:
    assert of_events(marked())["allocator_peak_bytes"] is None


@pytest.mark.torch
@pytest.mark.parametrize("release", ["baseline_python", "candidate_python"])
@pytest.mark.parametrize(
    ("workload", "path", "parameters"),
    [
        ("transformer_block", "eager", {"mode": "infer"}),
        ("transformer_block", "eager", {"mode": "train"}),
        ("linear_cross_entropy", "linear+cross_entropy", {}),
    ],
)
def test_how_often_a_step_allocates_is_the_same_number_in_every_process(
    request: pytest.FixtureRequest, tmp_path: Path, release: str, workload: str, path: str, parameters: dict[str, Any]
) -> None:
    python = request.getfixturevalue(release)
    stage = make_stage(tmp_path / "stage", None)
    found = []
    for process in range(2):
        caches = tmp_path / f"caches-{process}"
        environment = runner_environment({"OMP_NUM_THREADS": "1"}, caches, settled_allocator=False)
        with RunnerSession(python, stage, environment, tmp_path / "log") as session:
            session.hello(START_S)
            session.request(
                "setup",
                ANSWER_S,
                workload=f"workloads.{workload}",
                parameters=parameters,
                path=path,
                seed=1,
                device="cpu",
                threads=1,
            )
            for _ in range(2):
                asked = {"oracle": process == 0, "repeats": 1, "threads": 1, "memory": True, "faults": True}
                reply = session.request("examine", ANSWER_S, directory=str(tmp_path), **asked)
                memory = reply["memory"]
                found.append((memory["allocator_peak_bytes"], memory["allocations"], memory["allocated_bytes"]))
                assert reply["faults_per_step"] >= 0
            alone = session.request("process_peak", ANSWER_S)["process_peak_bytes"]
            # Of the same order, in bytes; not more, since on Linux the mark that was reset moves this one too.
            assert alone == pytest.approx(memory["process_peak_bytes"][0], rel=0.2)
        shutil.rmtree(caches)
    assert found == [found[0]] * 4
    assert found[0][1] > 0


# -- devices --------------------------------------------------------------------------------------------------------


class Counters:
    """A device's caching allocator as torch.cuda and torch.accelerator tell of it, in names that 2.13.0 uses."""

    def __init__(self, *, tells: bool = True, stuck: bool = False) -> None:
        self.current = self.peak = 100 * MIB
        self.pool = self.pool_peak = 128 * MIB
        self.count, self.taken = 7, 300 * MIB
        self._tells, self._stuck = tells, stuck

    def allocate(self, size: int) -> None:
        self.current += size
        self.peak = max(self.peak, self.current)
        self.count += 1
        self.taken += size

    def release(self, size: int) -> None:
        self.current -= size

    def reset_peak_memory_stats(self) -> None:
        self.peak, self.pool_peak = self.current, self.pool

    def memory_stats(self) -> Mapping[str, int]:
        if not self._tells:
            return {}
        told = {
            "active_bytes.all.peak": self.peak + 4 * MIB,
            "allocated_bytes.all.allocated": self.taken,
            "allocated_bytes.all.current": self.current,
            "allocated_bytes.all.peak": self.peak,
            "allocation.all.allocated": self.count,
            "num_alloc_retries": 0,
            "num_ooms": 0,
            "reserved_bytes.all.current": self.pool,
            "reserved_bytes.all.peak": self.pool_peak,
        }
        return dict.fromkeys(told, 0) if self._stuck else told


def work_on(counters: Counters) -> Any:
    """Return work whose step takes 30 MiB and then 10 MiB more, and gives both back."""

    def step() -> None:
        counters.allocate(30 * MIB)
        counters.allocate(10 * MIB)
        counters.release(40 * MIB)

    return SimpleNamespace(step=step, synchronise=lambda: None)


def test_a_device_tells_live_bytes_its_pool_and_what_is_outside_it_apart() -> None:
    counters = Counters()
    # 80 GiB, of which the pool holds 128 MiB, the context 400 MiB and a library's workspace 32 MiB.
    found = counted(work_on(counters), counters, lambda: (80 * 1024 * MIB - 560 * MIB, 80 * 1024 * MIB))
    assert found == {
        "allocator_peak_bytes": 40 * MIB,
        "reserved_peak_bytes": 128 * MIB,
        "outside_bytes": 432 * MIB,
        "allocations": 2,
        "allocated_bytes": 40 * MIB,
    }


def test_a_counter_that_says_0_is_handed_on_as_it_is() -> None:
    counters = Counters(stuck=True)
    found = counted(work_on(counters), counters, None)
    assert found is not None
    assert (found["allocator_peak_bytes"], found["reserved_peak_bytes"], found["outside_bytes"]) == (0, 0, None)


def test_an_allocator_that_does_not_count_is_not_one_whose_peak_is_0() -> None:
    counters = Counters(tells=False)
    assert counted(work_on(counters), counters, None) is None


@pytest.mark.parametrize("error", [RuntimeError("Allocator for mps is not a DeviceAllocator."), AttributeError("gone")])
def test_counters_that_a_release_refuses_for_this_device_count_nothing(error: Exception) -> None:
    def refuse() -> None:
        raise error

    counters = SimpleNamespace(reset_peak_memory_stats=refuse, memory_stats=dict)
    assert counted(work_on(Counters()), counters, None) is None


def test_without_a_counter_of_peaks_a_thread_sees_what_a_step_holds_for_a_while() -> None:
    held = [10 * MIB]
    watched = set()

    def allocated() -> int:
        watched.add(threading.current_thread().name)
        return held[0]

    def step() -> None:
        held[0] += 5 * MIB
        time.sleep(0.02)
        held[0] -= 5 * MIB

    work = SimpleNamespace(step=step, synchronise=lambda: None)
    found = sampled(work, allocated, lambda: 64 * MIB)
    assert found == {"allocator_peak_bytes": 5 * MIB, "reserved_peak_bytes": 64 * MIB}
    assert len(watched) == 2
