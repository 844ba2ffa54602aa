"""A run's stages with what each decided, and the first one's checklist: what is frozen and what is captured."""

from __future__ import annotations

from dataclasses import dataclass

from farm.model import Evidence, Judgement, Outcome, Plan, Side, StageDecision
from farm.report.text import plural

__all__ = ["CheckView", "StageView", "checklist", "stage_title", "stage_views"]

#: Hexadecimal digits of a digest that are shown, as elsewhere.
DIGITS = 16


@dataclass(frozen=True)
class CheckView:
    """A thing that has to be fixed before a comparison is worth anything."""

    name: str
    done: bool
    words: str

    @property
    def line(self) -> str:
        return f"{self.name}: {'done' if self.done else 'not done'}; {self.words}"


@dataclass(frozen=True)
class StageView:
    title: str
    """"stage 2 of 3, canary"."""
    description: str
    state: str
    """"complete, 4 of 4 cells"."""
    checks: tuple[CheckView, ...]
    tiers: tuple[tuple[str, str, str], ...]
    """(tier, "go on", why)."""

    @property
    def lines(self) -> list[str]:
        """The stage in lines, for a terminal."""
        head = f"{self.title}: {self.state}" + (f"; {self.description}" if self.description else "")
        told = [f"- {tier}: {decision}, {reason}" for tier, decision, reason in self.tiers]
        return [head, *(f"- {check.line}" for check in self.checks), *told]


def stage_views(evidence: Evidence, judgement: Judgement) -> tuple[StageView, ...]:
    """Return every stage of a run in order; nothing where it has none."""
    return tuple(
        StageView(
            title=stage_title(evidence.plan, number),
            description=_description(evidence.plan, number),
            state=_state(told),
            checks=checklist(evidence.plan, evidence) if number == 0 else (),
            tiers=tuple((tier.tier, tier.decision, tier.reason) for tier in told.tiers),
        )
        for number, told in enumerate(judgement.stages)
    )


def stage_title(plan: Plan, number: int) -> str:
    """Return "stage 2 of 3, canary"."""
    return f"stage {number + 1} of {len(plan.stages)}, {plan.stages[number].name}"


def _description(plan: Plan, number: int) -> str:
    stage = plan.stages[number]
    days = f"{plural(stage.days, 'day')} planned" if stage.days else ""
    share = f"{stage.share * 100:g} % of {' and '.join(stage.in_service)}" if stage.share else ""
    return ", ".join(part for part in (stage.description, share, days) if part)


def _state(told: StageDecision) -> str:
    parts = [f"{told.done} of {plural(told.cells, 'cell')}"]
    parts += [f"{told.skipped} skipped"] if told.skipped else []
    parts += [f"{told.given_up} without a result"] if told.given_up else []
    if told.over:
        words = "skipped" if told.cells and told.skipped == told.cells else "complete"
        return ", ".join((words if not told.given_up else "over", *parts))
    return ", ".join(("goes on" if told.done else "waits", *parts))


def checklist(plan: Plan, evidence: Evidence | None = None) -> tuple[CheckView, ...]:
    """Return whether sources, environments and the baseline are fixed, with the digests that fix them."""
    sources = {
        f"{name.partition('@')[0]} {release.identity} sha256 {release.sha256[:DIGITS]}"
        for name, release in plan.releases.items()
    }
    workloads = {f"{cell.workload} {cell.control.workload_digest[:DIGITS]}" for cell in plan.cells}
    locks = {f"{made.release.identity} lock {made.key[:DIGITS]}" for made in plan.environments.values()}
    resolved = {name.partition("@")[0] for name in plan.releases} >= {side.value for side in Side}
    refused = "".join(f"; {r.side} on {r.platform} refused: {r.reason}" for r in plan.refused)
    first = [cell for cell in plan.cells if plan.stages and cell.stage == plan.stages[0].name]
    measured = {cell.id for cell in first if cell.kind == "measure"}
    captured = {
        result.cell_id
        for result in (evidence.results if evidence is not None else ())
        if Side.BASELINE in result.arms and result.arms[Side.BASELINE].outcome is Outcome.OK
    }
    return (
        CheckView("sources", resolved, ", ".join((*sorted(sources), *sorted(workloads)))),
        CheckView("environment freeze", resolved and not refused, ", ".join(sorted(locks)) + refused),
        CheckView(
            "baseline capture",
            bool(measured) and measured <= captured,
            f"{len(measured & captured)} of {plural(len(measured), 'cell')} hold the baseline beside the candidate",
        ),
    )
