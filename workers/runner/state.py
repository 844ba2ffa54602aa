"""State that outlives a release: written by the one in service, read by the one that it is rolled back to.

`python -m runner.state write FOLDER KIND…` and `read FOLDER KIND…`. What became of a kind stands in FOLDER before the
next one begins, since some of them abort the process.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

__all__ = ["KINDS", "main"]

SEED = 20260701
STEPS = 3
#: Outputs of a program that another release compiles may differ by rounding: tolerances of `torch.testing`, float32.
RELATIVE, ABSOLUTE = 1.3e-6, 1e-5


class _Model(torch.nn.Module):
    """Small, with what state is made of: weights, a buffer, a normalisation, an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(64, 32)
        self.norm = torch.nn.LayerNorm(32)
        self.inner = torch.nn.Linear(32, 64)
        self.out = torch.nn.Linear(64, 8)
        self.register_buffer("scale", torch.full((8,), 0.5))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.embedding(tokens))
        return self.out(torch.nn.functional.gelu(self.inner(hidden))) * self.scale


def _model() -> _Model:
    torch.manual_seed(SEED)
    return _Model()


def _tokens() -> torch.Tensor:
    return torch.arange(48).reshape(4, 12) % 64


def _trained() -> tuple[_Model, torch.optim.Optimizer]:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    for _ in range(STEPS):
        _step(model, optimizer)
    return model, optimizer


def _step(model: _Model, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(_tokens()).square().mean().backward()
    optimizer.step()


def _digest(value: Any) -> str:
    """Return a digest over every number of a nest of tensors, with its names."""
    found = hashlib.sha256()

    def walk(name: str, item: Any) -> None:
        if isinstance(item, torch.Tensor):
            found.update(f"{name} {item.dtype} {tuple(item.shape)}".encode())
            found.update(item.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(item, dict):
            for key in sorted(item, key=str):
                walk(f"{name}/{key}", item[key])
        elif isinstance(item, list | tuple):
            for place, inner in enumerate(item):
                walk(f"{name}/{place}", inner)
        else:
            found.update(f"{name} {item!r}".encode())

    walk("", value)
    return found.hexdigest()


def _same(one: str, other: str) -> None:
    if one != other:
        raise ValueError("it loads, and its numbers are not those that were written")


def _close(outputs: torch.Tensor, expected: list[Any]) -> None:
    torch.testing.assert_close(outputs.detach(), torch.tensor(expected), rtol=RELATIVE, atol=ABSOLUTE)


# -- a kind of state: how it is written, with what must be found again, and how it is read ---------------------------


def _write_checkpoint(folder: Path) -> Any:
    model, _ = _trained()
    torch.save(model.state_dict(), folder / "checkpoint.pt")
    return _digest(model.state_dict())


def _read_checkpoint(folder: Path, expected: Any) -> None:
    model = _model()
    model.load_state_dict(torch.load(folder / "checkpoint.pt", weights_only=True))
    _same(_digest(model.state_dict()), expected)


def _write_optimizer(folder: Path) -> Any:
    model, optimizer = _trained()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "optimizer.pt")
    found = _digest(optimizer.state_dict()["state"])
    _step(model, optimizer)
    return {"state": found, "next": [float(value) for value in model.out.bias.detach()]}


def _read_optimizer(folder: Path, expected: Any) -> None:
    saved = torch.load(folder / "optimizer.pt", weights_only=True)
    model = _model()
    model.load_state_dict(saved["model"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    optimizer.load_state_dict(saved["optimizer"])
    _same(_digest(optimizer.state_dict()["state"]), expected["state"])
    # Loaded is not yet resumed: a step must go where the release that wrote it would have gone.
    _step(model, optimizer)
    _close(model.out.bias, expected["next"])


def _distributed_state() -> tuple[_Model, torch.optim.Optimizer, dict[str, Any]]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = _trained()
    weights, moments = get_state_dict(model, optimizer)
    return model, optimizer, {"model": weights, "optimizer": moments}


def _write_distributed(folder: Path) -> Any:
    import torch.distributed.checkpoint as dcp

    _, _, state = _distributed_state()
    dcp.save(state, checkpoint_id=str(folder / "distributed"))
    return _digest(state)


def _read_distributed(folder: Path, expected: Any) -> None:
    import torch.distributed.checkpoint as dcp

    _, _, state = _distributed_state()
    for tensor in [*state["model"].values(), *_tensors(state["optimizer"])]:
        tensor.zero_()
    dcp.load(state, checkpoint_id=str(folder / "distributed"))
    _same(_digest(state), expected)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for inner in value.values() for tensor in _tensors(inner)] if isinstance(value, dict) else []


def _write_exported(folder: Path) -> Any:
    model = _trained()[0].eval()
    with torch.no_grad():
        torch.export.save(torch.export.export(model, (_tokens(),)), str(folder / "exported.pt2"))
        return model(_tokens()).tolist()


def _read_exported(folder: Path, expected: Any) -> None:
    with torch.no_grad():
        _close(torch.export.load(str(folder / "exported.pt2")).module()(_tokens()), expected)


def _write_package(folder: Path) -> Any:
    from torch._inductor import aoti_compile_and_package

    model = _trained()[0].eval()
    with torch.no_grad():
        program = torch.export.export(model, (_tokens(),))
        aoti_compile_and_package(program, package_path=str(folder / "package.pt2"))
        return model(_tokens()).tolist()


def _read_package(folder: Path, expected: Any) -> None:
    from torch._inductor import aoti_load_package

    with torch.no_grad():
        _close(aoti_load_package(str(folder / "package.pt2"))(_tokens()), expected)


def _write_cache(folder: Path) -> Any:
    model = _trained()[0].eval()
    with torch.no_grad():
        torch.compile(model)(_tokens())
        return model(_tokens()).tolist()


def _read_cache(folder: Path, expected: Any) -> None:
    model = _trained()[0].eval()
    with torch.no_grad():
        _close(torch.compile(model)(_tokens()), expected)


KINDS: dict[str, tuple[Callable[[Path], Any], Callable[[Path, Any], None]]] = {
    "checkpoint": (_write_checkpoint, _read_checkpoint),
    "optimizer": (_write_optimizer, _read_optimizer),
    "distributed checkpoint": (_write_distributed, _read_distributed),
    "exported program": (_write_exported, _read_exported),
    "compiled package": (_write_package, _read_package),
    "compile cache": (_write_cache, _read_cache),
}


def main(action: str, folder: Path, kinds: list[str]) -> None:
    """Write or read ``kinds`` in ``folder``, one file of what became of each."""
    torch.set_num_threads(1)
    for kind in kinds:
        told = folder / f"{kind}.{action}.json"
        told.write_text(json.dumps({"ended": False}))
        began = time.monotonic_ns()
        found: dict[str, Any] = {"ended": True}
        try:
            if action == "write":
                found["expected"] = KINDS[kind][0](folder)
            else:
                KINDS[kind][1](folder, json.loads((folder / f"{kind}.write.json").read_text())["expected"])
        except Exception as error:
            found["error"] = f"{type(error).__name__}: {error}"
        found["ns"] = time.monotonic_ns() - began
        told.write_text(json.dumps(found))
    # Libraries may still abort on the way out (TORCH.md 4): everything that matters is written.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
