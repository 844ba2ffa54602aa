"""Rollback: the way back was walked on a machine of this capability, with the network off, and proven."""

from __future__ import annotations

from farm.gates.question import GateQuestion
from farm.model import Figure, Gate, Outcome, Question, Rehearsal, Side, Status, Tier, Verdict

__all__ = ["judge"]


def judge(asked: GateQuestion) -> Verdict:
    """Return the verdict on the rehearsal of the cell's capability."""
    if asked.question is Question.FEATURE:
        return _verdict(Status.NOT_APPLICABLE, "a path is turned off, not uninstalled")
    result = asked.rehearsal
    if result is None:
        return _verdict(Status.UNTESTED, asked.why_no_rehearsal)
    if not result.validity.valid:
        return _verdict(Status.UNTESTED, f"invalid: {'; '.join(result.validity.reasons)}")
    rehearsal = result.rehearsal
    if rehearsal is None:
        return _verdict(Status.UNTESTED, "the worker answered without a rehearsal")
    if rehearsal.outcome is Outcome.NO_ENVIRONMENT:
        missing = [side for side, arm in result.arms.items() if arm.outcome is Outcome.NO_ENVIRONMENT]
        if missing == [Side.BASELINE]:
            # Whoever runs it today could not come back to it (CASES.md V5).
            return _verdict(Status.FAIL, f"the baseline cannot be installed any more: {rehearsal.reason}")
        return _verdict(Status.UNTESTED, rehearsal.reason)
    if not rehearsal.control_ran:
        return _verdict(Status.UNTESTED, rehearsal.reason)
    seconds = rehearsal.duration_ns / 1e9
    figure = Figure(name="rehearsal", value=seconds, limit=asked.tier.rollback_s, unit="s")
    if rehearsal.outcome is not Outcome.OK:
        return _verdict(Status.FAIL, rehearsal.reason or str(rehearsal.outcome), figure)
    if rehearsal.mismatches or not rehearsal.control_equal:
        return _verdict(Status.FAIL, "the rehearsal proved nothing: installed or computed is not the baseline", figure)
    if seconds <= 0 or min(rehearsal.steps_ns.values()) < 0:
        return _verdict(Status.UNTESTED, f"sensor implausible: back in {seconds:.1f} s", figure)
    if not rehearsal.network_off_by:
        return _verdict(Status.UNTESTED, "nothing says that the network was off", figure)
    if not seconds <= asked.tier.rollback_s:
        return _verdict(Status.FAIL, f"back in {seconds:.1f} s: beyond the limit", figure)
    if lost := _lost(rehearsal, asked.tier):
        return _verdict(*lost, figure)
    return _verdict(Status.PASS, f"back in {seconds:.1f} s without a network, control bitwise as before", figure)


def _lost(rehearsal: Rehearsal, tier: Tier) -> tuple[Status, str] | None:
    """Return the verdict where the baseline cannot open what ``tier`` needs of what the candidate wrote."""
    unreadable, untested = [], []
    for kind in tier.state_required:
        kept = rehearsal.state.get(kind)
        if kept is None:
            untested.append(f"{kind}: not asked of the rehearsal")
        elif kept.result == "unreadable":
            unreadable.append(f"{kind} ({kept.reason})")
        elif kept.result == "not written":
            untested.append(f"{kind}: not written: {kept.reason}")
    if unreadable:
        return Status.FAIL, f"the baseline cannot open what the candidate wrote; convert first: {', '.join(unreadable)}"
    if untested:
        return Status.UNTESTED, f"whether state comes back is not known: {'; '.join(untested)}"
    return None


def _verdict(status: Status, reason: str, figure: Figure | None = None) -> Verdict:
    return Verdict(gate=Gate.ROLLBACK, status=status, reason=reason, figure=figure)
