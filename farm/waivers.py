"""Waivers: which verdicts somebody answers for, and until when (docs/decision-rule.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase

from farm.model import CellVerdicts, DecisionRow, Gate, Plan, Status, Tier, Verdict, Waived, Waiver, WaiverUse
from farm.stages import service_name

__all__ = ["NONE", "Waivers", "waiver_uses", "waivers_of"]


@dataclass(frozen=True)
class Waivers:
    """The waivers of a plan, held against the day on which it was made."""

    waivers: tuple[Waiver, ...] = ()
    day: date | None = None
    """None where the plan says none: then nothing is in force."""

    def expired(self, waiver: Waiver) -> bool:
        """Return whether ``waiver`` was over on the day of the plan; it holds on its last day."""
        return self.day is None or date.fromisoformat(waiver.expires) < self.day

    def waived(self, cell: CellVerdicts, verdict: Verdict, tier: Tier) -> Waived | None:
        """Return what the waiver that is written for ``verdict`` does to it; None where there is none.

        Of several one in force goes first, then the one that ended last.
        """
        fitting = [waiver for waiver in self.waivers if _fits(waiver, cell, verdict.gate, tier)]
        if not fitting:
            return None
        waiver = max(fitting, key=lambda found: (not self.expired(found), found.expires))
        state = "expired" if self.expired(waiver) else "waived"
        if state == "waived" and _never(cell, verdict, tier):
            state = "not waivable"
        return Waived.model_validate(
            {
                "waiver": waiver,
                "cell_id": cell.cell_id,
                "gate": verdict.gate,
                "status": verdict.status,
                "reason": verdict.reason,
                "state": state,
            }
        )


#: For rows that nobody answers for.
NONE = Waivers()


def waivers_of(plan: Plan) -> Waivers:
    """Return the waivers of ``plan`` on its day. The clock is never asked: same evidence, same answer."""
    try:
        day = date.fromisoformat(plan.created[:10])
    except ValueError:
        day = None
    return Waivers(plan.waivers, day)


def waiver_uses(plan: Plan, rows: Iterable[DecisionRow]) -> tuple[WaiverUse, ...]:
    """Return every waiver of ``plan`` with whether ``rows`` needed it: one that is not needed is shown as well."""
    on_the_day = waivers_of(plan)
    told = [one for row in rows for one in row.waived]
    found = []
    for waiver in plan.waivers:
        mine = [one for one in told if one.waiver == waiver]
        needed = tuple(dict.fromkeys(one.cell_id for one in mine if one.status is not Status.PASS))
        if on_the_day.expired(waiver):
            state = "expired"
        elif any(one.state == "not waivable" for one in mine):
            state = "not waivable"
        else:
            state = "used" if any(one.state == "waived" for one in mine) else "unused"
        found.append(WaiverUse.model_validate({"waiver": waiver, "state": state, "cells": needed}))
    return tuple(found)


def _fits(waiver: Waiver, cell: CellVerdicts, gate: Gate, tier: Tier) -> bool:
    # A canary is its tier in service: what is known and answered for before is no surprise there.
    tiers = {waiver.tier, service_name(waiver.tier, tier.stage) if tier.stage else waiver.tier}
    asked = (waiver.workload, waiver.backend, waiver.gate, waiver.question)
    seen = (cell.workload, cell.backend, gate, cell.question)
    return tier.name in tiers and asked == seen and fnmatchcase(cell.case, waiver.case)


def _never(cell: CellVerdicts, verdict: Verdict, tier: Tier) -> bool:
    """Return whether nobody can answer for ``verdict``.

    Wrong results in service are with customers already, who were not asked; a prototype has nothing but right results
    to be kept for.
    """
    wrong = verdict.gate is Gate.CORRECTNESS and verdict.status is Status.FAIL
    return wrong and (tier.in_service or cell.track == "prototype")
