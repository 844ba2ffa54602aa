"""A release's claims as hypotheses: what its text says, held against the cells that would show it.

Claims decide nothing: a tier asks whether its own work may move, and a headline is about somebody's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase

from farm.model import (
    ArmResult,
    Cell,
    CellResult,
    Claim,
    ClaimAnswer,
    ClaimResult,
    ClaimSighting,
    Evidence,
    Figure,
    Outcome,
    Side,
)
from farm.statistics import counted, ratio_interval
from farm.units import number

__all__ = ["claim_answers"]

#: A gain that is less than a tenth of the claimed one (in logarithms) is none of that kind: 1.28 times of 12 times.
HARDLY = 0.1
#: The best first: "up to" is shown by one case.
UP_TO: tuple[ClaimResult, ...] = ("reproduced", "not reproduced", "contradicted", "untested")
#: The worst first: what a text says without an "up to" holds everywhere or not.
ALWAYS: tuple[ClaimResult, ...] = ("contradicted", "not reproduced", "reproduced", "untested")


def claim_answers(evidence: Evidence, results: Mapping[str, CellResult]) -> tuple[ClaimAnswer, ...]:
    """Return what ``results`` (valid or not, by cell) say to every claim of the plan, in the matrix's order."""
    return tuple(_answer(claim, evidence, results) for claim in evidence.plan.claims)


def _answer(claim: Claim, evidence: Evidence, results: Mapping[str, CellResult]) -> ClaimAnswer:
    cells = [cell for cell in evidence.plan.cells if _about(claim, cell)]
    if not cells:
        reason = f"this run has no cell {claim.workload}/{claim.case} on {', '.join(claim.backends) or 'any backend'}"
        return ClaimAnswer(claim=claim, result="untested", reason=reason)
    seen = [_seen(claim, cell, results.get(cell.id), evidence.why_no_result(cell.id)) for cell in cells]
    order = UP_TO if claim.up_to else ALWAYS
    best = min(seen, key=lambda one: order.index(one.result))
    told = [one for one in seen if one.result != "untested"]
    reason = best.reason
    if len(told) > 1:
        alike = sum(one.result == best.result for one in told)
        reason += f" ({alike} of {len(told)} cells that tell)"
    return ClaimAnswer(claim=claim, result=best.result, reason=reason, cells=tuple(seen))


def _about(claim: Claim, cell: Cell) -> bool:
    return (
        cell.kind == "measure"
        and not cell.in_service
        and cell.workload == claim.workload
        and fnmatchcase(cell.case, claim.case)
        and (not claim.backends or cell.backend in claim.backends)
    )


def _seen(claim: Claim, cell: Cell, result: CellResult | None, why_none: str) -> ClaimSighting:
    arm, reference = _arms(claim)
    if arm not in {one.name for one in cell.arms}:
        return _untested(cell, f"path {claim.path} is not asked about in this run")
    if result is None:
        return _untested(cell, why_none)
    for name in (arm, reference) if not claim.fact else (arm,):
        ended = result.arms.get(name)
        if ended is None or ended.outcome is not Outcome.OK:
            why = f"{ended.outcome}: {ended.reason}" if ended else "no result"
            return _untested(cell, f"{name} {why}")
    if claim.fact:
        return _fact(claim, cell, result.arms[arm])
    if claim.quantity != "p50":
        return _ratio_of_two(claim, cell, result.arms[arm], result.arms[reference])
    if not result.validity.valid or arm in result.validity.arms or reference in result.validity.arms:
        reasons = result.validity.reasons or tuple(r for found in result.validity.arms.values() for r in found)
        return _untested(cell, f"times invalid: {'; '.join(reasons)}")
    interval = ratio_interval(counted(result.restarts), arm, reference, "p50", cell.measuring.alpha)
    if interval is None or not interval.bounded:
        return _untested(cell, "no interval: too few restarts")
    return _held(claim, cell, interval.value, interval.low, interval.high)


def _arms(claim: Claim) -> tuple[str, str]:
    """Return the arm that the claim is about and what it is held against: the old path, or the baseline."""
    candidate = Side.CANDIDATE.value
    return (f"{candidate}+{claim.path}", candidate) if claim.path else (candidate, Side.BASELINE.value)


def _fact(claim: Claim, cell: Cell, arm: ArmResult) -> ClaimSighting:
    facts = arm.examination.facts if arm.examination else {}
    if claim.fact not in facts:
        return _untested(cell, f"the workload does not tell '{claim.fact}'")
    found = facts[claim.fact]
    same = type(found) is type(claim.equals) and found == claim.equals
    result: ClaimResult = "reproduced" if same else "contradicted"
    return ClaimSighting(cell_id=cell.id, result=result, reason=f"{claim.fact}: {found}")


def _ratio_of_two(claim: Claim, cell: Cell, arm: ArmResult, reference: ArmResult) -> ClaimSighting:
    """Return the answer of a quantity that is measured once an arm: it has a value and no interval."""
    above, below = (_measured(one, claim.quantity) for one in (arm, reference))
    if not above or not below:
        return _untested(cell, f"{claim.quantity.replace('_', ' ')} was not measured")
    unit = "bytes" if claim.quantity == "peak_memory" else "s"
    shown = [number(value, unit, whole=True) for value in (above, below)]
    return _held(claim, cell, above / below, words=f"{shown[0]} against {shown[1]}")


def _measured(arm: ArmResult, quantity: str) -> float | None:
    if quantity == "peak_memory":
        memory = arm.examination.memory if arm.examination else None
        return memory.allocator_peak_bytes if memory else None
    cold = arm.compile_export.cold_ns if arm.compile_export else None
    return cold / 1e9 if cold else None


def _held(
    claim: Claim, cell: Cell, value: float, low: float | None = None, high: float | None = None, *, words: str = ""
) -> ClaimSighting:
    limit = claim.at_most
    assert limit is not None
    figure = Figure(name=f"{claim.quantity} ratio", value=value, low=low, high=high, limit=limit)
    best, worst = (value, value) if low is None or high is None else (low, high)
    if worst <= limit:
        result: ClaimResult = "reproduced"
    elif best > limit and (limit >= 1 or math.log(best) > HARDLY * math.log(limit)):
        result = "contradicted"
    else:
        result = "not reproduced"
    reason = f"{_times(value)}{_range(low, high)}; claimed {_times(limit)}" + (f" ({words})" if words else "")
    return ClaimSighting(cell_id=cell.id, result=result, reason=reason, figure=figure)


def _times(ratio: float) -> str:
    """Return a ratio of the new over the old as people say it: "12.3 times less", "1.04 times as much"."""
    return f"{1 / ratio:.3g} times less" if ratio < 1 else f"{ratio:.3g} times as much"


def _range(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" (ratio [{low:.3g}, {high:.3g}])"


def _untested(cell: Cell, why: str) -> ClaimSighting:
    return ClaimSighting(cell_id=cell.id, result="untested", reason=why)
