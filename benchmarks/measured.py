"""What benchmarks share: a release's environment, made as the farm makes it, and runners of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm.matrix import load_matrix
from farm.model import Cell, CellOrder, Measuring, Plan
from farm.plan import PlanRequest, make_plan
from farm.releases import resolve
from farm.settings import Home
from workers.duet import Duet, Pair
from workers.environments import build
from workers.probe import probe_host
from workers.runner_environment import padding, runner_environment
from workers.session import RunnerSession
from workers.stage import make_stage, workload_reference

__all__ = ["WORKS", "Bench", "duet_of", "folder_of", "order_of", "plan_of"]

#: Workloads that methods are compared on, and where they are.
WORKS = {name: Path(__file__).parent / "work" / f"{name}.py" for name in ("transformer", "memory", "slow")}
#: The release that is compared with itself.
RELEASE = "2.13.0"


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


@dataclass(frozen=True)
class Bench:
    """One of `WORKS` in the environment of `RELEASE`, with the control of the farm's own cells."""

    work: str
    python: Path
    stage: Path
    folder: Path
    control: Mapping[str, str]
    """Environment variables of a cell, the settled allocator's among them."""
    seed: int

    @classmethod
    def of(cls, work: str) -> Bench:
        """Build what is missing of the environment, and return the bench for ``work``."""
        plan, home = plan_of(RELEASE, RELEASE)
        cell = next(cell for cell in plan.cells if cell.workload == "transformer_block" and cell.kind == "measure")
        python = build(next(iter(plan.environments.values())), home).python
        stage = make_stage(home.stage, WORKS[work].read_text(encoding="utf-8"))
        folder = folder_of(home, f"benchmark-{work}")
        return cls(work, python, stage, folder, cell.control.environment_variables, cell.control.seed)

    def variables(self, arm: str = "", restart: int = 0) -> dict[str, str]:
        """Return the variables of a process of ``arm``; its environment's size is random, as in the farm."""
        padded = padding(self.seed, restart, arm) if arm else ""
        return runner_environment(self.control, self.folder, settled_allocator=True, padding=padded)

    def start(self, arm: str, restart: int, lease_fd: int | None = None) -> RunnerSession:
        """Start a fresh runner."""
        log = self.folder / f"{arm}.log"
        return RunnerSession(self.python, self.stage, self.variables(arm, restart), log, lease_fd=lease_fd)

    def setup_fields(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a set-up request."""
        return {
            "workload": workload_reference(self.work, "its own file"),
            "parameters": dict(parameters),
            "path": "eager",
            "seed": self.seed,
            "device": "cpu",
            "threads": 1,
        }


def duet_of(
    arms: Mapping[str, dict[str, Any]],
    measuring: Measuring,
    start: Any,
    *,
    seed: int,
    limits: tuple[float, ...],
) -> Duet:
    """Return the farm's own engine for two arms, the reference first, given the fields of their set-up."""
    reference, challenger = arms
    return Duet(
        [reference, challenger],
        [Pair(challenger, reference, limits)],
        measuring,
        lambda life: start(life.arm, life.restart),
        arms,
        seed=seed,
        progress=lambda _: None,
        cancelled=lambda: False,
    )
