"""Clocks: how the steps of a window are timed on a device, and what the window itself says for and against that.

The engine synchronises, never the workload (CASES.md M6: 22.75 µs unsynchronised, 245.08 µs real). Every window ends
with one more synchronisation than it needs, timed apart: after a right one it takes microseconds, and it is long where
work was still under way when the last stamp was taken. The device's module (`torch.cuda`, `torch.mps`) is handed in,
so that nothing here needs torch.
"""

from __future__ import annotations

import gc
import itertools
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

__all__ = ["Clock", "EventClock", "HostClock", "SteppedClock", "Timed", "clock_for", "time_window", "waited_ns"]

#: Threads of this process. The second number of a thread's schedstat is the time (ns) for which it was ready to run and
#: did not get a processor (Linux, Documentation/scheduler/sched-stats).
TASKS = Path("/proc/self/task")


@dataclass(frozen=True)
class Timed:
    """What a clock says of one window."""

    steps_ns: Sequence[int]
    wall_ns: int
    """By the host's clock: from an idle device to an idle device."""
    device_ns: int | None = None
    """By the device's own events, first to last; None where the host's clock times the steps."""


class Clock(Protocol):
    """Times the steps of a window: `run` stamps, `read` tells afterwards what the stamps say."""

    reached: int
    """The step of the last `run` that began last: the one that failed where `run` raises."""

    def synchronise(self) -> None:
        """Wait until the device has done everything that it was given."""

    def run(self, step: Callable[[], object], steps: int) -> None:
        """Do ``steps`` steps between two moments at which the device is idle, and keep a stamp around each."""

    def read(self) -> Timed:
        """Return the last run's times."""


class HostClock:
    """The host's clock, for work that is done when the step returns: the CPU's. Nothing stands between two steps."""

    def __init__(self) -> None:
        self.reached = 0
        self._stamps: list[int] = []

    def synchronise(self) -> None:
        """The CPU has nothing to wait for."""

    def run(self, step: Callable[[], object], steps: int) -> None:
        stamps = self._stamps = [0] * (steps + 1)
        clock = time.perf_counter_ns
        index = 0
        try:
            stamps[0] = clock()
            for index in range(1, steps + 1):
                step()
                stamps[index] = clock()
        finally:
            self.reached = index

    def read(self) -> Timed:
        return Timed(_between(self._stamps), self._stamps[-1] - self._stamps[0])


class SteppedClock:
    """The host's clock with the device synchronised around every step: for MPS, whose events do not time reliably.

    An event of torch.mps is stamped by a callback on the host, not by the device: two callbacks can run in the wrong
    order ("was not recorded after start event"), their delay counts as the device's, and an event whose time was asked
    for once can block for ever the second time. That is so in every release from 2.10 to 2.14 (pytorch/pytorch#196395).
    What this costs: the way from an idle device to a busy one is part of every step, for both arms alike.
    """

    def __init__(self, device: Any) -> None:
        self.reached = 0
        self._device = device
        self._stamps: list[int] = []

    def synchronise(self) -> None:
        self._device.synchronize()

    def run(self, step: Callable[[], object], steps: int) -> None:
        stamps = self._stamps = [0] * (steps + 1)
        clock, wait = time.perf_counter_ns, self._device.synchronize
        index = 0
        try:
            wait()
            stamps[0] = clock()
            for index in range(1, steps + 1):
                step()
                wait()
                stamps[index] = clock()
        finally:
            self.reached = index

    def read(self) -> Timed:
        return Timed(_between(self._stamps), self._stamps[-1] - self._stamps[0])


class EventClock:
    """The device's own events before the first and after every step: for CUDA and ROCm, whose module is torch.cuda.

    Nothing is waited for between the steps of a window, so the device stays as busy as in real work, and a step is the
    time between two events. A host that cannot feed the device fast enough shows in the steps as gaps; that is right,
    since a user of such a release waits for them too. The first step holds the way from an idle device to a busy one.

    An event marks the stream that is current when it is recorded. Work that a step leaves on another stream, or on
    another device, is not between its events: it shows as ``device_ns`` far below ``wall_ns``, or as a long last
    synchronisation.
    """

    def __init__(self, device: Any) -> None:
        self.reached = 0
        self._device = device
        self._events: list[Any] = []
        self._steps = 0
        self._wall_ns = 0

    def synchronise(self) -> None:
        self._device.synchronize()

    def run(self, step: Callable[[], object], steps: int) -> None:
        # Events are made once and recorded again in the next window: making one is a call to the driver.
        while len(self._events) <= steps:
            self._events.append(self._device.Event(enable_timing=True))
        self._steps = steps
        events, wait = self._events, self._device.synchronize
        index = 0
        try:
            wait()
            began = time.perf_counter_ns()
            events[0].record()
            for index in range(1, steps + 1):
                step()
                events[index].record()
            wait()
            self._wall_ns = time.perf_counter_ns() - began
        finally:
            self.reached = index

    def read(self) -> Timed:
        events = self._events[: self._steps + 1]
        # Milliseconds, as a float: CUDA's resolution is about half a microsecond.
        steps_ns = [round(before.elapsed_time(after) * 1e6) for before, after in itertools.pairwise(events)]
        return Timed(steps_ns, self._wall_ns, round(events[0].elapsed_time(events[-1]) * 1e6))


def clock_for(kind: str, torch: Any) -> Clock:
    """Return the clock of a kind of device, by torch's own name for it ("cuda" for ROCm too)."""
    if kind == "cpu":
        return HostClock()
    if kind == "cuda":
        return EventClock(torch.cuda)
    return SteppedClock(torch.mps if kind == "mps" else torch.accelerator)


def time_window(clock: Clock, step: Callable[[], object], steps: int) -> dict[str, Any]:
    """Return the times of ``steps`` steps and what the process spent on them, with the collector off."""
    # What is alive now stays alive: frozen, it is not walked again before every window (0.3 s with Dynamo loaded).
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        waited = waited_ns()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        cpu = time.process_time_ns()
        clock.run(step, steps)
        cpu = time.process_time_ns() - cpu
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        began = time.perf_counter_ns()
        clock.synchronise()
        sync_ns = time.perf_counter_ns() - began
        waited_after = waited_ns()
    finally:
        gc.enable()
    timed = clock.read()
    return {
        "steps_ns": b"".join(duration.to_bytes(8, "little") for duration in timed.steps_ns),
        "wall_ns": timed.wall_ns,
        "cpu_ns": cpu,
        "minor_faults": faults,
        "device_ns": timed.device_ns,
        "sync_ns": sync_ns,
        "waited_ns": None if waited is None or waited_after is None else waited_between(waited, waited_after),
    }


def waited_ns(tasks: Path = TASKS) -> dict[str, int] | None:
    """Return by thread for how long it was ready and had no processor; None where the system does not tell."""
    try:
        threads = os.listdir(tasks)  # noqa: PTH208 - pathlib would make an object a thread, 20 times a second
    except OSError:
        return None
    found = {}
    for thread in threads:
        try:
            with open(f"{tasks}/{thread}/schedstat", "rb", buffering=0) as file:  # noqa: PTH123 - as above
                found[thread] = int(file.read(100).split()[1])
        except (OSError, IndexError, ValueError):
            # The thread ended since it was listed, or this kernel keeps no such count.
            continue
    return found or None


def waited_between(before: dict[str, int], after: dict[str, int]) -> int:
    """Return how long the threads waited in between.

    A thread that began meanwhile counts from its beginning, and one whose number came down is another thread under a
    used number. What one that ended had waited is lost.
    """
    return sum(now - before[thread] if before.get(thread, now + 1) <= now else now for thread, now in after.items())


def _between(stamps: Sequence[int]) -> list[int]:
    return [after - before for before, after in itertools.pairwise(stamps)]
