"""A pre-norm transformer block: causal attention and a GELU MLP, inferring or training.

Shapes: B batch, S sequence, E width, H heads, D = E / H.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

from workloads.contract import Workload


class Block(nn.Module):
    """Pre-norm block with biases everywhere, so that a dropped one is seen."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x_BSE: torch.Tensor) -> torch.Tensor:
        batch, length, width = x_BSE.shape
        qkv = self.qkv(self.norm_attention(x_BSE)).view(batch, length, 3, self.heads, width // self.heads)
        q_BHSD, k_BHSD, v_BHSD = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q_BHSD, k_BHSD, v_BHSD, is_causal=True)
        x_BSE = x_BSE + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x_BSE + self.down(F.gelu(self.up(self.norm_mlp(x_BSE))))


class TransformerBlock(Workload):
    """One transformer block, the boring work that every model is made of."""

    item = "tokens"
    parameters = {
        "mode": {"default": "infer", "choices": ["infer", "train"], "doc": "forward, or forward and backward"},
        "dtype": {"default": "float32", "choices": ["float32", "bfloat16"], "doc": "of weights and activations"},
        "batch": {"default": 2, "doc": "sequences a step"},
        "seq": {"default": 64, "doc": "tokens of a sequence"},
        "width": {"default": 256, "doc": "embedding width"},
        "heads": {"default": 4, "doc": "attention heads; divides the width"},
    }
    paths = {"eager": "the block as written, SDPA with is_causal"}
    cases = {
        "infer-fp32": {"suites": ["smoke", "standard"], "parameters": {"mode": "infer", "dtype": "float32"}},
        "train-fp32": {
            "suites": ["standard"],
            "parameters": {"mode": "train", "dtype": "float32", "batch": 1},
        },
        "infer-bf16": {"suites": ["standard"], "parameters": {"mode": "infer", "dtype": "bfloat16"}},
        "train-bf16": {"suites": ["standard"], "parameters": {"mode": "train", "dtype": "bfloat16", "batch": 1}},
        "infer-fp32-production": {
            "suites": ["standard"],
            "parameters": {"mode": "infer", "dtype": "float32", "batch": 1, "seq": 512, "width": 768, "heads": 12},
            "production_shape": True,
        },
    }
    compiles = True
    exports = True

    def setup(self, p: SimpleNamespace, path: str, device: torch.device) -> None:
        dtype = getattr(torch, p.dtype)
        self.train = p.mode == "train"
        self.block = Block(p.width, p.heads)
        self.x_BSE = torch.randn(p.batch, p.seq, p.width)
        self.grad_BSE = torch.randn(p.batch, p.seq, p.width)
        self.block = self.block.to(device=device, dtype=dtype).train(self.train).requires_grad_(self.train)
        self.x_BSE = self.x_BSE.to(device=device, dtype=dtype)
        self.grad_BSE = self.grad_BSE.to(device=device, dtype=dtype)

    def step(self) -> Mapping[str, torch.Tensor]:
        if not self.train:
            with torch.inference_mode():
                return {"y": self.block(self.x_BSE)}
        self.block.zero_grad(set_to_none=True)
        y_BSE = self.block(self.x_BSE)
        y_BSE.backward(self.grad_BSE)
        gradients = {f"grad.{name}": weight.grad for name, weight in self.block.named_parameters()}
        return {"y": y_BSE.detach()} | gradients

    def items(self) -> float:
        return self.x_BSE.shape[0] * self.x_BSE.shape[1]

    def path_ran(self) -> str:
        return "eager"

    def program(self) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        return self.block, (self.x_BSE,)
