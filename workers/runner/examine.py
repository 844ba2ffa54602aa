"""The untimed pass: outputs, oracle, repeats, memory, which path ran."""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from .tensors import digest_all, write_all
from .work import Work

__all__ = ["examine"]

#: The resident set is read this often: one reading can catch the collector or the pool at a bad moment.
PROCESS_REPEATS = 3
#: Steps between two readings.
PROCESS_STEPS = 3
#: Marks the second step of a memory profile.
MEASURED_STEP = "farm: measured step"


def examine(work: Work, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return what one arm computes, whether it repeats, and what it holds."""
    folder = Path(request["directory"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.set_warn_always(True)
        work.workload = work.fresh()
        outputs = write_all(work.step(), folder, "output")
        torch.set_warn_always(False)
    reply: dict[str, Any] = {"outputs": outputs, "warnings": sorted({str(w.message)[:300] for w in caught})}
    if request["oracle"]:
        first = next(iter(work.kind.paths))
        reply["oracle"] = write_all(work.step(work.fresh(first, oracle=True)), folder, "oracle")
    reply["path_ran"] = work.workload.path_ran()
    reply["memory"] = _memory(work) if request["memory"] else None
    reply["repeat_digests"] = _repeats(work, int(request["repeats"]), int(request["threads"]))
    return reply


def _repeats(work: Work, repeats: int, threads: int) -> list[str]:
    """Return one digest a repeat: the same set-up, the same step, at ``threads`` threads."""
    with _threads(threads):
        return [digest_all(work.step(work.fresh())) for _ in range(repeats)]


@contextmanager
def _threads(threads: int) -> Iterator[None]:
    """Set torch's threads; compiled code of another number is forgotten, in memory and in the cache folder.

    Inductor's CPU kernels hold buffers for the number that they were compiled at, and no key of its caches names it:
    compiled FlexAttention wrote past them and aborted when it went from one thread to two.
    """
    before, folder = torch.get_num_threads(), os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
    if threads == before:
        yield
        return
    _switch(threads, folder and f"{folder}-{threads}-threads")
    try:
        yield
    finally:
        _switch(before, folder)


def _switch(threads: int, folder: str) -> None:
    torch.set_num_threads(threads)
    if folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def _memory(work: Work) -> dict[str, Any]:
    """Return peaks of steady steps: of the allocator, of its pool, of the process."""
    if work.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work.step()
        work.synchronise()
        allocator = torch.cuda.max_memory_allocated() - before
        reserved: int | None = torch.cuda.max_memory_reserved()
    elif work.device.type == "mps":
        # torch.mps has no peak counter (TORCH.md 10): the pool that the driver holds is what can be said.
        work.step()
        work.synchronise()
        allocator, reserved = None, torch.mps.driver_allocated_memory()
    else:
        allocator, reserved = _cpu_allocator_peak(work), None
    return {
        "allocator_peak_bytes": allocator,
        "reserved_peak_bytes": reserved,
        "process_peak_bytes": [_process_peak(work) for _ in range(PROCESS_REPEATS)],
    }


def _cpu_allocator_peak(work: Work) -> int | None:
    """Return the most that a step held above the least that it held, by torch's CPU allocator: exact, repeatable.

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
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    began = min(event["ts"] for event in events if event.get("name") == MEASURED_STEP)
    readings = [event["args"] for event in events if event.get("name") == "[memory]" and event["ts"] >= began]
    readings = [args for args in readings if args.get("Device Type", 0) == 0 and "Total Allocated" in args]
    if not readings:
        return None
    levels = [readings[0]["Total Allocated"] - readings[0]["Bytes"], *(args["Total Allocated"] for args in readings)]
    return int(max(levels) - min(levels))


def _process_peak(work: Work) -> int:
    """Return the peak resident set (bytes) while steps run; on Linux the mark is reset first."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        for _ in range(PROCESS_STEPS):
            work.step()
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        work.step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
