"""Whether a step does the same work each time: a workload that changes its inputs is timed on other work each time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .tensors import digest_each
from .work import Work, WorkFailed

__all__ = ["unsteadiness"]

#: Steps on one set-up that are compared.
STEPS = 3
#: Tensors that are named; a model that trains changes hundreds.
SHOWN = 3


def unsteadiness(work: Work) -> list[str]:
    """Return what a step leaves changed, in words; empty for a step that repeats.

    Raises WorkFailed where outputs have another shape, type or name from step to step, or other values because the
    step before it changed its inputs. Training changes weights and optimizer state, and is the same work each time; a
    step that is not deterministic and changes nothing is nothing to refuse either.
    """
    workload = work.fresh()
    drawn = torch.get_rng_state()
    first = work.step(workload)
    draws = not torch.equal(drawn, torch.get_rng_state())
    shapes, bits = _shapes(first), digest_each(first)
    differ: str | None = None
    for number in range(2, STEPS + 1):
        outputs = work.step(workload)
        found = _shapes(outputs)
        for name in sorted(found.keys() | shapes.keys()):
            if found.get(name) != shapes.get(name):
                was, now = shapes.get(name, "not there"), found.get(name, "not there")
                raise WorkFailed(f"output '{name}' is {was} in step 1 and {now} in step {number}")
        again = digest_each(outputs)
        differ = differ or next((name for name in sorted(bits) if bits[name] != again[name]), None)
    trained, changed = _changed(workload, work.fresh())
    if differ is not None and changed:
        raise WorkFailed(
            f"a step does other work than the one before: it changes {_listed(changed)}, and so output '{differ}'"
        )
    said = [f"a step trains {_listed(trained)}"] if trained else []
    said += [f"a step changes {_listed(changed)}"] if changed else []
    return [*said, "a step draws random numbers"] if draws else said


def _listed(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _shapes(outputs: Mapping[str, torch.Tensor]) -> dict[str, str]:
    return {name: f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}" for name, value in outputs.items()}


def _changed(stepped: object, fresh: object) -> tuple[list[str], list[str]]:
    """Return what ``stepped`` holds otherwise than ``fresh``, by name: weights with their state, and all else."""
    before = {name: tensor for name, tensor, _ in _tensors(vars(fresh), "", weight=False)}
    found: tuple[list[str], list[str]] = ([], [])
    for name, tensor, weight in _tensors(vars(stepped), "", weight=False):
        if name in before and not _same(tensor, before[name]):
            found[0 if weight else 1].append(name)
    return found


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    # Bit for bit: a NaN is itself.
    return digest_each({"": one}) == digest_each({"": other})


def _tensors(value: Any, name: str, *, weight: bool) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Give every plain tensor in ``value`` with the way to it, and whether it is trained."""
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and not value.is_meta:
            yield name, value, weight or value.requires_grad
    elif isinstance(value, torch.nn.Module):
        for key, tensor in value.state_dict().items():
            yield from _tensors(tensor, f"{name}.{key}", weight=True)
    elif isinstance(value, torch.optim.Optimizer):
        yield from _tensors(value.state_dict()["state"], f"{name}.state", weight=True)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, f"{name}.{key}" if name else str(key), weight=weight)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _tensors(item, f"{name}[{index}]", weight=weight)
