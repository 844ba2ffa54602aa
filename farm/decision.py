"""From verdicts to decisions: one closed table and one precedence, as pure functions (docs/decision-rule.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from farm.model import Backend, CellVerdicts, Decision, DecisionRow, Gate, Question, Status, Tier, Verdict, Waived
from farm.waivers import NONE, Waivers

__all__ = ["PRECEDENCE", "RowKey", "decide_row", "effect", "required_gates", "worst"]

#: The worst first.
PRECEDENCE = (Decision.ROLLBACK, Decision.DEFER, Decision.ISOLATE, Decision.ADOPT)

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
    production: Sequence[str] = (),
    waivers: Waivers = NONE,
) -> DecisionRow:
    """Return the decision on one workload (or one new path of it) on one backend for one tier.

    ``aa`` says that both arms are one wheel; ``alarmed`` that the run's changes all point one way, which no single
    rollback may rest on; ``production`` names the cases that must have been measured for anything better than `defer`;
    ``waivers`` the verdicts that somebody answers for.
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
    return _held_back(row, cells, aa=aa, production=production)


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
    verdict = deciding[2] if deciding and decision is not Decision.ADOPT else None
    shown = deciding[1] if verdict and deciding else (cells[0] if cells else None)
    if verdict is None:
        figure = next((v.figure for c in cells for v in c.verdicts if v.gate in tier.required and v.figure), None)
        timing = [v.figure for c in cells for v in c.verdicts if v.gate in (Gate.LATENCY, Gate.THROUGHPUT)]
        figure = next((f for f in timing if f), figure)
        passed = "every required gate passes or is waived" if waived else "every required gate passes"
        reason = passed if decision is Decision.ADOPT else "no required gate was judged"
    else:
        figure, reason = verdict.figure, f"{verdict.status}: {verdict.reason}"
    return DecisionRow(
        question=key.question,
        workload=key.workload,
        path=key.path,
        backend=key.backend,
        tier=key.tier,
        decision=decision,
        decided_by=verdict.gate if verdict else None,
        cell_id=shown.cell_id if shown else None,
        reason=reason,
        figure=figure,
        would_change=_would_change(verdict, decision),
        warnings=(*_warnings(cells, tier), *map(_waiver_words, waived)),
        waived=waived,
    )


def _held_back(row: DecisionRow, cells: Sequence[CellVerdicts], *, aa: bool, production: Sequence[str]) -> DecisionRow:
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
    expired = next((one.waiver for one in row.waived if one.state == "expired"), None)
    if expired is not None:
        reason = f"the waiver by {expired.owner} expired on {expired.expires}: {expired.subject}"
        held |= {"reason": reason, "decided_by": None, "would_change": "the waiver renewed with a reason, or removed"}
        return row.model_copy(update=held)
    if row.decision is Decision.ADOPT:
        held["decided_by"] = None
    if any(cell.track == "prototype" for cell in cells) and row.decision is Decision.ADOPT:
        reason = "prototype: isolate at best"
        row = row.model_copy(update={"decision": Decision.ISOLATE, "reason": reason})
        held["would"] = Decision.ISOLATE
    if not any(cell.production_shape for cell in cells) or set(production) - {cell.case for cell in cells}:
        also = f"; {row.reason}" if row.decided_by else ""
        held |= {"reason": f"production shapes untested{also}", "would_change": "the same gates on production shapes"}
        return row.model_copy(update=held)
    return row


def _would_change(verdict: Verdict | None, decision: Decision) -> str:
    if verdict is None:
        return "a required gate that fails" if decision is Decision.ADOPT else "evidence"
    return {
        Status.FAIL: f"{verdict.gate} within its limit",
        Status.INCONCLUSIVE: "more restarts, or a quieter machine",
        Status.UNTESTED: f"{verdict.gate} measured",
    }[verdict.status]


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
