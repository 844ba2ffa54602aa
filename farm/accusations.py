"""Accusations over a whole run: of many cells a few fail by chance, and those are not said (Benjamini & Hochberg 1995).

The plan gives every repeat enough restarts that one clear case can be told among all of its cells; where no repeat was
planned there is nothing to correct with, and the first answer stands. Clearances need no such correction: all cells of
a tier must pass, so one that passes by chance clears nothing alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from farm.model import CellResult, CellVerdicts, Gate, Question, Status, Verdict
from farm.statistics import Quantity, counted, hodges_lehmann, restart_log_ratios, signed_rank_p_value

__all__ = ["FALSE_SHARE", "rejected", "withhold"]

#: The share of a run's accusations that may be false: q of Benjamini and Hochberg.
FALSE_SHARE = 0.05
#: What a failing figure is a ratio of.
QUANTITIES: Mapping[str, Quantity] = {"p50 ratio": "p50", "p95 ratio": "p95", "throughput ratio": "mean"}
JUDGED = (Status.PASS, Status.FAIL, Status.INCONCLUSIVE)


def rejected(p_values: Mapping[int, float], tests: int, share: float = FALSE_SHARE) -> set[int]:
    """Return which of ``p_values`` are findings among ``tests`` tests, at most ``share`` of them false on average.

    Tests that are not in ``p_values`` found nothing and count all the same.
    """
    ordered = sorted(p_values.items(), key=lambda item: item[1])
    last = max((rank for rank, (_, p) in enumerate(ordered, 1) if p <= share * rank / tests), default=0)
    return {key for key, _ in ordered[:last]}


def withhold(
    verdicts: Sequence[CellVerdicts], results: Mapping[str, CellResult], repeated: Collection[str]
) -> list[CellVerdicts]:
    """Return ``verdicts`` with every time that fails by chance among its tier's cells turned `inconclusive`.

    ``repeated`` are the cells for which a repeat was planned.
    """
    found = list(verdicts)
    for gate in (Gate.LATENCY, Gate.THROUGHPUT):
        for tier in dict.fromkeys(cell.tier for cell in verdicts):
            family = [
                (index, verdict)
                for index, cell in enumerate(found)
                for verdict in cell.verdicts
                if cell.tier == tier
                and cell.question is Question.VERSION
                and verdict.gate is gate
                and verdict.status in JUDGED
            ]
            p_values = {index: _p_value(found[index], verdict, results) for index, verdict in family}
            failing = {index: p for index, p in p_values.items() if p is not None and found[index].cell_id in repeated}
            for index in failing.keys() - rejected(failing, len(family)):
                found[index] = _withheld(found[index], gate, len(family))
    return found


def _p_value(cell: CellVerdicts, verdict: Verdict, results: Mapping[str, CellResult]) -> float | None:
    """Return the p value of a time that fails, first answer and repeat together; None for all else."""
    figure, result = verdict.figure, results.get(cell.cell_id)
    quantity = QUANTITIES.get(figure.name) if figure else None
    if verdict.status is not Status.FAIL or figure is None or not figure.limit or quantity is None or result is None:
        return None
    restarts = [*counted(result.restarts), *counted(result.restarts, "confirming")]
    ratios = restart_log_ratios(restarts, cell.arm, cell.reference, quantity)
    if quantity != "mean":
        return signed_rank_p_value(ratios, math.log(figure.limit))
    # A ratio of throughputs: its items are the same in every restart, so the estimate tells them.
    first = restart_log_ratios(counted(result.restarts), cell.arm, cell.reference, quantity)
    items = math.log(figure.value) + hodges_lehmann(first)
    return signed_rank_p_value(ratios, items - math.log(figure.limit))


def _withheld(cell: CellVerdicts, gate: Gate, tests: int) -> CellVerdicts:
    words = f"not beyond chance among {tests} cells (Benjamini-Hochberg, q = {FALSE_SHARE:g})"
    verdicts = tuple(
        verdict.model_copy(update={"status": Status.INCONCLUSIVE, "reason": f"{verdict.reason}; {words}"})
        if verdict.gate is gate
        else verdict
        for verdict in cell.verdicts
    )
    return cell.model_copy(update={"verdicts": verdicts})
