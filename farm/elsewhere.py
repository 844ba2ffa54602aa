"""A failing gate measured again on another machine of the same class, and what its answer does to the accusation.

The step follows from what failed, so it is no cell of the plan: the aggregator adds it when everything of the stage is
over, under a name of its own, and both answers are kept. Where no such machine is there the accusation stands on its
repeat in fresh processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from farm.gates import GateQuestion, judge_gate
from farm.model import (
    Cell,
    CellResult,
    CellVerdicts,
    Figure,
    Gate,
    Host,
    Judgement,
    Plan,
    Question,
    Status,
    Tier,
    Verdict,
)

__all__ = ["PREFIX", "confirmed", "elsewhere_id", "original_id", "same_class", "to_confirm"]

PREFIX = "elsewhere/"


def elsewhere_id(cell_id: str) -> str:
    """Return the name under which ``cell_id`` is measured on another machine."""
    return f"{PREFIX}{cell_id}"


def original_id(cell_id: str) -> str:
    """Return the planned cell that ``cell_id`` measures; itself where it is planned."""
    return cell_id.removeprefix(PREFIX)


def same_class(one: Host, other: Host) -> bool:
    """Return whether ``other`` is another machine that ``one``'s cells can be measured on again: alike, and not it."""
    alike = (one.cpu, one.target) == (other.cpu, other.target)
    return alike and one.name != other.name


def to_confirm(judgement: Judgement, plan: Plan) -> list[str]:
    """Return the cells with a required gate that fails (version question), where the suite has failures repeated.

    The way back is none of them: it is a rehearsal of its own, walked twice.
    """
    asked = {cell.id for cell in plan.cells if cell.kind == "measure" and cell.measuring.confirming}
    required = {tier.name: tier.required for tier in plan.tiers}
    found = dict.fromkeys(
        cell.cell_id
        for cell in judgement.cells
        if cell.cell_id in asked and cell.question is Question.VERSION
        for verdict in cell.verdicts
        if verdict.status is Status.FAIL and verdict.gate in _accusing(required.get(cell.tier, ()))
    )
    return list(found)


def _accusing(required: Iterable[Gate]) -> set[Gate]:
    return {gate for gate in required if gate is not Gate.ROLLBACK}


def confirmed(
    verdicts: Sequence[CellVerdicts],
    answers: Mapping[str, CellResult],
    cells: Mapping[str, Cell],
    tiers: Mapping[str, Tier],
) -> list[CellVerdicts]:
    """Return ``verdicts`` with each failure held against the answer of another machine to the same cell.

    Where that one passes the accusation does not stand, and the verdict is `inconclusive`: it may be the machine.
    """
    return [
        _held(found, cells[found.cell_id], answers[found.cell_id], tiers[found.tier])
        if found.cell_id in answers and found.question is Question.VERSION
        else found
        for found in verdicts
    ]


def _held(found: CellVerdicts, cell: Cell, answer: CellResult, tier: Tier) -> CellVerdicts:
    asked = GateQuestion(
        cell=cell, result=answer, question=found.question, arm=found.arm, reference=found.reference, tier=tier
    )
    held = tuple(
        _against(verdict, judge_gate(verdict.gate, asked), answer.host.name)
        if verdict.status is Status.FAIL and verdict.gate is not Gate.ROLLBACK
        else verdict
        for verdict in found.verdicts
    )
    return found.model_copy(update={"verdicts": held})


def _against(verdict: Verdict, other: Verdict, machine: str) -> Verdict:
    """Return ``verdict``, which fails, with what another machine says of it; both figures are kept."""
    shown: tuple[Figure, ...] = ()
    if other.figure is not None:
        shown = (other.figure.model_copy(update={"name": f"{other.figure.name}, on {machine}", "limit": None}),)
    kept = {"others": (*verdict.others, *shown)}
    if other.status is Status.PASS:
        words = f"not confirmed on {machine}, another machine of its class: {other.reason}"
        return verdict.model_copy(update=kept | {"status": Status.INCONCLUSIVE, "reason": f"{verdict.reason}; {words}"})
    words = "confirmed on" if other.status is Status.FAIL else "it cannot be told on"
    return verdict.model_copy(update=kept | {"reason": f"{verdict.reason}; {words} {machine}: {other.reason}"})
