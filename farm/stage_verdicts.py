"""What stages decided: the verdicts of one case from several cells, and which tiers go on from each stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from farm.model import (
    Cell,
    CellVerdicts,
    Decision,
    DecisionRow,
    Evidence,
    Gate,
    Question,
    StageDecision,
    StageTier,
    Status,
    Tier,
    TierDecision,
    Verdict,
)
from farm.stages import concerns, window_of

__all__ = ["asked_elsewhere", "joined", "stage_decisions"]

#: What a stage's reason names first.
_WEIGHT = {Status.FAIL: 0, Status.UNTESTED: 1, Status.INCONCLUSIVE: 2}

RowsOf = Callable[[Sequence[CellVerdicts], Tier], list[DecisionRow]]


def asked_elsewhere(cells: Iterable[Cell], cell: Cell) -> set[Gate]:
    """Return the gates that a cell of another stage asks of the case of ``cell``."""
    return {gate for other in cells if _case(other) == _case(cell) for gate in other.gates} - set(cell.gates)


def _case(cell: Cell) -> tuple[str, ...]:
    service = cell.stage if cell.in_service else ""
    return cell.kind, cell.workload, cell.case, cell.capability, service


def joined(
    verdicts: Sequence[CellVerdicts], cells: Mapping[str, Cell]
) -> tuple[list[CellVerdicts], dict[tuple[str, Gate], str]]:
    """Return ``verdicts`` with those of one case as one, and the cell that answered a gate where it is another.

    The first cell of a case gives the id; the second value tells by that id and the gate whose verdict it is.
    """
    groups: dict[tuple[object, ...], list[CellVerdicts]] = {}
    for found in verdicts:
        case = _case(cells[found.cell_id]) if found.cell_id in cells else (found.cell_id,)
        groups.setdefault((found.tier, found.question, found.arm, found.reference, case), []).append(found)
    whole: list[CellVerdicts] = []
    carriers: dict[tuple[str, Gate], str] = {}
    for first, *others in groups.values():
        answers = {verdict.gate: verdict for verdict in first.verdicts}
        for other in others:
            for verdict in other.verdicts:
                if verdict.gate in cells[other.cell_id].gates or verdict.gate not in answers:
                    answers[verdict.gate] = verdict
                    carriers[first.cell_id, verdict.gate] = other.cell_id
        ordered = tuple(answers[gate] for gate in Gate if gate in answers)
        broken = next((one.broken_control for one in (first, *others) if one.broken_control), None)
        whole.append(first.model_copy(update={"verdicts": ordered, "broken_control": broken}) if others else first)
    return whole, carriers


def stage_decisions(
    evidence: Evidence, verdicts: Sequence[CellVerdicts], tiers: Iterable[TierDecision], rows_of: RowsOf
) -> tuple[StageDecision, ...]:
    """Return where each stage of a run stands and what it said, with what the stages before it had found.

    ``verdicts`` are each cell's own; ``tiers`` the decisions of the whole run, of which the ones in service are their
    stage's; ``rows_of`` makes rows of some verdicts for a tier.
    """
    plan = evidence.plan
    window = window_of(plan)
    cells = {cell.id: cell for cell in plan.cells}
    rehearsed = {cell.capability: window.number(cell.id) for cell in plan.cells if cell.kind == "rehearsal"}
    decided = {told.tier: told for told in tiers}
    answered = {result.cell_id for result in evidence.results if result.run_id == evidence.run_id}

    def number(found: CellVerdicts, verdict: Verdict) -> int:
        """Return the stage that the verdict comes from: the way back's is its rehearsal's."""
        own = window.number(found.cell_id)
        if verdict.gate is not Gate.ROLLBACK:
            return own
        return max(own, rehearsed.get(cells[found.cell_id].capability, own))

    def until(last: int) -> list[CellVerdicts]:
        return [
            found.model_copy(update={"verdicts": tuple(v for v in found.verdicts if number(found, v) <= last)})
            for found in verdicts
            if window.number(found.cell_id) <= last
        ]

    def told_of(at: int, tier: Tier) -> StageTier | None:
        own = [cell for cell in plan.cells if cell.stage == plan.stages[at].name and concerns(tier, cell)]
        if not own:
            return None
        if not any(cell.id in answered for cell in own):
            return StageTier(tier=tier.name, decision="untested", reason=evidence.why_no_result(own[0].id))
        if tier.stage:
            found = decided[tier.name]
            return StageTier(tier=tier.name, decision=_in_service(found.decision), reason=found.reason)
        here = [
            (found, verdict)
            for found in verdicts
            if found.tier == tier.name and found.question is Question.VERSION
            for verdict in found.verdicts
            if verdict.gate in tier.required and number(found, verdict) == at
            if verdict.gate in cells[found.cell_id].gates or verdict.gate is Gate.ROLLBACK
        ]
        if not here:
            return None
        known = until(at)
        # What a later stage asks is no reason here, neither against the tier nor against keeping a workload apart.
        given = {verdict.gate for found in known if found.tier == tier.name for verdict in found.verdicts}
        so_far = tier.model_copy(update={"required": tuple(gate for gate in tier.required if gate in given)})
        failing = _failing(rows_of(known, so_far))
        if failing is not None:
            reason = f"{failing.workload} on {failing.backend}: {failing.reason}"
            return StageTier(tier=tier.name, decision="end", reason=reason)
        return StageTier(tier=tier.name, decision="go on", reason=_doubts(here))

    found = []
    for at, stage in enumerate(plan.stages):
        own = [cell.id for cell in plan.cells if cell.stage == stage.name]
        over = not set(own) & set(evidence.still_open)
        found.append(
            StageDecision(
                name=stage.name,
                cells=len(own),
                done=sum(cell in answered for cell in own),
                skipped=sum(cell in evidence.skipped for cell in own),
                given_up=sum(
                    cell not in answered and cell not in evidence.skipped and cell not in evidence.still_open
                    for cell in own
                ),
                tiers=tuple(told for tier in plan.tiers if (told := told_of(at, tier)) is not None) if over else (),
            )
        )
    return tuple(found)


def _in_service(decision: Decision) -> str:
    """Return what a decision means where a share of the service already runs the candidate."""
    if decision is Decision.ROLLBACK:
        return "go back"
    return "stay" if decision is Decision.DEFER else "go on"


def _failing(rows: Iterable[DecisionRow]) -> DecisionRow | None:
    """Return a row on the version in which a required gate fails, and not so that it could be kept apart."""
    for row in rows:
        apart = (row.would or row.decision) is Decision.ISOLATE
        if row.question is Question.VERSION and row.reason.startswith(Status.FAIL) and not apart:
            return row
    return None


def _doubts(found: Sequence[tuple[CellVerdicts, Verdict]]) -> str:
    doubts = [pair for pair in found if pair[1].status in _WEIGHT]
    if not doubts:
        return "every required gate that it asks passes"
    cell, verdict = min(doubts, key=lambda pair: _WEIGHT[pair[1].status])
    more = f", and {len(doubts) - 1} more" if len(doubts) > 1 else ""
    return f"{verdict.gate} of {cell.cell_id} {verdict.status}: {verdict.reason}{more}"
