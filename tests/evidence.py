"""Evidence made from a few numbers, for everything that judges: sound unless a test says what is wrong with it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import zstandard

from farm.aa import aa_cells
from farm.gates import GateQuestion
from farm.model import (
    Arm,
    ArmResult,
    ArmTiming,
    Cell,
    CellResult,
    Comparison,
    CompileExport,
    Control,
    Environment,
    Evidence,
    Examination,
    Gate,
    Host,
    Loaded,
    LockedPackage,
    Measuring,
    Memory,
    Operator,
    Outcome,
    Output,
    Plan,
    Question,
    Recompiles,
    Rehearsal,
    Release,
    Restart,
    RunState,
    SavedProgram,
    ShapeCall,
    Side,
    Tier,
    Trace,
    Validity,
    Window,
    pack_ns,
)

RUN = "r-1"
GATES = tuple(Gate)
HOST = Host(
    name="bench-1",
    platform="x86_64-unknown-linux-gnu",
    os="Linux 6.8",
    cpu="EPYC 9554",
    cores=8,
    memory_bytes=64 * 2**30,
    capabilities=("cpu", "cuda.sm90"),
    python="3.11",
)

Times = Mapping[str, "float | Sequence[float]"]


def environment(version: str) -> Environment:
    wheel = f"torch-{version}-cp311-cp311-manylinux_2_28_x86_64.whl"
    release = Release(
        version=version,
        local=None,
        variant="cpu",
        platform=HOST.platform,
        wheel=wheel,
        sha256=version.encode().hex(),
        origin="wheels.example.org",
        requirement=f"torch==={version}",
    )
    torch = LockedPackage(name="torch", version=version, wheel=wheel, sha256=release.sha256, url="")
    return Environment(release=release, python=HOST.python, packages=(torch,))


ENVIRONMENTS = {Side.BASELINE: environment("2.12.1"), Side.CANDIDATE: environment("2.13.0")}


def cell(workload: str = "block", case: str = "infer", *, features: Iterable[str] = (), **more: Any) -> Cell:
    """Return a cell on production shapes with every gate; ``features`` are new paths of the candidate."""
    capability = more.pop("capability", "cpu")
    names = [Side.BASELINE.value, Side.CANDIDATE.value, *(f"candidate+{feature}" for feature in features)]
    arms = []
    for name in names:
        side, _, path = name.partition("+")
        key = ENVIRONMENTS[Side(side)].key
        arms.append(Arm(name=name, side=Side(side), path=path or "old", environments={HOST.target: key}))
    fields: dict[str, Any] = {
        "id": f"{workload}/{case}@{capability}",
        "backend": capability.partition(".")[0],
        "parameters": {"dtype": "float32"},
        "production_shape": True,
        "arms": tuple(arms),
        "control": Control(workload_digest="ab" * 32, seed=7, environment_variables={}),
        "measuring": Measuring(),
        "gates": tuple(gate for gate in GATES if gate is not Gate.ROLLBACK),
    }
    return Cell(workload=workload, case=case, capability=capability, **fields | more)


def rehearsal_cell(capability: str = "cpu") -> Cell:
    """Return the cell in which the way back of a capability is walked."""
    made = cell("rollback", "control", capability=capability, gates=(Gate.ROLLBACK,))
    return made.model_copy(update={"kind": "rehearsal"})


def aa_cell(of: Cell) -> Cell:
    """Return the cell that measures the baseline of ``of`` against itself."""
    (found,) = aa_cells([of], 0.1, seed=7)
    return found


def tier(name: str = "serving", **more: Any) -> Tier:
    """Return a tier on the CPU that requires every gate, with limits of 3 % and 5 %."""
    fields: dict[str, Any] = {
        "description": f"what {name} is",
        "backends": ("cpu",),
        "required": GATES,
        "p50_ratio": 1.03,
        "p95_ratio": 1.05,
        "throughput_ratio": 0.97,
        "peak_memory_ratio": 1.05,
        "compile_ratio": 1.25,
        "graph_breaks": 0,
        "rollback_s": 120.0,
        "feature_gain": 0.9,
    }
    return Tier(name=name, **fields | more)


def comparison(**more: Any) -> Comparison:
    """Return the comparison of an output whose error is half an epsilon of float32."""
    fields: dict[str, Any] = {
        "finite": True,
        "reference_finite": True,
        "same_shape": True,
        "bitwise_equal": False,
        "rms_error": 6e-8,
        "max_error": 2e-7,
        "reference_rms": 1.0,
        "gain": 1.0,
    }
    return Comparison(**fields | more)


def output(*, dtype: str = "float32", shape: tuple[int, ...] = (2, 64), changed: bool = False, **error: Any) -> Output:
    """Return an output; ``error`` is what its comparison with the oracle says otherwise."""
    return Output(
        dtype=dtype,
        shape=shape,
        sha256="cd" * 32,
        against_oracle=comparison(**error),
        against_reference=comparison(bitwise_equal=not changed),
    )


def memory(step: int | None = 2**24, process: Sequence[int] = (2**28,) * 3, reserved: int | None = None) -> Memory:
    return Memory(allocator_peak_bytes=step, reserved_peak_bytes=reserved, process_peak_bytes=tuple(process))


def examination(**more: Any) -> Examination:
    fields: dict[str, Any] = {
        "outputs": {"y": output()},
        "repeat_digests": ("ef",) * 5,
        "memory": memory(),
        "items_per_step": 128.0,
        "item": "tokens",
        "path_ran": "old",
    }
    return Examination(**fields | more)


def program(**more: Any) -> CompileExport:
    """Return a compilation and an export that went well."""
    fields: dict[str, Any] = {
        "compile_outcome": Outcome.OK,
        "graphs": 1,
        "graph_breaks": 0,
        "cold_ns": 8 * 10**9,
        "warm_ns": 2 * 10**9,
        "compiled": {"y": comparison()},
        "programs": {"exported program": saved()},
    }
    return CompileExport(**fields | more)


def saved(**more: Any) -> SavedProgram:
    """Return a program that was made, and loaded well by the release that made it and by the other one."""
    fields: dict[str, Any] = {"outcome": Outcome.OK, "size_bytes": 4096, "loaded": loaded(), "elsewhere": loaded()}
    return SavedProgram(**fields | more)


def loaded(**outputs: Comparison) -> Loaded:
    return Loaded(outcome=Outcome.OK, outputs={"1x37": outputs or {"y": comparison()}})


def compiled_over(*new_graphs: int, dynamic: str = "None", **more: Any) -> Recompiles:
    """Return a compilation over as many shapes as there are numbers of new graphs."""
    calls = tuple(
        ShapeCall(
            shape=f"1x{place + 2}",
            new_graphs=new,
            reasons=("size mismatch",) if place and new else (),
            ran="compiled",
            outputs={"y": comparison()},
        )
        for place, new in enumerate(new_graphs)
    )
    return Recompiles(**{"dynamic": dynamic, "outcome": Outcome.OK, "calls": calls} | more)


def ok(programs: CompileExport | None = None, **examined: Any) -> ArmResult:
    """Return an arm that ran; ``examined`` is what its examination says otherwise."""
    return ArmResult(
        outcome=Outcome.OK, examination=examination(**examined), compile_export=programs or program(), facts={}
    )


def ended(outcome: Outcome = Outcome.CRASHED, reason: str = "signal 11") -> ArmResult:
    return ArmResult(outcome=outcome, reason=reason)


def window(block: int, steps_ns: Sequence[int] | np.ndarray) -> Window:
    total = min(int(np.asarray(steps_ns, dtype=float).sum()), 2**62)
    return Window(
        block=block,
        position=0,
        steps_ns=pack_ns(np.asarray(steps_ns, dtype=np.uint64)),
        wall_ns=total,
        cpu_ns=total,
        minor_faults=0,
    )


def life(step_ms: float, digest: str = "ef") -> ArmTiming:
    """Return one runner's life: two windows of six steps that take ``step_ms`` each."""
    steps = np.full(6, round(step_ms * 1e6), dtype=np.uint64)
    return ArmTiming(
        import_ns=10**9,
        setup_ns=10**8,
        first_step_ns=10**7,
        warmup_ns=10**9,
        steady=True,
        output_digest=digest,
        windows=(window(0, steps), window(1, steps)),
    )


def restarts(times: Times, count: int = 6) -> tuple[Restart, ...]:
    """Return restarts from step times in ms: one number an arm for all ``count``, or one for each restart."""
    series = {name: [t] * count if isinstance(t, int | float) else list(t) for name, t in times.items()}
    length = max(map(len, series.values()), default=0)
    return tuple(
        Restart(
            index=index,
            order=tuple(series),
            arms={name: life(found[index]) for name, found in series.items() if index < len(found)},
        )
        for index in range(length)
    )


def result(
    of: Cell, arms: Mapping[str, ArmResult] | None = None, times: Times | None = None, **more: Any
) -> CellResult:
    """Return the answer to ``of``: every arm ok and 10 ms a step but for what ``arms`` and ``times`` say."""
    found = {arm.name: ok() for arm in of.arms} | dict(arms or {})
    given: dict[str, Any] = {name: 10.0 for name, arm in found.items() if arm.outcome is Outcome.OK} | dict(times or {})
    fields: dict[str, Any] = {
        "run_id": RUN,
        "attempt": 1,
        "worker": "w-1",
        "host": HOST,
        "started": "2026-07-01T10:00:00+00:00",
        "validity": Validity(valid=True),
        "restarts": restarts(given) if of.kind != "rehearsal" else (),
        "wall_ns": 40 * 10**9,
        "stopped_because": "restarts used up",
    }
    return CellResult(cell_id=of.id, arms=found, **fields | more)


def rehearsal(**more: Any) -> Rehearsal:
    """Return a way back that was walked in 10 s."""
    fields: dict[str, Any] = {
        "outcome": Outcome.OK,
        "steps_ns": {"prepare": 60 * 10**9, "reinstall": 6 * 10**9, "control": 4 * 10**9},
        "network_off_by": "network namespace",
        "reinstalled": ("torch 2.13.0 -> 2.12.1",),
        "control_equal": True,
    }
    return Rehearsal(**fields | more)


def rehearsed(capability: str = "cpu", **more: Any) -> CellResult:
    return result(rehearsal_cell(capability), rehearsal=rehearsal(**more))


def plan(cells: Iterable[Cell], tiers: Iterable[Tier], **more: Any) -> Plan:
    fields: dict[str, Any] = {
        "created": "2026-07-01T09:59:00+00:00",
        "suite": "standard",
        "requested": {"candidate": "2.13"},
        "command": ("farm", "submit", "--candidate", "2.13.0"),
        "resolution_notes": (),
        "aa": False,
        "releases": {f"{side}@{HOST.target}": made.release for side, made in ENVIRONMENTS.items()},
        "environments": {made.key: made for made in ENVIRONMENTS.values()},
        "requested_backends": ("cpu",),
        "unserved_backends": {},
        "matrix_digest": "12" * 32,
        "matrix_source": "built in",
        "versions": {},
        "caveats": (),
        "seed": 7,
    }
    return Plan(cells=tuple(cells), tiers=tuple(tiers), **fields | more)


def evidence(
    results: Mapping[Cell, CellResult | None] | Sequence[tuple[Cell, CellResult | None]],
    *tiers: Tier,
    way_back: CellResult | None = None,
    unfinished: Mapping[str, str] | None = None,
    **planned: Any,
) -> Evidence:
    """Return a run of cells with their results, None where a cell has none, and a rehearsal that went well."""
    pairs = list(results.items()) if isinstance(results, Mapping) else list(results)
    capabilities = dict.fromkeys(of.capability for of, _ in pairs)
    back = [way_back] if way_back is not None else [rehearsed(capability) for capability in capabilities]
    cells = [of for of, _ in pairs] + [rehearsal_cell(capability) for capability in capabilities]
    return Evidence(
        run_id=RUN,
        state=RunState.COMPLETE,
        plan=plan(cells, tiers or (tier(),), **planned),
        results=tuple(found for _, found in pairs if found is not None) + tuple(back),
        unfinished=dict(unfinished or {}),
    )


def run_of(*cells: Cell, tiers: Sequence[Tier] = (), **planned: Any) -> Evidence:
    """Return a run in which all is well."""
    return evidence([(of, result(of)) for of in cells], *tiers, **planned)


def ask(
    arms: Mapping[str, ArmResult] | None = None,
    times: Times | None = None,
    *,
    of: Cell | None = None,
    limits: Tier | None = None,
    path: str = "",
    way_back: CellResult | None = None,
    **more: Any,
) -> GateQuestion:
    """Return what a gate is asked of one cell: of the version, or of the new ``path`` on the candidate."""
    of = of or cell(features=(path,) if path else ())
    return GateQuestion(
        cell=of,
        result=result(of, arms, times, **more),
        question=Question.FEATURE if path else Question.VERSION,
        arm=f"candidate+{path}" if path else "candidate",
        reference="candidate" if path else "baseline",
        tier=limits or tier(),
        rehearsal=way_back,
    )


def trace(*operators: Operator, content: bytes = b'{"traceEvents":[]}', travels: bool = True) -> Trace:
    """Return one profiled step."""
    return Trace(
        operators=operators,
        sha256=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
        packed=zstandard.ZstdCompressor().compress(content) if travels else b"",
    )
