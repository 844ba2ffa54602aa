"""FlexAttention beside the attention that it would replace: five masks, two score modifications, grouped-query heads.

Shapes: B batch, H query heads, K key and value heads, S sequence, D head dimension; R rows, some of the queries.
Every mask is written twice, as a function of positions for FlexAttention and as a matrix for the old path and its
reference: a mistake in one of the two is seen.
"""

from __future__ import annotations

import hashlib
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch.nn import functional as F

from workloads.contract import FellBack, Unsupported, Workload

#: Kernels of the unfused path, which materialises all scores: none may appear in a compiled FlexAttention.
UNFUSED = {"aten::bmm", "aten::softmax", "aten::_softmax", "aten::_safe_softmax", "aten::logsumexp"}
#: How lowering says that it has no kernel for what was asked: under a crash's name, an answer all the same.
REFUSED = ("NotImplementedError: ", "BACKEND='FLASH' but flash attention cannot be used")
#: What MPS says when it copies to the CPU and back (TORCH.md 11).
COPIED = "will fall back to run on the CPU"
#: Rows of a mask or a bias that are written at once.
ROWS = 1024
#: Scores of the reference that are held at once; a chunk takes some five times that (softmax, gradients).
SCORES_BYTES = 2**28
#: The drill materialises all scores: longer sequences are cut to this.
DRILL_TOKENS = 2048
#: Backward passes that are compared bit for bit on CUDA; flash-attention#2244 differed in 29 of 30.
REPEATS = 30
#: Steps over which memory may not grow on a device, and how long they may take.
GROWTH_STEPS, GROWTH_S = 200, 120.0


class FlexAttention(Workload):
    """Masked attention: SDPA or by hand (old), and compiled FlexAttention (new)."""

    item = "tokens"
    parameters = {
        "mode": {"default": "infer", "choices": ["infer", "train"], "doc": "forward, or forward and backward"},
        "mask": {
            "default": "causal",
            "choices": ["causal", "sliding_window", "block_sparse", "document", "prefix_lm"],
            "doc": "which keys a query sees; all but prefix_lm look back only",
        },
        "score": {
            "default": "none",
            "choices": ["none", "alibi", "soft_cap"],
            "doc": "what is done to a score before the softmax",
        },
        "old": {
            "default": "mask",
            "choices": ["mask", "is_causal", "by_hand"],
            "doc": "the old path: SDPA with an explicit mask or bias, SDPA's own causal path, or matmuls and softmax",
        },
        "backend": {
            "default": "AUTO",
            "choices": ["AUTO", "TRITON", "TRITON_DECODE"],
            "doc": "kernel_options BACKEND of the path flex; CUDA and ROCm only",
        },
        "deterministic": {"default": False, "doc": "under torch.use_deterministic_algorithms(True)"},
        "window": {"default": 64, "doc": "keys that a query sees back, itself included; sliding_window only"},
        "block": {"default": 128, "doc": "tokens of a block; block_sparse only"},
        "stride": {"default": 8, "doc": "every how many blocks all later queries see one; block_sparse only"},
        "documents": {"default": 6, "doc": "documents of random length in a sequence; document only"},
        "prefix": {"default": 128, "doc": "tokens at the front that every query sees; prefix_lm only"},
        "cap": {"default": 2.0, "doc": "scores end within this, by tanh: they are of size 1; soft_cap only"},
        "dtype": {"default": "float32", "choices": ["float32", "bfloat16", "float16"], "doc": "of q, k and v"},
        "batch": {"default": 1, "doc": "sequences a step"},
        "heads": {"default": 2, "doc": "query heads"},
        "kv_heads": {"default": 0, "doc": "key and value heads; 0: as many as query heads"},
        "seq": {"default": 512, "doc": "tokens of a sequence"},
        "head_dim": {"default": 64, "doc": "width of a head"},
    }
    paths = {
        "old": "what it would replace, by the parameter old: scaled_dot_product_attention, or by hand",
        "flex": "flex_attention under torch.compile with a block mask",
    }
    cases = {
        "sliding-window-fp32": {
            "suites": ["smoke", "standard"],
            "parameters": {"mask": "sliding_window", "dtype": "float32"},
        },
        "document-alibi-gqa-fp32": {
            "suites": ["standard"],
            "parameters": {"mask": "document", "score": "alibi", "kv_heads": 1, "seq": 300},
        },
        "causal-gqa-bf16": {
            "suites": ["standard"],
            "parameters": {"old": "is_causal", "dtype": "bfloat16", "heads": 8, "kv_heads": 2, "seq": 1000},
        },
        "block-sparse-fp32": {"suites": ["standard"], "parameters": {"mask": "block_sparse", "seq": 2048}},
        "prefix-lm-soft-cap-fp16": {
            "suites": ["standard"],
            "parameters": {"mask": "prefix_lm", "score": "soft_cap", "old": "by_hand", "dtype": "float16"},
        },
        "causal-train-fp32": {"suites": ["standard"], "parameters": {"mode": "train", "old": "is_causal"}},
        "sliding-window-8k-fp32": {
            "suites": ["standard"],
            "parameters": {"mask": "sliding_window", "dtype": "float32", "seq": 8192, "window": 256, "heads": 1},
            "production_shape": True,
        },
        # The rest is as long as what is served and trained. The first two are the shapes of the release's claim.
        "sliding-window-32k-bf16": {
            "suites": ["full"],
            "parameters": {"mask": "sliding_window", "window": 256, "dtype": "bfloat16", "heads": 8, "seq": 32768},
        },
        "sliding-window-8k-bf16": {
            "suites": ["full"],
            "parameters": {"mask": "sliding_window", "window": 64, "dtype": "bfloat16", "heads": 8, "seq": 8192},
        },
        "causal-8k-gqa-bf16": {
            "suites": ["full"],
            "parameters": {"old": "is_causal", "dtype": "bfloat16", "heads": 8, "kv_heads": 2, "seq": 8192},
        },
        "causal-mask-8k-fp16": {"suites": ["full"], "parameters": {"dtype": "float16", "heads": 8, "seq": 8192}},
        "block-sparse-32k-fp16": {
            "suites": ["full"],
            "parameters": {"mask": "block_sparse", "stride": 16, "dtype": "float16", "seq": 32768},
        },
        "document-16k-train-bf16": {
            "suites": ["full"],
            "parameters": {
                "mode": "train",
                "mask": "document",
                "documents": 24,
                "dtype": "bfloat16",
                "heads": 4,
                "kv_heads": 2,
                "seq": 16384,
            },
        },
        "prefix-lm-alibi-8k-bf16": {
            "suites": ["full"],
            "parameters": {
                "mask": "prefix_lm",
                "prefix": 1024,
                "score": "alibi",
                "dtype": "bfloat16",
                "heads": 8,
                "seq": 8192,
            },
        },
        "causal-soft-cap-8k-train-bf16": {
            "suites": ["full"],
            "parameters": {
                "mode": "train",
                "score": "soft_cap",
                "old": "by_hand",
                "dtype": "bfloat16",
                "heads": 4,
                "seq": 8192,
            },
        },
        "causal-8k-train-deterministic-bf16": {
            "suites": ["full"],
            "parameters": {
                "mode": "train",
                "old": "is_causal",
                "deterministic": True,
                "dtype": "bfloat16",
                "heads": 8,
                "seq": 8192,
            },
        },
    }

    #: Paths that go through flex_attention, with the BACKEND that they ask for; empty: the parameter's.
    flex_paths: ClassVar[Mapping[str, str]] = {"flex": ""}

    # -- set-up ----------------------------------------------------------------------------------------------------

    def setup(self, p: SimpleNamespace, path: str, device: torch.device) -> None:
        # A workload that builds on this one declares the parameters that it needs.
        p = SimpleNamespace(**{name: entry["default"] for name, entry in FlexAttention.parameters.items()} | vars(p))
        _check(p)
        if p.deterministic:
            # cuBLAS repeats its bits only with a workspace of fixed size.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(p.deterministic)
        self.p, self.path, self.device = p, path, device
        self.groups = p.heads // (p.kv_heads or p.heads)
        heads = {"q": p.heads, "k": p.heads // self.groups, "v": p.heads // self.groups, "out": p.heads}
        drawn = {name: torch.randn(p.batch, count, p.seq, p.head_dim) for name, count in heads.items()}
        self.cuts = sorted({0, p.seq, *(int(cut) for cut in torch.randint(1, p.seq, (p.documents - 1,)))})
        dtype = getattr(torch, p.dtype)
        self.q_BHSD, self.k_BKSD, self.v_BKSD, self.grad_BHSD = (
            x.to(device=device, dtype=dtype) for x in drawn.values()
        )
        for leaf in self._leaves():
            leaf.requires_grad_(p.mode == "train")
        self.mask = self._matrix() if path == "old" and p.old != "is_causal" else None
        if path in self.flex_paths:
            self.backend = self.flex_paths[path] or p.backend
            self.require()
            self._compile()

    def require(self) -> None:
        """Raise Unsupported where what the path needs is not there."""

    def _leaves(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.q_BHSD, self.k_BKSD, self.v_BKSD

    def _matrix(self) -> torch.Tensor:
        """Return the explicit mask (S, S), True where a key is seen, or with ALiBi the bias (1, H, S, S), in q's dtype.

        Without its first dimension the bias takes SDPA's math kernel on the CPU, twice as slow.
        """
        p, biased = self.p, self.p.score == "alibi"
        kind = self.q_BHSD.dtype if biased else torch.bool
        matrix = torch.empty((p.heads, p.seq, p.seq) if biased else (p.seq, p.seq), dtype=kind, device=self.device)
        for first in range(0, p.seq, ROWS):
            last = min(first + ROWS, p.seq)
            seen_RS = seen(p, self.cuts, first, last)
            if biased:
                bias_HRS = _distances(first, last, 0, p.seq) * _slopes(p.heads)[:, None, None]
                matrix[:, first:last] = bias_HRS.masked_fill(~seen_RS, -torch.inf).to(self.device)
            else:
                matrix[first:last] = seen_RS.to(self.device)
        return matrix[None] if biased else matrix

    def _compile(self) -> None:
        try:
            from torch.nn.attention.flex_attention import flex_attention
        except ImportError as error:
            raise Unsupported(f"this torch has no FlexAttention: {error}") from error
        if self.device.type == "mps" and os.environ.get("PYTORCH_ENABLE_MPS_FALLBACK", "0") != "0":
            raise Unsupported("PYTORCH_ENABLE_MPS_FALLBACK is set: what MPS lacks would run on the CPU; unset it")
        if self.device.type != "cuda":
            # What the arguments are checked for comes before anything compiles: these are the library's own words.
            # Compiled, the same refusal reads "Observed exception". CUDA refuses nothing that is asked here.
            try:
                if self.p.mode == "train" or self.device.type == "mps":
                    flex_attention(
                        *(leaf.detach()[..., :1, :].requires_grad_(leaf.requires_grad) for leaf in self._kv())
                    )
            except (NotImplementedError, ValueError) as error:
                raise _unsupported(str(error).partition("\n")[0]) from error
        self._block_mask()
        self.score_mod = _score_mod(self.p, self.device)
        self.options = None if self.backend == "AUTO" else {"BACKEND": self.backend}
        # A recompile limit that is hit falls back to the unfused path in silence; here it must raise.
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        self.flex = torch.compile(flex_attention, fullgraph=True, dynamic=False)

    def _kv(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q, k and v with as many query heads as the others have."""
        q_BHSD, k_BKSD, v_BKSD = self._leaves()
        return q_BHSD[:, : k_BKSD.shape[1]], k_BKSD, v_BKSD

    def _block_mask(self) -> None:
        from torch.nn.attention.flex_attention import create_block_mask

        p = self.p
        # Without a device create_block_mask asks for an accelerator that a CUDA build has not got here. Only FLASH
        # wants to know in which order gradients are written, and only torch from 2.13 on can tell it.
        order = p.deterministic and self.backend == "FLASH" and torch.__version__ >= "2.13"
        self.block_mask = create_block_mask(
            _mask_mod(p, self.cuts, self.device),
            None,
            None,
            p.seq,
            p.seq,
            device=self.device,
            **({"compute_dq_write_order": True} if order else {}),
        )

    def to_oracle(self) -> None:
        self.mask = None
        super().to_oracle()
        self.path = "oracle"

    # -- a step ----------------------------------------------------------------------------------------------------

    def step(self) -> Mapping[str, torch.Tensor]:
        if self.path == "oracle":
            return self._reference()
        try:
            if self.p.mode == "infer":
                with torch.inference_mode():
                    return {"y": self.attend()}
            for leaf in self._leaves():
                leaf.grad = None
            y_BHSD = self.attend()
            y_BHSD.backward(self.grad_BHSD)
        except RuntimeError as error:
            # Lowering refuses what a platform has no kernel for, under other names in other releases.
            words = str(error).partition("\n")[0]
            if isinstance(error, NotImplementedError) or any(mark in words for mark in REFUSED):
                raise _unsupported(words.rpartition("Error: ")[2]) from error
            raise
        return {"y": y_BHSD.detach()} | self._gradients()

    def _gradients(self) -> dict[str, Any]:
        return {f"grad.{name}": leaf.grad for name, leaf in zip("qkv", self._leaves(), strict=True)}

    def attend(self) -> torch.Tensor:
        """Return the attention of q, k and v; the place for a path of another's own."""
        q_BHSD, k_BKSD, v_BKSD = self._leaves()
        if self.path in self.flex_paths:
            return self.flex(
                q_BHSD,
                k_BKSD,
                v_BKSD,
                score_mod=self.score_mod,
                block_mask=self.block_mask,
                enable_gqa=self.groups > 1,
                kernel_options=self.options,
            )
        if self.p.old == "by_hand":
            return self._by_hand()
        return F.scaled_dot_product_attention(
            q_BHSD,
            k_BKSD,
            v_BKSD,
            attn_mask=self.mask,
            is_causal=self.p.old == "is_causal",
            enable_gqa=self.groups > 1,
        )

    def _by_hand(self) -> torch.Tensor:
        q_BHSD, k_BKSD, v_BKSD = self._leaves()
        k_BHSD, v_BHSD = (x.repeat_interleave(self.groups, 1) for x in (k_BKSD, v_BKSD))
        scores = q_BHSD @ k_BHSD.transpose(-1, -2) * self.p.head_dim**-0.5
        if self.p.score == "soft_cap":
            scores = self.p.cap * torch.tanh(scores / self.p.cap)
        biased = self.p.score == "alibi"
        scores = scores + self.mask if biased else scores.masked_fill(~self.mask, -torch.inf)
        return torch.softmax(scores, -1) @ v_BHSD

    def _reference(self) -> dict[str, torch.Tensor]:
        """Return the same outputs in float64, in chunks of queries, with keys from the first to the last seen.

        All scores of 8 heads at 32k would be 64 GiB.
        """
        p = self.p
        rows = max(1, SCORES_BYTES // (8 * p.batch * p.heads * p.seq))
        y_BHSD = torch.empty_like(self.q_BHSD, requires_grad=False)
        grads = {
            name: torch.zeros_like(leaf, requires_grad=False) for name, leaf in zip("qkv", self._leaves(), strict=True)
        }
        for first in range(0, p.seq, rows):
            last = min(first + rows, p.seq)
            seen_RS = seen(p, self.cuts, first, last)
            columns = seen_RS.any(0).nonzero()
            begin, end = int(columns[0]), int(columns[-1]) + 1
            q, k, v = leaves = [
                x.detach()[:, :, a:b].requires_grad_(x.requires_grad)
                for x, a, b in zip(self._leaves(), (first, begin, begin), (last, end, end), strict=True)
            ]
            scores = q @ k.repeat_interleave(self.groups, 1).transpose(-1, -2) * p.head_dim**-0.5
            if p.score == "soft_cap":
                scores = p.cap * torch.tanh(scores / p.cap)
            if p.score == "alibi":
                scores = scores + _distances(first, last, begin, end).double() * _slopes(p.heads)[:, None, None]
            weights = torch.softmax(scores.masked_fill(~seen_RS[:, begin:end], -torch.inf), -1)
            part = weights @ v.repeat_interleave(self.groups, 1)
            y_BHSD[:, :, first:last] = part.detach()
            if p.mode == "train":
                part.backward(self.grad_BHSD[:, :, first:last])
                for name, leaf, a, b in zip("qkv", leaves, (first, begin, begin), (last, end, end), strict=True):
                    grads[name][:, :, a:b] += leaf.grad
        return {"y": y_BHSD} | ({f"grad.{name}": grad for name, grad in grads.items()} if p.mode == "train" else {})

    def items(self) -> float:
        return self.p.batch * self.p.seq

    # -- what ran --------------------------------------------------------------------------------------------------

    def path_ran(self) -> str:
        host, device, compiled = self._profiled()
        if self.path not in self.flex_paths and self.path != "old":
            return self.path
        if self.path == "old":
            kernels = sorted(
                name.removeprefix("aten::") for name in host if name.startswith("aten::_scaled_dot_product")
            )
            if self.p.old == "by_hand":
                return "old: matmul and softmax by hand"
            told = "is_causal" if self.p.old == "is_causal" else "an explicit mask"
            return f"old: sdpa with {told}, {', '.join(kernels) or 'no kernel of its own'}"
        unfused = sorted(UNFUSED & host)
        if unfused or not any("CompiledFxGraph" in name for name in host):
            raise FellBack(f"FlexAttention ran unfused: the profile shows {', '.join(unfused) or 'no compiled graph'}")
        ran = _kernel_of(self.device.type, device if self.device.type == "cuda" else compiled)
        if ran is None:
            raise FellBack("the compiled graph called no FlexAttention kernel")
        if self.backend not in ("AUTO", ran):
            raise FellBack(f"BACKEND='{self.backend}' was asked for; {ran} ran")
        computed, blocks, _ = self._blocks()
        return f"{self.path}, one compiled graph, {ran}, {1 - computed / blocks:.0%} of blocks skipped"

    def _profiled(self) -> tuple[set[str], set[str], list[str]]:
        """Return what a step runs: the host's operators, the device's kernels, and what compiled graphs call.

        Raises FellBack where MPS says that it went to the CPU.
        """
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (self.device.type == "cuda")
        # What is compiled, tuned or copied once is done before.
        self.step()
        compiled: list[str] = []
        with _told() as said, _watched(compiled), profile(activities=activities) as trace:
            self.step()
            if self.device.type == "cuda":
                torch.cuda.synchronize()
        if said:
            raise FellBack(f"{len(said)} operators ran on the CPU: {'; '.join(said)[:300]}")
        on_host: set[str] = set()
        on_device: set[str] = set()
        for event in trace.key_averages():
            (on_device if str(event.device_type).endswith("CUDA") else on_host).add(event.key)
        return on_host, on_device, compiled

    def _blocks(self) -> tuple[int, int, int]:
        """Return how many blocks are computed, how many there are, and how many are computed without the mask."""
        mask = self.block_mask
        full = 0 if mask.full_kv_num_blocks is None else int(mask.full_kv_num_blocks.sum())
        heads = mask.kv_num_blocks.numel() // mask.kv_num_blocks.shape[-1]
        rows, columns = (-(-self.p.seq // size) for size in mask.BLOCK_SIZE)
        return int(mask.kv_num_blocks.sum()) + full, heads * rows * columns, full

    def facts(self) -> Mapping[str, str | float | bool]:
        found: dict[str, str | float | bool] = {}
        if self.path in self.flex_paths:
            computed, blocks, full = self._blocks()
            found["blocks skipped"] = 1 - computed / blocks
            found["block-sparse"] = f"yes, {blocks - computed} of {blocks} blocks are skipped, {full} need no mask"
            if computed == blocks:
                found["block-sparse"] = f"no: all {blocks} blocks are computed, the mask saves nothing"
            found["kernel asked for"] = f"BACKEND={self.backend}"
            if self.device.type == "cpu":
                # TORCH.md 3.1: a typo runs too.
                found["kernel options"] = "not looked at on the CPU: the C++ template runs whatever they say"
        if self.device.type == "cuda" and self.p.mode == "train":
            found |= repeats(self.step)
        if self.path in self.flex_paths and self.device.type in ("mps", "cuda"):
            found |= growth(self.step, self.device.type)
        if self.device.type == "mps":
            with _told() as said:
                self.step()
            found["operators that ran on the CPU"] = len(said)
        return found

    def switch_off(self) -> str:
        how = "torch.compiler.set_stance('force_eager')"
        if self.p.seq > DRILL_TOKENS:
            self.p = SimpleNamespace(**vars(self.p) | {"seq": DRILL_TOKENS})
            self.cuts = sorted({cut for cut in self.cuts if cut < DRILL_TOKENS} | {DRILL_TOKENS})
            self.q_BHSD, self.k_BKSD, self.v_BKSD, self.grad_BHSD = (
                x.detach()[:, :, :DRILL_TOKENS].contiguous().requires_grad_(x.requires_grad)
                for x in (*self._leaves(), self.grad_BHSD)
            )
            self._block_mask()
            how += f", on the first {DRILL_TOKENS} tokens"
        torch.compiler.set_stance("force_eager")
        return how


# -- refusals -------------------------------------------------------------------------------------------------------


def _check(p: SimpleNamespace) -> None:
    """Raise Unsupported where the old path cannot say what is asked."""
    if p.old == "is_causal" and (p.mask, p.score) != ("causal", "none"):
        raise Unsupported(
            f"is_causal is the causal mask alone; old = 'mask' or 'by_hand' for {p.mask}, score {p.score}"
        )
    if p.old == "mask" and p.score == "soft_cap":
        raise Unsupported("scaled_dot_product_attention has no soft-cap; old = 'by_hand'")
    if p.kv_heads and p.heads % p.kv_heads:
        raise Unsupported(f"{p.heads} query heads are no multiple of {p.kv_heads} key and value heads")


def _unsupported(words: str) -> Unsupported:
    return Unsupported(f"torch {torch.__version__}: {words}")


# -- masks, as functions of positions -------------------------------------------------------------------------------


def _mask_mod(p: SimpleNamespace, cuts: list[int], device: torch.device) -> Callable[..., torch.Tensor]:
    """Return the mask as FlexAttention takes it.

    Arithmetic is done on the positions of one side alone: at 32k a matrix of integers would be 8 GiB, one of truth
    values is 1 GiB.
    """
    window, block, stride, prefix = p.window, p.block, p.stride, p.prefix
    document_S = torch.bucketize(torch.arange(p.seq), torch.tensor(cuts[1:]), right=True).to(device)

    def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return q >= kv

    def sliding_window(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q >= kv) & (kv > q - window)

    def block_sparse(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q >= kv) & ((q // block == kv // block) | (kv // block % stride == 0))

    def document(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q >= kv) & (document_S[q] == document_S[kv])

    def prefix_lm(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q >= kv) | (kv < prefix)

    masks = (causal, sliding_window, block_sparse, document, prefix_lm)
    return next(mask for mask in masks if mask.__name__ == p.mask)


def _score_mod(p: SimpleNamespace, device: torch.device) -> Callable[..., torch.Tensor] | None:
    """Return what FlexAttention does to a score."""
    cap, slopes_H = p.cap, _slopes(p.heads).to(device)

    def alibi(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + slopes_H[h] * (kv - q)

    def soft_cap(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return cap * torch.tanh(score / cap)

    return {"none": None, "alibi": alibi, "soft_cap": soft_cap}[p.score]


# -- masks, as matrices ---------------------------------------------------------------------------------------------


def seen(p: SimpleNamespace, cuts: list[int], first: int, last: int) -> torch.Tensor:
    """Return rows ``first`` to ``last`` of the mask as a matrix (R, S), True where a key is seen."""
    back_RS = torch.ones(last - first, p.seq, dtype=torch.bool).tril(first)
    if p.mask == "causal":
        return back_RS
    if p.mask == "sliding_window":
        return back_RS.triu(first - p.window + 1)
    if p.mask == "prefix_lm":
        back_RS[:, : p.prefix] = True
        return back_RS
    edges = cuts if p.mask == "document" else [*range(0, p.seq, p.block), p.seq]
    together_RS = torch.zeros_like(back_RS)
    for begin, end in pairwise(edges):
        together_RS[max(begin - first, 0) : max(end - first, 0), begin:end] = True
    if p.mask == "block_sparse":
        for begin in range(0, p.seq, p.block * p.stride):
            together_RS[:, begin : begin + p.block] = True
    return back_RS & together_RS


def _distances(first: int, last: int, begin: int, end: int) -> torch.Tensor:
    """Return how far each key from ``begin`` to ``end`` is after each query from ``first`` to ``last``: (R, keys)."""
    return (torch.arange(begin, end)[None, :] - torch.arange(first, last)[:, None]).float()


def _slopes(heads: int) -> torch.Tensor:
    """Return ALiBi's slopes, a geometric series that ends at 1/256 (arXiv:2108.12409)."""
    return 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)


# -- proof ----------------------------------------------------------------------------------------------------------


@contextmanager
def _watched(called: list[str]) -> Iterator[None]:
    """Note in ``called`` the FlexAttention kernels that compiled graphs call on the CPU and on MPS, in this block.

    Neither shows in a profile, which has one row for a whole graph. So the names in the modules that Inductor has
    loaded are lent to callables that note them.
    """

    class Announced:
        def __init__(self, kernel: Any, name: str) -> None:
            self.kernel, self.name = kernel, name

        def __call__(self, *given: Any, **named: Any) -> Any:
            called.append(self.name)
            return self.kernel(*given, **named)

        def __getattr__(self, method: str) -> Any:
            # A Metal library is no callable: its functions are.
            return Announced(getattr(self.kernel, method), self.name)

    cache = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
    lent = [
        (vars(module), name, kernel)
        for module in {id(module): module for module in getattr(cache, "modules", ())}.values()
        for name, kernel in list(vars(module).items())
        if name.startswith("_mps_flex_lib") or (name.startswith("cpp_") and "flex_attention" in name)
    ]
    for names, name, kernel in lent:
        names[name] = Announced(kernel, name)
    try:
        yield
    finally:
        for names, name, kernel in lent:
            names[name] = kernel


@contextmanager
def _told() -> Iterator[list[str]]:
    """Collect what MPS says of operators that it copies to the CPU; only the first of a process would be told else."""
    said: list[str] = []
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield said
    finally:
        torch.set_warn_always(always)
    said += sorted({str(warning.message) for warning in caught if COPIED in str(warning.message)})


def _kernel_of(device: str, kernels: set[str] | list[str]) -> str | None:
    """Return which of its kernels FlexAttention ran, by their names; None where it ran none."""
    if device == "cuda":
        marks = {"flex_decoding": "TRITON_DECODE", "flex_attention": "TRITON", "cutlass": "FLASH", "flash": "FLASH"}
        return next((kernel for mark, kernel in marks.items() if any(mark in name for name in kernels)), None)
    if not kernels:
        return None
    return "a Metal kernel" if device == "mps" else "the C++ template"


def repeats(step: Callable[[], Mapping[str, torch.Tensor]]) -> dict[str, str | float | bool]:
    """Return whether ``REPEATS`` steps give the same bits in every output, and which of them do not."""
    digests: dict[str, set[str]] = {}
    for _ in range(REPEATS):
        for name, value in step().items():
            bits = value.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes()
            digests.setdefault(name, set()).add(hashlib.sha256(bits).hexdigest())
    differ = [f"{name}: {len(found)} results" for name, found in digests.items() if len(found) > 1]
    return {"backward repeats bitwise": "; ".join(differ) + f" in {REPEATS} steps" if differ else True}


def growth(step: Callable[[], Mapping[str, torch.Tensor]], device: str) -> dict[str, str | float | bool]:
    """Return by how much memory grows over ``GROWTH_STEPS`` steps: the device's, and the process's peak."""
    held = torch.cuda.memory_reserved if device == "cuda" else torch.mps.driver_allocated_memory
    synchronise = torch.cuda.synchronize if device == "cuda" else torch.mps.synchronize
    step()
    synchronise()
    before, peak, deadline, steps = held(), _peak_bytes(), time.monotonic() + GROWTH_S, 0
    while steps < GROWTH_STEPS and time.monotonic() < deadline:
        step()
        synchronise()
        steps += 1
    grown = f" growth over {steps} steps (bytes)"
    return {f"device memory{grown}": held() - before, f"process peak{grown}": _peak_bytes() - peak}


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
