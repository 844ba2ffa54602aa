"""Stored evidence in, one judgement out: pure, so that a later version can judge again and say the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from farm.aa import aa_alarms, count_false_alarms, unstable_cells
from farm.accusations import withhold
from farm.attribution import Moved, asymmetric, attribute, suspects
from farm.claims import claim_answers
from farm.comparable import broken_control, is_valid, measured_apart
from farm.coverage import coverage_of
from farm.decision import PRECEDENCE, UNPLANNED, RowKey, decide_row, worst
from farm.elsewhere import confirmed
from farm.gates import GateQuestion, judge_gate
from farm.model import (
    Backend,
    Cell,
    CellResult,
    CellVerdicts,
    Decision,
    DecisionRow,
    Evidence,
    Gate,
    Judgement,
    Plan,
    Question,
    Side,
    Status,
    Tier,
    TierDecision,
)
from farm.stage_verdicts import asked_elsewhere, joined, stage_decisions
from farm.stages import concerns
from farm.statistics import counted, ratio_interval
from farm.waivers import Waivers, waiver_uses, waivers_of

__all__ = ["falls_short", "judge"]

#: What would have a backend tested, by why it was not.
SERVING = {"not requested": "a run with --backend {}", "no worker": "a worker with backend {}"}
#: For what the plan alone asks.
NO_COMPANIONS: Mapping[tuple[str, str, Gate], str] = {}
#: The word for all workloads, in a row about a backend that nothing ran on.
ALL_WORKLOADS = "(all)"
#: The same for those of the matrix that were left out by who asked.
OTHER_WORKLOADS = "(others)"


def judge(evidence: Evidence, companions: Mapping[tuple[str, str, Gate], str] = NO_COMPANIONS) -> Judgement:
    """Return what ``evidence`` says under the limits that its own plan froze.

    ``companions`` is what was proven afterwards of failing gates, by tier, cell and gate: which companion of torch,
    held at the baseline's version, makes it pass. A judgement that rests on it is none that was registered.
    """
    plan = evidence.plan
    results = _counted(evidence)
    verdicts: list[CellVerdicts] = []
    controls: list[CellVerdicts] = []
    known: dict[str, dict[tuple[str, ...], Any]] = {cell.id: {} for cell in plan.cells}
    for tier in plan.tiers:
        for cell in plan.cells:
            if cell.kind != "rehearsal" and concerns(tier, cell):
                judged = _cell_verdicts(evidence, results, cell, tier, known[cell.id])
                (controls if cell.kind == "aa" else verdicts).extend(judged)
    verdicts = withhold(verdicts, results, {cell.id for cell in plan.cells if cell.measuring.confirming})
    elsewhere = _elsewhere(evidence)
    verdicts = confirmed(
        verdicts, elsewhere, {cell.id: cell for cell in plan.cells}, {tier.name: tier for tier in plan.tiers}
    )
    false_alarms = count_false_alarms(plan, results, [*verdicts, *controls])
    # What is measured again in service is no further evidence for what was seen before.
    groups = dict.fromkeys(cell.stage if cell.in_service else "" for cell in plan.cells)
    moved = {cell.id: one for cell in plan.cells if (one := _moved(cell, results.get(cell.id))) is not None}
    asymmetry = {
        group: asymmetric(
            moved[cell.id]
            for cell in plan.cells
            if cell.id in moved and (cell.stage if cell.in_service else "") == group
        )
        for group in groups
    }
    witnesses = [one for cell in plan.cells if (one := _moved(cell, elsewhere.get(cell.id))) is not None]
    machines = suspects([*moved.values(), *witnesses])
    # A machine that accuses a release of being itself may accuse another one as well.
    accused = false_alarms is not None and false_alarms.failed > 0

    def rows_of(some: Sequence[CellVerdicts], tier: Tier) -> list[DecisionRow]:
        alarmed = accused or bool(machines) or bool(asymmetry.get(tier.stage))
        held = {(cell, gate): words for (name, cell, gate), words in companions.items() if name == tier.name}
        return _rows(some, tier, plan, held, alarmed=alarmed)

    rows: list[DecisionRow] = []
    tiers: list[TierDecision] = []
    for tier in plan.tiers:
        found = rows_of(verdicts, tier)
        untested = _untested_rows(plan, tier, found)
        rows += [
            row.model_copy(update={"caveats": tuple(dict.fromkeys((*row.caveats, *plan.caveats)))})
            for row in (*found, *untested)
        ]
        tiers.append(_tier_decision(tier, found, untested))
    return Judgement(
        run_id=evidence.run_id,
        plan_digest=plan.plan_digest,
        matrix_digest=plan.matrix_digest,
        registered=not companions,
        coverage=coverage_of(evidence, results),
        cells=(*verdicts, *controls),
        rows=tuple(rows),
        tiers=tuple(tiers),
        stages=stage_decisions(evidence, verdicts, tiers, rows_of),
        waivers=waiver_uses(plan, rows),
        claims=claim_answers(evidence, results),
        alarms=(
            *dict.fromkeys(line for lines in asymmetry.values() for line in lines),
            *machines,
            *aa_alarms(plan, results, [*verdicts, *controls]),
        ),
        attributed=tuple(attribute([*moved.values(), *witnesses])),
        false_alarms=false_alarms,
        unstable=unstable_cells(
            plan, results, {cell.id: [tier for tier in plan.tiers if concerns(tier, cell)] for cell in plan.cells}
        ),
    )


def falls_short(judgement: Judgement, asked: Decision, backends: Iterable[Backend]) -> list[DecisionRow]:
    """Return the version rows on requested ``backends`` whose decision is worse than ``asked``.

    A requested backend that no tier asks about falls short too: nobody said that it may be adopted.
    """
    rows = [row for row in judgement.rows if row.question is Question.VERSION and row.asked]
    wanted = list(dict.fromkeys(backends))
    nobody = [
        _untested("(none)", ALL_WORKLOADS, backend, "no tier asks about this backend", "a tier that lists it")
        for backend in wanted
        if backend not in {row.backend for row in rows}
    ]
    short = [row for row in rows if PRECEDENCE.index(row.decision) < PRECEDENCE.index(asked)]
    return [row for row in short if row.backend in wanted] + nobody


def _counted(evidence: Evidence) -> dict[str, CellResult]:
    """Return the results that count, by cell: this run's own, the first of each cell."""
    found: dict[str, CellResult] = {}
    for result in evidence.results:
        if result.run_id == evidence.run_id:
            found.setdefault(result.cell_id, result)
    return found


def _elsewhere(evidence: Evidence) -> dict[str, CellResult]:
    """Return the answers of other machines, by cell: this run's own, the first of each cell."""
    found: dict[str, CellResult] = {}
    for result in evidence.elsewhere:
        if result.run_id == evidence.run_id:
            found.setdefault(result.cell_id, result)
    return found


def _moved(cell: Cell, result: CellResult | None) -> Moved | None:
    """Return what the median of a measured cell did; None where nothing valid bounds it."""
    if result is None or cell.kind != "measure" or not is_valid(result):
        return None
    restarts = counted(result.restarts)
    interval = ratio_interval(restarts, Side.CANDIDATE, Side.BASELINE, "p50", cell.measuring.alpha)
    if interval is None or not interval.bounded or not math.isfinite(interval.high):
        return None
    return Moved.of(cell, result, interval)


def _cell_verdicts(
    evidence: Evidence,
    results: Mapping[str, CellResult],
    cell: Cell,
    tier: Tier,
    known: dict[tuple[str, ...], Any],
) -> list[CellVerdicts]:
    rehearsal = next(
        (c for c in evidence.plan.cells if c.kind == "rehearsal" and c.capability == cell.capability), None
    )
    gates = [*cell.gates] + ([Gate.COMPILE_EXPORT] if Gate.COMPILE_EXPORT not in cell.gates else [])
    if tier.stage:
        # In service only that is asked which its stage asks.
        gates = list(cell.gates)
    gates = [gate for gate in Gate if gate in gates or (gate is Gate.ROLLBACK and rehearsal) or gate in tier.required]
    gates = [gate for gate in gates if gate not in asked_elsewhere(evidence.plan.cells, cell)]
    if cell.kind == "aa":
        # It is asked for false accusations, and for nothing that a decision could rest on.
        gates = list(cell.gates)
    broken = cell.broken_control if cell.kind == "aa" else broken_control(evidence.plan, cell)
    elsewhere = measured_apart(evidence, cell, results.get(cell.id))
    found = []
    for question, arm, reference in _pairs(cell):
        asked = GateQuestion(
            cell=cell,
            result=None if elsewhere else results.get(cell.id),
            question=question,
            arm=arm,
            reference=reference,
            tier=tier,
            why_no_result=elsewhere or evidence.why_no_result(cell.id),
            rehearsal=results.get(rehearsal.id) if rehearsal else None,
            why_no_rehearsal=evidence.why_no_result(rehearsal.id) if rehearsal else "no rehearsal planned",
            known=known,
        )
        found.append(
            CellVerdicts(
                cell_id=cell.id,
                workload=cell.workload,
                case=cell.case,
                backend=cell.backend,
                track=cell.track,
                production_shape=cell.production_shape,
                question=question,
                arm=arm,
                reference=reference,
                tier=tier.name,
                caveats=cell.caveats,
                broken_control=broken,
                verdicts=tuple(judge_gate(gate, asked) for gate in gates),
            )
        )
    return found


def _pairs(cell: Cell) -> list[tuple[Question, str, str]]:
    found = [(Question.VERSION, Side.CANDIDATE.value, Side.BASELINE.value)]
    return found + [(Question.FEATURE, arm.name, arm.side.value) for arm in cell.arms if "+" in arm.name]


def _rows(
    verdicts: Sequence[CellVerdicts],
    tier: Tier,
    plan: Plan,
    companions: Mapping[tuple[str, Gate], str],
    *,
    alarmed: bool,
) -> list[DecisionRow]:
    groups: dict[RowKey, list[CellVerdicts]] = {}
    whole, carriers = joined([v for v in verdicts if v.tier == tier.name], {cell.id: cell for cell in plan.cells})
    for found in whole:
        path = found.arm.partition("+")[2]
        key = RowKey(found.question, found.workload, path, found.backend, tier.name)
        groups.setdefault(key, []).append(found)
    waivers = waivers_of(plan)
    apart = _separable(groups, tier, plan, waivers)
    rows = [
        decide_row(
            key,
            cells,
            tier,
            separable=key.workload == apart,
            aa=plan.aa,
            alarmed=alarmed,
            planned=plan.workloads.get(key.workload, UNPLANNED),
            waivers=waivers,
            companions=companions,
        )
        for key, cells in groups.items()
    ]
    nobodys = _nobodys(plan, tier)
    asked = [row.model_copy(update={"asked": row.workload not in nobodys}) for row in rows]
    return _without_paths([_led_to(row, carriers) for row in asked])


def _nobodys(plan: Plan, tier: Tier) -> set[str]:
    """Return the prototypes without an owner that ``tier`` does not name.

    They can be no better than `defer`, so that a tier asked about them would be `defer` whatever it runs.
    """
    prototypes = {cell.workload for cell in plan.cells if cell.track == "prototype"}
    return {name for name in prototypes if not plan.workloads.get(name, UNPLANNED).owner} - set(tier.workloads)


def _without_paths(rows: Sequence[DecisionRow]) -> list[DecisionRow]:
    """Return ``rows`` with every new path named that has not earned its place where the version can be moved to.

    The decision on the path stays `defer`: the version moves without it, and the tier is not asked to keep it apart
    from anything that runs today.
    """
    movable = {
        (row.workload, row.backend)
        for row in rows
        if row.question is Question.VERSION and (row.would or row.decision) is Decision.ADOPT
    }
    found = []
    for row in rows:
        earned = (row.would or row.decision) in (Decision.ADOPT, Decision.ISOLATE)
        named = row.question is Question.FEATURE and not earned and (row.workload, row.backend) in movable
        found.append(row.model_copy(update={"kept_apart": f"path {row.path} of {row.workload}"}) if named else row)
    return found


def _led_to(row: DecisionRow, carriers: Mapping[tuple[str, Gate], str]) -> DecisionRow:
    """Return ``row`` leading to the cell that answered the gate that decided it."""
    if row.cell_id is None or row.decided_by is None or (row.cell_id, row.decided_by) not in carriers:
        return row
    carrier = carriers[row.cell_id, row.decided_by]
    return row.model_copy(
        update={"cell_id": carrier, "would_change": row.would_change.replace(row.cell_id, carrier, 1)}
    )


def _separable(groups: Mapping[RowKey, Sequence[CellVerdicts]], tier: Tier, plan: Plan, waivers: Waivers) -> str | None:
    """Return the one workload that can be kept apart: it alone fails, and every other one of the tier passes."""
    failing: set[str] = set()
    passing: set[str] = set()
    for key, cells in groups.items():
        if key.question is not Question.VERSION:
            continue
        planned = plan.workloads.get(key.workload, UNPLANNED)
        row = decide_row(key, cells, tier, separable=False, aa=False, planned=planned, waivers=waivers)
        if (row.would or row.decision) is Decision.ADOPT:
            passing.add(key.workload)
        elif (row.would or row.decision) is Decision.ISOLATE:
            continue  # A prototype is apart by its track, and no reason against the rest.
        elif row.reason.startswith(Status.FAIL) and row.decided_by is not Gate.ROLLBACK:
            failing.add(key.workload)
        else:
            return None
    return next(iter(failing)) if len(failing) == 1 and passing - failing and not plan.aa else None


def _untested_rows(plan: Plan, tier: Tier, found: Sequence[DecisionRow]) -> list[DecisionRow]:
    """Return a row for each backend and each workload that ``tier`` lists and ``found`` says nothing of."""
    version = [row for row in found if row.question is Question.VERSION]
    covered = {row.backend for row in version}
    rows = []
    for backend in tier.backends:
        if backend in plan.unserved_backends:
            why = plan.unserved_backends[backend]
            change = SERVING.get(why, "a workload of the matrix that runs on {}").format(backend)
            rows.append(_untested(tier.name, ALL_WORKLOADS, backend, why, change))
        elif backend not in covered:
            why, change = "no cell of the tier runs there", f"a case on {backend} in suite {plan.suite}"
            rows.append(_untested(tier.name, ALL_WORKLOADS, backend, why, change))
    ran = {(row.workload, row.backend) for row in version}
    unasked: dict[Backend, list[str]] = {}
    for workload in tier.workloads or [name for name in plan.workloads if name not in _nobodys(plan, tier)]:
        planned = plan.workloads.get(workload)
        for backend in tier.backends:
            asked = planned is None or not planned.backends or backend in planned.backends
            if asked and backend in covered and (workload, backend) not in ran:
                if plan.requested_workloads and workload not in plan.requested_workloads:
                    unasked.setdefault(backend, []).append(workload)
                    continue
                why, change = f"no case in suite {plan.suite}", "a suite that has a case of it"
                rows.append(_untested(tier.name, workload, backend, why, change))
    for backend, names in unasked.items():
        why = f"not requested: {', '.join(names)}"
        rows.append(_untested(tier.name, OTHER_WORKLOADS, backend, why, "these workloads too: leave out --workload"))
    return rows


def _untested(tier: str, workload: str, backend: Backend, why: str, would_change: str) -> DecisionRow:
    return DecisionRow(
        question=Question.VERSION,
        workload=workload,
        path="",
        backend=backend,
        tier=tier,
        decision=Decision.DEFER,
        decided_by=None,
        cell_id=None,
        reason=f"untested: {why}",
        would_change=would_change,
    )


def _tier_decision(tier: Tier, rows: Sequence[DecisionRow], untested: Sequence[DecisionRow]) -> TierDecision:
    version = [row for row in rows if row.question is Question.VERSION]
    version = [row for row in version if row.asked] or version
    missing = ", ".join(f"{_where(row)} ({row.reason.removeprefix('untested: ')})" for row in untested)
    if not version:
        return TierDecision(
            tier=tier.name,
            decision=Decision.DEFER,
            reason=f"untested: {missing or 'nothing ran'}",
            would_change=untested[0].would_change if untested else "a backend that the tier lists",
        )
    decision = worst([row.decision for row in version])
    would = worst([row.would or row.decision for row in version])
    # A row that a smoke run alone holds back says less than one that was held against its limits.
    deciding = min((row for row in version if row.decision is decision), key=lambda row: row.would is not None)
    reason = f"{deciding.workload} on {deciding.backend}: {deciding.reason}"
    if decision is not Decision.DEFER and decision is not Decision.ROLLBACK and untested:
        decision, reason, deciding = Decision.DEFER, f"untested: {missing}", untested[0]
    elif untested:
        reason += f"; untested: {missing}"
    waived = dict.fromkeys(one.waiver for row in version for one in row.waived if one.state == "waived")
    reason += "".join(f"; waived until {waiver.expires}: {waiver.subject}" for waiver in waived)
    apart = tuple(sorted({row.kept_apart for row in version if row.kept_apart}))
    return TierDecision(
        tier=tier.name,
        decision=decision,
        would=would if would is not decision else None,
        reason=reason,
        decided_by=deciding.decided_by,
        cell_id=deciding.cell_id,
        would_change=deciding.would_change,
        kept_apart=apart,
    )


def _where(row: DecisionRow) -> str:
    return row.backend if row.workload == ALL_WORKLOADS else f"{row.workload} on {row.backend}"
