"""Stored evidence in, one judgement out: pure, so that a later version can judge again and say the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from farm.decision import RowKey, decide_row, worst
from farm.gates import GateQuestion, judge_gate
from farm.model import (
    Backend,
    Cell,
    CellResult,
    CellVerdicts,
    Coverage,
    Decision,
    DecisionRow,
    Evidence,
    Gate,
    Judgement,
    Outcome,
    Question,
    Side,
    Status,
    Tier,
    TierDecision,
)
from farm.statistics import ratio_interval

__all__ = ["falls_short", "judge"]

#: With this many cells changed and none the other way, chance alone would do it once in 128 runs.
ALARM_CELLS = 8
#: The word for all workloads, in a row about a backend that nothing ran on.
ALL_WORKLOADS = "(all)"


def judge(evidence: Evidence) -> Judgement:
    """Return what ``evidence`` says under the limits that its own plan froze."""
    plan = evidence.plan
    results = {result.cell_id: result for result in evidence.results}
    alarms = _alarms(plan.cells, results)
    verdicts: list[CellVerdicts] = []
    for tier in plan.tiers:
        for cell in plan.cells:
            if cell.kind == "measure" and _concerns(tier, cell):
                verdicts += _cell_verdicts(evidence, results, cell, tier)
    rows: list[DecisionRow] = []
    tiers: list[TierDecision] = []
    for tier in plan.tiers:
        found = _rows(verdicts, tier, aa=plan.aa, alarmed=bool(alarms))
        untested = _untested_rows(plan.unserved_backends, tier)
        rows += [*found, *untested]
        tiers.append(_tier_decision(tier, found, untested))
    return Judgement(
        run_id=evidence.run_id,
        plan_digest=plan.plan_digest,
        matrix_digest=plan.matrix_digest,
        coverage=_coverage(evidence, results),
        cells=tuple(verdicts),
        rows=tuple(rows),
        tiers=tuple(tiers),
        alarms=tuple(alarms),
    )


def falls_short(judgement: Judgement, asked: Decision, backends: Iterable[Backend]) -> list[DecisionRow]:
    """Return the version rows on requested ``backends`` whose decision is worse than ``asked``."""
    from farm.decision import PRECEDENCE

    wanted = set(backends)
    return [
        row
        for row in judgement.rows
        if row.question is Question.VERSION
        and row.backend in wanted
        and PRECEDENCE.index(row.decision) < PRECEDENCE.index(asked)
    ]


def _concerns(tier: Tier, cell: Cell) -> bool:
    return cell.backend in tier.backends and (not tier.workloads or cell.workload in tier.workloads)


def _cell_verdicts(evidence: Evidence, results: Mapping[str, CellResult], cell: Cell, tier: Tier) -> list[CellVerdicts]:
    rehearsal = next(
        (c for c in evidence.plan.cells if c.kind == "rehearsal" and c.capability == cell.capability), None
    )
    gates = [*cell.gates] + ([Gate.COMPILE_EXPORT] if Gate.COMPILE_EXPORT not in cell.gates else [])
    gates = [gate for gate in Gate if gate in gates or (gate is Gate.ROLLBACK and rehearsal) or gate in tier.required]
    found = []
    for question, arm, reference in _pairs(cell):
        asked = GateQuestion(
            cell=cell,
            result=results.get(cell.id),
            question=question,
            arm=arm,
            reference=reference,
            tier=tier,
            why_no_result=evidence.unfinished.get(cell.id, "not run"),
            rehearsal=results.get(rehearsal.id) if rehearsal else None,
            why_no_rehearsal=evidence.unfinished.get(rehearsal.id, "not run") if rehearsal else "no rehearsal planned",
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
                broken_control=cell.broken_control,
                verdicts=tuple(judge_gate(gate, asked) for gate in gates),
            )
        )
    return found


def _pairs(cell: Cell) -> list[tuple[Question, str, str]]:
    found = [(Question.VERSION, Side.CANDIDATE.value, Side.BASELINE.value)]
    return found + [(Question.FEATURE, arm.name, arm.side.value) for arm in cell.arms if "+" in arm.name]


def _rows(verdicts: Sequence[CellVerdicts], tier: Tier, *, aa: bool, alarmed: bool) -> list[DecisionRow]:
    groups: dict[RowKey, list[CellVerdicts]] = {}
    for found in verdicts:
        if found.tier == tier.name:
            path = found.arm.partition("+")[2]
            key = RowKey(found.question, found.workload, path, found.backend, tier.name)
            groups.setdefault(key, []).append(found)
    apart = _separable(groups, tier, aa=aa)
    return [
        decide_row(key, cells, tier, separable=key.workload == apart, aa=aa, alarmed=alarmed)
        for key, cells in groups.items()
    ]


def _separable(groups: Mapping[RowKey, Sequence[CellVerdicts]], tier: Tier, *, aa: bool) -> str | None:
    """Return the one workload that can be kept apart: it alone fails, and every other one of the tier passes."""
    failing: set[str] = set()
    others = 0
    for key, cells in groups.items():
        if key.question is not Question.VERSION:
            continue
        row = decide_row(key, cells, tier, separable=False, aa=False)
        if (row.would or row.decision) is Decision.ADOPT:
            others += 1
        elif row.reason.startswith(Status.FAIL) and row.decided_by is not Gate.ROLLBACK:
            failing.add(key.workload)
        else:
            return None
    return failing.pop() if len(failing) == 1 and others and not aa else None


def _untested_rows(unserved: Mapping[str, str], tier: Tier) -> list[DecisionRow]:
    return [
        DecisionRow(
            question=Question.VERSION,
            workload=ALL_WORKLOADS,
            path="",
            backend=backend,
            tier=tier.name,
            decision=Decision.DEFER,
            decided_by=None,
            cell_id=None,
            reason=f"untested: {unserved[backend]}",
            would_change=f"a worker with backend {backend}",
        )
        for backend in tier.backends
        if backend in unserved
    ]


def _tier_decision(tier: Tier, rows: Sequence[DecisionRow], untested: Sequence[DecisionRow]) -> TierDecision:
    version = [row for row in rows if row.question is Question.VERSION]
    missing = ", ".join(f"{row.backend} ({row.reason.removeprefix('untested: ')})" for row in untested)
    if not version:
        return TierDecision(tier=tier.name, decision=Decision.DEFER, reason=f"untested: {missing or 'nothing ran'}")
    decision = worst([row.decision for row in version])
    would = worst([row.would or row.decision for row in version])
    deciding = next(row for row in version if row.decision is decision)
    reason = f"{deciding.workload} on {deciding.backend}: {deciding.reason}"
    if decision is not Decision.DEFER and decision is not Decision.ROLLBACK and untested:
        decision, reason = Decision.DEFER, f"untested: {missing}"
    elif untested:
        reason += f"; untested: {missing}"
    apart = tuple(sorted({row.workload for row in version if (row.would or row.decision) is Decision.ISOLATE}))
    return TierDecision(
        tier=tier.name,
        decision=decision,
        would=would if would is not decision else None,
        reason=reason,
        keep_apart=apart,
    )


def _coverage(evidence: Evidence, results: Mapping[str, CellResult]) -> Coverage:
    cells = [cell for cell in evidence.plan.cells if cell.kind == "measure"]
    seen = [results[cell.id] for cell in cells if cell.id in results]
    outcomes = [
        (result, result.arms.get(Side.BASELINE), result.arms.get(Side.CANDIDATE)) for result in seen if result.arms
    ]

    def ok(arm: object) -> bool:
        return getattr(arm, "outcome", None) is Outcome.OK

    return Coverage(
        cells=len(cells),
        comparable=sum(result.validity.valid and ok(old) and ok(new) for result, old, new in outcomes),
        invalid=sum(not result.validity.valid for result in seen),
        missing_on_candidate=sum(ok(old) and not ok(new) for _, old, new in outcomes),
        missing_on_baseline=sum(ok(new) and not ok(old) for _, old, new in outcomes),
        not_run=len(cells) - len(seen),
        untested_backends=dict(evidence.plan.unserved_backends),
    )


def _alarms(cells: Iterable[Cell], results: Mapping[str, CellResult]) -> list[str]:
    """Return the asymmetry alarm: many cells changed and all the same way points at the set-up, not the release."""
    slower = faster = 0
    for cell in cells:
        result = results.get(cell.id)
        if result is None or cell.kind != "measure" or not result.validity.valid:
            continue
        interval = ratio_interval(result.restarts, Side.CANDIDATE, Side.BASELINE, "p50", cell.measuring.alpha)
        if interval is not None and interval.bounded and math.isfinite(interval.high):
            slower += interval.low > 1.0
            faster += interval.high < 1.0
    if slower + faster < ALARM_CELLS or min(slower, faster) > 0:
        return []
    way = "slower" if slower else "faster"
    return [
        f"asymmetry: {slower + faster} cells are {way} and none the other way; run A/A before you believe it, "
        "no rollback is decided from it"
    ]
