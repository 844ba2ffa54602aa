"""The frozen plan of a run: every cell with its arms, its control and the limits that will judge it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, get_args

from packaging.version import Version

from farm.aa import aa_cells
from farm.budget import Need, calibrations_for, confirming_restarts, fitted, need_words
from farm.capability import backend_of
from farm.catalogue import CaseSpec, WorkloadSpec, workload_digest
from farm.errors import UsageError
from farm.matrix import Matrix, MatrixWorkload
from farm.model import (
    Arm,
    Backend,
    Calibration,
    Cell,
    Control,
    Environment,
    EnvironmentRefused,
    Gate,
    Host,
    Measuring,
    Plan,
    PlannedWorkload,
    Release,
    Side,
    StateKind,
)
from farm.releases import Resolution, of_one_night
from farm.stages import service_tiers, staged

__all__ = ["PlanRequest", "make_plan", "planned_workloads", "served_capabilities"]

#: One thread of everything: thread pools of two arms on one machine are the noise that we measure against.
#: The allocator settings keep freed memory, so that no step pays for page faults (measured here: 4 % to 0). An
#: MMAP_THRESHOLD above 32 MiB is ignored by glibc; MMAP_MAX 0 is what holds.
ENVIRONMENT_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "268435456",
}


@dataclass(frozen=True)
class PlanRequest:
    """What was asked for."""

    candidate: str
    baseline: str | None
    suite: str
    backends: tuple[Backend, ...]
    """Empty means every backend with a live worker."""
    stages: bool = False
    """Take the window that the matrix describes."""
    workloads: tuple[str, ...] = ()
    """Empty means every workload of the matrix."""


@dataclass
class _Parts:
    """What the cells of a plan refer to."""

    environments: dict[str, Environment] = field(default_factory=dict)
    releases: dict[str, Release] = field(default_factory=dict)
    refused: list[EnvironmentRefused] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    keys: dict[tuple[Side, str], dict[str, str]] = field(default_factory=dict)
    """Target to environment key, by side and backend."""
    broken: dict[str, str] = field(default_factory=dict)
    aa: list[bool] = field(default_factory=list)
    pins: dict[Side, str] = field(default_factory=dict)
    needs: list[Need] = field(default_factory=list)
    """What calibrated machines need beyond what their cells are given."""


def served_capabilities(hosts: Iterable[Host]) -> dict[str, list[Host]]:
    """Return the hosts by each of the capabilities that they name themselves by."""
    found: dict[str, list[Host]] = {}
    for host in hosts:
        for capability in host.capabilities:
            found.setdefault(capability, []).append(host)
    return found


def make_plan(
    matrix: Matrix, request: PlanRequest, hosts: Sequence[Host], resolve: Callable[[Backend, Host], Resolution]
) -> Plan:
    """Return the plan of ``request`` for the machines ``hosts``.

    ``resolve(backend, host)`` resolves both releases for one backend on one machine's platform and Python. Raises
    UsageError for a suite, a backend or stages that the matrix does not have.
    """
    measuring, planning = matrix.suite(request.suite), matrix.planning[request.suite]
    if request.stages and not matrix.stages:
        raise UsageError(f"{matrix.source}: the matrix has no stages; write [[stage]] tables, or leave out --stages")
    for backend in request.backends:
        if backend not in matrix.backends:
            raise UsageError(f"no backend '{backend}' in the matrix; allowed are {', '.join(matrix.backends)}")
    known = [workload.spec.name for workload in matrix.workloads]
    for name in request.workloads:
        if name not in known:
            raise UsageError(f"no workload '{name}' in the matrix; allowed are {', '.join(known)}")
    served = served_capabilities(hosts)
    live = {backend_of(capability) for capability in served}
    # In the matrix's order: the order of options and of machines is no part of the question.
    wanted = tuple(backend for backend in matrix.backends if backend in (request.backends or live))
    parts = _Parts()
    resolved: dict[tuple[Backend, str], Resolution] = {}
    for capability, machines in sorted(served.items()):
        if backend_of(capability) in wanted:
            _resolve(resolved, backend_of(capability), machines, resolve)
    asked = {Side.CANDIDATE: request.candidate, Side.BASELINE: request.baseline}
    tonight = of_one_night({f"{target}, {backend}": one for (backend, target), one in resolved.items()}, asked)
    for backend, target in resolved:
        _take(parts, backend, target, tonight[f"{target}, {backend}"])
    cells: list[Cell] = []
    for capability in sorted(served):
        if backend_of(capability) in wanted:
            noise = calibrations_for(backend_of(capability), served[capability])
            found = _cells(matrix, request, measuring, capability, noise, parts)
            controls = [] if _is_aa(parts) else aa_cells(found, planning.aa_share, matrix.seed)
            cells += [*found, *controls, *_rehearsals(matrix, capability, found)]
    stages = matrix.stages if request.stages else ()
    cells = staged(cells, stages, matrix.tiers)
    if planning.confirm:
        cells = _confirmed(cells)
    parts.notes += need_words(parts.needs)
    covered = {cell.backend for cell in cells if cell.kind == "measure"}
    return Plan(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        suite=request.suite,
        requested={"candidate": request.candidate, "baseline": request.baseline or "by default"},
        command=_command(matrix, request, wanted, parts),
        resolution_notes=tuple(dict.fromkeys(parts.notes)),
        aa=_is_aa(parts),
        releases=parts.releases,
        environments=parts.environments,
        refused=tuple(parts.refused),
        requested_backends=wanted,
        # In the matrix's order, as backends are.
        requested_workloads=tuple(name for name in known if name in request.workloads),
        unserved_backends={
            backend: _why_uncovered(backend, request, live) for backend in matrix.backends if backend not in covered
        },
        matrix_digest=matrix.digest,
        matrix_source=matrix.source,
        versions=matrix.versions,
        tiers=service_tiers(matrix.tiers, stages),
        stages=stages,
        workloads=planned_workloads(matrix),
        caveats=matrix.caveats,
        waivers=matrix.waivers,
        claims=matrix.claims,
        cells=tuple(cells),
        sources={w.spec.name: w.spec.source for w in matrix.workloads if w.own},
        seed=matrix.seed,
    )


def planned_workloads(matrix: Matrix) -> dict[str, PlannedWorkload]:
    """Return what ``matrix`` asks of its workloads before any tier adopts a release for them."""
    return {
        w.spec.name: PlannedWorkload(
            backends=w.backends or (),
            production_cases=tuple(c.name for c in w.cases if c.production_shape),
            owner=w.owner,
            maintains=w.maintains,
        )
        for w in matrix.workloads
    }


def _why_uncovered(backend: Backend, request: PlanRequest, live: set[Backend]) -> str:
    if request.backends and backend not in request.backends:
        return "not requested"
    return "no workload of the matrix runs there" if backend in live else "no worker"


def _resolve(
    resolved: dict[tuple[Backend, str], Resolution],
    backend: Backend,
    machines: Sequence[Host],
    resolve: Callable[[Backend, Host], Resolution],
) -> None:
    for target, host in sorted({machine.target: machine for machine in machines}.items()):
        if (backend, target) not in resolved:
            resolved[backend, target] = resolve(backend, host)


def _take(parts: _Parts, backend: Backend, target: str, resolution: Resolution) -> None:
    parts.notes += [f"{target}, {backend}: {note}" for note in resolution.notes]
    parts.refused += [r.model_copy(update={"platform": target}) for r in resolution.refused]
    parts.aa.append(resolution.aa)
    parts.pins |= resolution.pins
    if resolution.broken_control:
        parts.broken[backend] = resolution.broken_control
    for side, environment in resolution.environments.items():
        parts.environments[environment.key] = environment
        parts.releases[f"{side}@{target}, {backend}"] = environment.release
        parts.keys.setdefault((side, backend), {})[target] = environment.key


def _is_aa(parts: _Parts) -> bool:
    return bool(parts.aa) and all(parts.aa)


def _cells(
    matrix: Matrix,
    request: PlanRequest,
    measuring: Measuring,
    capability: str,
    noise: Mapping[str, Calibration],
    parts: _Parts,
) -> list[Cell]:
    """Return the measured cells of ``capability``, each given what its machines' ``noise`` asks for."""
    backend, suite = backend_of(capability), request.suite
    found: list[Cell] = []
    for workload in matrix.workloads:
        if request.workloads and workload.spec.name not in request.workloads:
            continue
        if workload.backends is not None and backend not in workload.backends:
            continue
        if workload.backends is None and backend == "distributed":
            # A workload for one device says nothing of several: only what names this backend runs there.
            continue
        for case in workload.cases:
            if suite in case.suites:
                cell = _cell(matrix, measuring, capability, workload, case, parts)
                ceiling_s = matrix.planning[suite].max_budget_s
                fits, needs = fitted(cell.measuring, len(cell.arms), ceiling_s, noise)
                parts.needs += needs
                found.append(cell.model_copy(update={"measuring": fits}))
    return found


def _rehearsals(matrix: Matrix, capability: str, measured: Sequence[Cell]) -> list[Cell]:
    if Gate.ROLLBACK not in matrix.gates or not measured:
        return []
    first = measured[0]
    rehearsal = first.model_copy(
        update={
            "id": f"rollback/{first.workload}-{first.case}@{capability}",
            "kind": "rehearsal",
            "arms": tuple(arm for arm in first.arms if "+" not in arm.name),
            "gates": (Gate.ROLLBACK,),
            "state": _state_of(matrix, first.backend),
        }
    )
    return [rehearsal]


def _state_of(matrix: Matrix, backend: Backend) -> tuple[StateKind, ...]:
    """Return the kinds of state that some tier on ``backend`` needs back, in one order for all matrices."""
    needed = {kind for tier in matrix.tiers if backend in tier.backends for kind in tier.state_required}
    return tuple(kind for kind in get_args(StateKind) if kind in needed)


def _confirmed(cells: Sequence[Cell]) -> list[Cell]:
    """Return ``cells`` with the repeat that a failing look is followed by; a run of many cells needs a longer one."""
    judged = sum(cell.kind == "measure" for cell in cells)
    found = []
    for cell in cells:
        repeat = {"confirming": confirming_restarts(judged, cell.measuring.looks, cell.measuring.alpha)}
        found.append(cell.model_copy(update={"measuring": cell.measuring.model_copy(update=repeat)}))
    return found


def _cell(
    matrix: Matrix,
    measuring: Measuring,
    capability: str,
    workload: MatrixWorkload,
    case: CaseSpec,
    parts: _Parts,
) -> Cell:
    backend = backend_of(capability)
    spec = workload.spec
    tiers = [
        tier
        for tier in matrix.tiers
        if backend in tier.backends and (not tier.workloads or spec.name in tier.workloads)
    ]
    gates = [gate for gate in matrix.gates if gate is not Gate.ROLLBACK]
    return Cell(
        id=f"{spec.name}/{case.name}@{capability}",
        backend=backend,
        capability=capability,
        workload=spec.name,
        case=case.name,
        parameters=dict(case.parameters),
        track="prototype" if spec.track == "prototype" else "production",
        production_shape=case.production_shape,
        arms=_arms(workload, backend, parts),
        control=Control(
            workload_digest=workload_digest(spec.source),
            seed=matrix.seed,
            environment_variables=ENVIRONMENT_VARIABLES,
        ),
        measuring=measuring.model_copy(
            update={
                "p50_limits": _distinct(tier.p50_ratio for tier in tiers),
                "p95_limits": _distinct(tier.p95_ratio for tier in tiers),
                "throughput_limits": _distinct(tier.throughput_ratio for tier in tiers),
                # A gain in memory is judged at times that are no worse.
                "feature_limits": _distinct(
                    [tier.feature_gain for tier in tiers]
                    + [tier.p50_ratio for tier in tiers if tier.feature_memory_gain is not None]
                ),
            }
        ),
        gates=tuple(gates if spec.compiles or spec.exports else [g for g in gates if g is not Gate.COMPILE_EXPORT]),
        programs=_programs(spec, case),
        caveats=workload.caveats,
        broken_control=parts.broken.get(backend),
    )


def _programs(spec: WorkloadSpec, case: CaseSpec) -> tuple[Literal["compile", "export", "package"], ...]:
    asked: dict[Literal["compile", "export", "package"], bool] = {
        "compile": spec.compiles,
        "export": spec.exports,
        "package": case.packages,
    }
    return tuple(name for name, wanted in asked.items() if wanted)


def _arms(workload: MatrixWorkload, backend: Backend, parts: _Parts) -> tuple[Arm, ...]:
    old = workload.spec.paths[0].name
    runs = {Side.BASELINE: old, Side.CANDIDATE: workload.candidate_path or old}
    arms = [
        Arm(name=side.value, side=side, path=path, environments=parts.keys.get((side, backend), {}))
        for side, path in runs.items()
    ]
    candidate = parts.keys.get((Side.CANDIDATE, backend), {})
    releases = {Version(parts.environments[key].release.version) for key in candidate.values()}
    for path in workload.spec.paths[1:]:
        if path.name not in workload.features:
            continue
        # Release numbers alone: 2.13.0rc2 has what 2.13 has.
        if path.needs is not None and any(version.release < path.needs.release for version in releases):
            parts.notes.append(f"{workload.spec.name}: path {path.name} needs {path.needs}, so it is not asked about")
            continue
        name = f"{Side.CANDIDATE}+{path.name}"
        arms.append(Arm(name=name, side=Side.CANDIDATE, path=path.name, environments=candidate))
    return tuple(arms)


def _command(matrix: Matrix, request: PlanRequest, backends: Sequence[Backend], parts: _Parts) -> tuple[str, ...]:
    command = ["farm", "submit"]
    for side in (Side.CANDIDATE, Side.BASELINE):
        if side in parts.pins:
            command += [f"--{side}", parts.pins[side]]
    command += ["--suite", request.suite]
    for backend in backends:
        command += ["--backend", backend]
    for name in (workload.spec.name for workload in matrix.workloads):
        if name in request.workloads:
            command += ["--workload", name]
    if matrix.path is not None:
        command += ["--matrix", str(matrix.path.absolute())]
    if request.stages:
        command.append("--stages")
    return tuple(command)


def _distinct(limits: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(sorted({limit for limit in limits if limit is not None}))
