"""The ways out of Python: a program exported, compiled ahead of time or turned into ONNX, and met again without it.

What makes a program needs the workload; what loads one needs neither the workload nor its module, only the file and the
inputs, which lie beside it.
"""

from __future__ import annotations

import importlib.util
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from workloads.contract import Unsupported

from .programs import Inputs, program_of, run_program, shape_name
from .tensors import write_all
from .work import Work

__all__ = ["NotMade", "export_program", "load_program", "make_onnx", "make_package", "try_wrong_input"]

#: What an export to ONNX and its check need beside torch.
ONNX_PACKAGES = ("onnxscript", "onnx", "onnxruntime")
#: Of what a program says to a wrong input.
WORDS = 300


class NotMade(Exception):
    """Raised where a program could not be made; names the operators at fault where torch does."""


def export_program(work: Work, request: Mapping[str, Any]) -> dict[str, Any]:
    """Export the module to ``file``, with shapes that vary if ``dynamic``, and its inputs to ``inputs``.

    Returns size, time, operators outside Core ATen, the eager outputs by shape and the names of wrong inputs; None for
    all that where the workload has no shapes that vary.
    """
    module, inputs = program_of(work)
    varying = work.workload.dynamic_shapes() if request["dynamic"] else None
    if request["dynamic"] and varying is None:
        return {"file": None}
    right = {shape_name(inputs): inputs}
    if request["dynamic"]:
        right |= {shape_name(one): one for one in work.workload.shapes()}
    wrong = dict(work.workload.wrong_inputs())
    torch.save({"right": right, "wrong": wrong}, request["inputs"])
    folder = Path(request["directory"])
    eager = {
        name: write_all(run_program(module, one), folder, f"eager-{index}")
        for index, (name, one) in enumerate(right.items())
    }
    began = time.perf_counter_ns()
    with torch.no_grad():
        program = _making(lambda: torch.export.export(module, inputs, dynamic_shapes=varying))
    torch.export.save(program, request["file"])
    made_ns = time.perf_counter_ns() - began
    return {
        "file": request["file"],
        "size_bytes": Path(request["file"]).stat().st_size,
        "made_ns": made_ns,
        "operators": _beyond_core(program),
        "eager": eager,
        "wrong": list(wrong),
    }


def make_package(request: Mapping[str, Any]) -> dict[str, Any]:
    """Compile the exported program ``program`` ahead of time into the package ``file``; return its size and time."""
    from torch._inductor import aoti_compile_and_package

    torch.set_num_threads(int(request["threads"]))
    program = torch.export.load(request["program"])
    began = time.perf_counter_ns()
    with torch.no_grad():
        _making(lambda: aoti_compile_and_package(program, package_path=request["file"]))
    made_ns = time.perf_counter_ns() - began
    return {"size_bytes": Path(request["file"]).stat().st_size, "made_ns": made_ns}


def make_onnx(request: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the first of the exported ``programs`` that is there into the ONNX model ``file``; return its size and time.

    Raises Unsupported where what that needs is not installed: torch has no exporter of its own.
    """
    missing = [name for name in ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise Unsupported(f"no {missing[0]}")
    made = next((one for one in request["programs"] if Path(one).exists()), None)
    if made is None:
        raise NotMade("there is no exported program that it could be made of")
    program = torch.export.load(made)
    began = time.perf_counter_ns()
    with torch.no_grad():
        model = _making(
            lambda: torch.onnx.export(program, dynamo=True, verbose=False), lambda: _unknown_to_onnx(program)
        )
    model.save(request["file"])
    made_ns = time.perf_counter_ns() - began
    return {"size_bytes": Path(request["file"]).stat().st_size, "made_ns": made_ns}


def load_program(request: Mapping[str, Any]) -> dict[str, Any]:
    """Load ``file`` in this process, which has no model, and return what it computes on all right inputs by shape."""
    run = _load(request)
    folder = Path(request["directory"])
    right = _inputs(request)["right"]
    return {
        "outputs": {
            name: write_all(run_program(run, one), folder, f"loaded-{index}")
            for index, (name, one) in enumerate(right.items())
        }
    }


def try_wrong_input(request: Mapping[str, Any]) -> dict[str, Any]:
    """Load ``file`` and give it the wrong input ``name``; return whether it was refused. It may end this process."""
    run = _load(request)
    inputs = _inputs(request)["wrong"][request["name"]]
    try:
        outputs = run_program(run, inputs)
    except Exception as error:  # whatever it is, it can be caught
        return {"result": "refused", "words": f"{type(error).__name__}: {_first_line(str(error))}"}
    shapes = ", ".join(f"{name} {shape_name((output,))}" for name, output in outputs.items())
    return {"result": "accepted", "words": f"returned {shapes}"}


def _load(request: Mapping[str, Any]) -> Callable[..., Any]:
    torch.set_num_threads(int(request["threads"]))
    file, kind = request["file"], request["kind"]
    if kind == "compiled package":
        from torch._inductor import aoti_load_package

        package: Callable[..., Any] = aoti_load_package(file)
        return package
    if kind == "ONNX model":
        return _onnx_runtime(file)
    program: Callable[..., Any] = torch.export.load(file).module()
    return program


def _onnx_runtime(file: str) -> Callable[..., Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]

    def run(*inputs: torch.Tensor) -> Any:
        given = {name: one.cpu().numpy() for name, one in zip(names, inputs, strict=True)}
        outputs = [torch.from_numpy(one) for one in session.run(None, given)]
        return outputs[0] if len(outputs) == 1 else outputs

    return run


def _inputs(request: Mapping[str, Any]) -> dict[str, dict[str, Inputs]]:
    found: dict[str, dict[str, Inputs]] = torch.load(request["inputs"], weights_only=True)
    return found


def _making(make: Callable[[], Any], named: Callable[[], list[str]] = list) -> Any:
    """Return what ``make`` makes; operators that it fails on stand in the error's first line.

    They are those that ``named`` names; where it names none, those in the error's words.
    """
    try:
        return make()
    except Exception as error:
        operators = named() or operators_in(str(error))
        said = f"operators {', '.join(operators)}: " if operators else ""
        raise NotMade(f"{said}{type(error).__name__}: {_first_line(str(error))}") from error


def _unknown_to_onnx(program: torch.export.ExportedProgram) -> list[str]:
    """Return all operators that the exporter has no ONNX function for, sorted: its error names the first alone."""
    # Not documented; the same in 2.12 and 2.13.
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    registry = ONNXRegistry.from_torchlib()
    return [name for name, target in _operators(program).items() if not registry.is_registered(target)]


def operators_in(words: str) -> list[str]:
    """Return the operators that an error names, sorted: "aten._linalg_eigh"."""
    named = re.findall(r"torch\.ops\.(\w+\.\w+)|op='(\w+\.\w+)'|\b((?:aten|prims)\.\w+)", words)
    return sorted({next(filter(None, one)) for one in named})


def _beyond_core(program: torch.export.ExportedProgram) -> list[str]:
    """Return the operators that are left outside Core ATen once all that can be is decomposed, sorted."""
    return [name for name, target in _operators(program).items() if torch.Tag.core not in target.tags]


def _operators(program: torch.export.ExportedProgram) -> dict[str, Any]:
    """Return the operators of the decomposed program, sorted by name."""
    targets = [node.target for node in program.run_decompositions().graph.nodes]
    return dict(sorted((str(one), one) for one in targets if isinstance(one, torch._ops.OpOverload)))


def _first_line(words: str) -> str:
    words = re.sub(r"\x1b\[[0-9;]*m", "", words)  # torch.onnx colours its errors
    return (words.strip() or "no reason given").splitlines()[0][:WORDS]
