"""What a steady step holds and how often it allocates: by torch's allocators, by the device, by the process.

Every figure has a trap (TORCH.md 10); each is said where it is met. A counter that says 0 is handed on as it is: that
a sensor is implausible is for the gate to say (CASES.md M11).
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .work import Work

__all__ = ["counted", "faults_per_step", "memory_of", "of_events", "process_peak", "process_peaks", "sampled"]

#: The resident set is read this often: one reading can catch the collector or the pool at a bad moment.
PROCESS_REPEATS = 3
#: Steps between two readings.
PROCESS_STEPS = 3
#: Marks the second step of a memory profile.
MEASURED_STEP = "farm: measured step"
#: Steps whose page faults are averaged, after these few that let the allocator settle.
FAULT_STEPS = 20
FAULT_WARMUP = 3
#: Slow steps end the counting after this long, with one step at the least; the warming up takes half of it at most.
FAULTS_S = 4.0
#: A device without a counter of peaks is asked this often for what is allocated.
SAMPLE_S = 0.0005
#: It is asked for at least this long, over as many steps as that takes, so that a short step is seen at every stage.
SAMPLING_S = 0.1

CURRENT, PEAK = "allocated_bytes.all.current", "allocated_bytes.all.peak"
POOL, POOL_PEAK = "reserved_bytes.all.current", "reserved_bytes.all.peak"
COUNT, BYTES = "allocation.all.allocated", "allocated_bytes.all.allocated"


def memory_of(work: Work) -> dict[str, Any]:
    """Return peaks and allocations of steady steps; ``process_peak_bytes`` is empty where fresh processes must tell."""
    return _on_device(work) | {"process_peak_bytes": process_peaks(work)}


def _on_device(work: Work) -> dict[str, Any]:
    import torch

    if work.device.type == "cpu":
        return of_events(_profiled(work))
    if work.device.type == "cuda":
        return counted(work, torch.cuda, torch.cuda.mem_get_info)
    # MPS and what else there is: torch.mps has no peak in 2.10 to 2.14, and whether torch.accelerator counts for it
    # depends on the release, so it is asked.
    found = counted(work, torch.accelerator, None) if hasattr(torch.accelerator, "memory_stats") else None
    if work.device.type == "mps":
        # The pool of the allocator alone is not what the driver holds for this process: 11,323 MiB beside a peak of
        # 1,500 MiB were seen (TORCH.md 10).
        reserved = torch.mps.driver_allocated_memory
        found = found or sampled(work, torch.mps.current_allocated_memory, reserved)
        return found | {"reserved_peak_bytes": max(found["reserved_peak_bytes"] or 0, reserved())}
    return found or {"allocator_peak_bytes": None, "reserved_peak_bytes": None}


# -- devices --------------------------------------------------------------------------------------------------------


def counted(work: Work, counters: Any, in_use: Callable[[], tuple[int, int]] | None) -> dict[str, Any] | None:
    """Return what a device's own counters say of a step; None where they count nothing at all.

    ``counters`` is torch.cuda or torch.accelerator, ``in_use`` returns (free, total) bytes of the device.

    Where an allocator does not count, `max_memory_allocated` returns 0 all the same, since that is its default for a
    name that is missing; so the names are looked at, not the functions' answers.
    """
    work.step()
    work.synchronise()
    try:
        counters.reset_peak_memory_stats()
        before = counters.memory_stats()
    except (RuntimeError, AttributeError, NotImplementedError):
        return None
    if PEAK not in before:
        return None
    work.step()
    work.synchronise()
    after = counters.memory_stats()
    return {
        "allocator_peak_bytes": after[PEAK] - before[CURRENT],
        "reserved_peak_bytes": after.get(POOL_PEAK),
        "outside_bytes": _outside(in_use, after.get(POOL)),
        "allocations": _more(COUNT, before, after),
        "allocated_bytes": _more(BYTES, before, after),
    }


def _more(name: str, before: Mapping[str, int], after: Mapping[str, int]) -> int | None:
    return after[name] - before[name] if name in before and name in after else None


def _outside(in_use: Callable[[], tuple[int, int]] | None, pool: int | None) -> int | None:
    """Return what is in use on the device beyond the pool: context, library workspaces, and whoever else is there.

    The device tells of all processes together. So the arms of a cell are examined one at a time on a device, and
    a device that others share inflates this figure for every arm.
    """
    if in_use is None or pool is None:
        return None
    free, total = in_use()
    return total - free - pool


def sampled(work: Work, allocated: Callable[[], int], reserved: Callable[[], int]) -> dict[str, Any]:
    """Return the most that a thread saw allocated and reserved while steps ran: a peak between two looks is missed."""
    work.step()
    work.synchronise()
    before = allocated()
    seen = [before]
    pool = [reserved()]
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(SAMPLE_S):
            seen.append(allocated())
            pool.append(reserved())

    # A thread that never blocks keeps the interpreter for 5 ms, and a step may take less.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SAMPLE_S / 5)
    watching = threading.Thread(target=look, daemon=True)
    watching.start()
    deadline = time.monotonic() + SAMPLING_S
    try:
        while True:
            work.step()
            work.synchronise()
            if time.monotonic() > deadline:
                break
    finally:
        ended.set()
        watching.join()
        sys.setswitchinterval(interval)
    return {"allocator_peak_bytes": max(seen) - before, "reserved_peak_bytes": max(pool)}


# -- the CPU's allocator --------------------------------------------------------------------------------------------


def _profiled(work: Work) -> list[dict[str, Any]]:
    """Return the events of a profile that holds two steps, the second one marked.

    The profiler does not count the release of a block that was allocated before it started. So a first step inside
    the profile allocates what the measured one releases, gradients above all.
    """
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        work.step()
        with record_function(MEASURED_STEP):
            work.step()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        trace.export_chrome_trace(file.name)
        events: list[dict[str, Any]] = json.loads(Path(file.name).read_text(encoding="utf-8"))["traceEvents"]
    return events


def of_events(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what torch's CPU allocator did in the marked step: exact, repeatable, the same in every process.

    The peak is the most that was held above the least. oneDNN's and MKL's scratch does not go through this allocator.
    """
    marked = next(event for event in events if event.get("name") == MEASURED_STEP and "dur" in event)
    began, ended = marked["ts"], marked["ts"] + marked["dur"]
    readings = [
        event
        for event in events
        if event.get("name") == "[memory]"
        and event["ts"] >= began
        and event["args"].get("Device Type", 0) == 0
        and "Total Allocated" in event["args"]
    ]
    # What is released after the mark belongs to the peak's lowest level, what is allocated there is not the step's.
    taken = [event["args"]["Bytes"] for event in readings if event["ts"] <= ended and event["args"]["Bytes"] > 0]
    if not readings:
        return {"allocator_peak_bytes": None, "reserved_peak_bytes": None}
    first = readings[0]["args"]
    levels = [first["Total Allocated"] - first["Bytes"], *(event["args"]["Total Allocated"] for event in readings)]
    return {
        "allocator_peak_bytes": int(max(levels) - min(levels)),
        "reserved_peak_bytes": None,
        "allocations": len(taken),
        "allocated_bytes": int(sum(taken)),
    }


# -- the process ----------------------------------------------------------------------------------------------------


def process_peaks(work: Work) -> list[int]:
    """Return peaks of the resident set (bytes) while steps run; [] where the mark of the peak cannot be reset.

    macOS has only the peak of a whole life, this one's oracle in float64 included: there each peak takes a fresh
    process that does nothing else (`process_peak`).
    """
    found = []
    for _ in range(PROCESS_REPEATS):
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            return []
        for _ in range(PROCESS_STEPS):
            work.step()
        found.append(_high_water())
    return found


def process_peak(work: Work) -> dict[str, Any]:
    """Return the peak resident set of this process's life: of its set-up and a few steps, if it is asked nothing else.

    Kilobytes on Linux and bytes on macOS.
    """
    for _ in range(PROCESS_STEPS):
        work.step()
    work.synchronise()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"process_peak_bytes": peak if sys.platform == "darwin" else peak * 1024}


def _high_water() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def faults_per_step(work: Work) -> float:
    """Return the minor page faults of a steady step, on average: how the allocator settled in this very process."""
    deadline = time.monotonic() + FAULTS_S / 2
    for _ in range(FAULT_WARMUP):
        work.step()
        if time.monotonic() > deadline:
            break
    work.synchronise()
    deadline = time.monotonic() + FAULTS_S / 2
    steps = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    while steps < FAULT_STEPS and (steps == 0 or time.monotonic() < deadline):
        work.step()
        steps += 1
    work.synchronise()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / steps
