"""FlexAttention beside the SDPA path that it would replace: causal and sliding-window masks, forward.

Shapes: B batch, H heads, S sequence, D head dimension. Forward only: FlexAttention has no backward on the CPU and on
MPS in 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace

import torch
from torch.nn import functional as F

from workloads.contract import FellBack, Unsupported, Workload

#: Kernels of the unfused path, which materialises all scores: none may appear in a compiled FlexAttention.
UNFUSED = {"aten::bmm", "aten::softmax", "aten::_softmax", "aten::logsumexp"}


class FlexAttention(Workload):
    """Masked attention through SDPA (old) and through compiled FlexAttention (new)."""

    item = "tokens"
    parameters = {
        "mask": {"default": "causal", "choices": ["causal", "sliding_window"], "doc": "which keys a query sees"},
        "window": {"default": 64, "doc": "keys that a query sees back, sliding window only"},
        "dtype": {"default": "float32", "choices": ["float32", "bfloat16", "float16"], "doc": "of q, k and v"},
        "batch": {"default": 1, "doc": "sequences a step"},
        "heads": {"default": 2, "doc": "attention heads"},
        "seq": {"default": 512, "doc": "tokens of a sequence"},
        "head_dim": {"default": 64, "doc": "width of a head"},
    }
    paths = {
        "sdpa": "scaled_dot_product_attention: is_causal, or an explicit mask for the sliding window",
        "flex": "flex_attention under torch.compile with a block mask",
    }
    cases = {
        "sliding-window-fp32": {
            "suites": ["smoke", "standard"],
            "parameters": {"mask": "sliding_window", "dtype": "float32"},
        },
        "causal-fp32": {"suites": ["standard"], "parameters": {"mask": "causal", "dtype": "float32"}},
        "sliding-window-bf16": {
            "suites": ["standard"],
            "parameters": {"mask": "sliding_window", "dtype": "bfloat16", "seq": 256},
        },
        "sliding-window-8k-fp32": {
            "suites": ["standard"],
            "parameters": {"mask": "sliding_window", "dtype": "float32", "seq": 8192, "window": 256, "heads": 1},
            "production_shape": True,
        },
    }

    def setup(self, p: SimpleNamespace, path: str, device: torch.device) -> None:
        dtype = getattr(torch, p.dtype)
        shape = (p.batch, p.heads, p.seq, p.head_dim)
        self.q_BHSD, self.k_BHSD, self.v_BHSD = (torch.randn(shape).to(device=device, dtype=dtype) for _ in range(3))
        self.path = path
        self.causal = p.mask == "causal"
        if path == "sdpa":
            self.mask_SS = None if self.causal else _window_mask(p.seq, p.window).to(device)
            return
        try:
            from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        except ImportError as error:
            raise Unsupported(f"this torch has no FlexAttention: {error}") from error
        visible = _visible(None if self.causal else p.window)
        # Without a device create_block_mask asks for an accelerator that a CUDA build has not got here.
        self.block_mask = create_block_mask(visible, None, None, p.seq, p.seq, device=device)
        # A recompile limit that is hit falls back to the unfused path in silence; here it must raise.
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        self.attend = torch.compile(flex_attention, fullgraph=True, dynamic=False)

    def step(self) -> Mapping[str, torch.Tensor]:
        with torch.inference_mode():
            return {"y": self._attend()}

    def _attend(self) -> torch.Tensor:
        if self.path == "flex":
            return self.attend(self.q_BHSD, self.k_BHSD, self.v_BHSD, block_mask=self.block_mask)
        return F.scaled_dot_product_attention(
            self.q_BHSD, self.k_BHSD, self.v_BHSD, attn_mask=self.mask_SS, is_causal=self.causal
        )

    def items(self) -> float:
        return self.q_BHSD.shape[0] * self.q_BHSD.shape[2]

    def path_ran(self) -> str:
        if self.path != "flex":
            return "sdpa"
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU]) as trace:
            self.step()
        names = {event.key for event in trace.key_averages()}
        unfused = sorted(UNFUSED & names)
        if unfused or not any("CompiledFxGraph" in name for name in names):
            raise FellBack(f"FlexAttention ran unfused: the profile shows {', '.join(unfused) or 'no compiled graph'}")
        skipped = self.block_mask.sparsity()
        return f"flex, one compiled graph, {skipped:.0f} % of blocks skipped"


def _visible(window: int | None) -> Callable[..., torch.Tensor]:
    """Return the mask function: key at most at the query, and within ``window`` back where one is given."""

    def causal(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return q >= kv

    def sliding(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return (q >= kv) & (q - kv < window)

    return causal if window is None else sliding


def _window_mask(seq: int, window: int) -> torch.Tensor:
    """Return the same sliding window as a boolean matrix of shape (S, S), True where a key is seen."""
    q, kv = torch.arange(seq)[:, None], torch.arange(seq)[None, :]
    return (q >= kv) & (q - kv < window)
