"""The contract between a workload and the farm: one class in one file.

A workload declares, sets itself up, and does one step. Its declarations are literals in the class body, because a
coordinator reads them without torch. Everything random comes from torch's default generator, which the runner
seeds before `Workload.setup`; tensors are made on the CPU and moved, so that every backend gets the same numbers and is
held against one oracle, the first path on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

__all__ = ["FellBack", "Unsupported", "Workload"]


class Unsupported(Exception):
    """Raised by a workload when this release or device cannot run the path at all."""


class FellBack(Exception):
    """Raised by a workload when another path than the one asked for ran."""


class Workload:
    """One piece of work; subclass it, one subclass a file.

    Class body (literals):

    - ``item``: what `items` counts, "tokens" or "samples";
    - ``parameters``: ``{"batch": {"default": 2, "doc": "sequences a step"}}``, with ``choices`` where they are few;
    - ``paths``: ``{"eager": "as we run it today"}``, the old path first; a path that exists only from a release on
      is written ``{"doc": "…", "needs": "2.13"}``;
    - ``cases``: ``{"infer": {"suites": ["smoke"], "parameters": {"batch": 4}, "production_shape": False}}``; with
      ``"packages": True`` the program is also compiled ahead of time, which takes half a minute a release;
    - ``track``: "production" or "prototype"; ``compiles`` and ``exports``: whether `program` gives a module.
    """

    item: ClassVar[str] = "samples"
    parameters: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    paths: ClassVar[Mapping[str, Any]] = {"eager": "as written"}
    cases: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    track: ClassVar[str] = "production"
    compiles: ClassVar[bool] = False
    exports: ClassVar[bool] = False

    def setup(self, p: SimpleNamespace, path: str, device: torch.device) -> None:
        """Make weights and inputs for parameters ``p`` as attributes of self, ready on ``device``."""
        raise NotImplementedError(f"{type(self).__name__} has no setup; write one that makes its tensors")

    def step(self) -> Mapping[str, torch.Tensor]:
        """Do the work once and return its outputs by name; gradients are named "grad.<parameter>"."""
        raise NotImplementedError(f"{type(self).__name__} has no step; write one that returns named tensors")

    def items(self) -> float:
        """Return how many items a step processes."""
        return 1

    def path_ran(self) -> str:
        """Return which implementation ran in the last step, as proven; raise `FellBack` if it was another."""
        return ""

    def compiled_ran(self) -> str:
        """Return how many compiled graphs a step runs, by its profile: what `path_ran` says of a compiled step.

        Raises FellBack where torch.compile gave up in silence.
        """
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU]) as trace:
            self.step()
        graphs = sum(event.count for event in trace.key_averages() if "CompiledFxGraph" in event.key)
        if not graphs:
            raise FellBack("nothing of it was compiled: the profile shows no compiled graph")
        return f"compiled, {graphs} graphs a step"

    def facts(self) -> Mapping[str, str | float | bool]:
        """Return what is worth knowing of a step and is no output: "blocks skipped": 0.93, "loss after 100 steps".

        Called once after an untimed step, and may take longer than one; shown with the evidence, judged by no gate.
        """
        return {}

    def switch_off(self) -> str:
        """Turn this path's own kernel off in this process, as an operator would; return how, in words.

        The drill: a step is done afterwards, and `path_ran` must then raise `FellBack`, or the switch does nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} has no switch")

    def program(self) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
        """Return the module and its inputs that torch.compile and torch.export are asked for."""
        raise Unsupported("this workload has no module to compile or export")

    def shapes(self) -> Sequence[tuple[torch.Tensor, ...]]:
        """Return inputs of `program` in the shapes that really come, in the order in which they come.

        A length distribution, repeats and single items included: torch.compile is told all of them one after the other,
        and what leaves Python is compared on each. Default: none, and neither is asked.
        """
        return ()

    def dynamic_shapes(self) -> Any:
        """Return what torch.export is told of the sizes that vary, as its ``dynamic_shapes``; None: nothing varies."""
        return None

    def wrong_inputs(self) -> Mapping[str, tuple[torch.Tensor, ...]]:
        """Return inputs that the program was not made for, by what is wrong with them: "wrong dtype", "too long"."""
        return {}

    def to_oracle(self) -> None:
        """Turn this set-up, made on the CPU, into its own reference: every floating tensor and module becomes float64.

        The values stay those of the case's dtype, so that what differs afterwards is arithmetic alone. Override it
        where a step would not fit in float64, and do the same in chunks.
        """
        for name, value in vars(self).items():
            setattr(self, name, _to_double(value))


def _to_double(value: Any) -> Any:
    if isinstance(value, torch.nn.Module):
        return value.double()
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().double().requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {key: _to_double(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_to_double(item) for item in value)
    return value
