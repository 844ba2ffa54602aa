"""A small decoder language model at the work that is the same every day: training steps, prefill and decoding.

Shapes: B batch, S sequence, V vocabulary, E width, H heads, D = E / H, C positions of the cache.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from workloads.contract import FellBack, Workload

#: Steps of a short training without putting anything back, for the loss that they lead to.
LOSS_STEPS = 20
#: What AdamW has behind it when the timed step begins: moments at rest, not at zero, where its step is the gradient's
#: sign alone and a gradient that is wrong by a factor moves nothing.
STEPS_BEHIND = 100
GRADIENT = 1e-3
LEARNING_RATE = 1e-3
#: Steps whose restoring is timed for the facts.
TIMED_STEPS = 5


class Decoder(Workload):
    """Training steps, prefill and decoding with a KV cache of a small decoder, eager and compiled."""

    item = "tokens"
    parameters = {
        "mode": {
            "default": "train",
            "choices": ["train", "prefill", "decode"],
            "doc": "an optimizer's step, a prompt read into the cache, or tokens decoded after one",
        },
        "dtype": {"default": "float32", "choices": ["float32", "bfloat16"], "doc": "of weights and activations"},
        "autocast": {"default": False, "doc": "whether bfloat16 autocast is on in the forward pass"},
        "checkpointing": {"default": False, "doc": "whether blocks compute their activations again, mode train"},
        "accumulate": {"default": 2, "doc": "micro-batches whose gradients make one optimizer's step, mode train"},
        "batch": {"default": 2, "doc": "sequences of a micro-batch or of a prompt"},
        "seq": {"default": 32, "doc": "tokens of a sequence or of a prompt"},
        "new_tokens": {"default": 12, "doc": "tokens that a step decodes for each sequence, mode decode"},
        "vocab": {"default": 512, "doc": "vocabulary"},
        "width": {"default": 64, "doc": "embedding width"},
        "heads": {"default": 4, "doc": "attention heads; divides the width"},
        "layers": {"default": 1, "doc": "blocks"},
    }
    paths = {
        "eager": "as written",
        "compiled": "the model under torch.compile, one full graph; the optimizer stays eager",
    }
    cases = {
        "train-fp32": {"suites": ["standard", "full"], "parameters": {"mode": "train", "seq": 64}},
        "decode-fp32": {"suites": ["smoke", "standard", "full"], "parameters": {"mode": "decode"}},
        "prefill-fp32": {"suites": ["full"], "parameters": {"mode": "prefill", "seq": 128, "layers": 2}},
        "train-autocast-checkpointing": {
            "suites": ["standard", "full"],
            "parameters": {"mode": "train", "autocast": True, "checkpointing": True, "layers": 2},
        },
        "decode-bf16-production": {
            "suites": ["standard", "full"],
            "parameters": {
                "mode": "decode",
                "dtype": "bfloat16",
                "batch": 1,
                "seq": 512,
                "new_tokens": 4,
                "vocab": 8192,
                "width": 512,
                "heads": 8,
                "layers": 4,
            },
            "production_shape": True,
        },
        # The depth and width of GPT-2, at steps of seconds on a CPU core. No production shapes, though they are some: a
        # suite without them, the standard one, could not adopt anything.
        "gpt2-train-fp32": {
            "suites": ["full"],
            "parameters": {
                "mode": "train",
                "batch": 1,
                "seq": 512,
                "vocab": 50257,
                "width": 768,
                "heads": 12,
                "layers": 12,
            },
        },
        "gpt2-train-autocast-checkpointing": {
            "suites": ["full"],
            "parameters": {
                "mode": "train",
                "autocast": True,
                "checkpointing": True,
                "batch": 1,
                "seq": 512,
                "vocab": 50257,
                "width": 768,
                "heads": 12,
                "layers": 12,
            },
        },
        "gpt2-prefill-fp32": {
            "suites": ["full"],
            "parameters": {
                "mode": "prefill",
                "batch": 1,
                "seq": 1024,
                "vocab": 50257,
                "width": 768,
                "heads": 12,
                "layers": 12,
            },
        },
        "gpt2-decode-bf16": {
            "suites": ["full"],
            "parameters": {
                "mode": "decode",
                "dtype": "bfloat16",
                "batch": 4,
                "seq": 1016,
                "vocab": 50257,
                "width": 768,
                "heads": 12,
                "layers": 12,
            },
        },
    }
    compiles = True
    exports = True

    def setup(self, p: SimpleNamespace, path: str, device: torch.device) -> None:
        self.p, self.path, self.device = p, path, device
        training = p.mode == "train"
        positions = p.seq + (p.new_tokens if p.mode == "decode" else 0)
        model = Model(p.vocab, p.width, p.heads, p.layers, positions, cached=0 if training else p.batch)
        tokens_BS = torch.randint(p.vocab, (p.batch * (p.accumulate if training else 1), positions + 1))
        self.model = model.to(device=device, dtype=getattr(torch, p.dtype)).train(training)
        self.model.checkpointing = p.checkpointing
        self.tokens_BS = tokens_BS.to(device)
        if training:
            self.forward: Any = self.model
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
            self.weights = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}
            self.moments = {name: _moments(weight) for name, weight in self.weights.items()}
            self._put_back()
        else:
            self.forward = self.model.prefill if p.mode == "prefill" else self.model.decode
            self.model.requires_grad_(False)
            self.positions_C = torch.arange(positions, device=device)
            # So that every step finds the cache as the step before left it.
            with torch.inference_mode():
                self.model.prefill(self.tokens_BS[:, : p.seq])
                if p.mode == "decode":
                    self._decode()
        if path == "compiled":
            # A recompile limit that is hit falls back to eager code in silence; here it must raise.
            torch._dynamo.config.fail_on_recompile_limit_hit = True
            self.forward = torch.compile(self.forward, fullgraph=True, dynamic=False)

    def to_oracle(self) -> None:
        super().to_oracle()
        if self.p.mode == "train":
            # The optimizer holds the parameters, which are the same objects, and moments of their old dtype.
            self._put_back()

    def step(self) -> Mapping[str, torch.Tensor]:
        if self.p.mode == "train":
            loss = self._train()
            found = {"loss": loss, **{f"grad.{n}": self._told(w.grad) for n, w in self.model.named_parameters()}}
            found |= {f"weight.{n}": w.detach() for n, w in self.model.named_parameters()}
            self._put_back()
            return found
        with torch.inference_mode(), self._precision():
            if self.p.mode == "prefill":
                return {"logits": self.forward(self.tokens_BS[:, : self.p.seq])}
            return {"logits": self._decode()}

    def _train(self) -> torch.Tensor:
        """Do one optimizer's step over all micro-batches and return its loss."""
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        for tokens_BS in self.tokens_BS.split(self.p.batch):
            with self._precision():
                logits_BSV = self.forward(tokens_BS[:, :-1])
            loss = F.cross_entropy(_precise(logits_BSV).flatten(0, 1), tokens_BS[:, 1:].flatten()) / self.p.accumulate
            loss.backward()
            losses.append(loss.detach())
        self.optimizer.step()
        return torch.stack(losses).sum()

    def _told(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return a gradient in the precision that it was computed in, by which it is judged.

        Under autocast it is float32 by name, and as far from the oracle as bfloat16.
        """
        return gradient.bfloat16() if self.p.autocast and gradient.dtype == torch.float32 else gradient

    def _put_back(self) -> None:
        """Give the model the weights, and the optimizer the moments, that a step begins with.

        The weights that a step has made stay with whoever has them: the parameters get others.
        """
        for name, weight in self.model.named_parameters():
            weight.data = self.weights[name].clone()
            self.optimizer.state[weight] = {kind: value.clone() for kind, value in self.moments[name].items()}

    def _decode(self) -> torch.Tensor:
        """Return the logits (B, new tokens, V) of tokens decoded one by one after the prompt.

        Each is followed by the token that was drawn for its place and not by the likeliest one: where two are as
        likely, rounding would choose, and the rest would be other work.
        """
        found = []
        for place in range(self.p.seq, self.p.seq + self.p.new_tokens):
            found.append(self.forward(self.tokens_BS[:, place : place + 1], self.positions_C[place : place + 1]))
        return torch.stack(found, dim=1)

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.p.autocast)

    def items(self) -> float:
        p = self.p
        return p.batch * {"train": p.accumulate * p.seq, "prefill": p.seq, "decode": p.new_tokens}[p.mode]

    # -- what ran ---------------------------------------------------------------------------------------------------

    def path_ran(self) -> str:
        counts = self._profiled()
        compiled = sum(count for name, count in counts.items() if "CompiledFxGraph" in name)
        if self.path == "eager":
            return f"eager: {counts.get('aten::scaled_dot_product_attention', 0)} calls of attention"
        if not compiled:
            raise FellBack("eager code ran: the profile shows no compiled graph")
        return f"compiled: {compiled} calls of compiled graphs"

    def _profiled(self) -> dict[str, int]:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU]) as trace:
            self.step()
        return {event.key: event.count for event in trace.key_averages()}

    def switch_off(self) -> str:
        torch.compiler.set_stance("force_eager")
        return 'torch.compiler.set_stance("force_eager")'

    def facts(self) -> Mapping[str, str | float | bool]:
        found: dict[str, str | float | bool] = {
            "tokens a step": self.items(),
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
        }
        if self.p.mode != "train":
            caches = dict(self.model.named_buffers()).values()
            return found | {"KV cache, bytes": sum(cache.numel() * cache.element_size() for cache in caches)}
        found["optimizer's state, bytes"] = sum(
            value.numel() * value.element_size() for moments in self.moments.values() for value in moments.values()
        )
        if self.path == "eager":
            # Checkpointed blocks compute their attention twice.
            found["attention calls a step"] = self._profiled()["aten::scaled_dot_product_attention"]
        losses = [float(self._train()) for _ in range(LOSS_STEPS)]
        self._put_back()
        found["loss of the first step"], found[f"loss after {LOSS_STEPS} steps"] = losses[0], losses[-1]
        found["share of a step that puts weights back"] = self._share_of_putting_back()
        return found

    def _share_of_putting_back(self) -> float:
        """Return how much of a step is spent on what no training does: both arms spend it, and ratios are diluted."""
        spent = []
        for work in (self._put_back, self.step):
            work()
            self._wait()
            began = time.perf_counter()
            for _ in range(TIMED_STEPS):
                work()
            self._wait()
            spent.append(time.perf_counter() - began)
        return spent[0] / spent[1]

    def _wait(self) -> None:
        next(self.model.parameters()).sum().item()

    # -- compile and export -----------------------------------------------------------------------------------------

    def program(self) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        p = self.p
        if p.mode == "train":
            return self.model, (self.tokens_BS[: p.batch, :-1],)
        if p.mode == "prefill":
            return Prefill(self.model), (self.tokens_BS[:, : p.seq],)
        return DecodeOne(self.model), (self.tokens_BS[:, p.seq : p.seq + 1], self.positions_C[p.seq : p.seq + 1])


class Attention(nn.Module):
    """Causal attention; with a cache it also reads a prompt into it, and attends to it from one position."""

    def __init__(self, width: int, heads: int, positions: int, cached: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        if cached:
            shape = (cached, heads, positions, width // heads)
            self.register_buffer("k_BHCD", torch.zeros(shape))
            self.register_buffer("v_BHCD", torch.zeros(shape))

    def forward(
        self, x_BSE: torch.Tensor, position_1: torch.Tensor | None, seen_1C: torch.Tensor | None, *, keep: bool
    ) -> torch.Tensor:
        batch, length, width = x_BSE.shape
        qkv = self.qkv(x_BSE).view(batch, length, 3, self.heads, width // self.heads)
        q_BHSD, k_BHSD, v_BHSD = qkv.permute(2, 0, 3, 1, 4)
        if position_1 is not None:
            # Under autocast the cache keeps the precision that it was made in.
            self.k_BHCD.index_copy_(2, position_1, k_BHSD.to(self.k_BHCD.dtype))
            self.v_BHCD.index_copy_(2, position_1, v_BHSD.to(self.v_BHCD.dtype))
            k_BHSD, v_BHSD = self.k_BHCD.to(q_BHSD.dtype), self.v_BHCD.to(q_BHSD.dtype)
        elif keep:
            self.k_BHCD[:, :, :length] = k_BHSD
            self.v_BHCD[:, :, :length] = v_BHSD
        y_BHSD = F.scaled_dot_product_attention(q_BHSD, k_BHSD, v_BHSD, attn_mask=seen_1C, is_causal=seen_1C is None)
        return self.out(y_BHSD.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Pre-norm block."""

    def __init__(self, width: int, heads: int, positions: int, cached: int) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, positions, cached)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(
        self,
        x_BSE: torch.Tensor,
        position_1: torch.Tensor | None = None,
        seen_1C: torch.Tensor | None = None,
        *,
        keep: bool = False,
    ) -> torch.Tensor:
        x_BSE = x_BSE + self.attention(self.norm_attention(x_BSE), position_1, seen_1C, keep=keep)
        return x_BSE + self.down(F.gelu(self.up(self.norm_mlp(x_BSE))))


class Model(nn.Module):
    """Embeddings of tokens and places, blocks, and a head; biases are drawn, so that a dropped one is seen."""

    def __init__(self, vocab: int, width: int, heads: int, layers: int, positions: int, cached: int) -> None:
        super().__init__()
        self.checkpointing = False
        self.embed, self.place = nn.Embedding(vocab, width), nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(Block(width, heads, positions, cached) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab)
        for name, weight in self.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens_BS: torch.Tensor) -> torch.Tensor:
        """Return the logits (B, S, V) of every place."""
        x_BSE = self._embed(tokens_BS)
        for block in self.blocks:
            x_BSE = checkpoint(block, x_BSE, use_reentrant=False) if self._again() else block(x_BSE)
        return self.head(self.norm(x_BSE))

    def prefill(self, tokens_BS: torch.Tensor) -> torch.Tensor:
        """Read a prompt into the cache and return the logits (B, V) after it."""
        x_BSE = self._embed(tokens_BS)
        for block in self.blocks:
            x_BSE = block(x_BSE, keep=True)
        return self.head(self.norm(x_BSE[:, -1]))

    def decode(self, tokens_B1: torch.Tensor, position_1: torch.Tensor) -> torch.Tensor:
        """Add one token at a position to the cache and return the logits (B, V) after it."""
        x_B1E = self.embed(tokens_B1) + self.place(position_1)
        seen_1C = torch.arange(self.place.num_embeddings, device=tokens_B1.device)[None] <= position_1
        for block in self.blocks:
            x_B1E = block(x_B1E, position_1, seen_1C)
        return self.head(self.norm(x_B1E[:, -1]))

    def _embed(self, tokens_BS: torch.Tensor) -> torch.Tensor:
        return self.embed(tokens_BS) + self.place(torch.arange(tokens_BS.shape[1], device=tokens_BS.device))

    def _again(self) -> bool:
        return self.checkpointing and self.training


class Prefill(nn.Module):
    """`Model.prefill` as a module, for compile and export."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens_BS: torch.Tensor) -> torch.Tensor:
        return self.model.prefill(tokens_BS)


class DecodeOne(nn.Module):
    """`Model.decode` as a module, for compile and export."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens_B1: torch.Tensor, position_1: torch.Tensor) -> torch.Tensor:
        return self.model.decode(tokens_B1, position_1)


def _precise(values: torch.Tensor) -> torch.Tensor:
    """Return low precisions as float32, and others as they are: the oracle's are float64."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def _moments(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return what AdamW knows of ``weight`` after `STEPS_BEHIND` steps with gradients of about `GRADIENT`."""
    mean, square = torch.randn(weight.shape) * GRADIENT, (torch.rand(weight.shape) + 0.5) * GRADIENT**2
    return {"step": torch.tensor(float(STEPS_BEHIND)), "exp_avg": mean.to(weight), "exp_avg_sq": square.to(weight)}
