"""From verdicts to decisions: one closed table and one precedence, as pure functions (docs/decision-rule.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from farm.changing import beyond, nearest, would_change
from farm.model import (
    Backend,
    CellVerdicts,
    Decision,
    DecisionRow,
    Gate,
    PlannedWorkload,
    Question,
    Status,
    Tier,
    Verdict,
    Waived,
)
from farm.waivers import NONE, Waivers

__all__ = ["PRECEDENCE", "UNPLANNED", "RowKey", "decide_row", "effect", "required_gates", "worst"]

#: The worst first.
PRECEDENCE = (Decision.ROLLBACK, Decision.DEFER, Decision.ISOLATE, Decision.ADOPT)

PASSED = "every required gate passes"
#: For runs that nobody looked into afterwards.
NOTHING_HELD: Mapping[tuple[str, Gate], str] = {}
#: Of a workload that no matrix says anything of.
UNPLANNED = PlannedWorkload()
#: Which verdict names the reason where several have the same effect.
_WEIGHT = {Status.FAIL: 0, Status.UNTESTED: 1, Status.INCONCLUSIVE: 2}


@dataclass(frozen=True)
class RowKey:
    """What one decision is about."""

    question: Question
    workload: str
    path: str
    backend: Backend
    tier: str


def worst(decisions: Iterable[Decision]) -> Decision:
    """Return the worst of ``decisions`` by precedence: rollback, defer, isolate, adopt."""
    return min(decisions, key=PRECEDENCE.index)


def effect(verdict: Verdict, tier: Tier, question: Question, *, separable: bool) -> Decision:
    """Return what one verdict of a required gate does to its row.

    ``separable`` says that this one workload can be kept apart while the rest of the tier passes. A tier that is in
    service already runs the candidate's release, not yet its new paths: those are left, not rolled back. Where the
    way back itself fails, nobody is sent on it.
    """
    status, gate = verdict.status, verdict.gate
    if status in (Status.PASS, Status.NOT_APPLICABLE):
        return Decision.ADOPT
    if question is Question.FEATURE:
        # A gain that nobody saw earns nothing: what a tier forgives is doubt about "no worse".
        return Decision.DEFER
    if status is Status.INCONCLUSIVE and gate in tier.may_be_inconclusive and _leans_well(verdict):
        return Decision.ADOPT
    if status is Status.FAIL and gate is not Gate.ROLLBACK:
        if tier.in_service:
            return Decision.ROLLBACK
        return Decision.ISOLATE if separable else Decision.DEFER
    return Decision.DEFER


def _leans_well(verdict: Verdict) -> bool:
    """Return whether every estimate is on the right side of its limit: doubt is forgiven, a likely harm is not."""
    figures = [figure for figure in (verdict.figure, *verdict.others) if figure is not None and figure.limit]
    if verdict.gate in (Gate.LATENCY, Gate.THROUGHPUT) and any(None in (f.low, f.high) for f in figures):
        # Too few restarts for an interval: there is no doubt to forgive, there is no answer.
        return False
    if verdict.gate is Gate.THROUGHPUT:
        return bool(figures) and all(figure.value >= (figure.limit or 0.0) for figure in figures)
    return bool(figures) and all(figure.value <= (figure.limit or 0.0) for figure in figures)


def decide_row(
    key: RowKey,
    cells: Sequence[CellVerdicts],
    tier: Tier,
    *,
    separable: bool,
    aa: bool,
    alarmed: bool = False,
    planned: PlannedWorkload = UNPLANNED,
    waivers: Waivers = NONE,
    companions: Mapping[tuple[str, Gate], str] = NOTHING_HELD,
) -> DecisionRow:
    """Return the decision on one workload (or one new path of it) on one backend for one tier.

    ``aa`` says that both arms are one wheel; ``alarmed`` that the run's changes all point one way, which no single
    rollback may rest on; ``planned`` what the matrix says of the workload: the cases that must have been measured for
    anything better than `defer`, and who answers for a prototype; ``waivers`` the verdicts that somebody answers for;
    ``companions`` by cell and gate what carries a failing change, proven by an isolation: without it the gate passes.
    """
    required = required_gates(tier, key.question)
    if Gate.CORRECTNESS not in required and any(cell.track == "prototype" for cell in cells):
        required = (Gate.CORRECTNESS, *required)
    found: list[tuple[Decision, CellVerdicts, Verdict]] = []
    waived: list[Waived] = []
    for cell in cells:
        for verdict in _answers(cell, required):
            # A prototype earns `isolate` with right results, never with wrong ones.
            apart = separable and not (cell.track == "prototype" and verdict.gate is Gate.CORRECTNESS)
            does = effect(verdict, tier, key.question, separable=apart)
            held = _held(key, cell, verdict, companions)
            if held and does is Decision.DEFER:
                does = Decision.ISOLATE
            if does is Decision.ROLLBACK and alarmed and verdict.gate in (Gate.LATENCY, Gate.THROUGHPUT):
                does = Decision.DEFER
            written = waivers.waived(cell, verdict, tier)
            if written is not None and (does is not Decision.ADOPT or written.state == "expired"):
                waived.append(written)
                does = Decision.ADOPT if written.state == "waived" else does
            found.append((does, cell, verdict))
    decision = worst(does for does, _, _ in found) if found else Decision.DEFER
    deciding = min(
        (entry for entry in found if entry[0] is decision and entry[2].status in _WEIGHT),
        key=lambda entry: (_WEIGHT[entry[2].status], required.index(entry[2].gate)),
        default=None,
    )
    row = _row(key, cells, tier, decision, deciding, tuple(waived))
    failed = [(cell, verdict) for does, cell, verdict in found if does is Decision.ISOLATE]
    carried = [_held(key, cell, verdict, companions) for cell, verdict in failed]
    named = tuple(dict.fromkeys(carried)) if all(carried) else ()
    return _named(_held_back(row, cells, planned, aa=aa), cells, named)


def _held(key: RowKey, cell: CellVerdicts, verdict: Verdict, companions: Mapping[tuple[str, Gate], str]) -> str:
    """Return the companion without whose change ``verdict`` would pass, in words; "" where none is known.

    Of the version alone: a path of the candidate has nothing of the baseline's to be held at.
    """
    if key.question is not Question.VERSION or verdict.status is not Status.FAIL or cell.track == "prototype":
        return ""
    return companions.get((cell.cell_id, verdict.gate), "")


def required_gates(tier: Tier, question: Question) -> tuple[Gate, ...]:
    """Return the gates that decide: the tier's own, and for a feature always one that asks for its gain."""
    if question is Question.FEATURE and not {Gate.LATENCY, Gate.THROUGHPUT} & set(tier.required):
        return (*tier.required, Gate.LATENCY)
    return tier.required


def _answers(cell: CellVerdicts, required: Sequence[Gate]) -> list[Verdict]:
    """Return the verdicts of the required gates; one that is missing, or a cell that none of them fits, is untested."""
    answers: list[Verdict] = []
    for gate in required:
        given = [verdict for verdict in cell.verdicts if verdict.gate is gate]
        answers += given or [Verdict(gate=gate, status=Status.UNTESTED, reason="not judged")]
    if answers and all(answer.status is Status.NOT_APPLICABLE for answer in answers):
        reason = f"no required gate could be judged: {answers[0].reason}"
        return [Verdict(gate=answers[0].gate, status=Status.UNTESTED, reason=reason)]
    return answers


def _row(
    key: RowKey,
    cells: Sequence[CellVerdicts],
    tier: Tier,
    decision: Decision,
    deciding: tuple[Decision, CellVerdicts, Verdict] | None,
    waived: tuple[Waived, ...],
) -> DecisionRow:
    shown = cells[0].cell_id if cells else None
    gate, figure, reason, change = None, None, "no required gate was judged", "evidence"
    if deciding is not None:
        _, cell, verdict = deciding
        shown, gate, figure, change = cell.cell_id, verdict.gate, verdict.figure, would_change(cell, verdict)
        reason = f"{verdict.status}: {verdict.reason}"
        if decision is Decision.ADOPT:
            # What is neither passed nor in the way is waived, or its doubt forgiven: the decision hangs on that.
            reason, change = _despite(cell, verdict, waived)
    elif decision is Decision.ADOPT:
        reason, change = PASSED, "a required gate that fails"
        close = nearest(cells, required_gates(tier, key.question))
        if close is not None:
            shown, gate, figure, change = close[0].cell_id, close[1].gate, close[2], would_change(*close)
    return DecisionRow(
        question=key.question,
        workload=key.workload,
        path=key.path,
        backend=key.backend,
        tier=key.tier,
        decision=decision,
        decided_by=gate,
        cell_id=shown,
        reason=reason,
        figure=figure,
        would_change=change,
        warnings=(*_warnings(cells, tier), *map(_waiver_words, waived)),
        caveats=tuple(dict.fromkeys(caveat for cell in cells for caveat in cell.caveats)),
        waived=waived,
    )


def _despite(cell: CellVerdicts, verdict: Verdict, waived: Sequence[Waived]) -> tuple[str, str]:
    """Return why a row is adopted although ``verdict`` does not pass, and what would change that."""
    subject = (cell.cell_id, verdict.gate)
    for one in waived:
        if one.state == "waived" and (one.cell_id, one.gate) == subject:
            waiver = one.waiver
            return f"{PASSED} or is waived", f"the end of the waiver by {waiver.owner}, after {waiver.expires}"
    return f"{PASSED}; of {verdict.gate} the tier forgives the doubt", beyond(cell, verdict)


def _held_back(row: DecisionRow, cells: Sequence[CellVerdicts], planned: PlannedWorkload, *, aa: bool) -> DecisionRow:
    """Hold a better decision back to `defer` where the question itself is not answered, and say what it would be."""
    broken = next((cell.broken_control for cell in cells if cell.broken_control), None)
    good = row.decision in (Decision.ISOLATE, Decision.ADOPT)
    held: dict[str, object] = {"decision": Decision.DEFER, "would": row.decision if good else None}
    also = "" if good else f"; {row.reason}"
    if broken:
        held |= {"reason": f"control broken: {broken}{also}", "would_change": "arms of one build variant"}
        return row.model_copy(update=held | {"would": None, "decided_by": None})
    if aa:
        held |= {"reason": f"A/A run: both arms are one wheel, so there is nothing to adopt{also}"}
        return row.model_copy(update=held | {"decided_by": None, "would_change": "a candidate that is another release"})
    if not good:
        return row
    if row.decision is Decision.ADOPT:
        held["decided_by"] = None
    expired = next((one.waiver for one in row.waived if one.state == "expired"), None)
    if expired is not None:
        reason = f"the waiver by {expired.owner} expired on {expired.expires}: {expired.subject}"
        held |= {"reason": reason, "decided_by": None, "would_change": "the waiver renewed with a reason, or removed"}
        return row.model_copy(update=held)
    if any(cell.track == "prototype" for cell in cells) and not planned.maintains:
        held["would"] = Decision.ISOLATE
        if not planned.owner:
            reason = "prototype without an owner: nobody would answer for it"
            change = f"an owner of {row.workload} in the matrix"
            return row.model_copy(update=held | {"decided_by": None, "reason": reason, "would_change": change})
        if row.decision is Decision.ADOPT:
            change = f"maintains = true for {row.workload} in the matrix, where {planned.owner} maintains its kernels"
            row = row.model_copy(
                update={
                    "decision": Decision.ISOLATE,
                    "decided_by": None,
                    "reason": "prototype: isolate at best",
                    "would_change": change,
                }
            )
    missing = sorted(set(planned.production_cases) - {cell.case for cell in cells})
    if missing or not any(cell.production_shape for cell in cells):
        also = f"; {row.reason}" if row.decided_by and row.decision is not Decision.ADOPT else ""
        wanted = ", ".join(missing) or "a case that is marked as a production shape"
        held |= {
            "reason": f"production shapes untested{also}",
            "would_change": f"{wanted} of {row.workload} measured on {row.backend}, with the same verdicts",
        }
        return row.model_copy(update=held)
    return row


def _named(row: DecisionRow, cells: Sequence[CellVerdicts], companions: tuple[str, ...]) -> DecisionRow:
    """Return ``row`` with what is kept apart, where that is (or would be) the decision."""
    if (row.would or row.decision) is not Decision.ISOLATE:
        return row
    if companions:
        return row.model_copy(update={"kept_apart": "; ".join(companions)})
    prototype = any(cell.track == "prototype" for cell in cells)
    return row.model_copy(
        update={"kept_apart": f"prototype track: {row.workload}" if prototype else f"workload {row.workload}"}
    )


def _waiver_words(one: Waived) -> str:
    waiver = one.waiver
    verdict = f"{one.gate} of {one.cell_id} {one.status}: {one.reason}"
    if one.state == "waived":
        return f"waived by {waiver.owner} until {waiver.expires} ({waiver.reason}): {verdict}"
    if one.state == "expired":
        return f"the waiver by {waiver.owner} expired on {waiver.expires} ({waiver.reason}): {verdict}"
    return f"not waived, wrong results are nobody's to waive here ({waiver.owner}, {waiver.reason}): {verdict}"


def _warnings(cells: Sequence[CellVerdicts], tier: Tier) -> tuple[str, ...]:
    verdicts = [verdict for cell in cells for verdict in cell.verdicts]
    fixed = [v.reason for v in verdicts if v.reason.startswith("fixed by the candidate")]
    found = [f"the way back has the fault: {reason}" for reason in fixed]
    for verdict in verdicts if tier.in_service else ():
        if verdict.gate is Gate.ROLLBACK and verdict.status is Status.FAIL:
            found.append(f"rollback blocked: {verdict.reason}")
        elif verdict.gate is Gate.ROLLBACK and verdict.status is not Status.PASS:
            found.append(f"the way back is not proven: {verdict.reason}")
    return tuple(dict.fromkeys(found))
