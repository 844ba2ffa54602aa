"""What a workload lacks before its figures mean something: read off one release measured against itself.

Whatever differs there is the workload's own doing, or the machine's.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from farm.catalogue import WorkloadSpec
from farm.model import ArmResult, Cell, CellResult, CellVerdicts, Gate, Outcome, Side, Status, unpack_ns

__all__ = ["ORACLE_WARNING", "Finding", "findings", "of_file", "step_ns"]

#: Reading the clock and calling a step takes about a microsecond: one per cent of this.
SHORTEST_NS = 100_000
#: Between these a smoke case has enough steps in a window and enough windows in a restart (docs/adding-a-workload.md).
SMOKE_NS = (3_000_000, 15_000_000)
#: How a runner begins what it warns of an oracle that is none.
ORACLE_WARNING = "the oracle is no more precise than the work"

Severity = Literal["problem", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing that is missing, where, and what to do about it."""

    severity: Severity
    where: str
    """Case and path, or "" for the file as a whole."""
    what: str
    do: str


def findings(
    spec: WorkloadSpec, cell: Cell, result: CellResult, verdicts: Iterable[CellVerdicts], seeds: Sequence[str]
) -> list[Finding]:
    """Return what ``cell`` of ``spec`` shows, the problems first.

    ``seeds`` are the digests of a step with one seed, with another, and with the first again; empty where the work
    did not get so far.
    """
    found = [*_of_seeds(cell, seeds)]
    for arm in cell.arms:
        if arm.name != Side.CANDIDATE:
            found += _of_arm(f"{cell.case}, path {arm.path}", result.arms.get(arm.name), new=arm.name != Side.BASELINE)
    found += _of_two_processes(cell, result)
    for arm in cell.arms:
        if arm.name != Side.CANDIDATE and (median := step_ns(result, arm.name)) is not None:
            found += _of_length(f"{cell.case}, path {arm.path}", median, smoke="smoke" in _suites(spec, cell.case))
    found += _of_gates(cell, verdicts)
    return sorted(dict.fromkeys(found), key=lambda one: one.severity != "problem")


def step_ns(result: CellResult, arm: str) -> float | None:
    """Return the median step of ``arm`` over all its windows, nanoseconds; None where it was not timed."""
    steps = [
        float(value)
        for restart in result.restarts
        for window in (restart.arms[arm].windows if arm in restart.arms else ())
        for value in unpack_ns(window.steps_ns)
    ]
    return statistics.median(steps) if steps else None


def of_file(spec: WorkloadSpec) -> list[Finding]:
    """Return what the declarations of ``spec`` lack."""
    found = []
    if not any(case.production_shape for case in spec.cases):
        found.append(
            Finding(
                "note",
                "",
                "no case is a production shape, and nothing is adopted on shapes that are not used",
                'add a case at your real sizes with "production_shape": True',
            )
        )
    if not (spec.compiles or spec.exports):
        found.append(
            Finding(
                "note",
                "",
                "torch.compile and torch.export are not asked for",
                "write program() and declare compiles = True, exports = True, if you use them",
            )
        )
    return found


def _suites(spec: WorkloadSpec, case: str) -> tuple[str, ...]:
    return next((one.suites for one in spec.cases if one.name == case), ())


def _of_seeds(cell: Cell, seeds: Sequence[str]) -> list[Finding]:
    if len(seeds) < 3:
        return []
    one, other, again = seeds[:3]
    do = "draw weights and inputs from torch's default generator, which the farm seeds before setup"
    if one != again:
        return [Finding("problem", cell.case, "no seed: the same seed gives other outputs in one process", do)]
    if one == other:
        return [Finding("note", cell.case, "another seed gives the same outputs: constant inputs hide faults", do)]
    return []


def _of_arm(where: str, arm: ArmResult | None, *, new: bool) -> list[Finding]:
    if arm is None:
        return [Finding("problem", where, "it did not run", "see the log")]
    if arm.outcome is not Outcome.OK or arm.examination is None:
        return [Finding("problem", where, f"{arm.outcome}: {arm.reason}", "mend it and check again")]
    examined, found = arm.examination, []
    for name, output in sorted(examined.outputs.items()):
        against = output.against_oracle
        if against is None:
            found.append(Finding("problem", where, f"no oracle for output '{name}'", "return it in float64 too"))
        elif not against.reference_finite:
            do = "choose inputs for which float64 is finite"
            found.append(Finding("problem", where, f"the oracle of '{name}' is not finite", do))
        elif not against.finite:
            found.append(Finding("problem", where, f"output '{name}' is not finite", "choose other inputs"))
        elif against.reference_rms == 0:
            do = "draw its inputs, biases too, from a distribution that is not zero"
            found.append(Finding("problem", where, f"output '{name}' is zero everywhere: no fault would be seen", do))
    different = len(set(examined.repeat_digests))
    if different > 1:
        what = f"output not deterministic: {different} different results in {len(examined.repeat_digests)} repeats"
        do = "use an operator that repeats, or tell your tier that it need not (determinism)"
        found.append(Finding("problem", where, what, do))
    if new and not examined.path_ran:
        do = "write path_ran() so that it proves which path ran, and raises FellBack otherwise"
        found.append(Finding("note", where, "nothing proves that this path ran", do))
    for warning in examined.warnings:
        if warning.startswith(ORACLE_WARNING):
            do = "let step follow the dtype of its tensors, or override to_oracle"
            found.append(Finding("problem", where, f"no oracle: {warning}", do))
        else:
            found.append(Finding("note", where, warning, "see whether it matters"))
    return found


def _of_two_processes(cell: Cell, result: CellResult) -> list[Finding]:
    old, again = (result.arms.get(side.value) for side in (Side.BASELINE, Side.CANDIDATE))
    one, other = (arm.examination if arm else None for arm in (old, again))
    if one is None or other is None or len(set(one.repeat_digests)) > 1:
        return []
    differ = sorted(
        name
        for name, output in one.outputs.items()
        if name in other.outputs and output.sha256 != other.outputs[name].sha256
    )
    if not differ:
        return []
    what = f"two processes of one release give another '{differ[0]}'"
    do = "draw from torch's default generator alone: not from numpy, a clock, a hash or a process id"
    return [Finding("problem", cell.case, what, do)]


def _of_length(where: str, median_ns: float, *, smoke: bool) -> list[Finding]:
    shown = f"a step takes {median_ns / 1e6:.3g} ms"
    if median_ns < SHORTEST_NS:
        what = f"step too short to time: {shown}"
        return [Finding("problem", where, what, "do the work several times in a step, or make it larger")]
    low, high = SMOKE_NS
    if smoke and not low <= median_ns <= high:
        do = f"size smoke cases for {low / 1e6:g} to {high / 1e6:g} ms, so that they end in seconds"
        return [Finding("note", where, shown, do)]
    return []


def _of_gates(cell: Cell, verdicts: Iterable[CellVerdicts]) -> list[Finding]:
    found = []
    for judged in verdicts:
        if judged.cell_id == cell.id and judged.arm == Side.CANDIDATE:
            for verdict in judged.verdicts:
                # Bits are told above, by what differs.
                if verdict.status is Status.FAIL and verdict.gate is not Gate.DETERMINISM:
                    what = f"{verdict.gate} fails for one release against itself: {verdict.reason}"
                    do = "make the work repeat; a machine that is busy makes times differ"
                    found.append(Finding("problem", cell.case, what, do))
    return found
