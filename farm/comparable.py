"""Whether the arms of a cell can be compared at all: control kept, one machine, numbers that mean something."""

from __future__ import annotations

from farm.gates.timing import implausible
from farm.model import Cell, CellResult, Evidence, Plan, Side
from farm.statistics import counted

__all__ = ["broken_control", "is_valid", "measured_apart"]


def broken_control(plan: Plan, cell: Cell) -> str | None:
    """Return what breaks the control of a cell whose arms are to be compared; None where it is whole."""
    return cell.broken_control or _one_wheel(plan, cell) or _two_variants(plan, cell)


def _one_wheel(plan: Plan, cell: Cell) -> str | None:
    """Return the reason where a cell's arms are one wheel on some machine, though the run is not A/A as a whole."""
    arms = {arm.name: arm.environments for arm in cell.arms}
    old, new = arms.get(Side.BASELINE, {}), arms.get(Side.CANDIDATE, {})
    for target in old.keys() & new.keys() if not plan.aa else ():
        pair = [plan.environments.get(keys[target]) for keys in (old, new)]
        # Evidence that was written by hand may know no hash, and nothing is alike in what is not known.
        wheels = {(environment.release.sha256 or None) if environment else None for environment in pair}
        if old[target] == new[target] or (len(wheels) == 1 and None not in wheels):
            return f"both arms are one wheel on {target}"
    return None


def _two_variants(plan: Plan, cell: Cell) -> str | None:
    """Return the reason where a cell's arms are builds for different hardware on some machine (CASES.md V11)."""
    keys = [arm.environments for arm in cell.arms]
    for target in sorted({target for found in keys for target in found}):
        found = [plan.environments[found[target]] for found in keys if found.get(target) in plan.environments]
        variants = sorted({environment.release.variant for environment in found} - {"", "unknown"})
        if len(variants) > 1:
            return f"build variants differ: {' and '.join(variants)}"
    return None


def measured_apart(evidence: Evidence, cell: Cell, result: CellResult | None) -> str:
    """Return why a cell whose arms were answered for by different machines is no comparison (CASES.md M2)."""
    answers = [found for found in evidence.results if (found.run_id, found.cell_id) == (evidence.run_id, cell.id)]
    if result is None or all(arm.name in result.arms for arm in cell.arms) or len(answers) < 2:
        return ""
    where = [f"{', '.join(found.arms)} on {found.host.cpu} ({found.host.name})" for found in answers]
    return f"not comparable: arms were measured apart, {' and '.join(where)}"


def is_valid(result: CellResult) -> bool:
    """Return whether what was measured means something, for both sides."""
    sides = (Side.CANDIDATE, Side.BASELINE)
    against = any(side in result.validity.arms for side in sides)
    return result.validity.valid and not against and not implausible(counted(result.restarts), sides)
