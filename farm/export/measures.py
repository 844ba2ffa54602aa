"""What a run measured, one number at a time, each with the outcome and validity that every format must not lose.

A failed arm and an invalid cell have no number: not 0, and not what was measured before something went wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from farm.gates.timing import implausible
from farm.model import Arm, ArmResult, Cell, CellResult, Environment, Evidence, Outcome, Plan, Restart
from farm.statistics import pooled_samples

__all__ = ["VALID", "Measure", "environment_of", "measures"]

#: Of every arm's steps in one process; what an arm without a restart lacks is said of these.
STEPS = ("step_p50_ns", "step_p95_ns", "step_mean_ns")
#: The word of a number that nothing speaks against.
VALID = "valid"


@dataclass(frozen=True)
class Measure:
    """One number of one arm of one cell, or why there is none."""

    cell: Cell
    result: CellResult | None
    arm: Arm
    metric: str
    """With its unit at the end: "step_p50_ns", "peak_step_bytes"; a count has none, "graph_breaks"."""
    value: float | int | None
    """None where the arm did not end well, the cell or the restart is invalid, or there was nothing to read."""
    outcome: str
    """How the arm ended; "not run", "skipped" or "not answered" where nobody knows."""
    validity: str
    """"valid", or "invalid: …" with the reason, or why there is no result."""
    restart: int | None = None
    """From 1; None for what is measured once for an arm."""
    purpose: str = ""
    """Of the restart: "judging", "confirming", "as it comes"."""

    @property
    def why_none(self) -> str:
        """Why there is no value: the cell or the arm is invalid, the arm did not end well, or nothing was measured."""
        if self.validity != VALID:
            return self.validity
        return "not measured" if self.outcome == Outcome.OK else self.outcome

    @property
    def unit(self) -> str:
        """ "ns", "bytes", or "" for a count."""
        end = self.metric.rpartition("_")[2]
        return end if end in ("ns", "bytes") else ""


def measures(evidence: Evidence) -> Iterator[Measure]:
    """Yield every number of the measured and the A/A cells of ``evidence``, in the plan's order.

    Results that came too late to count are left out, as in every judgement.
    """
    results: dict[str, CellResult] = {}
    for answer in evidence.results:
        if answer.run_id == evidence.run_id:
            results.setdefault(answer.cell_id, answer)
    for cell in evidence.plan.cells:
        if cell.kind == "rehearsal":
            continue
        result = results.get(cell.id)
        for arm in cell.arms:
            ended = result.arms.get(arm.name) if result else None
            if result is None or ended is None:
                word, why = evidence.without_result(cell.id)
                if result is not None:
                    word, why = "not answered", "the worker says nothing of this arm"
                yield from (Measure(cell, result, arm, name, None, word, why or word) for name in STEPS)
                continue
            yield from _arm(cell, result, arm, ended)


def _arm(cell: Cell, result: CellResult, arm: Arm, ended: ArmResult) -> Iterator[Measure]:
    against = _against(result, arm.name)
    bad = ended.outcome is not Outcome.OK
    outcome = f"{ended.outcome}: {ended.reason}" if bad and ended.reason else str(ended.outcome)
    whole = against or VALID
    restarts = [restart for restart in result.restarts if arm.name in restart.arms]
    for restart in restarts:
        found = against or (f"invalid: {restart.invalid}" if restart.invalid else _misread(restart, arm.name))
        usable = not found and not bad
        for name, value in _times(restart, arm.name).items() if usable else dict.fromkeys(STEPS).items():
            yield Measure(cell, result, arm, name, value, outcome, found or VALID, restart.index + 1, restart.purpose)
    if not restarts:
        yield from (Measure(cell, result, arm, name, None, outcome, whole) for name in STEPS)
    if not bad and not _unfit(result):
        # A cell whose times are not fit to be used was examined all the same, but for what breaks the whole cell.
        yield from (Measure(cell, result, arm, name, value, outcome, VALID) for name, value in _once(ended))


def _unfit(result: CellResult) -> str:
    return "" if result.validity.valid else f"invalid: {'; '.join(result.validity.reasons)}"


def _against(result: CellResult, arm: str) -> str:
    """Return what makes the times of ``arm`` mean nothing."""
    reasons = result.validity.arms.get(arm, ())
    return _unfit(result) or (f"invalid: {'; '.join(reasons)}" if reasons else "")


def _misread(restart: Restart, arm: str) -> str:
    found = implausible([restart], [arm])
    return f"invalid: {found}" if found else ""


def _times(restart: Restart, arm: str) -> dict[str, float | int | None]:
    """Return the times of one process, in nanoseconds; None for what was not told."""
    life = restart.arms[arm]
    steps = pooled_samples(life)
    found: dict[str, float | int | None] = dict.fromkeys(STEPS)
    if len(steps):
        found = {
            "step_p50_ns": float(np.median(steps)),
            "step_p95_ns": float(np.quantile(steps, 0.95)),
            "step_mean_ns": float(steps.mean()),
        }
    lives = {"first_step_ns": life.first_step_ns, "setup_ns": life.setup_ns, "import_ns": life.import_ns}
    return found | {name: value for name, value in lives.items() if value > 0}


def _once(ended: ArmResult) -> Iterator[tuple[str, float | int]]:
    """Yield what is measured once for an arm, without what is not known: a peak of 0 is a sensor that reads nothing."""
    examined, programs = ended.examination, ended.compile_export
    if examined is not None:
        yield "items_of_a_step", examined.items_per_step
        if examined.memory is not None:
            memory = examined.memory
            peaks = sorted(memory.process_peak_bytes)
            known: Sequence[tuple[str, int | None]] = (
                ("peak_step_bytes", memory.allocator_peak_bytes),
                ("peak_reserved_bytes", memory.reserved_peak_bytes),
                ("peak_outside_allocator_bytes", memory.outside_bytes),
                ("peak_process_bytes", peaks[len(peaks) // 2] if peaks else None),
            )
            yield from ((name, value) for name, value in known if value is not None and value > 0)
    if programs is not None:
        if programs.graph_breaks is not None and programs.compile_outcome is Outcome.OK:
            yield "graph_breaks", programs.graph_breaks
        spent = (("compile_cold_ns", programs.cold_ns), ("compile_warm_ns", programs.warm_ns))
        yield from ((name, value) for name, value in spent if value is not None and value > 0)
        for mode in programs.recompiles:
            if mode.outcome is Outcome.OK:
                yield f"graphs_dynamic_{mode.dynamic.lower()}", mode.graphs


def environment_of(plan: Plan, arm: Arm, result: CellResult | None) -> Environment | None:
    """Return the environment that ``arm`` ran in: the one of the machine that measured it."""
    key = arm.environments.get(result.host.target) if result is not None else None
    if key is None and len(set(arm.environments.values())) == 1:
        key = next(iter(arm.environments.values()))
    return plan.environments.get(key) if key is not None else None
