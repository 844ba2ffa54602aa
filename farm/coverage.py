"""How much of a run was compared: every measured cell in one place, before any decision is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from farm.comparable import broken_control, is_valid, measured_apart
from farm.model import Cell, CellResult, Coverage, Evidence, Outcome, Side

__all__ = ["coverage_of"]

#: Where a cell is counted: each in one place, and the head of a report says those that are not empty in this order.
COMPARABLE, MISSING = "comparable", "missing on "
COVERED = (
    COMPARABLE,
    *(f"{MISSING}{who}" for who in ("the candidate", "the baseline", "both")),
    "invalid",
    "skipped",
    "not run",
)


def coverage_of(evidence: Evidence, results: Mapping[str, CellResult]) -> Coverage:
    """Return the coverage of ``evidence``, of whose ``results`` one counts for each cell."""
    cells = [cell for cell in evidence.plan.cells if cell.kind == "measure"]
    found = Counter(_covered(evidence, cell, results.get(cell.id)) for cell in cells)
    counts = Counter({words: sum(n for (said, _), n in found.items() if said == words) for words in COVERED})
    outcomes: dict[str, dict[str, int]] = {}
    for (words, outcome), count in sorted(found.items()):
        if outcome:
            outcomes.setdefault(words.removeprefix(MISSING).removeprefix("the "), {})[outcome] = count
    told = [f"{counts[words]} {words}" for words in COVERED if counts[words] and words != COMPARABLE]
    return Coverage(
        head=", ".join([f"{counts[COMPARABLE]} of {len(cells)} {COMPARABLE}", *told]),
        cells=len(cells),
        comparable=counts[COMPARABLE],
        missing_on_candidate=counts[f"{MISSING}the candidate"],
        missing_on_baseline=counts[f"{MISSING}the baseline"],
        missing_on_both=counts[f"{MISSING}both"],
        invalid=counts["invalid"],
        skipped=counts["skipped"],
        not_run=counts["not run"],
        outcomes=outcomes,
        untested_backends=dict(evidence.plan.unserved_backends),
    )


def _covered(evidence: Evidence, cell: Cell, result: CellResult | None) -> tuple[str, str]:
    """Return where a cell is counted, one of `COVERED`, and of a missing arm how it ended.

    Validity comes first: an arm that did not answer on a machine that was asleep says nothing of its release.
    """
    if result is None:
        return evidence.without_result(cell.id)[0], ""
    if measured_apart(evidence, cell, result) or broken_control(evidence.plan, cell) or not is_valid(result):
        return "invalid", ""
    ended = [str(arm.outcome) if (arm := result.arms.get(side)) else "not answered" for side in Side]
    missing = [outcome != Outcome.OK for outcome in ended]
    if not any(missing):
        return COMPARABLE, ""
    if all(missing):
        return f"{MISSING}both", ended[list(Side).index(Side.CANDIDATE)]
    side = list(Side)[missing.index(True)]
    return f"{MISSING}the {side}", ended[list(Side).index(side)]
