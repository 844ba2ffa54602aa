"""One cell with everything behind its figures: arms, machine, phases, the way back."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from farm.budget import percent_apart
from farm.model import (
    Arm,
    ArmResult,
    Calibration,
    Cell,
    CellResult,
    Evidence,
    Finding,
    Judgement,
    Outcome,
    Rehearsal,
)
from farm.power import noise_fence
from farm.report.environments import EnvironmentView, environment_views
from farm.report.findings import finding_lines
from farm.report.pairs import PairView, pair_views
from farm.report.programs import compared_words, program_rows
from farm.report.text import anchor, fact, percent, plural, seconds
from farm.report.traces import OperatorsView, operators_view, trace_words
from farm.statistics import counted
from farm.units import mebibytes

__all__ = ["ArmView", "CellView", "RehearsalView", "cell_anchor", "cell_view"]

Rows = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ArmView:
    name: str
    path: str
    outcome: str
    """How it ended; "not run", "skipped" or "not answered" where nobody knows."""
    chip: str
    reason: str
    command: str
    facts: Rows
    figures: Rows
    """Memory, page faults, the trace, compile and export, items, the path that really ran."""
    outputs: tuple[tuple[str, str, str, str], ...]
    """(name, dtype and shape, against the oracle, against the reference)."""
    log_tail: str


@dataclass(frozen=True)
class RehearsalView:
    """The way back, walked."""

    outcome: str
    facts: Rows
    steps: Rows
    state: Rows
    reinstalled: tuple[str, ...]
    mismatches: tuple[str, ...]
    last_words: str


@dataclass(frozen=True)
class CellView:
    id: str
    anchor: str
    kind: str
    state: str
    """"valid", "invalid: …", "not run: …" or "skipped: …"."""
    state_chip: str
    heading: str
    """"Cell", "A/A cell", "Rehearsal"."""
    overhead: str
    pairs: tuple[PairView, ...]
    arms: tuple[ArmView, ...]
    operators: OperatorsView | None
    environments: tuple[EnvironmentView, ...]
    question: Rows
    """Parameters and control."""
    host: Rows
    measuring: Rows
    phases: Rows
    moved: tuple[str, ...]
    warnings: tuple[str, ...]
    caveats: tuple[str, ...]
    rehearsal: RehearsalView | None
    findings: tuple[str, ...]
    """What was looked into afterwards: packages held, nightlies walked."""


def cell_anchor(cell_id: str) -> str:
    """Return the id of a cell's section."""
    return anchor("cell", cell_id)


def cell_view(evidence: Evidence, judgement: Judgement, cell: Cell, findings: Sequence[Finding] = ()) -> CellView:
    """Return everything known of ``cell``."""
    result = next((found for found in evidence.results if found.cell_id == cell.id), None)
    state, chip = _state(result, evidence.why_no_result(cell.id))
    return CellView(
        id=cell.id,
        anchor=cell_anchor(cell.id),
        kind=cell.kind,
        state=state,
        state_chip=chip,
        heading={"measure": "Cell", "aa": "A/A cell", "rehearsal": "Rehearsal"}[cell.kind],
        overhead=_overhead(result) if result else "",
        pairs=pair_views(judgement, cell, result, evidence.plan.tiers),
        arms=tuple(_arm_view(arm, result, evidence.without_result(cell.id)) for arm in cell.arms),
        operators=operators_view(cell, result) if result else None,
        environments=environment_views(evidence.plan, cell, result),
        question=_question(cell),
        host=_host(result) if result else (),
        measuring=_measuring(cell, result),
        phases=tuple((name, seconds(ns)) for name, ns in result.phases_ns.items()) if result else (),
        moved=result.moved_packages if result else (),
        warnings=_warnings(cell, result),
        caveats=cell.caveats,
        rehearsal=_rehearsal(result.rehearsal) if result and result.rehearsal else None,
        findings=finding_lines(findings, cell.id),
    )


def _state(result: CellResult | None, why_none: str) -> tuple[str, str]:
    if result is None:
        return why_none, "untested"
    if result.validity.valid and result.validity.arms:
        against = "; ".join(f"{name} {', '.join(reasons)}" for name, reasons in result.validity.arms.items())
        return f"times invalid: {against}", "invalid"
    if result.validity.valid:
        return "valid", "valid"
    return f"invalid: {'; '.join(result.validity.reasons)}", "invalid"


def _overhead(result: CellResult) -> str:
    """Return the share of wall time that no measured window holds; "" where nothing was to be measured."""
    if not result.measured_ns or not result.wall_ns:
        return ""
    inside = percent(result.measured_ns, result.wall_ns)
    outside = percent(result.wall_ns - result.measured_ns, result.wall_ns)
    return f"{outside} ({inside} of {seconds(result.wall_ns)} inside measured windows)"


def _arm_view(arm: Arm, result: CellResult | None, without: tuple[str, str]) -> ArmView:
    ended = result.arms.get(arm.name) if result else None
    if ended is None:
        word, reason = without if result is None else ("not answered", "the worker says nothing of this arm")
        return ArmView(arm.name, arm.path, word, "untested", reason, "", (), (), (), "")
    return ArmView(
        name=arm.name,
        path=arm.path,
        outcome=ended.outcome.value,
        chip="ok" if ended.outcome is Outcome.OK else "bad",
        reason=ended.reason,
        command=shlex.join(ended.command),
        facts=tuple((name, fact(value)) for name, value in ended.facts.items()),
        figures=_figures(ended),
        outputs=_outputs(ended),
        log_tail=ended.log_tail,
    )


def _figures(ended: ArmResult) -> Rows:
    rows: list[tuple[str, str]] = []
    examined, programs = ended.examination, ended.compile_export
    if examined is not None:
        rows += [("path that ran", examined.path_ran), ("items a step", f"{examined.items_per_step:g} {examined.item}")]
        repeats = len(examined.repeat_digests)
        rows.append(("distinct results of repeats", f"{len(set(examined.repeat_digests))} of {repeats}"))
        if examined.memory is not None:
            memory = examined.memory
            rows.append(("peak of a step", mebibytes(memory.allocator_peak_bytes)))
            rows.append(("reserved peak", mebibytes(memory.reserved_peak_bytes)))
            rows.append(("memory outside the allocator", mebibytes(memory.outside_bytes)))
            rows.append(("process peaks", ", ".join(mebibytes(peak) for peak in memory.process_peak_bytes)))
            if memory.allocations is not None:
                rows.append(
                    ("allocations of a step", f"{memory.allocations}, {mebibytes(memory.allocated_bytes)} in all")
                )
        if examined.faults_per_step is not None:
            rows.append(("page faults of a step, allocator as it comes", f"{examined.faults_per_step:.1f}"))
        rows += [(name, fact(value)) for name, value in examined.facts.items()]
        if examined.drill is not None:
            drill = examined.drill
            rows.append(("drill", f"{drill.result} by {drill.how} in {seconds(drill.took_ns)}: {drill.ran}"))
        if examined.trace is not None:
            rows.append(("trace", trace_words(examined.trace)))
    if programs is not None:
        rows += program_rows(programs)
    return tuple((name, value) for name, value in rows if value)


def _outputs(ended: ArmResult) -> tuple[tuple[str, str, str, str], ...]:
    if ended.examination is None:
        return ()
    return tuple(
        (
            name,
            f"{output.dtype} {'×'.join(map(str, output.shape)) or 'scalar'}",
            compared_words(output.against_oracle),
            compared_words(output.against_reference),
        )
        for name, output in ended.examination.outputs.items()
    )


def _question(cell: Cell) -> Rows:
    control = cell.control
    return (
        ("workload", f"{cell.workload}, case {cell.case}, track {cell.track}"),
        ("production shape", "yes" if cell.production_shape else "no"),
        *([("stage", cell.stage + (", in service" if cell.in_service else ""))] if cell.stage else []),
        ("capability", cell.capability),
        ("parameters", ", ".join(f"{name} {value}" for name, value in cell.parameters.items())),
        ("workload digest", control.workload_digest or "not recorded"),
        ("seed", str(control.seed) if control.workload_digest else "not recorded"),
        ("environment variables", ", ".join(f"{k}={v}" for k, v in control.environment_variables.items())),
        ("control", f"broken: {cell.broken_control}" if cell.broken_control else _control(cell)),
    )


def _control(cell: Cell) -> str:
    """Return whether the arms' control was kept: evidence that was written by hand may record none."""
    return "kept" if cell.control.workload_digest else "not recorded"


def _host(result: CellResult) -> Rows:
    host = result.host
    return (
        ("host", host.name),
        ("processor", f"{host.cpu}, {host.cores} cores, {mebibytes(host.memory_bytes)}"),
        ("system", f"{host.os}, {host.platform}, Python {host.python}"),
        ("capabilities", ", ".join(host.capabilities)),
        ("worker", f"{result.worker}, attempt {result.attempt}, started {result.started}"),
        ("calibrated", _calibrated(host.calibration)),
        *((check.name, f"{check.state}: {check.found}") for check in result.checks if check.state != "good"),
    )


def _calibrated(known: Calibration | None) -> str:
    if known is None:
        return "never: what this machine resolves is not known"
    return f"{known.measured[:10]}, noise {known.sd * 100:.2f} % from restart to restart"


def _measuring(cell: Cell, result: CellResult | None) -> Rows:
    if cell.kind == "rehearsal":
        return (("wall time", seconds(result.wall_ns)),) if result else ()
    asked = cell.measuring
    rows = [
        ("looks after restarts", ", ".join(map(str, asked.looks))),
        ("one-sided error", f"{asked.alpha:g}"),
        ("window, restart, budget", f"{asked.window_ms:g} ms, {asked.restart_s:g} s, {asked.budget_s:g} s"),
        ("threads", str(asked.threads)),
    ]
    if result is not None:
        fence = noise_fence(result.noise)
        history = f"{plural(len(result.noise), 'A/A ratio')} on record" if result.noise else ""
        rows += [
            ("own noise", f"{history}, reaching to {percent_apart(fence)}" if fence is not None else history),
            ("restarts", _restarts(result)),
            ("stopped because", result.stopped_because),
            ("overhead", _overhead(result)),
            ("wall time", seconds(result.wall_ns)),
        ]
    return tuple((name, value) for name, value in rows if value)


def _restarts(result: CellResult) -> str:
    """Return how many restarts answered, repeated, and were thrown away."""
    said = [str(len(counted(result.restarts)))]
    for purpose, words in (("confirming", "to confirm"), ("as it comes", "with the allocator as it comes")):
        number = len(counted(result.restarts, purpose))
        said += [f"{number} {words}"] if number else []
    disturbed = sum(bool(restart.invalid) for restart in result.restarts)
    return ", ".join(said + ([f"{disturbed} disturbed and not judged"] if disturbed else []))


def _warnings(cell: Cell, result: CellResult | None) -> tuple[str, ...]:
    found = [f"control broken: {cell.broken_control}"] if cell.broken_control else []
    if result is None:
        return tuple(found)
    for name, ended in result.arms.items():
        # CASES.md V9: the host's own libraries can stand in front of the wheel's.
        strangers = ended.facts.get("stranger_libraries") or ()
        found += [f"{name}: a library that is not the environment's was loaded: {path}" for path in strangers]
        if ended.examination is not None:
            found += [f"{name}: {warning}" for warning in ended.examination.warnings]
    judged = counted(result.restarts)
    unsteady = sum(restart.unsteady for restart in judged)
    if unsteady:
        found.append(f"{plural(unsteady, 'restart')} of {len(judged)} drifted by more than 2 %")
    disturbed = Counter(restart.invalid for restart in result.restarts if restart.invalid)
    found += [f"{plural(number, 'restart')} not judged: {reason}" for reason, number in disturbed.most_common()]
    cold = sum(not timing.steady for restart in judged for timing in restart.arms.values())
    if cold:
        found.append(f"{plural(cold, 'warm-up')} ended at the cap without a steady state")
    return tuple(dict.fromkeys(found))


def _rehearsal(walked: Rehearsal) -> RehearsalView:
    equal = {True: "bitwise as before the upgrade", False: "differ", None: "not compared"}[walked.control_equal]
    facts = (
        ("back after", seconds(walked.duration_ns)),
        ("network off by", walked.network_off_by),
        (
            "back a second time after",
            seconds(sum(ns for name, ns in walked.again_ns.items() if "prepare" not in name))
            if walked.again_ns
            else "",
        ),
        ("control outputs", equal),
        ("left behind", "; ".join(walked.leftovers)),
        ("reason", walked.reason),
    )
    return RehearsalView(
        outcome=walked.outcome.value,
        facts=tuple((name, value) for name, value in facts if value),
        steps=tuple((name, seconds(ns)) for name, ns in walked.steps_ns.items()),
        state=tuple(
            (kind, f"{kept.result}{f': {kept.reason}' if kept.reason else ''}") for kind, kept in walked.state.items()
        ),
        reinstalled=walked.reinstalled,
        mismatches=walked.mismatches,
        last_words=walked.last_words,
    )
