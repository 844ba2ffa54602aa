"""Stored evidence in, one judgement out: pure, so that a later version can judge again and say the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from farm.aa import aa_alarms, count_false_alarms, unstable_cells
from farm.accusations import withhold
from farm.decision import PRECEDENCE, RowKey, decide_row, worst
from farm.gates import GateQuestion, judge_gate
from farm.gates.timing import implausible
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

__all__ = ["falls_short", "judge"]

#: By a sign test over the cells that changed: of eight, all the same way.
ALARM_CHANCE = 1 / 128
#: The word for all workloads, in a row about a backend that nothing ran on.
ALL_WORKLOADS = "(all)"


def judge(evidence: Evidence) -> Judgement:
    """Return what ``evidence`` says under the limits that its own plan froze."""
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
    false_alarms = count_false_alarms(plan, results, [*verdicts, *controls])
    # What is measured again in service is no further evidence for what was seen before.
    groups = dict.fromkeys(cell.stage if cell.in_service else "" for cell in plan.cells)
    asymmetry = {
        group: _asymmetry([cell for cell in plan.cells if (cell.stage if cell.in_service else "") == group], results)
        for group in groups
    }
    # A machine that accuses a release of being itself may accuse another one as well.
    accused = false_alarms is not None and false_alarms.failed > 0

    def rows_of(some: Sequence[CellVerdicts], tier: Tier) -> list[DecisionRow]:
        return _rows(some, tier, plan, alarmed=accused or bool(asymmetry.get(tier.stage)))

    rows: list[DecisionRow] = []
    tiers: list[TierDecision] = []
    for tier in plan.tiers:
        found = rows_of(verdicts, tier)
        untested = _untested_rows(plan, tier, found)
        rows += [*found, *untested]
        tiers.append(_tier_decision(tier, found, untested))
    return Judgement(
        run_id=evidence.run_id,
        plan_digest=plan.plan_digest,
        matrix_digest=plan.matrix_digest,
        coverage=_coverage(evidence, results),
        cells=(*verdicts, *controls),
        rows=tuple(rows),
        tiers=tuple(tiers),
        stages=stage_decisions(evidence, verdicts, tiers, rows_of),
        alarms=(
            *dict.fromkeys(line for lines in asymmetry.values() for line in lines),
            *aa_alarms(plan, results, [*verdicts, *controls]),
        ),
        false_alarms=false_alarms,
        unstable=unstable_cells(
            plan, results, {cell.id: [tier for tier in plan.tiers if concerns(tier, cell)] for cell in plan.cells}
        ),
    )


def falls_short(judgement: Judgement, asked: Decision, backends: Iterable[Backend]) -> list[DecisionRow]:
    """Return the version rows on requested ``backends`` whose decision is worse than ``asked``.

    A requested backend that no tier asks about falls short too: nobody said that it may be adopted.
    """
    rows = [row for row in judgement.rows if row.question is Question.VERSION]
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
    broken = None if cell.kind == "aa" else _one_wheel(evidence.plan, cell) or _two_variants(evidence.plan, cell)
    elsewhere = _elsewhere(evidence, cell, results.get(cell.id))
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
                broken_control=cell.broken_control or broken,
                verdicts=tuple(judge_gate(gate, asked) for gate in gates),
            )
        )
    return found


def _one_wheel(plan: Plan, cell: Cell) -> str | None:
    """Return the reason where a cell's arms are one wheel on some machine, though the run is not A/A as a whole."""
    arms = {arm.name: arm.environments for arm in cell.arms}
    old, new = arms.get(Side.BASELINE, {}), arms.get(Side.CANDIDATE, {})
    for target in old.keys() & new.keys() if not plan.aa else ():
        pair = [plan.environments.get(keys[target]) for keys in (old, new)]
        # Evidence that was written by hand may know no hash, and nothing is alike in what is not known.
        wheels = {(environment.release.sha256 or None) if environment else None for environment in pair}
        if old[target] == new[target] or (len(wheels) == 1 and None not in wheels):
            return f"both arms are one wheel on {target}"
    return None


def _two_variants(plan: Plan, cell: Cell) -> str | None:
    """Return the reason where a cell's arms are builds for different hardware on some machine (CASES.md V11)."""
    keys = [arm.environments for arm in cell.arms]
    for target in sorted({target for found in keys for target in found}):
        found = [plan.environments[found[target]] for found in keys if found.get(target) in plan.environments]
        variants = sorted({environment.release.variant for environment in found} - {"", "unknown"})
        if len(variants) > 1:
            return f"build variants differ: {' and '.join(variants)}"
    return None


def _elsewhere(evidence: Evidence, cell: Cell, result: CellResult | None) -> str:
    """Return why a cell whose arms were answered for by different machines is no comparison (CASES.md M2)."""
    answers = [found for found in evidence.results if (found.run_id, found.cell_id) == (evidence.run_id, cell.id)]
    if result is None or all(arm.name in result.arms for arm in cell.arms) or len(answers) < 2:
        return ""
    where = [f"{', '.join(found.arms)} on {found.host.cpu} ({found.host.name})" for found in answers]
    return f"not comparable: arms were measured apart, {' and '.join(where)}"


def _pairs(cell: Cell) -> list[tuple[Question, str, str]]:
    found = [(Question.VERSION, Side.CANDIDATE.value, Side.BASELINE.value)]
    return found + [(Question.FEATURE, arm.name, arm.side.value) for arm in cell.arms if "+" in arm.name]


def _rows(verdicts: Sequence[CellVerdicts], tier: Tier, plan: Plan, *, alarmed: bool) -> list[DecisionRow]:
    groups: dict[RowKey, list[CellVerdicts]] = {}
    whole, carriers = joined([v for v in verdicts if v.tier == tier.name], {cell.id: cell for cell in plan.cells})
    for found in whole:
        path = found.arm.partition("+")[2]
        key = RowKey(found.question, found.workload, path, found.backend, tier.name)
        groups.setdefault(key, []).append(found)
    apart = _separable(groups, tier, aa=plan.aa)
    production = {name: planned.production_cases for name, planned in plan.workloads.items()}
    rows = [
        decide_row(
            key,
            cells,
            tier,
            separable=key.workload == apart,
            aa=plan.aa,
            alarmed=alarmed,
            production=production.get(key.workload, ()),
        )
        for key, cells in groups.items()
    ]
    return [_led_to(row, carriers) for row in rows]


def _led_to(row: DecisionRow, carriers: Mapping[tuple[str, Gate], str]) -> DecisionRow:
    """Return ``row`` leading to the cell that answered the gate that decided it."""
    if row.cell_id is None or row.decided_by is None or (row.cell_id, row.decided_by) not in carriers:
        return row
    return row.model_copy(update={"cell_id": carriers[row.cell_id, row.decided_by]})


def _separable(groups: Mapping[RowKey, Sequence[CellVerdicts]], tier: Tier, *, aa: bool) -> str | None:
    """Return the one workload that can be kept apart: it alone fails, and every other one of the tier passes."""
    failing: set[str] = set()
    passing: set[str] = set()
    for key, cells in groups.items():
        if key.question is not Question.VERSION:
            continue
        row = decide_row(key, cells, tier, separable=False, aa=False)
        if (row.would or row.decision) is Decision.ADOPT:
            passing.add(key.workload)
        elif row.reason.startswith(Status.FAIL) and row.decided_by is not Gate.ROLLBACK:
            failing.add(key.workload)
        else:
            return None
    return next(iter(failing)) if len(failing) == 1 and passing - failing and not aa else None


def _untested_rows(plan: Plan, tier: Tier, found: Sequence[DecisionRow]) -> list[DecisionRow]:
    """Return a row for each backend and each workload that ``tier`` lists and ``found`` says nothing of."""
    version = [row for row in found if row.question is Question.VERSION]
    covered = {row.backend for row in version}
    rows = []
    for backend in tier.backends:
        if backend in plan.unserved_backends:
            why, change = plan.unserved_backends[backend], f"a worker with backend {backend}"
            rows.append(_untested(tier.name, ALL_WORKLOADS, backend, why, change))
        elif backend not in covered:
            why, change = "no cell of the tier runs there", f"a case on {backend} in suite {plan.suite}"
            rows.append(_untested(tier.name, ALL_WORKLOADS, backend, why, change))
    ran = {(row.workload, row.backend) for row in version}
    for workload in tier.workloads or plan.workloads:
        planned = plan.workloads.get(workload)
        for backend in tier.backends:
            asked = planned is None or not planned.backends or backend in planned.backends
            if asked and backend in covered and (workload, backend) not in ran:
                why, change = f"no case in suite {plan.suite}", "a suite that has a case of it"
                rows.append(_untested(tier.name, workload, backend, why, change))
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
    missing = ", ".join(f"{_where(row)} ({row.reason.removeprefix('untested: ')})" for row in untested)
    if not version:
        return TierDecision(tier=tier.name, decision=Decision.DEFER, reason=f"untested: {missing or 'nothing ran'}")
    decision = worst([row.decision for row in version])
    would = worst([row.would or row.decision for row in version])
    # A row that a smoke run alone holds back says less than one that was held against its limits.
    deciding = min((row for row in version if row.decision is decision), key=lambda row: row.would is not None)
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


def _where(row: DecisionRow) -> str:
    return row.backend if row.workload == ALL_WORKLOADS else f"{row.workload} on {row.backend}"


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
        comparable=sum(_valid(result) and ok(old) and ok(new) for result, old, new in outcomes),
        invalid=sum(not _valid(result) for result in seen),
        missing_on_candidate=sum(ok(old) and not ok(new) for _, old, new in outcomes),
        missing_on_baseline=sum(ok(new) and not ok(old) for _, old, new in outcomes),
        not_run=len(cells) - len(seen),
        untested_backends=dict(evidence.plan.unserved_backends),
    )


def _valid(result: CellResult) -> bool:
    sides = (Side.CANDIDATE, Side.BASELINE)
    against = any(side in result.validity.arms for side in sides)
    return result.validity.valid and not against and not implausible(counted(result.restarts), sides)


def _asymmetry(cells: Iterable[Cell], results: Mapping[str, CellResult]) -> list[str]:
    """Return the asymmetry alarm: many cells changed and all the same way points at the set-up, not the release."""
    slower = faster = 0
    for cell in cells:
        result = results.get(cell.id)
        if result is None or cell.kind != "measure" or not _valid(result):
            continue
        restarts = counted(result.restarts)
        interval = ratio_interval(restarts, Side.CANDIDATE, Side.BASELINE, "p50", cell.measuring.alpha)
        if interval is not None and interval.bounded and math.isfinite(interval.high):
            slower += interval.low > 1.0
            faster += interval.high < 1.0
    many, few = max(slower, faster), min(slower, faster)
    by_chance = 2 * sum(math.comb(many + few, k) for k in range(few + 1)) / 2 ** (many + few)
    if by_chance > ALARM_CHANCE:
        return []
    way = "slower" if slower > faster else "faster"
    return [
        f"asymmetry: {many} cells are {way} and {few or 'none'} the other way; run A/A before you believe it, "
        "no rollback is decided from it"
    ]
