"""The catalogue's transformer block, with a share of extra work of its own kind in the step.

The extra work is counted in units of two tokens through one of the block's own projections. `whole` says how many
units take as long as the step: the recorder measures it once (`benchmarks.record`), since no count of operations
says it to 0.2 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import torch
from torch.nn import functional as F

from workloads.contract import Workload
from workloads.transformer_block import Block

#: Tokens of a unit.
TOKENS = 2
#: Units that every step does: the first few after the block cost more (0.5 % of a step, their operands are cold), and
#: so the slowed arm's further ones are all alike.
ALWAYS = 40


class TransformerWork(Workload):
    """One block, inferring in float32."""

    item = "tokens"
    parameters = {
        "extra": {"default": 0.0, "doc": "share of extra work in the step"},
        "whole": {"default": 800, "doc": "units of extra work that take as long as the step"},
        "batch": {"default": 8, "doc": "sequences a step: 6 ms on a Xeon with AVX-512, so that a unit is 0.1 % of it"},
        "seq": {"default": 64, "doc": "tokens of a sequence"},
        "width": {"default": 256, "doc": "embedding width"},
        "heads": {"default": 4, "doc": "attention heads; divides the width"},
    }
    cases = {"infer": {"suites": ["smoke"], "parameters": {}}}

    def setup(self, p: SimpleNamespace, path: str, device: torch.device) -> None:
        self.block = Block(p.width, p.heads).to(device).eval().requires_grad_(False)
        self.x_BSE = torch.randn(p.batch, p.seq, p.width).to(device)
        self.few_TE = self.x_BSE[0, :TOKENS].contiguous()
        self.units = ALWAYS + round(p.extra * p.whole)

    def step(self) -> Mapping[str, torch.Tensor]:
        with torch.inference_mode():
            y_BSE = self.block(self.x_BSE)
            for _ in range(self.units):
                F.linear(self.few_TE, self.block.out.weight, self.block.out.bias)
            return {"y": y_BSE}

    def items(self) -> float:
        return self.x_BSE.shape[0] * self.x_BSE.shape[1]
