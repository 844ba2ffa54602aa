"""A workload on trial: one release against itself on this machine's CPU, through every gate that asks about work."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from farm.catalogue import CaseSpec, WorkloadSpec
from farm.errors import EnvironmentFailed
from farm.judge import judge
from farm.matrix import Matrix, MatrixWorkload, Planning
from farm.model import Cell, CellOrder, CellResult, CellVerdicts, Evidence, Gate, Plan, Progress, RunState
from farm.owners import owner_name
from farm.plan import PlanRequest, make_plan
from farm.releases import SHARED_PACKAGES, resolve
from farm.settings import Home
from farm.soundness import Finding, findings, of_file
from workers.cell import START_TIMEOUT_S, run_cell
from workers.environments import build
from workers.examination import setup_fields
from workers.lease import machine_lease
from workers.probe import probe_host
from workers.runner_environment import runner_environment
from workers.session import ArmEnded, RunnerSession
from workers.stage import make_stage, workload_reference

__all__ = ["Checked", "check"]

SUITE = "smoke"
RUN = "check"


@dataclass(frozen=True)
class Checked:
    """What a trial gave."""

    release: str
    tier: str
    """Whose limits the verdicts are by: the strictest."""
    cells: tuple[Cell, ...]
    results: tuple[CellResult, ...]
    verdicts: tuple[CellVerdicts, ...]
    findings: tuple[Finding, ...]


def check(
    spec: WorkloadSpec,
    cases: Sequence[CaseSpec],
    release: str,
    home: Home,
    matrix: Matrix,
    progress: Callable[[Sequence[Cell], Sequence[CellResult], Progress | None], None],
    waiting: Callable[[], None],
) -> Checked:
    """Return what ``cases`` of ``spec`` show where ``release`` is measured against itself.

    ``progress`` is called with the cells, the results so far and where the current one stands, ``waiting`` while
    another measurement has the machine. Raises UsageError for
    a release that cannot be meant, EnvironmentFailed where it cannot be installed.
    """
    plan = _plan(spec, cases, release, matrix)
    if not plan.environments:
        refused = plan.refused[0]
        raise EnvironmentFailed(f"torch {release} cannot be installed: {refused.reason}", refused.last_words)
    results: list[CellResult] = []
    seeds: dict[str, list[str]] = {}
    progress(plan.cells, results, None)
    with machine_lease(waiting, lambda: False) as lease:
        for cell in plan.cells:
            order = CellOrder(
                run_id=RUN,
                attempt=1,
                cell=cell,
                environments=plan.environments,
                source=plan.sources.get(cell.workload),
            )
            results.append(
                run_cell(
                    order,
                    home,
                    lambda told: progress(plan.cells, results, told),
                    lease,
                    lambda: False,
                    worker="this machine",
                )
            )
            seeds[cell.id] = _seeds(plan, cell, home, lease)
            progress(plan.cells, results, None)
    evidence = Evidence(run_id=RUN, state=RunState.COMPLETE, plan=plan, results=tuple(results))
    tier = max(plan.tiers, key=lambda one: (len(one.required), -one.p50_ratio))
    verdicts = tuple(one for one in judge(evidence).cells if one.tier == tier.name)
    found = [
        one
        for cell, result in zip(plan.cells, results, strict=True)
        for one in findings(spec, cell, result, verdicts, seeds[cell.id])
    ]
    release_named = next(iter(plan.environments.values())).release.identity
    return Checked(release_named, tier.name, plan.cells, tuple(results), verdicts, (*found, *of_file(spec)))


def _plan(spec: WorkloadSpec, cases: Sequence[CaseSpec], release: str, matrix: Matrix) -> Plan:
    """Return the plan of ``cases`` in smoke size on the CPU: no controls beside them, no rehearsal."""
    work = MatrixWorkload(
        spec,
        features=tuple(path.name for path in spec.paths[1:]),
        cases=tuple(dataclasses.replace(case, suites=(SUITE,)) for case in cases),
        backends=None,
        own=not spec.shipped,
    )
    tiers = tuple(tier.model_copy(update={"backends": ("cpu",)}) for tier in matrix.tiers)
    trial = dataclasses.replace(
        matrix,
        workloads=(work,),
        gates=tuple(gate for gate in matrix.gates if gate is not Gate.ROLLBACK),
        planning={**matrix.planning, SUITE: Planning(aa_share=0.0, confirm=False)},
        tiers=tiers,
    )
    host = probe_host()
    beside = (*SHARED_PACKAGES, *matrix.packages)
    resolution = resolve(
        release, release, platform=host.platform, python=host.python, backend="cpu", shared_packages=beside
    )
    request = PlanRequest(release, release, SUITE, ("cpu",))
    # Of a host that is many things only the CPU is asked.
    return make_plan(trial, request, [host], lambda backend, machine: resolution)


def _seeds(plan: Plan, cell: Cell, home: Home, lease: int | None) -> list[str]:
    """Return the digests of a step with the cell's seed, the next one, and its own again; empty where one fails."""
    arm = cell.arms[0]
    environment = plan.environments[next(iter(arm.environments.values()))]
    source = plan.sources.get(cell.workload)
    found: list[str] = []
    with tempfile.TemporaryDirectory(prefix=f"{owner_name('seeds')}-", dir=home.scratch) as scratch:
        variables = runner_environment(
            cell.control.environment_variables, Path(scratch) / "caches", settled_allocator=False
        )
        stage, workload = make_stage(home.stage, source), workload_reference(cell.workload, source)
        python, log = build(environment, home).python, Path(scratch) / "seeds.log"
        try:
            with RunnerSession(python, stage, variables, log, lease_fd=lease) as session:
                session.hello(START_TIMEOUT_S)
                for seed in (cell.control.seed, cell.control.seed + 1, cell.control.seed):
                    fields = setup_fields(cell, arm, workload) | {"seed": seed}
                    found.append(session.request("setup", cell.measuring.step_timeout_s, **fields)["output_digest"])
        except ArmEnded:
            return []
    return found
