"""torch.compile and torch.export of a workload's module, each asked for in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .tensors import write_all
from .work import Work

__all__ = ["compile_program", "export_program", "load_program"]


def compile_program(work: Work, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first call's time, graphs and breaks, and compiled beside eager outputs.

    A data-dependent branch is counted under `unimplemented`, not under `graph_break` (TORCH.md 5), so both are.
    """
    from torch._dynamo.utils import counters

    folder = Path(request["directory"])
    module, inputs = work.workload.program()
    eager = _run(module, inputs)
    compiled = torch.compile(module)
    counters.clear()
    work.synchronise()
    began = time.perf_counter_ns()
    outputs = _run(compiled, inputs)
    work.synchronise()
    first_call_ns = time.perf_counter_ns() - began
    return {
        "first_call_ns": first_call_ns,
        "graphs": int(counters["stats"]["unique_graphs"]),
        "graph_breaks": sum(counters["graph_break"].values()) + sum(counters["unimplemented"].values()),
        "outputs": write_all(outputs, folder, "compiled"),
        "eager": write_all(eager, folder, "eager"),
    }


def export_program(work: Work, request: Mapping[str, Any]) -> dict[str, Any]:
    """Export the module, save it to ``file`` and return its size with the eager outputs."""
    module, inputs = work.workload.program()
    eager = _run(module, inputs)
    with torch.no_grad():
        program = torch.export.export(module.eval(), inputs)
    torch.export.save(program, request["file"])
    return {
        "bytes": Path(request["file"]).stat().st_size,
        "eager": write_all(eager, Path(request["directory"]), "eager"),
    }


def load_program(work: Work, request: Mapping[str, Any]) -> dict[str, Any]:
    """Load the program from ``file`` in this fresh process and return what it computes on the same inputs."""
    _, inputs = work.workload.program()
    loaded = torch.export.load(request["file"]).module()
    return {"outputs": write_all(_run(loaded, inputs), Path(request["directory"]), "loaded")}


def _run(module: Any, inputs: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        result = module(*inputs)
    if isinstance(result, torch.Tensor):
        return {"y": result}
    return {f"y{index}": value for index, value in enumerate(result) if isinstance(value, torch.Tensor)}
