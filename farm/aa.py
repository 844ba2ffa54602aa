"""The baseline against itself: which cells of a run do it, and what they say of the run's own measuring."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from farm.model import Cell, Gate, Side

__all__ = ["AA_GATES", "aa_cells"]

#: What an A/A cell is asked: the gates that noise alone can fail.
AA_GATES = (Gate.LATENCY, Gate.THROUGHPUT)


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
