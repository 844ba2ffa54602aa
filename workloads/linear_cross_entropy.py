"""The last layer of a language model and its loss: Linear + CrossEntropyLoss beside `nn.LinearCrossEntropyLoss`.

Shapes: N tokens, H hidden, V vocabulary, B and T of N = B x T. The class is new in 2.13. With its defaults it holds
all logits, as the old pair does; with options it works through the tokens in chunks, by its own kernel. So these are
different paths, and so is every chunk size: the fastest of several beside the old path would be a tuned candidate.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from workloads.contract import FellBack, Unsupported, Workload

#: The kernel of the chunked path; with reduction="none" its name goes on.
CHUNKED = "torch_nn::_linear_cross_entropy_batch_chunked"
#: Where it begins: what the library says when it leaves the options aside, label smoothing for one.
IGNORED = "linear_cross_entropy: ``options`` ignored"
#: float64 logits of the oracle that are held at once: three copies of them beside the weights of a 256k vocabulary.
ORACLE_BYTES = 2**28


class LinearCrossEntropy(Workload):
    """Logits, loss and gradients of the output layer, forward and backward."""

    item = "tokens"
    parameters = {
        "dtype": {"default": "float32", "choices": ["float32", "bfloat16"], "doc": "of hidden states and weights"},
        "autocast": {"default": False, "doc": "whether bfloat16 autocast is on around layer and loss"},
        "tokens": {"default": 256, "doc": "tokens a step, N"},
        "hidden": {"default": 64, "doc": "hidden width, H"},
        "vocab": {"default": 2048, "doc": "vocabulary, V"},
        "bias": {"default": True, "doc": "whether the layer has a bias"},
        "reduction": {"default": "mean", "choices": ["mean", "sum", "none"], "doc": "of the loss over tokens"},
        "class_weights": {"default": False, "doc": "whether every word of the vocabulary has a weight of its own"},
        "ignored": {"default": 0.0, "doc": "share of tokens whose target is ignore_index: padding, prompts"},
        "ignore_index": {"default": -100, "doc": "the target that does not count"},
        "label_smoothing": {"default": 0.0, "doc": "of the loss; the chunked kernel has none in 2.13"},
        "stack": {"default": False, "doc": "ask torch.compile and torch.export too, for seconds; facts alone"},
    }
    paths = {
        "linear+cross_entropy": "nn.Linear, then nn.CrossEntropyLoss",
        "lce": {"doc": "nn.LinearCrossEntropyLoss with its defaults: all logits at once", "needs": "2.13"},
        "lce-auto": {
            "doc": "with options=LinearCrossEntropyOptions(): chunks as the library sizes them",
            "needs": "2.13",
        },
        "lce-chunk-64": {"doc": "with batch_chunk_size=64", "needs": "2.13"},
        "lce-chunk-256": {"doc": "with batch_chunk_size=256", "needs": "2.13"},
    }
    cases = {
        "train-fp32": {"suites": ["smoke", "standard", "full"], "parameters": {"stack": True}},
        "train-bf16": {
            "suites": ["standard", "full"],
            "parameters": {"dtype": "bfloat16", "ignored": 0.25, "bias": False},
        },
        "train-autocast": {
            "suites": ["standard", "full"],
            "parameters": {"autocast": True, "reduction": "sum", "class_weights": True},
        },
        "none-fp32": {
            "suites": ["full"],
            "parameters": {"reduction": "none", "class_weights": True, "ignored": 0.25, "ignore_index": 0},
        },
        "smoothing-fp32": {"suites": ["full"], "parameters": {"label_smoothing": 0.1, "ignored": 0.25}},
        "train-fp32-32k": {
            "suites": ["standard", "full"],
            "parameters": {"hidden": 128, "vocab": 32768, "bias": False},
            "production_shape": True,
        },
        # Heads of published models, at as many tokens as take a CPU core seconds; the library's own chunks take
        # minutes there. No production shapes, though they are some: the standard suite, which lacks them, could adopt
        # nothing.
        "gpt2-50k-fp32": {
            "suites": ["full"],
            "parameters": {"tokens": 1024, "hidden": 768, "vocab": 50257, "bias": False, "ignored": 0.1},
        },
        "gpt2-50k-bf16": {
            "suites": ["full"],
            "parameters": {"dtype": "bfloat16", "tokens": 1024, "hidden": 768, "vocab": 50257, "bias": False},
        },
        # Fewer tokens than the layer is wide: here chunks cost memory.
        "llama3-128k-autocast": {
            "suites": ["full"],
            "parameters": {"autocast": True, "tokens": 256, "hidden": 2048, "vocab": 128256, "bias": False},
        },
        "gemma3-256k-fp32": {
            "suites": ["full"],
            "parameters": {"tokens": 1024, "hidden": 640, "vocab": 262144, "ignored": 0.1},
        },
    }

    def setup(self, p: SimpleNamespace, path: str, device: torch.device) -> None:
        dtype = getattr(torch, p.dtype)
        hidden_NH = torch.randn(p.tokens, p.hidden)
        weight_VH = torch.randn(p.vocab, p.hidden) / p.hidden**0.5
        bias_V = torch.randn(p.vocab)
        class_weight_V = torch.rand(p.vocab) + 0.5
        upstream_N = torch.rand(p.tokens) + 0.5
        target_N = torch.randint(p.vocab, (p.tokens,))
        target_N[torch.rand(p.tokens) < p.ignored] = p.ignore_index
        self.path, self.p, self.device = path, p, device
        self.rows: int | None = None
        self.hidden_NH = hidden_NH.to(device=device, dtype=dtype).requires_grad_()
        self.target_N, self.upstream_N = target_N.to(device), upstream_N.to(device=device, dtype=dtype)
        self.head = _head(
            path,
            p.hidden,
            p.vocab,
            bias=p.bias,
            weight=class_weight_V.to(device=device, dtype=dtype) if p.class_weights else None,
            reduction=p.reduction,
            ignore_index=p.ignore_index,
            label_smoothing=p.label_smoothing,
            device=device,
            dtype=dtype,
        )
        with torch.no_grad():
            self.head.linear.weight.copy_(weight_VH)
            if p.bias:
                self.head.linear.bias.copy_(bias_V)

    def step(self) -> Mapping[str, torch.Tensor]:
        self.head.zero_grad(set_to_none=True)
        self.hidden_NH.grad = None
        value = self._in_rows(self.rows) if self.rows is not None else self._loss()
        gradients = {f"grad.{name}": weight.grad for name, weight in self.head.linear.named_parameters()}
        return {"loss": value, "grad.hidden": self.hidden_NH.grad} | gradients

    def _loss(self) -> torch.Tensor:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.p.autocast):
            value = self.head(self.hidden_NH, self.target_N)
        value.backward(self.upstream_N.to(value.dtype) if self.p.reduction == "none" else None)
        return value.detach()

    def items(self) -> float:
        return self.hidden_NH.shape[0]

    # -- the oracle -------------------------------------------------------------------------------------------------

    def to_oracle(self) -> None:
        super().to_oracle()
        self.rows = max(1, ORACLE_BYTES // (8 * self.p.vocab))
        if self.p.reduction == "mean":
            self.head.loss.reduction = "sum"

    def _in_rows(self, rows: int) -> torch.Tensor:
        """Return what `_loss` does of the old path, ``rows`` tokens after ``rows`` tokens."""
        upstream_N = self.upstream_N
        if self.p.reduction != "none":
            upstream_N = torch.ones_like(upstream_N)
        if self.p.reduction == "mean":
            # The library divides by the weights of the targets that count, smoothed or not.
            counted_N = self.target_N[self.target_N != self.p.ignore_index]
            weight_V = self.head.loss.weight
            upstream_N /= len(counted_N) if weight_V is None else weight_V[counted_N].sum()
        found = []
        for start in range(0, len(self.target_N), rows):
            part = slice(start, start + rows)
            value = self.head(self.hidden_NH[part], self.target_N[part])
            value.backward(upstream_N[part] if self.p.reduction == "none" else upstream_N[0])
            found.append(value.detach() * (1.0 if self.p.reduction == "none" else upstream_N[0]))
        return torch.cat(found) if self.p.reduction == "none" else torch.stack(found).sum()

    # -- which path ran ---------------------------------------------------------------------------------------------

    def path_ran(self) -> str:
        ran = _watch(self.step, self.p.vocab)
        new, chunked = self.path != "linear+cross_entropy", self.path.startswith(("lce-auto", "lce-chunk"))
        if new and not ran.through_class:
            raise FellBack("nn.Linear and nn.CrossEntropyLoss ran, not nn.LinearCrossEntropyLoss")
        if chunked and not ran.chunks:
            said = f": {ran.ignored}" if ran.ignored else ""
            raise FellBack(f"the reference implementation ran, with all logits at once{said}")
        if not chunked and ran.chunks:
            raise FellBack(f"the chunked kernel ran, on {ran.rows} tokens at a time; all logits at once were asked for")
        if self.path.startswith("lce-chunk-"):
            asked = min(int(self.path.rsplit("-", 1)[1]), self.hidden_NH.shape[0])
            if ran.rows != asked:
                raise FellBack(f"chunks of {ran.rows} tokens ran, {asked} were asked for")
        if not chunked:
            return f"{self.path}: aten::linear and aten::cross_entropy_loss, all logits at once"
        return f"{self.path}: {CHUNKED.rsplit(':', 1)[1]}, chunks of {ran.rows} tokens, {ran.chunks} in all"

    def switch_off(self) -> str:
        if self.path != "lce":
            self.head.options = None
            return "options = None on the module"
        loss = self.head
        self.head = SeparateLoss(loss.linear, nn.CrossEntropyLoss(**_settings(loss)))
        return "nn.CrossEntropyLoss after the module's own nn.Linear"

    # -- facts ------------------------------------------------------------------------------------------------------

    def facts(self) -> Mapping[str, str | float | bool]:
        p = self.p
        ran = _watch(self.step, p.vocab)
        logits = p.tokens * p.vocab * (2 if p.autocast or p.dtype == "bfloat16" else 4)
        size = self.head.linear.weight.element_size()
        weights, hidden = size * p.vocab * p.hidden, size * p.tokens * p.hidden
        found: dict[str, str | float | bool] = {"logits, bytes": logits}
        if ran.chunks:
            # Inside, bfloat16 is accumulated in float32, and autocast does not reach it.
            held = ran.rows * p.vocab * 4
            found["logits held at once, bytes"], found["chunks"] = held, ran.chunks
            if p.dtype == "float32":
                # The gradient of the weights is there twice when autograd takes it over; by then no logits are. So
                # chunks save nothing where tokens are fewer than about two thirds of the width.
                found["peak to expect, bytes"] = weights + max(held, weights if p.reduction != "none" else 0) + hidden
            found["logits for metrics"] = f"recomputed by F.linear, {p.tokens} x {p.vocab}: the saving is lost"
        else:
            found["logits held at once, bytes"] = logits
            if not p.autocast:
                # Logits, their log-softmax and their gradient, or one of them beside the gradient of the weights.
                found["peak to expect, bytes"] = max(3 * logits, logits + weights) + hidden
            recomputed = "made inside and not handed out: recomputed by F.linear"
            found["logits for metrics"] = recomputed if ran.through_class else "the layer's output"
        asked = self._asked_of_a_stack(self.path)
        found |= {f"stack: {name}": answer for name, answer in asked.items()}
        if self.path != "linear+cross_entropy":
            known = self._asked_of_a_stack("linear+cross_entropy")
            work = [name for name in asked if asked[name] not in (known[name], "accepted")]
            found["new integration work"] = "; ".join(work) or "none"
        return found

    def _asked_of_a_stack(self, path: str) -> dict[str, str]:
        return stack_checks(path, self.device) | (compiler_checks(path) if self.p.stack else {})


class SeparateLoss(nn.Module):
    """The old way: a linear layer, then the loss on all of its logits."""

    def __init__(self, linear: nn.Linear, loss: nn.CrossEntropyLoss) -> None:
        super().__init__()
        self.linear, self.loss = linear, loss

    def forward(self, hidden: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.loss(self.linear(hidden), target)


def _head(
    path: str, hidden: int, vocab: int, *, bias: bool, device: Any = None, dtype: Any = None, **settings: Any
) -> nn.Module:
    """Return layer and loss as one module whose layer is ``linear``. Raises Unsupported before 2.13."""
    if path == "linear+cross_entropy":
        linear = nn.Linear(hidden, vocab, bias=bias, device=device, dtype=dtype)
        return SeparateLoss(linear, nn.CrossEntropyLoss(**settings))
    if not hasattr(nn, "LinearCrossEntropyLoss"):
        raise Unsupported(f"torch {torch.__version__} has no nn.LinearCrossEntropyLoss; it is new in 2.13")
    options = None
    if path == "lce-auto":
        options = nn.LinearCrossEntropyOptions()
    elif path != "lce":
        options = nn.LinearCrossEntropyOptions(batch_chunk_size=int(path.rsplit("-", 1)[1]))
    return nn.LinearCrossEntropyLoss(hidden, vocab, bias=bias, options=options, device=device, dtype=dtype, **settings)


def _settings(loss: nn.Module) -> dict[str, Any]:
    index = -100 if loss.ignore_index is None else loss.ignore_index
    shared = {name: getattr(loss, name) for name in ("weight", "reduction", "label_smoothing")}
    return {"ignore_index": index} | shared


# -- what ran ------------------------------------------------------------------------------------------------------


class _Calls(TorchFunctionMode):
    """Tells whether the loss was taken through `F.linear_cross_entropy`: its kernels alone do not tell it."""

    def __init__(self) -> None:
        super().__init__()
        self.through_class = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.through_class |= function is getattr(F, "linear_cross_entropy", None)
        return function(*args, **(kwargs or {}))


def _watch(step: Callable[[], Any], vocab: int) -> SimpleNamespace:
    """Return of one profiled step: ``through_class``, ``chunks`` and ``rows`` of the kernel, what was ``ignored``."""
    from torch.profiler import ProfilerActivity, profile

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with _Calls() as calls, profile(activities=[ProfilerActivity.CPU], record_shapes=True) as trace:
            step()
    events = list(trace.events())
    chunks, rows = 0, 0
    if any(event.name.startswith(CHUNKED) for event in events):
        # One maximum over the vocabulary a chunk and a pass; with reduction="none" there is a second pass.
        maxima = [event.input_shapes[0] for event in events if event.name == "aten::amax"]
        rows = max((shape[0] for shape in maxima if len(shape) == 2 and shape[1] == vocab), default=0)
        passes = 2 if any(event.name == f"{CHUNKED}_no_reduction" for event in events) else 1
        chunks = len(maxima) // passes
    elif "aten::cross_entropy_loss" not in {event.name for event in events}:
        raise FellBack("the profile shows no cross entropy at all")
    ignored = next((str(one.message).split(" Got ")[0] for one in caught if IGNORED in str(one.message)), "")
    return SimpleNamespace(through_class=calls.through_class, chunks=chunks, rows=rows, ignored=ignored)


# -- what a training stack is asked for ------------------------------------------------------------------------------

#: Small, for they ask what is accepted and not how fast; two chunks of the smallest size that is a path.
TOKENS, HIDDEN, VOCAB = 66, 8, 32


def stack_checks(path: str, device: torch.device) -> dict[str, str]:
    """Return what ``path`` makes of what training stacks do, in the library's own words where it refuses."""
    old = path == "linear+cross_entropy"
    numbers = torch.Generator().manual_seed(1)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=numbers).to(device)

    hidden_NH, target_N = randn(TOKENS, HIDDEN), torch.arange(TOKENS, device=device) % VOCAB
    weight_VH, bias_V = randn(VOCAB, HIDDEN), randn(VOCAB)

    def fresh(**settings: Any) -> nn.Module:
        head = _head(path, HIDDEN, VOCAB, bias=True, device=device, **settings)
        with torch.no_grad():
            head.linear.weight.copy_(weight_VH)
            head.linear.bias.copy_(bias_V)
        return head

    def three_dimensions() -> str:
        hidden_BTH, target_BT = hidden_NH.view(2, -1, HIDDEN), target_N.view(2, -1)
        if old:
            head = fresh()
            head.loss(head.linear(hidden_BTH).flatten(0, 1), target_BT.flatten())
            return "accepted by the layer, logits are flattened for the loss"
        fresh()(hidden_BTH, target_BT)
        return "accepted"

    def autocast() -> str:
        head = fresh()
        plain = head(hidden_NH, target_N)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            cast = head(hidden_NH, target_N)
        return "ignored: float32 all the same" if torch.equal(plain, cast.to(plain.dtype)) else "honoured"

    def mixed() -> str:
        fresh()(hidden_NH.bfloat16(), target_N).backward()
        return "accepted"

    def twice() -> str:
        value = fresh()(hidden_NH.clone().requires_grad_(), target_N)
        value.backward(retain_graph=True)
        value.backward()
        return "accepted"

    def second_order() -> str:
        wanted = hidden_NH.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(fresh()(wanted, target_N), wanted, create_graph=True)
        torch.autograd.grad(gradient.square().sum(), wanted)
        return "accepted"

    def functional() -> str:
        head = fresh()
        parameters = {name: value.detach() for name, value in head.named_parameters()}
        torch.func.grad(lambda at: torch.func.functional_call(head, at, (hidden_NH, target_N)))(parameters)
        return "accepted"

    def keys() -> str:
        return ", ".join((fresh().linear if old else fresh()).state_dict())

    def checkpoint() -> str:
        (fresh().linear if old else fresh()).load_state_dict(nn.Linear(HIDDEN, VOCAB).state_dict())
        return "loaded"

    def tied() -> str:
        embedding, head = nn.Embedding(VOCAB, HIDDEN, device=device), fresh()
        head.linear.weight = embedding.weight
        head(embedding(target_N), target_N).backward()
        return "accepted" if embedding.weight.grad is not None else "no gradient"

    def nothing_counts() -> str:
        value = float(fresh()(hidden_NH, torch.full_like(target_N, -100)))
        return "nan" if value != value else f"{value:g}"

    def smoothing() -> str:
        fresh(label_smoothing=0.1)(hidden_NH, target_N)
        return "accepted"

    def probabilities() -> str:
        fresh()(hidden_NH, F.one_hot(target_N, VOCAB).float())
        return "accepted"

    checks: dict[str, Callable[[], str]] = {
        "hidden states (B, T, H)": three_dimensions,
        "bfloat16 autocast": autocast,
        "bfloat16 hidden states, float32 weights": mixed,
        "second backward": twice,
        "create_graph": second_order,
        "torch.func.grad": functional,
        "state_dict keys": keys,
        "checkpoint of nn.Linear": checkpoint,
        "weights tied to an embedding": tied,
        "no target counts": nothing_counts,
        "label smoothing": smoothing,
        "targets as probabilities": probabilities,
    }
    return {name: _answer(check) for name, check in checks.items()}


def compiler_checks(path: str) -> dict[str, str]:
    """Return how many graph breaks ``path`` costs under torch.compile, and the operators that an export of it holds."""
    hidden_NH, target_N = torch.ones(TOKENS, HIDDEN), torch.arange(TOKENS) % VOCAB
    head = _head(path, HIDDEN, VOCAB, bias=True)

    def breaks() -> str:
        from torch._dynamo.utils import counters

        counters.clear()
        torch.compile(head, backend="eager")(hidden_NH, target_N)
        broken = sum(counters["graph_break"].values()) + sum(counters["unimplemented"].values())
        return f"{counters['stats']['unique_graphs']} graphs, {broken} breaks"

    def exported() -> str:
        nodes = torch.export.export(head, (hidden_NH, target_N)).graph.nodes
        called = {str(node.target).removesuffix(".default") for node in nodes if node.op == "call_function"}
        return ", ".join(sorted(name for name in called if "linear" in name or "cross" in name))

    try:
        return {"torch.compile": _answer(breaks), "torch.export": _answer(exported)}
    finally:
        torch._dynamo.reset()


def _answer(check: Callable[[], str]) -> str:
    """Return what ``check`` says, or what the library said while it did not do what was asked."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            said = check()
        except Exception as error:  # whatever it is, it is what the stack would get
            return f"refused: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    ignored = any(IGNORED in str(one.message) for one in caught)
    return f"{said}, not in chunks: the options are ignored" if ignored else said
