"""A workload set up and stepped, with everything that can be wrong about it said in one line."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from workloads.contract import Workload

from .clock import clock_for, time_window

__all__ = ["BackendUnreachable", "Work", "WorkFailed"]


class WorkFailed(Exception):
    """Raised when the workload broke its contract; the reason says which line of it and what to do."""


class BackendUnreachable(Exception):
    """Raised when the device that the cell asks for cannot be used by this torch."""


class Work:
    """One workload, seeded and set up: what `window`, `examine` and the others work on."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.kind = _load(request["workload"])
        self.parameters = SimpleNamespace(**_parameters(self.kind, request["parameters"]))
        self.path = request["path"]
        self.seed = int(request["seed"])
        self.device = _reach(request["device"])
        self.clock = clock_for(self.device.type, torch)
        self.steps = 0
        torch.set_num_threads(int(request["threads"]))
        self.workload = self.fresh()

    def fresh(self, path: str | None = None, *, oracle: bool = False) -> Workload:
        """Return a new instance, set up from the same seed: the same weights and inputs, bit for bit."""
        self.reseed()
        # Steps are told by their number since the set-up.
        self.steps = 0
        workload = self.kind()
        # One oracle for all backends; MPS has no float64.
        workload.setup(self.parameters, path or self.path, torch.device("cpu") if oracle else self.device)
        if oracle:
            workload.to_oracle()
        self.reseed()
        return workload

    def reseed(self) -> None:
        random.seed(self.seed)
        torch.manual_seed(self.seed)

    def step(self, workload: Workload | None = None, device: str | None = None) -> Mapping[str, torch.Tensor]:
        """Do one checked step: named tensors, on ``device``, or the one that was asked for."""
        self.steps += 1
        device = device or self.device.type
        outputs = (workload or self.workload).step()
        if not isinstance(outputs, Mapping) or not outputs:
            said = "nothing" if outputs is None else type(outputs).__name__
            raise WorkFailed(f"step {self.steps} returned {said}; return a mapping of names to tensors")
        for name, value in outputs.items():
            if not isinstance(value, torch.Tensor):
                raise WorkFailed(f"output '{name}' is {type(value).__name__}; every output is a tensor")
            if value.device.type != device:
                raise BackendUnreachable(f"output '{name}' is on {value.device}, the cell asks for {device}")
        return outputs

    def synchronise(self) -> None:
        """Wait for the device: the engine does it, never the workload (CASES.md M6)."""
        self.clock.synchronise()

    def window(self, steps: int) -> dict[str, Any]:
        """Time ``steps`` steps (ns each) by the device's clock."""
        try:
            return time_window(self.clock, self.workload.step, steps)
        finally:
            self.steps += self.clock.reached


def _load(reference: str) -> type[Workload]:
    """Return the one subclass of Workload in the module or file ``reference``."""
    module = _load_file(Path(reference)) if reference.endswith(".py") else importlib.import_module(reference)
    found = [
        value
        for _, value in inspect.getmembers(module, inspect.isclass)
        if issubclass(value, Workload) and value is not Workload and value.__module__ == module.__name__
    ]
    if len(found) != 1:
        names = ", ".join(kind.__name__ for kind in found) or "none"
        raise WorkFailed(f"'{reference}' must hold one subclass of Workload; it holds {names}")
    return found[0]


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise WorkFailed(f"'{path}' cannot be imported as a workload; name a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _parameters(kind: type[Workload], given: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(given) - set(kind.parameters))
    if unknown:
        raise WorkFailed(f"{kind.__name__} has no parameter '{unknown[0]}'; it has {', '.join(kind.parameters)}")
    return {name: given.get(name, declared["default"]) for name, declared in kind.parameters.items()}


def _reach(name: str) -> torch.device:
    """Return the device, proven: torch in this environment makes a tensor on it and reads it back."""
    device = torch.device(name)
    try:
        if float(torch.ones(1, device=device).cpu()) != 1.0:
            raise BackendUnreachable(f"a tensor on {name} did not read back what was written")
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise BackendUnreachable(f"torch {torch.__version__} cannot use '{name}': {_first_line(error)}") from error
    return device


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
