"""The last layer of a language model and its loss: Linear + CrossEntropyLoss beside `nn.LinearCrossEntropyLoss`.

Shapes: N tokens, H hidden, V vocabulary. The class is new in 2.13; with its defaults it saves no memory, with chunking
it does and is slower on the CPU, so the two are different paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import torch
from torch import nn

from workloads.contract import Unsupported, Workload


class LinearCrossEntropy(Workload):
    """Logits, loss and gradients of the output layer, forward and backward."""

    item = "tokens"
    parameters = {
        "dtype": {"default": "float32", "choices": ["float32", "bfloat16"], "doc": "of hidden states and weights"},
        "tokens": {"default": 64, "doc": "tokens a step, N"},
        "hidden": {"default": 128, "doc": "hidden width, H"},
        "vocab": {"default": 4096, "doc": "vocabulary, V"},
        "bias": {"default": True, "doc": "whether the layer has a bias"},
        "batch_chunk_size": {"default": 32, "doc": "tokens of a chunk, path lce-chunked only"},
    }
    paths = {
        "linear+cross_entropy": "nn.Linear, then nn.CrossEntropyLoss",
        "lce": {"doc": "nn.LinearCrossEntropyLoss with its defaults", "needs": "2.13"},
        "lce-chunked": {"doc": "nn.LinearCrossEntropyLoss with batch_chunk_size", "needs": "2.13"},
    }
    cases = {
        "train-fp32": {"suites": ["smoke", "standard"], "parameters": {"dtype": "float32"}},
        "train-bf16": {"suites": ["standard"], "parameters": {"dtype": "bfloat16"}},
        "train-fp32-32k": {
            "suites": ["standard"],
            "parameters": {"dtype": "float32", "tokens": 256, "hidden": 256, "vocab": 32768, "batch_chunk_size": 64},
            "production_shape": True,
        },
    }

    def setup(self, p: SimpleNamespace, path: str, device: torch.device) -> None:
        dtype = getattr(torch, p.dtype)
        hidden_NH = torch.randn(p.tokens, p.hidden)
        weight_VH = torch.randn(p.vocab, p.hidden) / p.hidden**0.5
        bias_V = torch.randn(p.vocab)
        self.target_N = torch.randint(p.vocab, (p.tokens,)).to(device)
        self.hidden_NH = hidden_NH.to(device=device, dtype=dtype).requires_grad_()
        if path == "linear+cross_entropy":
            self.linear = nn.Linear(p.hidden, p.vocab, bias=p.bias, device=device, dtype=dtype)
            self.loss = nn.CrossEntropyLoss()
            layer = self.linear
        else:
            if not hasattr(nn, "LinearCrossEntropyLoss"):
                raise Unsupported(f"torch {torch.__version__} has no nn.LinearCrossEntropyLoss; it is new in 2.13")
            chunked = path == "lce-chunked"
            options = nn.LinearCrossEntropyOptions(batch_chunk_size=p.batch_chunk_size) if chunked else None
            self.linear = None
            self.loss = nn.LinearCrossEntropyLoss(
                p.hidden, p.vocab, bias=p.bias, options=options, device=device, dtype=dtype
            )
            layer = self.loss.linear
        with torch.no_grad():
            layer.weight.copy_(weight_VH)
            if p.bias:
                layer.bias.copy_(bias_V)
        self.path = path

    def step(self) -> Mapping[str, torch.Tensor]:
        layer = self.linear if self.linear is not None else self.loss.linear
        layer.zero_grad(set_to_none=True)
        self.hidden_NH.grad = None
        value = self.loss(self.linear(self.hidden_NH) if self.linear is not None else self.hidden_NH, self.target_N)
        value.backward()
        gradients = {f"grad.{name}": weight.grad for name, weight in layer.named_parameters()}
        return {"loss": value.detach(), "grad.hidden": self.hidden_NH.grad} | gradients

    def items(self) -> float:
        return self.hidden_NH.shape[0]

    def path_ran(self) -> str:
        return self.path
