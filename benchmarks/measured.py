"""What benchmarks share: a release's environment, made as the farm makes it, and a cell of it."""

from __future__ import annotations

from pathlib import Path

from farm.matrix import load_matrix
from farm.model import Cell, CellOrder, Plan
from farm.plan import PlanRequest, make_plan
from farm.releases import resolve
from farm.settings import Home
from workers.probe import probe_host

__all__ = ["order_of", "plan_of"]


def plan_of(candidate: str, baseline: str) -> tuple[Plan, Home]:
    """Return the smoke plan of two releases on this machine's CPU, and the home of its environments."""
    host = probe_host()
    resolution = resolve(candidate, baseline, platform=host.platform, python=host.python, backend="cpu")
    plan = make_plan(
        load_matrix(), PlanRequest(candidate, baseline, "smoke", ("cpu",)), [host], lambda backend, machine: resolution
    )
    return plan, Home.default().prepare()


def order_of(plan: Plan, cell: Cell) -> CellOrder:
    """Return the order that a worker gets for ``cell``."""
    return CellOrder(run_id="benchmark", attempt=1, cell=cell, environments=plan.environments, refused=plan.refused)


def folder_of(home: Home, name: str) -> Path:
    """Return a folder of the home for a benchmark's own files."""
    folder = home.scratch / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
