"""What became of a program, as rows that can be read: reasons, limits, the worst output and where it is."""

from __future__ import annotations

import math
from typing import Any

from farm.model import Comparison, Loaded, Outcome, SavedProgram, WrongInput
from farm.report.programs import program_rows
from tests.evidence import comparison, compiled_over, program, saved


def rows(**more: Any) -> dict[str, str]:
    """Return the rows that say something, by name."""
    return {name: value for name, value in program_rows(program(**more)) if value}


def test_a_compilation_tells_its_breaks_and_what_the_caches_held() -> None:
    found = rows(graph_breaks=2, break_reasons={"print": 2}, cold_cache="cold", warm_cache="mixed")
    assert found["graphs, graph breaks"] == "1, 2"
    assert found["graph break"] == "2 × print"
    assert found["cold first call"] == "8.0 s, caches cold"
    assert found["warm first call"] == "2.0 s, caches mixed"


def test_what_was_not_asked_has_no_row() -> None:
    assert rows(compile_outcome=None, programs={}) == {}


def test_shapes_tell_graphs_reasons_the_limit_and_which_run_eager() -> None:
    mode = compiled_over(1, 1, 0, dynamic="False", limit_hit="limit exceeded at 1x4", pass_ns=2 * 10**6)
    calls = (*mode.calls[:2], mode.calls[2].model_copy(update={"ran": "eager"}))
    found = rows(recompiles=(mode.model_copy(update={"calls": calls, "eager_pass_ns": 3 * 10**6}),))
    assert found["all shapes, dynamic=False"] == "2 graphs for 3 calls; eager: 1x4"
    assert found["all shapes, dynamic=False: limit"] == "limit exceeded at 1x4"
    assert found["all shapes, dynamic=False: compiled again"] == "1x3: size mismatch"
    assert found["all shapes, dynamic=False: a steady pass"] == "2.0 ms, eager 3.0 ms"
    never = rows(recompiles=(mode.model_copy(update={"pass_ns": None, "eager_pass_ns": 3 * 10**6}),))
    assert never["all shapes, dynamic=False: a steady pass"] == "never without compiling, eager 3.0 ms"


def worst(**outputs: Comparison) -> str:
    read = Loaded(outcome=Outcome.OK, outputs={shape: {"y": one} for shape, one in outputs.items()})
    return rows(programs={"exported program": saved(loaded=read)})["exported program: loaded in a fresh process"]


def test_the_worst_output_is_shown_with_its_shape() -> None:
    exact = comparison(bitwise_equal=True)
    assert worst(a=exact, b=exact) == "2 shapes, bitwise equal"
    assert worst(a=exact, b=comparison(rms_error=1e-3)).startswith("2 shapes, 'y', b: rms error 0.001,")
    lost = comparison(finite=False, rms_error=math.nan)
    assert worst(a=comparison(rms_error=1e-3), b=lost) == "2 shapes, 'y', b: not finite"


def test_a_program_tells_who_loaded_it_and_what_it_did_with_wrong_inputs() -> None:
    package = saved(
        operators=("mine.twice",),
        elsewhere=Loaded(outcome=Outcome.FAILED, reason="schema 9"),
        wrong_inputs={"wrong dtype": WrongInput(result="aborted", words="SIGABRT")},
    )
    absent = SavedProgram(outcome=Outcome.UNSUPPORTED, reason="no onnxscript")
    gone = SavedProgram(outcome=Outcome.FAILED, reason="no shim", operators=("aten.det",))
    found = rows(programs={"compiled package": package, "ONNX model": absent, "dynamic program": gone})
    assert found["compiled package: operators outside Core ATen"] == "mine.twice"
    assert found["compiled package: loaded by the other release"] == "failed schema 9"
    assert found["compiled package: wrong dtype"] == "aborted: SIGABRT"
    assert found["ONNX model"] == "untested (no onnxscript)"
    assert (found["dynamic program"], found["dynamic program: failed on"]) == ("failed no shim", "aten.det")
