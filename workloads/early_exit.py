"""A tagger that stops early: layers are left as soon as the answer is sure, a branch that depends on the data.

Shapes: B batch, S sequence, E width, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

from workloads.contract import Workload

CLASSES = 16


class Stage(nn.Module):
    """One layer and its own answer: what is compiled, once for all stages."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layer = nn.Linear(width, width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x_BSE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x_BSE = x_BSE + F.gelu(self.layer(self.norm(x_BSE)))
        return x_BSE, self.head(x_BSE).softmax(-1)


class EarlyExit(nn.Module):
    """After every stage: are the answers sure enough to stop? How deep one goes is known only once it has run.

    torch.compile leaves a function whose loop holds such a branch to Python (2.12 and 2.13 alike, without a word), so
    each stage is a function of its own: written into the loop, nothing at all would be compiled.
    """

    def __init__(self, width: int, layers: int, sure: float) -> None:
        super().__init__()
        self.stages = nn.ModuleList(Stage(width) for _ in range(layers))
        self.sure = sure

    def forward(self, x_BSE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        depth = 0
        for stage in self.stages:
            x_BSE, answer_BSC = stage(x_BSE)
            depth += 1
            if answer_BSC.amax(-1).mean() > self.sure:
                break
        return answer_BSC, torch.full((1,), float(depth), device=x_BSE.device)


class EarlyExitTagger(Workload):
    """Data-dependent control flow under torch.compile: a break at every branch that is reached."""

    item = "tokens"
    parameters = {
        "dtype": {"default": "float32", "choices": ["float32", "bfloat16"], "doc": "of weights and activations"},
        "batch": {"default": 2, "doc": "sequences a step"},
        "seq": {"default": 512, "doc": "tokens of a sequence"},
        "width": {"default": 256, "doc": "embedding width"},
        "layers": {"default": 4, "doc": "layers, if it never stops early"},
        "sure": {"default": 0.295, "doc": "mean probability of the answers at which it stops"},
    }
    paths = {"compiled": "the model under torch.compile, with its defaults"}
    cases = {
        "infer-small": {"suites": ["smoke"], "parameters": {"seq": 64, "width": 64, "layers": 3}},
        "infer-fp32": {"suites": ["standard"], "production_shape": True},
        "infer-long-fp32": {
            "suites": ["full"],
            "parameters": {"seq": 4096, "width": 768, "layers": 8},
            "production_shape": True,
        },
    }
    compiles = True

    def setup(self, p: SimpleNamespace, path: str, device: torch.device) -> None:
        dtype = getattr(torch, p.dtype)
        self.model = EarlyExit(p.width, p.layers, p.sure).eval().requires_grad_(False).to(device=device, dtype=dtype)
        # Of a spread as embeddings have it: with less no answer is ever sure.
        self.x_BSE = (2.0 * torch.randn(p.batch, p.seq, p.width)).to(device=device, dtype=dtype)
        self.run = torch.compile(self.model)

    def step(self) -> Mapping[str, torch.Tensor]:
        with torch.no_grad():
            answers_BSC, depth = self.run(self.x_BSE)
            return {"answers": answers_BSC, "depth": depth}

    def items(self) -> float:
        return self.x_BSE.shape[0] * self.x_BSE.shape[1]

    def path_ran(self) -> str:
        return self.compiled_ran()

    def facts(self) -> Mapping[str, str | float | bool]:
        return {"layers that ran": self.step()["depth"].item(), "layers that it has": len(self.model.stages)}

    def to_oracle(self) -> None:
        self.x_BSE, self.run = self.x_BSE.double(), self.model.double()

    def program(self) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        return self.model, (self.x_BSE,)
