"""What a gate is asked: one comparison of one cell for one tier; and what answers before any figure does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from farm.model import ArmResult, Cell, CellResult, Gate, Outcome, Question, Status, Tier, Verdict

__all__ = ["GateQuestion", "blocked"]

#: Outcomes that say something of the machine or the installation, and nothing of the release's work.
NOT_THE_ARMS_WORK = (Outcome.NO_ENVIRONMENT,)
#: Gates that live on restarts alone.
TIMED = (Gate.LATENCY, Gate.THROUGHPUT)


@dataclass(frozen=True)
class GateQuestion:
    """A challenger beside its reference in one cell, with the limits of one tier."""

    cell: Cell
    result: CellResult | None
    question: Question
    arm: str
    reference: str
    tier: Tier
    why_no_result: str = "not run"
    rehearsal: CellResult | None = None
    """The rehearsal of the same capability."""
    why_no_rehearsal: str = "no rehearsal was run"
    known: dict[tuple[str, ...], Any] = field(default_factory=dict, compare=False)
    """What was worked out of this cell's restarts already, for whichever tier: samples are unpacked once."""

    @property
    def challenger(self) -> ArmResult:
        assert self.result is not None
        return self.result.arms[self.arm]

    @property
    def other(self) -> ArmResult:
        assert self.result is not None
        return self.result.arms[self.reference]

    @property
    def reference_ran(self) -> bool:
        return self.other.outcome is Outcome.OK


def blocked(gate: Gate, asked: GateQuestion, *, relative: bool) -> Verdict | None:
    """Return the verdict that outcomes and validity give by themselves; None where the figures decide."""

    def verdict(status: Status, reason: str) -> Verdict:
        return Verdict(gate=gate, status=status, reason=reason)

    result = asked.result
    if result is None:
        return verdict(Status.UNTESTED, asked.why_no_result)
    if asked.arm not in result.arms or asked.reference not in result.arms:
        return verdict(Status.UNTESTED, "the worker answered for other arms than were asked")
    if not result.validity.valid:
        return verdict(Status.UNTESTED, f"invalid: {'; '.join(result.validity.reasons)}")
    arm, reference = asked.challenger, asked.other
    if arm.outcome is Outcome.OK and reference.outcome is Outcome.OK:
        return None
    for name, ended in ((asked.arm, arm), (asked.reference, reference)):
        if ended.outcome in NOT_THE_ARMS_WORK:
            return verdict(Status.UNTESTED, f"{name}: {ended.outcome}: {ended.reason}")
    if arm.outcome is not Outcome.OK and reference.outcome is not Outcome.OK:
        if (arm.outcome, arm.reason) == (reference.outcome, reference.reason):
            reason = f"both arms {arm.outcome}, so look at the workload first: {arm.reason}"
            return verdict(Status.UNTESTED, reason)
        reason = f"both arms ended: {_ended(asked.arm, arm)}; {_ended(asked.reference, reference)}"
        return verdict(Status.UNTESTED, reason)
    if arm.outcome is Outcome.OUT_OF_MEMORY and arm.ended_while_timed:
        # It fitted when it was alone: the release may not be at fault, and what was examined stands.
        reason = f"{asked.arm} out of memory beside the other arms' runners: {arm.reason}"
        return verdict(Status.UNTESTED, reason) if gate in TIMED else None
    if arm.outcome is not Outcome.OK:
        return verdict(Status.FAIL, _ended(asked.arm, arm))
    if reference.ended_while_timed:
        # The candidate mends nothing that the baseline did well before: its times are missing, no more.
        reason = f"the reference ended while it was timed: {_ended(asked.reference, reference)}"
        return verdict(Status.UNTESTED, reason) if gate in TIMED else None
    if relative and asked.question is Question.FEATURE:
        return verdict(Status.UNTESTED, f"no gain to measure: {_ended(asked.reference, reference)}")
    if relative:
        return verdict(Status.NOT_APPLICABLE, f"fixed by the candidate: {_ended(asked.reference, reference)}")
    return None


def _ended(name: str, result: ArmResult) -> str:
    return f"{name} {result.outcome}: {result.reason}" if result.reason else f"{name} {result.outcome}"
