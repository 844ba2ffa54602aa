"""Stored evidence under limits that were named afterwards, beside what its own plan says: never over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farm.judge import judge
from farm.model import (
    Claim,
    Evidence,
    Figure,
    Flip,
    Gate,
    Judgement,
    PlannedWorkload,
    Question,
    Rejudgement,
    Tier,
    Waiver,
)
from farm.stages import service_tiers

__all__ = ["flips", "rejudge", "under"]

NOT_ASKED = "not asked"


def rejudge(
    evidence: Evidence,
    tiers: Sequence[Tier],
    matrix_digest: str,
    workloads: Mapping[str, PlannedWorkload] | None = None,
    waivers: Sequence[Waiver] | None = None,
    claims: Sequence[Claim] | None = None,
) -> Rejudgement:
    """Return what ``evidence`` says under ``tiers``, and everything that they answer otherwise than its own plan's.

    ``workloads``, ``waivers`` and ``claims`` are those of the other matrix; None: the plan's. No cell is
    planned anew: what they ask and the evidence has not is `untested`. Limits that are the plan's own word for word
    are still the registered ones.
    """
    registered = judge(evidence)
    other = under(evidence, tiers, workloads, waivers, claims)
    if other.plan == evidence.plan:
        return Rejudgement(judgement=registered)
    found = judge(other)
    found = found.model_copy(
        update={"plan_digest": registered.plan_digest, "matrix_digest": matrix_digest, "registered": False}
    )
    return Rejudgement(judgement=found, flips=flips(registered, found))


def flips(old: Judgement, new: Judgement) -> tuple[Flip, ...]:
    """Return everything that ``new`` answers otherwise than ``old`` on the same evidence."""
    return (*_tiers(old, new), *_rows(old, new), *_verdicts(old, new))


def under(
    evidence: Evidence,
    tiers: Sequence[Tier],
    workloads: Mapping[str, PlannedWorkload] | None = None,
    waivers: Sequence[Waiver] | None = None,
    claims: Sequence[Claim] | None = None,
) -> Evidence:
    """Return ``evidence`` with other limits in its plan: to be judged and shown under them, and never to be kept."""
    asked: dict[str, object] = {"tiers": service_tiers(tiers, evidence.plan.stages)}
    asked |= {} if workloads is None else {"workloads": dict(workloads)}
    asked |= {} if waivers is None else {"waivers": tuple(waivers)}
    asked |= {} if claims is None else {"claims": tuple(claims)}
    return evidence.model_copy(update={"plan": evidence.plan.model_copy(update=asked)})


def _tiers(old: Judgement, new: Judgement) -> list[Flip]:
    before = {row.tier: row.decision.value for row in old.tiers}
    after = {row.tier: row.decision.value for row in new.tiers}
    return [
        Flip(what="tier", tier=tier, question=Question.VERSION, subject="", before=was, after=now)
        for tier in dict.fromkeys([*before, *after])
        if (was := before.get(tier, NOT_ASKED)) != (now := after.get(tier, NOT_ASKED))
    ]


def _rows(old: Judgement, new: Judgement) -> list[Flip]:
    def by_key(judgement: Judgement) -> dict[tuple[str, Question, str], str]:
        return {
            (row.tier, row.question, f"{row.workload}{f', path {row.path}' if row.path else ''} on {row.backend}"): (
                f"{row.decision} (would {row.would})" if row.would else row.decision.value
            )
            for row in judgement.rows
        }

    before, after = by_key(old), by_key(new)
    return [
        Flip(what="row", tier=key[0], question=key[1], subject=key[2], before=was, after=now)
        for key in dict.fromkeys([*before, *after])
        if (was := before.get(key, NOT_ASKED)) != (now := after.get(key, NOT_ASKED))
    ]


def _verdicts(old: Judgement, new: Judgement) -> list[Flip]:
    Key = tuple[str, Question, str, Gate]

    def by_key(judgement: Judgement) -> dict[Key, tuple[str, Figure | None]]:
        return {
            (cell.tier, cell.question, f"{cell.cell_id}{f', {cell.arm}' if '+' in cell.arm else ''}", verdict.gate): (
                verdict.status.value,
                verdict.figure,
            )
            for cell in judgement.cells
            for verdict in cell.verdicts
        }

    before, after = by_key(old), by_key(new)
    found = []
    for key in dict.fromkeys([*before, *after]):
        (was, figure_before), (now, figure) = before.get(key, (NOT_ASKED, None)), after.get(key, (NOT_ASKED, None))
        # A question that one of the two does not ask at all shows in its tier and its row.
        if was != now and NOT_ASKED not in (was, now):
            tier, question, subject, gate = key
            found.append(
                Flip(
                    what="verdict",
                    tier=tier,
                    question=question,
                    subject=subject,
                    gate=gate,
                    before=was,
                    after=now,
                    figure=figure,
                    limit_before=figure_before.limit if figure_before else None,
                )
            )
    return found
