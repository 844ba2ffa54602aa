"""What the tests of CuTeDSL do in a measured environment, which has no pytest: `python inside_cutedsl.py NAME`.

`words` prints what the library and the workloads say here; `drill` asserts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from workloads import cutedsl_attention, cutedsl_ops
from workloads.contract import FellBack, Unsupported


def made(kind: Any, path: str, **parameters: Any) -> Any:
    torch.manual_seed(1)
    workload = kind()
    values = {name: entry["default"] for name, entry in kind.parameters.items()} | parameters
    workload.setup(SimpleNamespace(**values), path, torch.device("cpu"))
    return workload


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except Unsupported as unsupported:
        return str(unsupported)
    raise AssertionError("it ran")


def words() -> None:
    ops, attention = cutedsl_ops.CuteDslOps, cutedsl_attention.CuteDslAttention
    native = cutedsl_ops._native()
    said = {
        "cuda build": torch.version.cuda is not None,
        "registered": native.get_dsl_operations("cutedsl"),
        "available": native.cutedsl.available,
        "enabled": native.cutedsl.enabled,
        "pins": cutedsl_ops.pins(),
        "facts": dict(made(ops, "aten", rows=8, width=64).facts()),
        "flash": refusal(lambda: made(attention, "flash", dtype="float32", seq=64)),
    }
    for op in cutedsl_ops.SYMBOLS:
        said[op] = refusal(lambda op=op: made(ops, "cutedsl", op=op, rows=8, width=64, k=4))
    sys.stdout.write(json.dumps(said))


def drill() -> None:
    """An override that the library itself registers, here for the CPU, is proven, told apart and switched off."""
    from torch._native.registry import register_op_override

    def fits(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> bool:  # noqa: A002
        return bool(x.dtype is torch.float32 and k % 2 == 0 and not torch.are_deterministic_algorithms_enabled())

    def kernel(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:  # noqa: A002
        found, places = torch.sort(x, dim=-1, descending=True)
        return found[..., :k].contiguous(), places[..., :k].contiguous()

    register_op_override("cutedsl", "aten", "topk", "CPU", fits, kernel)
    from torch._native import registry

    registry._register_all_overrides()
    cutedsl_ops.lacks = lambda device, op: []
    given = {"op": "topk", "rows": 16, "width": 64, "k": 4}
    standard = made(cutedsl_ops.CuteDslOps, "aten", **given)
    right = standard.step()["y"]
    assert standard.path_ran().startswith("aten: aten::topk"), standard.path_ran()
    cutedsl_ops._native().enable_operations("topk")
    fell(standard, "an override ran though it is switched off: _native::topk_cutedsl")
    own = made(cutedsl_ops.CuteDslOps, "cutedsl", **given)
    assert torch.equal(own.step()["y"], right)
    ran = own.path_ran()
    assert ran.startswith("cutedsl: _native::topk_cutedsl"), ran
    facts = own.facts()
    assert facts["operators registered"] == "topk"
    served = {name: value for name, value in facts.items() if name.startswith("with ")}
    assert served.pop("with 8 rows").startswith("CuTeDSL: ")
    assert served.pop("with width 63").startswith("CuTeDSL: ")
    others = ("another precision", "float64", "deterministic algorithms", "k = 3")
    assert served == {f"with {change}": "the standard kernel" for change in others}, served
    assert not torch.are_deterministic_algorithms_enabled()
    assert own.path_ran() == ran, "the facts left the switch as it was"
    assert own.switch_off() == "torch.backends.python_native.disable_operations('topk', 'topk.values')"
    assert torch.equal(own.step()["y"], right)
    # What a release lists does not change by that: it is no probe.
    assert "topk" in cutedsl_ops._native().get_dsl_operations("cutedsl")
    fell(own, "the standard kernel ran: aten::topk")
    again = made(cutedsl_ops.CuteDslOps, "cutedsl", **given)
    assert again.path_ran() == ran, "a set-up switches it on again"


def fell(workload: Any, begin: str) -> None:
    try:
        found = f"it ran: {workload.path_ran()}"
    except FellBack as fallen:
        found = str(fallen)
    assert found.startswith(begin), found


def flash() -> None:
    """The deterministic backward's refusal before SM100 is an answer, and so is a FLASH that is not there."""
    cutedsl_attention.lacks = lambda device: []
    workload = made(cutedsl_attention.CuteDslAttention, "flash", dtype="float32", seq=64)
    assert workload.options == {"BACKEND": "FLASH"}
    for kind, told in (
        (
            "NotImplementedError",
            "Deterministic backward for flex_attention with block_mask and BACKEND='FLASH' requires",
        ),
        ("RuntimeError", "BACKEND='FLASH' but flash attention cannot be used: CUTE flash attention library is not"),
    ):

        def attend(kind: str = kind, told: str = told) -> None:
            raise RuntimeError(f"LoweringException: {kind}: {told} more\n  target: flex_attention")

        workload.attend = attend
        assert refusal(workload.step) == f"torch {torch.__version__}: {told} more"


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"words": words, "drill": drill, "flash": flash}[sys.argv[1]]()
