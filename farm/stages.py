"""Stages: which cells begin when, what a share of the service runs meanwhile, and who needs no further cell.

A run in stages is one plan, frozen before its first cell (docs/stages.md). The aggregator gives a stage to the queues
when every cell of the one before it is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from farm.elsewhere import original_id
from farm.model import Cell, Evidence, Gate, Judgement, Plan, Side, Stage, Standing, Tier

__all__ = [
    "Window",
    "concerns",
    "evidence_before",
    "service_name",
    "service_tiers",
    "skipped",
    "staged",
    "standing_words",
    "total_days",
    "window_of",
]


# -- planned -------------------------------------------------------------------------------------------------------


def staged(cells: Sequence[Cell], stages: Sequence[Stage], tiers: Sequence[Tier]) -> list[Cell]:
    """Return ``cells`` in the order of ``stages``, each with its stage; without stages as they are.

    A case whose gates fall into several stages is a cell of each. The first keeps the case's own id, a later one is
    named by its stage: "gates/flex_attention-sliding-window-fp32@cpu".
    """
    if not stages:
        return list(cells)
    found: list[Cell] = []
    asked: dict[str, set[Gate]] = {cell.id: set() for cell in cells}
    taken: set[str] = set()
    for stage in stages:
        for cell in cells:
            if stage.backends and cell.backend not in stage.backends:
                continue
            if stage.in_service:
                if cell.kind == "measure" and cell.id in _in_service(cells, stage, tiers):
                    found.append(_again(cell, stage))
            elif cell.kind in stage.kinds and cell.kind != "measure":
                if cell.id not in taken:
                    taken.add(cell.id)
                    found.append(cell.model_copy(update={"stage": stage.name}))
            elif cell.kind in stage.kinds:
                gates = tuple(g for g in cell.gates if g not in asked[cell.id] and g in (stage.gates or (g,)))
                if gates:
                    name = _named(cell, stage) if asked[cell.id] else cell.id
                    asked[cell.id] |= set(gates)
                    found.append(cell.model_copy(update={"id": name, "gates": gates, "stage": stage.name}))
    return found


def _in_service(cells: Sequence[Cell], stage: Stage, tiers: Sequence[Tier]) -> set[str]:
    """Return the cells that a tier in service runs: at production shapes, or all where the suite has none of those."""
    found: set[str] = set()
    for tier in tiers:
        if tier.name in stage.in_service:
            of_tier = [cell for cell in cells if cell.kind == "measure" and _runs(tier, cell)]
            found |= {cell.id for cell in [c for c in of_tier if c.production_shape] or of_tier}
    return found


def _again(cell: Cell, stage: Stage) -> Cell:
    """Return ``cell`` as it is measured for those in service: they run the release, not yet its new paths."""
    return cell.model_copy(
        update={
            "id": _named(cell, stage),
            "stage": stage.name,
            "in_service": True,
            "arms": tuple(arm for arm in cell.arms if arm.name in tuple(Side)),
            "gates": tuple(gate for gate in cell.gates if gate in (stage.gates or (gate,))),
            "measuring": cell.measuring.model_copy(update={"feature_limits": ()}),
        }
    )


def _named(cell: Cell, stage: Stage) -> str:
    return f"{stage.name}/{cell.workload}-{cell.case}@{cell.capability}"


def service_tiers(tiers: Sequence[Tier], stages: Sequence[Stage]) -> tuple[Tier, ...]:
    """Return ``tiers``, and after them "serving (canary)" for each that a stage has in service."""
    found = list(tiers)
    for stage in stages:
        for tier in tiers:
            if tier.name in stage.in_service and not tier.stage:
                share = f": {stage.share * 100:g} % of the service" if stage.share else ""
                required = (gate for gate in tier.required if gate in (*(stage.gates or (gate,)), Gate.ROLLBACK))
                changed = {
                    "name": service_name(tier.name, stage.name),
                    "description": f"{tier.description}{share}",
                    "backends": tuple(b for b in tier.backends if b in (stage.backends or (b,))),
                    "in_service": True,
                    "required": tuple(required),
                    "stage": stage.name,
                }
                found.append(tier.model_copy(update=changed))
    return tuple(found)


def service_name(tier: str, stage: str) -> str:
    """Return the name of ``tier`` where ``stage`` has it in service."""
    return f"{tier} ({stage})"


def concerns(tier: Tier, cell: Cell) -> bool:
    """Return whether ``cell`` is evidence for ``tier``: its own work, and in service what is measured there."""
    return _runs(tier, cell) and tier.stage == (cell.stage if cell.in_service else "")


def _runs(tier: Tier, cell: Cell) -> bool:
    # The way back of a machine is everybody's, whichever workload it was walked with.
    either = not tier.workloads or cell.workload in tier.workloads or cell.kind == "rehearsal"
    return cell.backend in tier.backends and either


# -- as it goes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """The stages of a plan and the number of each cell's, counted from 0; of a plan without any it is all 0."""

    stages: tuple[Stage, ...]
    numbers: Mapping[str, int]

    def number(self, cell_id: str) -> int:
        return self.numbers.get(original_id(cell_id), 0)

    def goes_on(self, open_cells: Iterable[str]) -> int | None:
        """Return the number of the stage that goes on, given the cells that are not over; None where all are."""
        return min((self.number(cell) for cell in open_cells), default=None)

    def standing(self, cells: Mapping[str, bool]) -> Standing | None:
        """Return where the run stands, from every cell's "is it over"; None for a run without stages."""
        if not self.stages:
            return None
        at = self.goes_on(cell for cell, over in cells.items() if not over)
        at = len(self.stages) - 1 if at is None else at
        own = [over for cell, over in cells.items() if self.number(cell) == at]
        return Standing(
            number=at + 1,
            stages=len(self.stages),
            name=self.stages[at].name,
            done=sum(own),
            total=len(own),
            days=total_days(self.stages),
        )


def window_of(plan: Plan) -> Window:
    """Return the window of ``plan``."""
    order = {stage.name: number for number, stage in enumerate(plan.stages)}
    return Window(plan.stages, {cell.id: order.get(cell.stage, 0) for cell in plan.cells})


def total_days(stages: Sequence[Stage]) -> int | None:
    """Return the planned length of all stages together; None where one has none."""
    days = [stage.days for stage in stages if stage.days is not None]
    return sum(days) if days and len(days) == len(stages) else None


def standing_words(standing: Standing, created: str, now: datetime | None = None) -> str:
    """Return "stage 2 of 3, canary: 4 of 9 cells, day 8 of 14" of a run that was created then (ISO 8601)."""
    words = f"stage {standing.number} of {standing.stages}, {standing.name}: {standing.done} of {standing.total} cells"
    if standing.days is None:
        return words
    day = ((now or datetime.now(UTC)) - datetime.fromisoformat(created)).days + 1
    return f"{words}, day {day} of {standing.days}"


def evidence_before(evidence: Evidence, number: int) -> Evidence:
    """Return ``evidence`` with nothing in it of the stage ``number`` and later: what was known when that one began."""
    window = window_of(evidence.plan)
    kept = [result for result in evidence.results if window.number(result.cell_id) < number]
    elsewhere = [result for result in evidence.elsewhere if window.number(result.cell_id) < number]
    later = tuple(cell.id for cell in evidence.plan.cells if window.number(cell.id) >= number)
    return evidence.model_copy(update={"results": tuple(kept), "elsewhere": tuple(elsewhere), "still_open": later})


def skipped(plan: Plan, judgement: Judgement, number: int) -> dict[str, str]:
    """Return the cells of stage ``number`` that nobody needs any more, with the reason.

    A tier for which an earlier stage ended goes no further; a cell is measured while one tier that asks its gates does.
    """
    if plan.stages[number].always:
        return {}
    ended = {
        told.tier: f"stage {at} of {len(plan.stages)}, {before.name}, ended with {told.tier}: {told.reason}"
        for at, before in reversed(list(enumerate(judgement.stages[:number], 1)))
        for told in before.tiers
        if told.decision == "end"
    }
    # Whoever failed before is not put in service.
    for tier in plan.tiers:
        for stage in plan.stages if tier.name in ended and not tier.stage else ():
            ended.setdefault(service_name(tier.name, stage.name), ended[tier.name])
    found = {}
    for cell in plan.cells:
        if cell.stage == plan.stages[number].name:
            about = [tier for tier in plan.tiers if concerns(tier, cell)]
            names = [t.name for t in about if set(t.required) & set(cell.gates)] or [t.name for t in about]
            reasons = [ended.get(name) for name in names]
            if reasons and all(reasons):
                found[cell.id] = str(reasons[0])
    return found
