"""The baseline against itself: which cells of a run do it, and what they say of the run's own measuring."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence

from farm.budget import percent_apart, tightest
from farm.model import Cell, CellResult, CellVerdicts, FalseAlarms, Gate, Plan, Question, Side, Status, Tier, Verdict
from farm.power import noise_fence
from farm.statistics import Interval, Quantity, counted, ratio_interval

__all__ = ["AA_GATES", "aa_alarms", "aa_cells", "compares_itself", "count_false_alarms", "run_limit", "unstable_cells"]

#: What an A/A cell is asked: the gates that noise alone can fail.
AA_GATES = (Gate.LATENCY, Gate.THROUGHPUT)
#: An A/A cell that reads as changed by more than this condemns its machine's figures (STATISTICS.md: admission).
ALARMING = 1.02
ANSWERS = (Status.PASS, Status.FAIL, Status.INCONCLUSIVE)


# -- planned -------------------------------------------------------------------------------------------------------


def aa_cells(measured: Sequence[Cell], share: float, seed: int) -> list[Cell]:
    """Return the cells that measure the baseline against itself: ``share`` of ``measured``, one at least.

    Which ones follows from the seed and from what is compared, so that a plan made again has the same, and the next
    release has others. A share of 0 has none.
    """
    able = [cell for cell in measured if cell.arms[0].environments and set(AA_GATES) & set(cell.gates)]
    if not able or not share:
        return []

    def rank(cell: Cell) -> str:
        keys = sorted(key for arm in cell.arms for key in arm.environments.values())
        return hashlib.sha256(f"{seed} {cell.id} {' '.join(keys)}".encode()).hexdigest()

    # Rounded down, but for what an exact share loses in floating point: 0.3 of 10 cells is three.
    count = max(1, int(share * len(measured) + 1e-9))
    chosen = {cell.id for cell in sorted(able, key=rank)[:count]}
    return [_against_itself(cell) for cell in able if cell.id in chosen]


def _against_itself(cell: Cell) -> Cell:
    baseline = cell.arms[0]
    return cell.model_copy(
        update={
            "id": f"aa/{cell.workload}-{cell.case}@{cell.capability}",
            "kind": "aa",
            "arms": (baseline, baseline.model_copy(update={"name": Side.CANDIDATE.value})),
            "measuring": cell.measuring.model_copy(update={"feature_limits": (), "as_it_comes": 0}),
            "gates": tuple(gate for gate in cell.gates if gate in AA_GATES),
            "broken_control": None,
        }
    )


# -- judged --------------------------------------------------------------------------------------------------------


def compares_itself(cell: Cell, plan: Plan) -> bool:
    """Return whether both arms of ``cell`` are one release: an A/A cell, or any measured one of an A/A run."""
    return cell.kind == "aa" or (plan.aa and cell.kind == "measure")


def count_false_alarms(
    plan: Plan, results: Mapping[str, CellResult], verdicts: Iterable[CellVerdicts]
) -> FalseAlarms | None:
    """Return what the cells of ``plan`` that compare a release with itself say; None where there is none."""
    controls = [cell for cell in plan.cells if compares_itself(cell, plan)]
    if not controls:
        return None
    answers = _answers(verdicts)
    answered = [cell for cell in controls if _answered(answers.get(cell.id, ()))]
    record = _on_record(plan, results)
    limit = run_limit(plan)
    return FalseAlarms(
        cells=len(answered),
        failed=sum(_failed(answers[cell.id]) is not None for cell in answered),
        changed=sum(_changed(cell, results[cell.id]) is not None for cell in answered),
        on_record=len(record),
        on_record_beyond=sum(limit is not None and _beyond(ratio, limit) for ratio in record),
    )


def run_limit(plan: Plan) -> float | None:
    """Return the tightest limit of the p50 ratio that anybody asks in ``plan``."""
    backends = {cell.backend for cell in plan.cells}
    return tightest(tier.p50_ratio for tier in plan.tiers if backends & set(tier.backends))


def aa_alarms(plan: Plan, results: Mapping[str, CellResult], verdicts: Iterable[CellVerdicts]) -> list[str]:
    """Return a line for every cell in which one release failed against itself, or changed by more than 2 %."""
    answers = _answers(verdicts)
    said = []
    for cell in plan.cells:
        result = results.get(cell.id)
        if result is None or not compares_itself(cell, plan) or not _answered(answers.get(cell.id, ())):
            continue
        failed, changed = _failed(answers[cell.id]), _changed(cell, result)
        if failed is None and not (changed is not None and _beyond(changed.value, ALARMING)):
            continue
        # What failed may be the mean step alone.
        seen = changed or (_interval(cell, result, "mean") if failed is not None else None)
        where = f"A/A on {result.host.name}: {cell.id}"
        if seen is None or not seen.bounded:
            reason = failed.reason if failed is not None else "changed"
            said.append(f"{where} fails with one release in both arms ({reason}); believe nothing of this machine")
            continue
        reach = max(seen.low, seen.high, key=lambda bound: abs(math.log(bound)))
        said.append(
            f"{where} reads {_change(seen.value)} [{_change(seen.low)}, {_change(seen.high)}] with one release in both "
            f"arms; believe no figure of this machine below {percent_apart(reach)}"
        )
    return said


def unstable_cells(
    plan: Plan, results: Mapping[str, CellResult], tiers_of: Mapping[str, Sequence[Tier]]
) -> dict[str, str]:
    """Return the measured cells whose own A/A history reaches beyond a limit that judges them (CASES.md M10).

    ``tiers_of`` are the tiers that a cell concerns, by its id.
    """
    found = {}
    for cell in plan.cells:
        result, limit = results.get(cell.id), tightest(tier.p50_ratio for tier in tiers_of.get(cell.id, ()))
        if cell.kind != "measure" or result is None or limit is None:
            continue
        fence = noise_fence(result.noise)
        if fence is not None and _beyond(fence, limit):
            found[cell.id] = (
                f"{len(result.noise)} A/A ratios on {result.host.name} reach to {percent_apart(fence)}, "
                f"beyond the limit of {percent_apart(limit)}"
            )
    return found


def _answers(verdicts: Iterable[CellVerdicts]) -> dict[str, list[Verdict]]:
    """Return the verdicts that noise alone can fail, by cell, over all tiers."""
    found: dict[str, list[Verdict]] = {}
    for judged in verdicts:
        if judged.question is Question.FEATURE:
            continue  # a gain that is not there accuses nobody
        found.setdefault(judged.cell_id, []).extend(v for v in judged.verdicts if v.gate in AA_GATES)
    return found


def _answered(verdicts: Iterable[Verdict]) -> bool:
    return any(verdict.status in ANSWERS for verdict in verdicts)


def _failed(verdicts: Iterable[Verdict]) -> Verdict | None:
    return next((verdict for verdict in verdicts if verdict.status is Status.FAIL), None)


def _changed(cell: Cell, result: CellResult) -> Interval | None:
    """Return the interval of the median where it leaves 1 out."""
    interval = _interval(cell, result, "p50")
    if interval is None or not interval.bounded or interval.low <= 1.0 <= interval.high:
        return None
    return interval


def _interval(cell: Cell, result: CellResult, quantity: Quantity) -> Interval | None:
    restarts = counted(result.restarts)
    return ratio_interval(restarts, Side.CANDIDATE, Side.BASELINE, quantity, cell.measuring.alpha)


def _on_record(plan: Plan, results: Mapping[str, CellResult]) -> list[float]:
    """Return the earlier A/A ratios that the results brought along, one history for each case and machine."""
    known: dict[tuple[str, ...], tuple[float, ...]] = {}
    for cell in plan.cells:
        if cell.id in results:
            key = (results[cell.id].host.name, cell.workload, cell.case, cell.capability)
            known[key] = max(known.get(key, ()), results[cell.id].noise, key=len)
    return [ratio for history in known.values() for ratio in history if ratio > 0 and math.isfinite(ratio)]


def _beyond(ratio: float, limit: float) -> bool:
    return abs(math.log(ratio)) > abs(math.log(limit))


def _change(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f} %"
