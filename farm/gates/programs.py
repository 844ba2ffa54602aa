"""Compile and export: as many graphs, as soon ready, as right, and as good after a way over the disk."""

from __future__ import annotations

from collections.abc import Mapping

from farm.gates.correctness import close_enough
from farm.gates.question import GateQuestion
from farm.model import ArmResult, Comparison, CompileExport, Figure, Gate, Outcome, Status, Verdict

__all__ = ["judge"]

#: One compilation each is measured. On a shared machine two of one program differed by up to half, so a ratio
#: between the limit and this many times the limit does not decide.
ONE_SHOT = 1.5


def judge(asked: GateQuestion) -> Verdict:
    """Return the verdict on outcomes, outputs, graph breaks and the time of a cold first call."""
    arm, reference = asked.challenger.compile_export, asked.other.compile_export
    if arm is None or reference is None:
        return _verdict(Status.UNTESTED, "compile and export were not tried")
    ended = _ended("compile", arm.compile_outcome, arm.compile_reason, reference.compile_outcome) or _ended(
        "export", arm.export_outcome, arm.export_reason, reference.export_outcome
    )
    if ended is not None:
        return ended
    if not arm.compiled or not arm.reloaded:
        program = "reloaded" if arm.compiled else "compiled"
        return _verdict(Status.UNTESTED, f"no output of the {program} program was compared")
    wrong = _wrong(asked.challenger, arm)
    if wrong:
        return _verdict(Status.FAIL, wrong)
    return _figures(asked, arm, reference)


def _figures(asked: GateQuestion, arm: CompileExport, reference: CompileExport) -> Verdict:
    tier = asked.tier
    unread = _unread(arm) or (_unread(reference) if reference.compile_outcome is Outcome.OK else "")
    if unread:
        return _verdict(Status.UNTESTED, f"sensor implausible: {unread}")
    if arm.graph_breaks is not None and reference.graph_breaks is not None:
        more = arm.graph_breaks - reference.graph_breaks
        if more > tier.graph_breaks:
            figure = Figure(name="more graph breaks", value=more, limit=tier.graph_breaks)
            return _verdict(Status.FAIL, f"{arm.graph_breaks} graph breaks, were {reference.graph_breaks}", figure)
    cold = _ratio("cold compile ratio", arm.cold_ns, reference.cold_ns, tier.compile_ratio)
    warm = _ratio("warm compile ratio", arm.warm_ns, reference.warm_ns, None)
    said = f"{arm.graphs} graph, {arm.graph_breaks} breaks; export, save and load agree"
    if cold is None:
        return _verdict(Status.PASS, said)
    others = [warm] if warm else []
    seconds = f"first call {(arm.cold_ns or 0) / 1e9:.1f} s, was {(reference.cold_ns or 0) / 1e9:.1f} s"
    if cold.value <= tier.compile_ratio:
        return _verdict(Status.PASS, f"{said}; {seconds}", cold, *others)
    if cold.value > tier.compile_ratio * ONE_SHOT:
        return _verdict(Status.FAIL, f"{seconds}: beyond the limit", cold, *others)
    return _verdict(Status.INCONCLUSIVE, f"{seconds}: beyond the limit, but one measurement each", cold, *others)


def _unread(program: CompileExport) -> str:
    """Return what a compilation that went well must have told and did not."""
    if program.graph_breaks is None or program.graph_breaks < 0:
        return "graph breaks were not counted"
    if program.cold_ns is None or program.cold_ns <= 0:
        return "a first call of 0 s or none at all"
    return ""


def _ended(what: str, outcome: Outcome, reason: str, reference: Outcome) -> Verdict | None:
    if outcome is Outcome.OK:
        return None
    if reference is not Outcome.OK:
        return _verdict(Status.UNTESTED, f"{what} ends in both arms: {outcome}: {reason}")
    return _verdict(Status.FAIL, f"{what} {outcome}: {reason}; it works in the baseline")


def _wrong(result: ArmResult, arm: CompileExport) -> str:
    """Return the first output that is not its eager twin."""
    outputs = result.examination.outputs if result.examination else {}
    compared: tuple[tuple[str, Mapping[str, Comparison]], ...] = (
        ("compiled", arm.compiled),
        ("compiled and cached", arm.compiled_warm),
        ("reloaded", arm.reloaded),
    )
    for what, comparisons in compared:
        for name, comparison in sorted(comparisons.items()):
            output = outputs.get(name)
            dtype, shape = (output.dtype, output.shape) if output else ("float32", ())
            if not close_enough(comparison, dtype, shape):
                errors = f"rms error {comparison.rms_error:.3g}, largest {comparison.max_error:.3g}"
                return f"{what} '{name}' is not the eager one: {errors}, gain {comparison.gain:.5f}"
    return ""


def _ratio(name: str, above: int | None, below: int | None, limit: float | None) -> Figure | None:
    return Figure(name=name, value=above / below, limit=limit) if above and below and above > 0 and below > 0 else None


def _verdict(status: Status, reason: str, figure: Figure | None = None, *others: Figure) -> Verdict:
    return Verdict(gate=Gate.COMPILE_EXPORT, status=status, reason=reason, figure=figure, others=others)
