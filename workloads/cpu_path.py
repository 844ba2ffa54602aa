"""What continuous integration lives on: small operators, loaders with workers, files, bfloat16 and threads on the CPU.

"CPU is the boring fallback, and then it blocks the release." Import time is measured with every restart of every cell.

Shapes: N rows, K and M widths, B batches.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from types import SimpleNamespace

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from workloads.contract import FellBack, Unsupported, Workload

#: Operators of a step of small ones: 1 us each on a quiet core.
SMALL_OPERATORS = 6000


class CpuPath(Workload):
    """One of the pieces that every test suite runs, on the CPU, on the old path alone."""

    item = "samples"
    parameters = {
        "what": {
            "default": "small_operators",
            "choices": ["small_operators", "data_loader", "save_load", "linear"],
            "doc": "which piece",
        },
        "dtype": {"default": "float32", "choices": ["float32", "bfloat16"], "doc": "of inputs and weights"},
        "rows": {"default": 8, "doc": "rows of an input, N"},
        "width": {"default": 8, "doc": "width of an input, K and M"},
        "workers": {"default": 0, "doc": "processes of the loader; 0 loads in the process itself"},
        "all_threads": {"default": False, "doc": "use every core that the process may run on, else as the suite says"},
    }
    paths = {"eager": "torch as it comes"}
    cases = {
        "small-operators": {"suites": ["smoke", "standard"]},
        "loader-2-workers": {
            "suites": ["standard"],
            "parameters": {"what": "data_loader", "workers": 2, "rows": 512, "width": 256},
        },
        "save-load": {"suites": ["standard"], "parameters": {"what": "save_load", "rows": 1024, "width": 512}},
        "linear-bf16": {
            "suites": ["standard"],
            "parameters": {"what": "linear", "dtype": "bfloat16", "rows": 512, "width": 1024},
        },
        "linear-all-threads": {
            "suites": ["standard"],
            "parameters": {"what": "linear", "rows": 512, "width": 1024, "all_threads": True},
            "production_shape": True,
        },
    }

    def setup(self, p: SimpleNamespace, path: str, device: torch.device) -> None:
        if device.type != "cpu":
            raise Unsupported(f"this is the CPU's own path; it says nothing of {device.type}")
        if p.all_threads:
            torch.set_num_threads(_cores())
        dtype = getattr(torch, p.dtype)
        self.what, self.workers, self.batch = p.what, p.workers, max(1, p.rows // 16)
        self.x_NK = torch.randn(p.rows, p.width).to(dtype)
        self.w_MK = (torch.randn(p.width, p.width) / p.width**0.5).to(dtype)
        self.b_M = torch.randn(p.width).to(dtype)
        self.loader: DataLoader | None = None

    def step(self) -> Mapping[str, torch.Tensor]:
        with torch.inference_mode():
            return {"y": getattr(self, f"_{self.what}")()}

    def _small_operators(self) -> torch.Tensor:
        y_NM = self.x_NK
        for _ in range(SMALL_OPERATORS // 3):
            # Three operators that neither grow nor shrink it.
            y_NM = torch.tanh(y_NM * self.b_M + self.x_NK)
        return y_NM

    def _data_loader(self) -> torch.Tensor:
        return torch.stack([batch.sum(0) for batch in self._batches()])

    def _batches(self) -> Iterator[torch.Tensor]:
        if self.loader is None:
            self.loader = DataLoader(
                TensorDataset(self.x_NK),
                batch_size=self.batch,
                num_workers=self.workers,
                persistent_workers=self.workers > 0,
            )
        for (batch,) in self.loader:
            yield batch

    def _save_load(self) -> torch.Tensor:
        file = io.BytesIO()
        torch.save({"x": self.x_NK, "w": self.w_MK, "b": self.b_M}, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=True)
        return F.linear(loaded["x"][:4], loaded["w"], loaded["b"])

    def _linear(self) -> torch.Tensor:
        return F.linear(self.x_NK, self.w_MK, self.b_M)

    def items(self) -> float:
        return self.x_NK.shape[0]

    def path_ran(self) -> str:
        if self.what == "data_loader" and self.workers and not self._has_workers():
            raise FellBack("the loader runs no worker processes")
        return f"eager, {torch.get_num_threads()} threads"

    def facts(self) -> Mapping[str, str | float | bool]:
        return {
            "threads": torch.get_num_threads(),
            "CPU capability": torch.backends.cpu.get_cpu_capability(),
            "oneDNN": torch.backends.mkldnn.is_available(),
            "oneDNN multiplies bfloat16": bool(getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", bool)()),
        }

    def to_oracle(self) -> None:
        # A loader holds what it was made with.
        self.loader = None
        super().to_oracle()

    def _has_workers(self) -> bool:
        return bool(getattr(getattr(self.loader, "_iterator", None), "_workers", []))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
