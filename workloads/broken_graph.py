"""A model with graph breaks on purpose: a print, a number taken out of a tensor, and a branch on the data.

What a team leaves in its code for looking at it. How often torch.compile breaks its graph on them is known beforehand,
so a release that breaks more often, or for other reasons, is seen. Shapes: B batch, S sequence, E width.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

from workloads.contract import Workload

#: What `Watched` holds that breaks a graph, one break each in 2.12 and 2.13.
BREAKS = ("a print", "a number taken out with .item()", "an if on a sum")


class Watched(nn.Module):
    """Four layers with something between each two that a graph cannot hold."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second, self.third, self.last = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x_BSE: torch.Tensor) -> torch.Tensor:
        x_BSE = F.gelu(self.first(x_BSE))
        print(end="")  # noqa: T201 (what breaks the graph here)
        x_BSE = F.gelu(self.second(x_BSE))
        x_BSE = x_BSE / (1.0 + x_BSE.abs().amax().item())
        x_BSE = F.gelu(self.third(x_BSE))
        x_BSE = x_BSE * 2.0 if x_BSE.sum() > 0 else x_BSE * 3.0
        return self.last(x_BSE)


class BrokenGraph(Workload):
    """Three graph breaks on purpose under torch.compile."""

    item = "tokens"
    parameters = {
        "dtype": {"default": "float32", "choices": ["float32", "bfloat16"], "doc": "of weights and activations"},
        "batch": {"default": 2, "doc": "sequences a step"},
        "seq": {"default": 512, "doc": "tokens of a sequence"},
        "width": {"default": 256, "doc": "embedding width"},
    }
    paths = {"compiled": "the model under torch.compile, with its defaults"}
    cases = {
        "infer-small": {"suites": ["smoke"], "parameters": {"seq": 64, "width": 64}},
        "infer-fp32": {"suites": ["standard"], "production_shape": True},
        "infer-long-fp32": {"suites": ["full"], "parameters": {"seq": 4096, "width": 768}, "production_shape": True},
    }
    compiles = True

    def setup(self, p: SimpleNamespace, path: str, device: torch.device) -> None:
        dtype = getattr(torch, p.dtype)
        self.model = Watched(p.width).eval().requires_grad_(False).to(device=device, dtype=dtype)
        self.x_BSE = torch.randn(p.batch, p.seq, p.width).to(device=device, dtype=dtype)
        self.run = torch.compile(self.model)

    def step(self) -> Mapping[str, torch.Tensor]:
        with torch.no_grad():
            return {"y": self.run(self.x_BSE)}

    def items(self) -> float:
        return self.x_BSE.shape[0] * self.x_BSE.shape[1]

    def path_ran(self) -> str:
        return self.compiled_ran()

    def facts(self) -> Mapping[str, str | float | bool]:
        return {"graph breaks on purpose": len(BREAKS), "they are": ", ".join(BREAKS)}

    def to_oracle(self) -> None:
        self.x_BSE, self.run = self.x_BSE.double(), self.model.double()

    def program(self) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        return self.model, (self.x_BSE,)
