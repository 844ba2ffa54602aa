"""torch.compile of a workload's module: one first call in a process of its own, and all shapes that really come."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .tensors import write_all
from .work import Work

__all__ = ["compile_program", "program_of", "recompile_program", "run_program", "shape_name"]

#: What torch.compile's `dynamic` is called on the wire.
DYNAMIC = {"None": None, "True": True, "False": False}
#: Passes over all shapes whose median is told.
PASSES = 5
#: Of one reason; torch's own go on with links and advice.
REASON_CHARACTERS = 200

Inputs = tuple[torch.Tensor, ...]


def compile_program(work: Work, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first call's time, what the caches held, graphs, breaks with reasons, compiled and eager outputs.

    A data-dependent branch is counted under `unimplemented`, not under `graph_break` (TORCH.md 5), so both are.
    """
    from torch._dynamo.utils import counters

    folder = Path(request["directory"])
    module, inputs = work.workload.program()
    eager = run_program(module, inputs)
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(module)
    work.synchronise()
    began = time.perf_counter_ns()
    outputs = run_program(compiled, inputs)
    work.synchronise()
    first_call_ns = time.perf_counter_ns() - began
    breaks: dict[str, int] = {}
    for kind in ("graph_break", "unimplemented"):
        for words, count in counters[kind].items():
            reason = _break_reason(words)
            breaks[reason] = breaks.get(reason, 0) + int(count)
    return {
        "first_call_ns": first_call_ns,
        "cache": _temperature(counters["inductor"]),
        "graphs": int(counters["stats"]["unique_graphs"]),
        "graph_breaks": sum(breaks.values()),
        "break_reasons": breaks,
        "outputs": write_all(outputs, folder, "compiled"),
        "eager": write_all(eager, folder, "eager"),
    }


def recompile_program(work: Work, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return what torch.compile with this ``dynamic`` makes of the workload's shapes, call after call.

    A hit recompile limit raises nothing and warns of nothing (TORCH.md 5): it is read from torch's own metrics, and
    which shapes run eager from then on is read from a profile of a second call of each.
    """
    from torch._dynamo.utils import clear_compilation_metrics, counters, get_compilation_metrics

    folder = Path(request["directory"])
    module, _ = program_of(work)
    shapes = list(work.workload.shapes())
    if not shapes:
        return {"calls": []}
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(module, dynamic=DYNAMIC[request["dynamic"]])
    calls: list[dict[str, Any]] = []
    limit_hit = ""
    for index, inputs in enumerate(shapes):
        known = _graphs(counters)
        clear_compilation_metrics()
        outputs = run_program(compiled, inputs)
        reasons = []
        for metrics in get_compilation_metrics():
            failed = getattr(metrics, "fail_reason", None)
            if failed:
                limit_hit = limit_hit or f"{_first_line(failed)} at {shape_name(inputs)}"
            elif getattr(metrics, "recompile_reason", None):
                reasons.append(_recompile_reason(metrics.recompile_reason))
        calls.append(
            {
                "shape": shape_name(inputs),
                "new_graphs": _graphs(counters) - known,
                "reasons": reasons,
                "outputs": write_all(outputs, folder, f"compiled-{index}"),
                "eager": write_all(run_program(module, inputs), folder, f"eager-{index}"),
            }
        )
    made = _graphs(counters)
    for call, inputs in zip(calls, shapes, strict=True):
        call["ran"] = "compiled" if _runs_compiled(compiled, inputs) else "eager"
    found: dict[str, Any] = {"calls": calls, "limit_hit": limit_hit, "pass_ns": _pass_ns(work, compiled, shapes)}
    if _graphs(counters) != made:
        # It is compiled again for shapes that it knew: no pass is a steady one.
        found["pass_ns"] = None
    return found | {"eager_pass_ns": _pass_ns(work, module, shapes)}


def program_of(work: Work) -> tuple[torch.nn.Module, Inputs]:
    """Return the workload's module, as it is shipped: evaluating."""
    module, inputs = work.workload.program()
    return module.eval(), inputs


def run_program(module: Any, inputs: Inputs) -> dict[str, torch.Tensor]:
    """Return the outputs by name: "y", or "y0", "y1" where there are several."""
    with torch.no_grad():
        result = module(*inputs)
    if isinstance(result, torch.Tensor):
        return {"y": result}
    return {f"y{index}": value for index, value in enumerate(result) if isinstance(value, torch.Tensor)}


def shape_name(inputs: Inputs) -> str:
    """Return the inputs' shapes in words: "1x37"."""
    return ", ".join("x".join(map(str, one.shape)) or "scalar" for one in inputs)


def _graphs(counters: Mapping[str, Mapping[str, int]]) -> int:
    return int(counters["stats"]["unique_graphs"])


def _temperature(inductor: Mapping[str, int]) -> str:
    """Return what the caches held of the programs, by torch's own count."""
    hits = inductor["fxgraph_cache_hit"]
    misses = inductor["fxgraph_cache_miss"] + inductor["fxgraph_cache_bypass"]
    if hits and misses:
        return "mixed"
    return "warm" if hits else "cold" if misses else "none"


def _runs_compiled(compiled: Any, inputs: Inputs) -> bool:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as trace:
        run_program(compiled, inputs)
    return any("CompiledFxGraph" in event.key for event in trace.key_averages())


def _pass_ns(work: Work, module: Any, shapes: Sequence[Inputs]) -> int:
    """Return the median time of a pass over all shapes."""
    passes = []
    for _ in range(PASSES):
        work.synchronise()
        began = time.perf_counter_ns()
        for inputs in shapes:
            run_program(module, inputs)
        work.synchronise()
        passes.append(time.perf_counter_ns() - began)
    return round(statistics.median(passes))


def _break_reason(words: str) -> str:
    """Return torch's title of a break with its context: "Data-dependent branching (attempted to jump with …)"."""
    context = re.search(r"Developer debug context: (.+)", words)
    return f"{_first_line(words)} ({context[1].strip()})"[:REASON_CHARACTERS] if context else _first_line(words)


def _recompile_reason(words: str) -> str:
    """Return the guard that failed, without the source that it came from."""
    return _first_line(words).partition("  #")[0].strip()


def _first_line(words: str) -> str:
    return (words.strip() or "no reason given").splitlines()[0][:REASON_CHARACTERS]
