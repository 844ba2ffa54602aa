"""What became of a workload's module, as rows: compiled, compiled again for other shapes, saved and loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from farm.model import Comparison, CompileExport, Loaded, Outcome, ProgramKind, Recompiles, SavedProgram
from farm.report.text import plural, seconds
from farm.units import mebibytes

__all__ = ["compared_words", "program_rows"]

#: Reasons that are shown of one way of compiling; all are in the evidence.
SHOWN = 3

Row = tuple[str, str]


def compared_words(compared: Comparison | None) -> str:
    """Return how far an output is from what it was held against."""
    if compared is None:
        return ""
    if not compared.same_shape:
        return "another shape"
    if not compared.finite:
        return "not finite" if compared.reference_finite else "not finite, nor is the other"
    if compared.bitwise_equal:
        return "bitwise equal"
    return f"rms error {compared.rms_error:.3g}, greatest {compared.max_error:.3g}, gain {compared.gain:.6g}"


def program_rows(programs: CompileExport) -> list[Row]:
    """Return everything that is known of one arm's programs; rows without a value say nothing."""
    rows = list(_compiled(programs))
    for mode in programs.recompiles:
        rows += _recompiled(mode)
    for kind, program in programs.programs.items():
        rows += _saved(kind, program)
    return rows


def _compiled(programs: CompileExport) -> Iterator[Row]:
    if programs.compile_outcome is None:
        return
    yield "compile", f"{programs.compile_outcome} {programs.compile_reason}".strip()
    if programs.graphs is not None or programs.graph_breaks is not None:
        yield "graphs, graph breaks", f"{programs.graphs}, {programs.graph_breaks}"
    for reason, count in programs.break_reasons.items():
        yield "graph break", f"{count} × {reason}"
    yield "cold first call", _call(programs.cold_ns, programs.cold_cache)
    yield "cold first calls again", ", ".join(seconds(took_ns) for took_ns in programs.cold_again_ns)
    yield "warm first call", _call(programs.warm_ns, programs.warm_cache)
    yield "compiled against eager", _worst({"cold": programs.compiled, "from the cache": programs.compiled_warm})


def _call(took_ns: int | None, cache: str) -> str:
    return f"{seconds(took_ns)}{f', caches {cache}' if cache != 'none' else ''}" if took_ns is not None else ""


def _recompiled(mode: Recompiles) -> Iterator[Row]:
    name = f"all shapes, dynamic={mode.dynamic}"
    if mode.outcome is not Outcome.OK:
        yield name, f"{mode.outcome} {mode.reason}".strip()
        return
    eager = [call.shape for call in mode.calls if call.ran == "eager"]
    said = f"{plural(mode.graphs, 'graph')} for {plural(len(mode.calls), 'call')}"
    yield name, f"{said}; eager: {', '.join(dict.fromkeys(eager))}" if eager else said
    yield f"{name}: limit", mode.limit_hit
    reasons = [f"{call.shape}: {reason}" for call in mode.calls for reason in call.reasons]
    more = f"; and {len(reasons) - SHOWN} more" if len(reasons) > SHOWN else ""
    yield f"{name}: compiled again", "; ".join(reasons[:SHOWN]) + more
    yield f"{name}: against eager", _worst({call.shape: call.outputs for call in mode.calls})
    if mode.eager_pass_ns is not None:
        steady = seconds(mode.pass_ns) if mode.pass_ns is not None else "never without compiling"
        yield f"{name}: a steady pass", f"{steady}, eager {seconds(mode.eager_pass_ns)}"


def _saved(kind: ProgramKind, program: SavedProgram) -> Iterator[Row]:
    if program.outcome is Outcome.UNSUPPORTED:
        yield kind, f"untested ({program.reason})"
        return
    if program.outcome is not Outcome.OK:
        yield kind, f"{program.outcome} {program.reason}".strip()
        yield f"{kind}: failed on", ", ".join(program.operators)
        return
    yield kind, f"{mebibytes(program.size_bytes)}, made in {seconds(program.made_ns)}"
    yield f"{kind}: operators outside Core ATen", ", ".join(program.operators)
    yield f"{kind}: loaded in a fresh process", _loaded(program.loaded)
    yield f"{kind}: loaded by the other release", _loaded(program.elsewhere)
    for name, tried in program.wrong_inputs.items():
        yield f"{kind}: {name}", f"{tried.result}: {tried.words}" if tried.words else tried.result


def _loaded(loaded: Loaded | None) -> str:
    if loaded is None:
        return ""
    if loaded.outcome is not Outcome.OK:
        return f"{loaded.outcome} {loaded.reason}".strip()
    return f"{plural(len(loaded.outputs), 'shape')}, {_worst(loaded.outputs)}"


def _worst(by_shape: Mapping[str, Mapping[str, Comparison]]) -> str:
    """Return the comparison that is furthest off, with where it is; "bitwise equal" only where all are."""
    found = [(shape, name, one) for shape, outputs in by_shape.items() for name, one in outputs.items()]
    if not found:
        return ""
    shape, name, worst = max(found, key=lambda entry: _off(entry[2]))
    words = compared_words(worst)
    return words if worst.bitwise_equal else f"'{name}', {shape}: {words}"


def _off(one: Comparison) -> float:
    if one.bitwise_equal:
        return -1.0
    if not (one.same_shape and one.finite):
        return float("inf")
    return one.rms_error / one.reference_rms if one.reference_rms > 0 else one.rms_error
