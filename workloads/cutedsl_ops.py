"""Operators that torch 2.13 replaces by CuTeDSL kernels (RMSNorm, topk, scatter_add) beside aten's on the same release.

The old path switches the replacement off, so that nothing but the kernel differs between the two. `.available` and
`.enabled` of torch.backends.python_native are True where nothing is registered, and an operator that is switched off
stays in the list of `get_dsl_operations`: so what ran is told by the kernels of a profile, with the switch and without.

Shapes: N rows, W width, T rows of a table.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional as F

from workloads.contract import FellBack, Unsupported, Workload
from workloads.cutedsl_attention import found_packages, hardware

#: Names under which the overrides of each operator are registered (torch/_native/ops of 2.13).
SYMBOLS = {
    "rms_norm": ("_fused_rms_norm", "_fused_rms_norm_backward"),
    "topk": ("topk", "topk.values"),
    "scatter_add": ("scatter_add", "scatter_add.out", "scatter_add_"),
}
#: What each asks of the device and its inputs, as its own conditions in 2.13 say.
ASKS = {
    "rms_norm": "compute capability 9.x or 10.x; float16, bfloat16, float32; weight of the input's type; a width whose"
    " vectors have 4, 8 or 16 bytes",
    "topk": "float32, largest, sorted, last axis, a row a multiprocessor; k = 16, 32, 64, 128, 256, 512 or 1024 and a"
    " width that suits it",
    "scatter_add": "rows that are whole vectors; no deterministic algorithms",
}
#: How the library calls an override in a profile of the host: `_native::topk_cutedsl_2`.
OVERRIDE = "_native::"
#: What torch/_native/cutedsl_utils.py of 2.13 accepts, should a release no longer say it there.
PINS = ("4.4.1", "4.4.2", "4.5.2")


class CuteDslOps(Workload):
    """RMSNorm, topk and scatter_add by aten (old) and by torch's CuTeDSL kernels (new)."""

    item = "tokens"
    track = "prototype"
    parameters = {
        "op": {"default": "rms_norm", "choices": ["rms_norm", "topk", "scatter_add"], "doc": "the operator"},
        "mode": {"default": "infer", "choices": ["infer", "train"], "doc": "forward, or forward and backward"},
        "dtype": {"default": "float32", "choices": ["float32", "bfloat16", "float16"], "doc": "of every tensor"},
        "rows": {"default": 1024, "doc": "tokens a step, a row each"},
        "width": {"default": 1024, "doc": "values of a row"},
        "k": {"default": 64, "doc": "how many of a row; topk only"},
        "table": {"default": 256, "doc": "rows that are added to; scatter_add only"},
    }
    paths = {
        "aten": "the standard kernel; where the release has another, it is switched off",
        "cutedsl": {"doc": "torch's own CuTeDSL kernel", "needs": "2.13"},
    }
    cases = {
        "rms-norm-train-fp32": {"suites": ["smoke", "standard"], "parameters": {"mode": "train", "rows": 256}},
        "topk-fp32": {"suites": ["full"], "parameters": {"op": "topk", "rows": 256}},
        "scatter-add-fp32": {"suites": ["full"], "parameters": {"op": "scatter_add", "rows": 4096, "width": 256}},
        "rms-norm-train-bf16": {
            "production_shape": True,
            "suites": ["full"],
            "parameters": {"mode": "train", "dtype": "bfloat16", "rows": 16384, "width": 4096},
        },
        "topk-large-fp32": {
            "production_shape": True,
            "suites": ["full"],
            "parameters": {"op": "topk", "rows": 4096, "width": 32768, "k": 256},
        },
        "scatter-add-large-bf16": {
            "production_shape": True,
            "suites": ["full"],
            "parameters": {"op": "scatter_add", "dtype": "bfloat16", "rows": 131072, "width": 1024, "table": 4096},
        },
    }

    def setup(self, p: SimpleNamespace, path: str, device: torch.device) -> None:
        if path == "cutedsl":
            missing = lacks(device.type, p.op)
            if missing:
                raise Unsupported(f"torch {torch.__version__}, {p.op} by CuTeDSL: {'; '.join(missing)}")
        self.p, self.path, self.device = p, path, device
        dtype = getattr(torch, p.dtype)
        x_NW, weight_W, grad = torch.randn(p.rows, p.width), torch.rand(p.width) + 0.5, torch.randn(*_shape(p))
        table_TW, index_N = torch.randn(p.table, p.width), torch.randint(p.table, (p.rows,))
        self.x_NW, self.weight_W, self.table_TW, self.grad = (
            tensor.to(device=device, dtype=dtype) for tensor in (x_NW, weight_W, table_TW, grad)
        )
        self.index_N = index_N.to(device)
        for leaf in (self.x_NW, self.weight_W):
            leaf.requires_grad_(p.mode == "train")
        native = _native()
        if native is not None:
            switch = native.disable_operations if path == "aten" else native.enable_operations
            switch(*SYMBOLS[p.op])

    def step(self) -> Mapping[str, torch.Tensor]:
        self.x_NW.grad = self.weight_W.grad = None
        with torch.set_grad_enabled(self.p.mode == "train"):
            y = run(self.p, self.x_NW, self.weight_W, self.table_TW, self.index_N)
        if self.p.mode == "infer":
            return {"y": y}
        y.backward(self.grad)
        leaves = {"x": self.x_NW} | ({"weight": self.weight_W} if self.p.op == "rms_norm" else {})
        return {"y": y.detach()} | {f"grad.{name}": leaf.grad for name, leaf in leaves.items()}

    def items(self) -> float:
        return self.p.rows

    # -- what ran --------------------------------------------------------------------------------------------------

    def path_ran(self) -> str:
        if self.path == "aten":
            ran = self._kernels(self.step)
            overrides = {name for name in ran if name.startswith(OVERRIDE) and "cutedsl" in name}
            if overrides:
                raise FellBack(f"an override ran though it is switched off: {_few(overrides)}")
            return f"aten: {_few(name for name in ran if not name.startswith('autograd'))}"
        own = self._own(self.step)
        if not own:
            raise FellBack(f"the standard kernel ran: {_few(self._kernels(self.step))}")
        return f"cutedsl: {_few(own)}"

    def _own(self, step: Callable[[], object]) -> set[str]:
        """Return the kernels of ``step`` that do not run with the operator switched off; none where nothing differs."""
        with _native().operations_disabled(*SYMBOLS[self.p.op]):
            standard = self._kernels(step)
        return self._kernels(step) - standard

    def _kernels(self, step: Callable[[], object]) -> set[str]:
        """Return the names of a step's kernels and of the overrides that it went through.

        On the CPU, which has no kernels in a profile, of its operators. An override is an operator too, `_native::…`.
        """
        from torch.profiler import ProfilerActivity, profile

        on_device = self.device.type == "cuda"
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_device
        # A CuTeDSL kernel is compiled when it is first called.
        step()
        with profile(activities=activities) as trace:
            step()
            if on_device:
                torch.cuda.synchronize()
        wanted = OVERRIDE if on_device else "::"
        return {
            event.key
            for event in trace.key_averages()
            if wanted in event.key or (on_device and str(event.device_type).endswith("CUDA"))
        }

    def facts(self) -> Mapping[str, str | float | bool]:
        native = _native()
        registered = native.get_dsl_operations("cutedsl") if native else []
        found: dict[str, str | float | bool] = {
            "hardware needed": f"a CUDA build of torch and an NVIDIA device; {ASKS[self.p.op]}",
            "hardware found": hardware(),
            "packages needed": f"apache-tvm-ffi and nvidia-cutlass-dsl of exactly {', '.join(pins())}",
            "packages found": found_packages("apache-tvm-ffi", "nvidia-cutlass-dsl"),
            "operators registered": ", ".join(registered) or "none",
        }
        if native is not None and "cutedsl" in native.all_dsls:
            controller = native.cutedsl
            found["not to be believed"] = f".available is {controller.available}, .enabled is {controller.enabled}"
        if self.path == "cutedsl":
            # What a team meets that changes one thing: by which kernel it is served then.
            for change, step in self._changes():
                try:
                    own = self._own(step)
                    found[f"with {change}"] = f"CuTeDSL: {_few(own)}" if own else "the standard kernel"
                except RuntimeError as error:
                    found[f"with {change}"] = f"fails: {str(error).partition(chr(10))[0][:200]}"
        return found

    def _changes(self) -> Iterable[tuple[str, Callable[[], object]]]:
        """Give changes of mode, shape and precision, each with a step that has it."""
        p = self.p
        names = ("x_NW", "weight_W", "table_TW")
        x_NW, weight_W, table_TW = (getattr(self, name).detach() for name in names)

        def step(x: torch.Tensor, weight: torch.Tensor, table: torch.Tensor, **changed: Any) -> Callable[[], object]:
            with_change = SimpleNamespace(**vars(p) | changed)
            index_N = self.index_N[: x.shape[0]]
            return lambda: run(with_change, x, weight, table, index_N)

        other = torch.bfloat16 if x_NW.dtype == torch.float32 else torch.float32
        odd = p.width - 1
        yield "another precision", step(x_NW.to(other), weight_W.to(other), table_TW.to(other))
        yield "float64", step(x_NW.double(), weight_W.double(), table_TW.double())
        yield (
            f"width {odd}",
            step(x_NW[:, :odd].contiguous(), weight_W[:odd].contiguous(), table_TW[:, :odd].contiguous()),
        )
        yield "8 rows", step(x_NW[:8].contiguous(), weight_W, table_TW)
        yield "deterministic algorithms", self._deterministic(step(x_NW, weight_W, table_TW))
        if p.op == "topk":
            yield f"k = {p.k - 1}", step(x_NW, weight_W, table_TW, k=p.k - 1)
        if p.op == "rms_norm":
            yield "a weight of another precision", step(x_NW, weight_W.to(other), table_TW)

    @staticmethod
    def _deterministic(step: Callable[[], object]) -> Callable[[], object]:
        def strictly() -> None:
            before = torch.are_deterministic_algorithms_enabled()
            torch.use_deterministic_algorithms(True)
            try:
                step()
            finally:
                torch.use_deterministic_algorithms(before)

        return strictly

    def switch_off(self) -> str:
        names = SYMBOLS[self.p.op]
        _native().disable_operations(*names)
        return f"torch.backends.python_native.disable_operations({', '.join(map(repr, names))})"


def run(
    p: SimpleNamespace, x_NW: torch.Tensor, weight_W: torch.Tensor, table_TW: torch.Tensor, index_N: torch.Tensor
) -> torch.Tensor:
    """Return the operator's output."""
    if p.op == "rms_norm":
        return F.rms_norm(x_NW, x_NW.shape[-1:], weight_W, 1e-6)
    if p.op == "topk":
        return torch.topk(x_NW, p.k, dim=-1, largest=True, sorted=True).values
    return table_TW.scatter_add(0, index_N[:, None].expand_as(x_NW), x_NW)


def _shape(p: SimpleNamespace) -> tuple[int, int]:
    """Return the output's shape."""
    return {"rms_norm": (p.rows, p.width), "topk": (p.rows, p.k), "scatter_add": (p.table, p.width)}[p.op]


def _few(names: Iterable[str]) -> str:
    """Return names in one line; a profile of the host has dozens."""
    found = sorted(names)
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")


# -- what is there --------------------------------------------------------------------------------------------------


def _native() -> Any:
    """Return torch.backends.python_native, or None before 2.12."""
    try:
        return importlib.import_module("torch.backends.python_native")
    except ImportError:
        return None


def pins() -> list[str]:
    """Return the versions of nvidia-cutlass-dsl that this release accepts, in its own words where it has some."""
    try:
        from torch._native.cutedsl_utils import _CUTEDSL_REQUIRED_VERSIONS as accepted
    except ImportError:
        return list(PINS)
    return [str(version) for version in sorted(accepted)]


def lacks(device: str, op: str) -> list[str]:
    """Return why ``op`` would not run by CuTeDSL, the version pins first; empty where it is registered and can run."""
    missing = []
    native = _native()
    packages = found_packages("nvidia-cutlass-dsl", "apache-tvm-ffi").split(", ")
    cutlass = packages[0].rpartition(" ")[2]
    skipped = os.environ.get("TORCH_NATIVE_SKIP_VERSION_CHECK") == "1"
    if cutlass != "installed" and cutlass not in pins() and not skipped:
        missing.append(f"nvidia-cutlass-dsl {cutlass} silently switches it off: it takes {', '.join(pins())} alone")
    missing += [package for package in packages if package.endswith("is not installed")]
    if missing and cutlass == "installed":
        missing[0] += f" (it takes {', '.join(pins())} alone)"
    if os.environ.get("TORCH_DISABLE_NATIVE_JIT") == "1":
        missing.append("TORCH_DISABLE_NATIVE_JIT=1 switches it off")
    if torch.version.hip is not None or torch.version.cuda is None:
        missing.append(f"this build of torch is for {'ROCm' if torch.version.hip else 'the CPU'}, not for CUDA")
    if device != "cuda":
        missing.append(f"the cell runs on {device}; the kernels are registered for CUDA alone")
    elif op == "rms_norm" and torch.cuda.get_device_capability()[0] not in (9, 10):
        missing.append(f"{hardware()}; it needs 9.x or 10.x")
    registered = native.get_dsl_operations("cutedsl") if native else []
    if not set(SYMBOLS[op]) <= set(registered):
        missing.append(f"operators registered by it: {', '.join(registered) or 'none'}")
    return missing
