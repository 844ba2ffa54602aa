"""Compile and export: as many graphs, as soon ready, as right, and as good after a way over the disk and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from farm.gates.correctness import close_enough
from farm.gates.question import GateQuestion
from farm.model import (
    ArmResult,
    Comparison,
    CompileExport,
    Figure,
    Gate,
    Loaded,
    Outcome,
    ProgramKind,
    Recompiles,
    SavedProgram,
    Status,
    Verdict,
)

__all__ = ["judge"]

#: Few compilations are measured, of each arm the shortest counts. On a shared machine two of one program differed by up
#: to half, so a ratio between the limit and this many times the limit does not decide.
ONE_SHOT = 1.5

#: The worst of all that is found is the verdict.
ORDER = (Status.FAIL, Status.UNTESTED, Status.INCONCLUSIVE)


@dataclass(frozen=True)
class _Finding:
    status: Status
    reason: str
    figure: Figure | None = None


def judge(asked: GateQuestion) -> Verdict:
    """Return the verdict on outcomes, outputs, graph breaks, recompiles, wrong inputs and a cold first call."""
    arm, reference = asked.challenger.compile_export, asked.other.compile_export
    if arm is None or reference is None:
        return _verdict(_Finding(Status.UNTESTED, "compile and export were not tried"))
    programs = asked.cell.programs
    found = list(_saved(asked, arm, reference))
    if "compile" in programs:
        found += _compiled(asked, arm, reference)
    figures = _figures(arm, reference, asked)
    for status in ORDER:
        first = next((finding for finding in found if finding.status is status), None)
        if first is not None:
            return _verdict(first, figures)
    return _verdict(_Finding(Status.PASS, "; ".join(_said(asked, arm, reference))), figures)


# -- compiled ----------------------------------------------------------------------------------------------------------


def _compiled(asked: GateQuestion, arm: CompileExport, reference: CompileExport) -> Iterator[_Finding]:
    if arm.compile_outcome is None:
        yield _Finding(Status.UNTESTED, "compile was not tried")
        return
    if arm.compile_outcome is not Outcome.OK:
        yield _ended("compile", arm.compile_outcome, arm.compile_reason, reference.compile_outcome)
        return
    if not arm.compiled:
        yield _Finding(Status.UNTESTED, "no output of the compiled program was compared")
    for what, outputs, others in (
        ("compiled", arm.compiled, reference.compiled),
        ("compiled and cached", arm.compiled_warm, reference.compiled_warm),
    ):
        yield from _wrong(what, outputs, others, asked.challenger)
    compares = reference.compile_outcome is Outcome.OK
    unread = _unread(arm) or (_unread(reference) if compares else "")
    if unread:
        yield _Finding(Status.UNTESTED, f"sensor implausible: {unread}")
        return
    yield from _breaks(asked, arm, reference)
    for mode in arm.recompiles:
        other = next((one for one in reference.recompiles if one.dynamic == mode.dynamic), None)
        yield from _recompiled(asked, mode, other)
    if compares and len(arm.recompiles) != len(reference.recompiles):
        yield _Finding(Status.UNTESTED, "the arms were compiled over shapes in different ways")
    yield from _first_call(asked, arm, reference)


def _unread(program: CompileExport) -> str:
    """Return what a compilation that went well must have told and did not, or what cannot be."""
    if program.graph_breaks is None or program.graph_breaks < 0:
        return "graph breaks were not counted"
    if program.least_cold_ns is None or program.least_cold_ns <= 0:
        return "a first call of 0 s or none at all"
    return ""


def _breaks(asked: GateQuestion, arm: CompileExport, reference: CompileExport) -> Iterator[_Finding]:
    if arm.graphs == 0 and reference.graphs:
        # A function that torch gives up on is left to Python, and no call fails.
        yield _Finding(
            Status.FAIL, f"nothing is compiled, {reference.graphs} graphs were{_new_reasons(arm, reference)}"
        )
    if arm.graph_breaks is None or reference.graph_breaks is None:
        return
    more, limit = arm.graph_breaks - reference.graph_breaks, asked.tier.graph_breaks
    if more > limit:
        figure = Figure(name="more graph breaks", value=more, limit=limit)
        reason = f"{arm.graph_breaks} graph breaks, were {reference.graph_breaks}{_new_reasons(arm, reference)}"
        yield _Finding(Status.FAIL, reason, figure)


def _new_reasons(arm: CompileExport, reference: CompileExport) -> str:
    new = [reason for reason, count in arm.break_reasons.items() if count > reference.break_reasons.get(reason, 0)]
    return f": {new[0]}{' and others' if len(new) > 1 else ''}" if new else ""


def _recompiled(asked: GateQuestion, mode: Recompiles, other: Recompiles | None) -> Iterator[_Finding]:
    """Judge one way of compiling over all shapes."""
    what = f"dynamic={mode.dynamic}"
    if mode.outcome is not Outcome.OK:
        yield _ended(f"compile with {what}", mode.outcome, mode.reason, other.outcome if other else None)
        return
    for place, call in enumerate(mode.calls):
        known = other.calls[place].outputs if other is not None and place < len(other.calls) else {}
        yield from _wrong(f"{call.shape} compiled with {what}", call.outputs, known, asked.challenger)
    if other is None or other.outcome is not Outcome.OK:
        return
    if [call.shape for call in mode.calls] != [call.shape for call in other.calls]:
        yield _Finding(Status.UNTESTED, f"{what}: the arms were given different shapes")
        return
    if mode.limit_hit and not other.limit_hit:
        yield _Finding(Status.FAIL, f"{what}: {mode.limit_hit}, new shapes run eager from there; never in the baseline")
    eager, were = _eager(mode), _eager(other)
    if len(eager) > len(were):
        yield _Finding(
            Status.FAIL, f"{what}: {len(eager)} of {len(mode.calls)} shapes run eager ({eager[0]}), were {len(were)}"
        )
    more, limit = mode.graphs - other.graphs, asked.tier.recompiles
    if more > limit:
        figure = Figure(name=f"more graphs with {what}", value=more, limit=limit)
        why = next((reason for call in mode.calls for reason in call.reasons), "")
        reason = f"{what}: {mode.graphs} graphs over {len(mode.calls)} shapes, were {other.graphs}"
        yield _Finding(Status.FAIL, f"{reason}{f' ({why})' if why else ''}", figure)


def _eager(mode: Recompiles) -> list[str]:
    return [call.shape for call in mode.calls if call.ran == "eager"]


def _first_call(asked: GateQuestion, arm: CompileExport, reference: CompileExport) -> Iterator[_Finding]:
    limit = asked.tier.compile_ratio
    cold = _ratio("cold compile ratio", arm.least_cold_ns, reference.least_cold_ns, limit)
    if cold is None:
        return
    for name, one in ((asked.arm, arm), (asked.reference, reference)):
        # CASES.md M1: a program that is found is not compiled, and is compared with none that is.
        if one.cold_cache in ("warm", "mixed"):
            reason = f"no cold first call to compare: {name} found programs in the caches ({one.cold_cache})"
            yield _Finding(Status.UNTESTED, reason)
            return
    if cold.value > limit * ONE_SHOT:
        yield _Finding(Status.FAIL, f"{_seconds(arm, reference)}: beyond the limit", cold)
    elif cold.value > limit:
        times = 1 + min(len(arm.cold_again_ns), len(reference.cold_again_ns))
        few = "one measurement each" if times == 1 else f"{times} measurements each"
        reason = f"{_seconds(arm, reference)}: beyond the limit, but {few}"
        yield _Finding(Status.INCONCLUSIVE, reason, cold)


def _seconds(arm: CompileExport, reference: CompileExport) -> str:
    return f"first call {(arm.least_cold_ns or 0) / 1e9:.1f} s, was {(reference.least_cold_ns or 0) / 1e9:.1f} s"


# -- saved and loaded --------------------------------------------------------------------------------------------------


def _saved(asked: GateQuestion, arm: CompileExport, reference: CompileExport) -> Iterator[_Finding]:
    asks: dict[ProgramKind, str] = {"exported program": "export", "compiled package": "package"}
    for kind, asks_for in asks.items():
        if asks_for in asked.cell.programs and kind not in arm.programs:
            if asks_for == "package" and any(one.outcome is not Outcome.OK for one in arm.programs.values()):
                # Nothing was exported that it could be made of: that is told below.
                continue
            yield _Finding(Status.UNTESTED, f"the {kind} was not tried")
    for kind, program in arm.programs.items():
        other = reference.programs.get(kind)
        worked = other is not None and other.outcome is Outcome.OK
        if program.outcome is Outcome.UNSUPPORTED and kind == "ONNX model" and not worked:
            # What it needs is installed beside neither release: said where all else passes.
            continue
        if program.outcome is not Outcome.OK:
            yield _ended(f"{kind}:", program.outcome, program.reason, other.outcome if other else None)
            continue
        yield from _read(asked, kind, program, other)
        if other is not None:
            yield from _carried(asked, kind, program, other)
            yield from _wrong_inputs(kind, program, other)
    for kind, other in reference.programs.items():
        if kind not in arm.programs and other.outcome is Outcome.OK:
            yield _Finding(Status.UNTESTED, f"the {kind} was not tried in {asked.arm}")


def _read(
    asked: GateQuestion, kind: ProgramKind, program: SavedProgram, other: SavedProgram | None
) -> Iterator[_Finding]:
    """Judge what became of the arm's own program in a fresh process."""
    loaded, known = program.loaded, other.loaded if other else None
    if loaded is None or (loaded.outcome is Outcome.OK and not any(loaded.outputs.values())):
        yield _Finding(Status.UNTESTED, f"no output of the loaded {kind} was compared")
    elif loaded.outcome is not Outcome.OK:
        yield _ended(f"{kind}, loaded:", loaded.outcome, loaded.reason, known.outcome if known else None)
    else:
        yield from _wrong_outputs(f"{kind}, loaded,", loaded, known, asked.challenger)


def _carried(asked: GateQuestion, kind: ProgramKind, program: SavedProgram, other: SavedProgram) -> Iterator[_Finding]:
    """Judge both ways across: the reference's program under the challenger, and back."""
    for made_by, read_by, read, home in (
        (asked.reference, asked.arm, other.elsewhere, other),
        (asked.arm, asked.reference, program.elsewhere, program),
    ):
        if read is None or home.outcome is not Outcome.OK:
            continue
        what = f"{kind} of {made_by}, loaded by {read_by}"
        if read.outcome is not Outcome.OK:
            yield _Finding(Status.FAIL, f"{what}: {read.outcome}: {read.reason}")
        else:
            yield from _wrong_outputs(f"{what},", read, home.loaded, asked.challenger)


def _wrong_inputs(kind: ProgramKind, program: SavedProgram, other: SavedProgram) -> Iterator[_Finding]:
    """Judge wrong inputs by whether they are met as before: one that is refused now was never met better."""
    for name, now in program.wrong_inputs.items():
        before = other.wrong_inputs.get(name)
        if before is not None and now.result not in (before.result, "refused"):
            yield _Finding(
                Status.FAIL, f"{kind}: {name} is {now.result}, was {before.result} ({now.words or 'no words'})"
            )


# -- small parts -------------------------------------------------------------------------------------------------------


def _ended(what: str, outcome: Outcome, reason: str, reference: Outcome | None) -> _Finding:
    if reference is not Outcome.OK:
        return _Finding(Status.UNTESTED, f"{what} ends in both arms: {outcome}: {reason}")
    return _Finding(Status.FAIL, f"{what} {outcome}: {reason}; it works in the baseline")


def _wrong_outputs(what: str, loaded: Loaded, known: Loaded | None, arm: ArmResult) -> Iterator[_Finding]:
    for shape, outputs in loaded.outputs.items():
        yield from _wrong(f"{what} {shape}:", outputs, known.outputs.get(shape, {}) if known else {}, arm)


def _wrong(
    what: str, outputs: Mapping[str, Comparison], others: Mapping[str, Comparison], arm: ArmResult
) -> Iterator[_Finding]:
    """Yield the first output that is not its eager twin; where the reference's is none either, nothing is worse."""
    examined = arm.examination.outputs if arm.examination else {}
    for name, comparison in sorted(outputs.items()):
        output = examined.get(name)
        dtype, shape = (output.dtype, output.shape) if output else ("float32", ())
        if close_enough(comparison, dtype, shape):
            continue
        errors = f"rms error {comparison.rms_error:.3g}, largest {comparison.max_error:.3g}"
        reason = f"{what} '{name}' is not the eager one: {errors}, gain {comparison.gain:.5f}"
        if name in others and not close_enough(others[name], dtype, shape):
            yield _Finding(Status.UNTESTED, f"{reason}; nor is it in the baseline")
        else:
            yield _Finding(Status.FAIL, reason)
        return


def _figures(arm: CompileExport, reference: CompileExport, asked: GateQuestion) -> list[Figure]:
    """Return the ratios of first calls, each cold with cold and warm with warm."""
    found = []
    if not {arm.cold_cache, reference.cold_cache} & {"warm", "mixed"}:
        found.append(_ratio("cold compile ratio", arm.least_cold_ns, reference.least_cold_ns, asked.tier.compile_ratio))
    if not {arm.warm_cache, reference.warm_cache} & {"cold", "mixed"}:
        found.append(_ratio("warm compile ratio", arm.warm_ns, reference.warm_ns, None))
    return [figure for figure in found if figure is not None]


def _said(asked: GateQuestion, arm: CompileExport, reference: CompileExport) -> Iterator[str]:
    """Say what passed, with what changed and what was not asked."""
    if "compile" in asked.cell.programs:
        yield f"{arm.graphs} graph, {arm.graph_breaks} breaks"
        if arm.graphs == 0:
            yield "all of it runs eager, as in the baseline"
        if set(arm.break_reasons) != set(reference.break_reasons) and reference.break_reasons:
            yield f"breaks for other reasons{_new_reasons(arm, reference)}"
        if arm.recompiles:
            counts = ", ".join(f"{mode.graphs} with dynamic={mode.dynamic}" for mode in arm.recompiles)
            yield f"over {len(arm.recompiles[0].calls)} shapes {counts} graphs"
            limits = [mode for mode in arm.recompiles if mode.limit_hit]
            for mode in limits:
                yield f"dynamic={mode.dynamic}: {mode.limit_hit}, {len(_eager(mode))} shapes run eager, as before"
    for across, words in ((True, "saved, loaded and loaded by the other release"), (False, "saved and loaded")):
        kinds = [
            kind
            for kind, program in arm.programs.items()
            if program.outcome is Outcome.OK and (program.elsewhere is not None) is across
        ]
        if kinds:
            yield f"{', '.join(kinds)}: {words} agree"
    for kind, program in arm.programs.items():
        other = reference.programs.get(kind)
        if program.outcome is Outcome.UNSUPPORTED:
            yield f"{kind} untested ({program.reason})"
        new = sorted(set(program.operators) - set(other.operators)) if other else []
        if new:
            yield f"{kind}: operators outside Core ATen that were not there: {', '.join(new)}"
        mended = [
            name
            for name, now in program.wrong_inputs.items()
            if other and name in other.wrong_inputs and now.result != other.wrong_inputs[name].result
        ]
        if mended:
            yield f"{kind}: {', '.join(mended)} now refused"
    if arm.cold_ns and reference.cold_ns and "compile" in asked.cell.programs:
        yield _seconds(arm, reference)
    if arm.warm_cache in ("cold", "mixed") and reference.warm_cache == "warm":
        yield "a second process compiles again, the baseline's finds its programs"


def _ratio(name: str, above: int | None, below: int | None, limit: float | None) -> Figure | None:
    return Figure(name=name, value=above / below, limit=limit) if above and below and above > 0 and below > 0 else None


def _verdict(finding: _Finding, figures: list[Figure] | None = None) -> Verdict:
    """Return the verdict with its own figure first, or with the cold first call's."""
    others = [figure for figure in figures or [] if finding.figure is None or figure.name != finding.figure.name]
    figure = finding.figure
    if figure is None and finding.status is Status.PASS and others:
        figure, *others = others
    return Verdict(
        gate=Gate.COMPILE_EXPORT, status=finding.status, reason=finding.reason, figure=figure, others=tuple(others)
    )
