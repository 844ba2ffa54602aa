"""The way from a matrix to its judgement: real releases, real runners, this machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from farm.judge import judge
from farm.matrix import load_matrix
from farm.model import CellOrder, CellResult, CellVerdicts, Evidence, Gate, Judgement, Plan, RunState, Verdict
from farm.plan import PlanRequest, make_plan
from farm.settings import Home
from workers.cell import run_cell
from workers.probe import probe_host

FIXTURES = Path(__file__).parent.parent / "fixtures" / "workloads"

HEAD = """
schema_version = 1
backends = ["cpu"]
gates = [{gates}]
decisions = ["adopt", "isolate", "defer", "rollback"]

[versions]
current_baseline = "2.12"

[caveats]
hardware = "one machine"

[suite.smoke]
aa_share = {aa_share}
looks = [{looks}]
alpha = 0.016
window_ms = 40.0
restart_s = {restart_s}
warmup_s = 1.5
budget_s = 120.0
step_timeout_s = {step_timeout_s}

[[tier]]
name = "serving"
description = "what the test asks"
backends = ["cpu"]
required = [{gates}]
p50_ratio = {p50}
throughput_ratio = {throughput}
peak_memory_ratio = 1.5
determinism = "bitwise"
compile_ratio = 2.0
graph_breaks = 0
rollback_s = 120.0
feature_gain = 0.95
"""


@dataclass(frozen=True)
class Found:
    """A judged run."""

    plan: Plan
    evidence: Evidence
    judgement: Judgement

    def result(self, start: str) -> CellResult:
        return next(result for result in self.evidence.results if result.cell_id.startswith(start))

    def verdicts(self, start: str) -> dict[Gate, Verdict]:
        """Return the version question's verdicts of the one cell whose id starts with ``start``."""
        found = [cell for cell in self.judgement.cells if cell.cell_id.startswith(start)]
        assert len(found) == 1, [cell.cell_id for cell in found]
        return {verdict.gate: verdict for verdict in found[0].verdicts}

    def cells(self) -> tuple[CellVerdicts, ...]:
        return self.judgement.cells


@pytest.fixture
def write_matrix(tmp_path: Path) -> Callable[..., Path]:
    """Write a matrix; workloads that are not the farm's own are copied beside it from the fixtures."""

    def write(
        *workloads: dict[str, Any],
        gates: str = "correctness",
        looks: str = "6",
        restart_s: float = 0.4,
        step_timeout_s: float = 60.0,
        slack: float = 0.03,
        aa_share: float = 0.0,
    ) -> Path:
        text = HEAD.format(
            gates=", ".join(f'"{gate}"' for gate in gates.split()),
            looks=looks,
            restart_s=restart_s,
            step_timeout_s=step_timeout_s,
            aa_share=aa_share,
            p50=1 + slack,
            throughput=1 - slack,
        )
        for workload in workloads:
            source = FIXTURES / f"{workload['name']}.py"
            if source.is_file():
                shutil.copy(source, tmp_path)
                workload = workload | {"file": source.name}
            text += "\n[[workload]]\n"
            text += "".join(f"{key} = {_toml(value)}\n" for key, value in workload.items())
        path = tmp_path / "matrix.toml"
        path.write_text(text)
        return path

    return write


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return "[" + ", ".join(f'"{entry}"' for entry in value) + "]"


@pytest.fixture
def measure(write_matrix: Callable[..., Path], resolution: Any, shared_home: Path, built: Any) -> Callable[..., Found]:
    """Plan the workloads, measure every cell on this machine and judge: all of the farm but its queues."""

    def run(*workloads: dict[str, Any], cancelled: Callable[[], bool] = lambda: False, **asked: Any) -> Found:
        matrix = load_matrix(write_matrix(*workloads, **asked))
        request = PlanRequest("2.13.0", "2.12.1", "smoke", ())
        plan = make_plan(matrix, request, [probe_host()], lambda backend, host: resolution)
        results = []
        for cell in plan.cells:
            order = CellOrder(
                run_id="run",
                attempt=1,
                cell=cell,
                environments=plan.environments,
                source=plan.sources.get(cell.workload),
            )
            home = Home(shared_home)
            results.append(run_cell(order, home, lambda progress: None, None, cancelled, worker="here"))
        evidence = Evidence(run_id="run", state=RunState.COMPLETE, plan=plan, results=tuple(results))
        return Found(plan, evidence, judge(evidence))

    return run
