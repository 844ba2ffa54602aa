"""One profiled step of an arm: untimed, for reading which kernels ran."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .work import Work

__all__ = ["operators_of", "readable", "trace_step"]

#: Operators that are told by name: of the 61 in a transformer block's training step, the others take 6 % of the time.
MOST_OPERATORS = 20

#: What Kineto writes that is the machine's and not the step's, and differs each time.
OF_THE_MACHINE = ("host_name", "traceName", "trace_id")

#: How a compiled graph is called in a trace: by a hash, which no two releases share.
GRAPH = re.compile(r"^## Call (CompiledFxGraph) \w+ ##$")


def trace_step(work: Work, folder: Path) -> dict[str, Any]:
    """Write Chrome's trace of one steady step into ``folder`` and return its file's name and the longest operators.

    A CUDA or ROCm device tells its own kernels; MPS tells nothing to this profiler, so its trace is the host's alone.
    """
    from torch.profiler import ProfilerActivity, profile, supported_activities

    activities = [ProfilerActivity.CPU]
    if work.device.type == "cuda" and ProfilerActivity.CUDA in supported_activities():
        activities.append(ProfilerActivity.CUDA)
    # What is compiled or allocated once is done before the profile begins.
    work.step()
    work.synchronise()
    with _named_kernels(), profile(activities=activities) as trace:
        work.step()
        work.synchronise()
    file = folder / "trace.json"
    trace.export_chrome_trace(str(file))
    file.write_text(readable(file.read_text(encoding="utf-8")), encoding="utf-8")
    return {"file": file.name, "operators": operators_of(trace.key_averages())}


def operators_of(averages: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the operators with the longest self time, host and device together, the longest first."""
    found = [
        {
            "name": GRAPH.sub(r"\1", average.key),
            "calls": int(average.count),
            # Microseconds, as floats.
            "self_ns": round(average.self_cpu_time_total * 1e3),
            "device_ns": round(average.self_device_time_total * 1e3),
        }
        for average in averages
    ]
    # A kernel of a device has no time on the host: by that alone the attention kernel would never be among them.
    found.sort(key=lambda operator: (-operator["self_ns"] - operator["device_ns"], operator["name"]))
    return found[:MOST_OPERATORS]


def readable(trace: str) -> str:
    """Return Chrome's trace without the machine's name and paths, and without the spaces, a good third of it."""
    told = json.loads(trace)
    return json.dumps({key: value for key, value in told.items() if key not in OF_THE_MACHINE}, separators=(",", ":"))


@contextmanager
def _named_kernels() -> Iterator[None]:
    """Let Inductor's CPU kernels appear by their names while the block runs.

    A compiled graph is one row of a trace, named by a hash, and nothing tells which kernels it called: "attention ran"
    is then a guess. Inductor's own switch (`cpp.enable_kernel_profile`) means compiling again, other code than the
    measured one, and calls FlexAttention's kernel "graph_0_kernel". So the names in the modules that Inductor has
    loaded are lent to callables that announce them. Kernels of a device are told by the device.
    """
    from torch.profiler import record_function

    def announced(name: str, kernel: Any) -> Any:
        def call(*arguments: Any) -> Any:
            with record_function(name):
                return kernel(*arguments)

        return call

    cache = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
    lent: list[tuple[dict[str, Any], str, Any]] = []
    for module in {id(module): module for module in getattr(cache, "modules", ())}.values():
        names = vars(module)
        lent += [(names, name, value) for name, value in names.items() if name.startswith("cpp_") and callable(value)]
    for names, name, kernel in lent:
        names[name] = announced(name, kernel)
    try:
        yield
    finally:
        for names, name, kernel in lent:
            names[name] = kernel
