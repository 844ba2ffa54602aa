"""A step of 0.7 s and more on one thread: the catalogue's transformer block, passed many times.

The extra work is more passes, so its share is right by count.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import torch

from workloads.contract import Workload
from workloads.transformer_block import Block


class SlowWork(Workload):
    """A hundred passes or more, each of the same input: the values stay what one block gives."""

    item = "tokens"
    parameters = {
        "extra": {"default": 0.0, "doc": "share of extra work in the step"},
        "whole": {"default": 500, "doc": "passes of the step itself; in hundreds, so that 2, 3 and 5 % are whole"},
        "batch": {"default": 2, "doc": "sequences a pass"},
        "seq": {"default": 64, "doc": "tokens of a sequence"},
        "width": {"default": 256, "doc": "embedding width"},
        "heads": {"default": 4, "doc": "attention heads; divides the width"},
    }
    cases = {"passes": {"suites": ["smoke"], "parameters": {}}}

    def setup(self, p: SimpleNamespace, path: str, device: torch.device) -> None:
        self.block = Block(p.width, p.heads).to(device).eval().requires_grad_(False)
        self.x_BSE = torch.randn(p.batch, p.seq, p.width).to(device)
        self.passes = p.whole + round(p.extra * p.whole)

    def step(self) -> Mapping[str, torch.Tensor]:
        with torch.inference_mode():
            for _ in range(self.passes):
                y_BSE = self.block(self.x_BSE)
            return {"y": y_BSE}

    def items(self) -> float:
        return self.passes * self.x_BSE.shape[0] * self.x_BSE.shape[1]
