"""A small decoder as a program: compiled for the lengths that really come, exported, packaged, sent out of Python.

Shapes: B batch, S sequence, E width, H heads, D = E / H, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from workloads.contract import Workload

VOCABULARY = 1024
#: Lengths of prompts as they come, one after the other: drawn once from a log-normal distribution (median 80, sigma 1)
#: and frozen, with what traffic also has put among them: repeats, one and two tokens, the longest that the model takes.
#: 18 differ, which is more than torch compiles of one function (8).
LENGTHS = (87, 52, 118, 53, 1, 37, 109, 87, 174, 512, 83, 146, 41, 52, 28, 142, 2, 297, 80, 18)


class Layer(nn.Module):
    """Pre-norm causal attention and a GELU MLP, biases everywhere."""

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


class Decoder(nn.Module):
    """Tokens in, logits of the last position out."""

    def __init__(self, width: int, heads: int, layers: int, longest: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(longest, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens_BS: torch.Tensor) -> torch.Tensor:
        places_S = torch.arange(tokens_BS.shape[1], device=tokens_BS.device)
        x_BSE = self.tokens(tokens_BS) + self.positions(places_S)
        for layer in self.layers:
            x_BSE = layer(x_BSE)
        return self.head(self.norm(x_BSE[:, -1]))


class ExportedDecoder(Workload):
    """A token decoder, compiled: over a distribution of lengths, and as a program that leaves Python."""

    item = "tokens"
    parameters = {
        "dtype": {"default": "float32", "choices": ["float32", "bfloat16"], "doc": "of weights and activations"},
        "batch": {"default": 1, "doc": "sequences a step"},
        "seq": {"default": 512, "doc": "tokens of a sequence in a timed step, at most the longest"},
        "width": {"default": 256, "doc": "embedding width"},
        "heads": {"default": 4, "doc": "attention heads; divides the width"},
        "layers": {"default": 2, "doc": "decoder layers"},
        "longest": {"default": 512, "doc": "rows of the position table: the longest prompt that the model takes"},
        "lengths": {"default": 20, "doc": "over how many lengths, as they come, the program is compiled"},
    }
    paths = {"compiled": "the decoder under torch.compile, with its defaults"}
    cases = {
        "infer-small": {
            "suites": ["smoke"],
            "parameters": {"seq": 128, "width": 64, "heads": 2, "layers": 1, "lengths": 4},
        },
        "infer-fp32": {"suites": ["standard"], "packages": True, "production_shape": True},
        "infer-long-fp32": {
            "suites": ["full"],
            "parameters": {"seq": 2048, "longest": 2048, "width": 768, "heads": 12, "layers": 4},
            "packages": True,
            "production_shape": True,
        },
    }
    compiles = True
    exports = True

    def setup(self, p: SimpleNamespace, path: str, device: torch.device) -> None:
        self.longest, self.lengths = p.longest, LENGTHS[: p.lengths]
        self.decoder = Decoder(p.width, p.heads, p.layers, p.longest).eval().requires_grad_(False)
        self.decoder = self.decoder.to(device=device, dtype=getattr(torch, p.dtype))
        self.tokens_BS = torch.randint(VOCABULARY, (p.batch, p.seq)).to(device)
        self.drawn_BS = torch.randint(VOCABULARY, (p.batch, 2 * p.longest)).to(device)
        self.run = torch.compile(self.decoder)

    def step(self) -> Mapping[str, torch.Tensor]:
        with torch.no_grad():
            return {"y": self.run(self.tokens_BS)}

    def items(self) -> float:
        return self.tokens_BS.shape[0] * self.tokens_BS.shape[1]

    def path_ran(self) -> str:
        return self.compiled_ran()

    def to_oracle(self) -> None:
        self.run = self.decoder = self.decoder.double()

    def program(self) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        return self.decoder, (self.tokens_BS,)

    def shapes(self) -> Sequence[tuple[torch.Tensor, ...]]:
        return [(self.drawn_BS[:, :length].contiguous(),) for length in self.lengths]

    def dynamic_shapes(self) -> Any:
        return ({1: torch.export.Dim("length", min=1, max=self.longest)},)

    def wrong_inputs(self) -> Mapping[str, tuple[torch.Tensor, ...]]:
        beyond_BS = self.tokens_BS.clone()
        beyond_BS[0, 0] = VOCABULARY
        return {
            "wrong dtype": (self.tokens_BS.int(),),
            "token out of range": (beyond_BS,),
            "longer than exported": (self.drawn_BS,),
        }
