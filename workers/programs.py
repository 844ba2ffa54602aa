"""What becomes of a workload's module: compiled, exported, packaged, turned into ONNX; met again by both releases.

Everything is made in one process and met in another: what is compiled cold has a process and a cache folder of its own,
what is loaded is loaded where its source is not, and a wrong input has a process that it may end.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from farm.model import (
    Arm,
    Cell,
    Comparison,
    CompileExport,
    Loaded,
    Outcome,
    ProgramKind,
    Recompiles,
    SavedProgram,
    ShapeCall,
    Side,
    WrongInput,
)
from workers.comparison import compare, load
from workers.examination import DEVICES, setup_fields
from workers.session import ArmEnded, RunnerSession

__all__ = ["ProgramExaminer"]

#: File names of what is made.
FILES: Mapping[ProgramKind, str] = {
    "exported program": "exported.pt2",
    "dynamic program": "dynamic.pt2",
    "compiled package": "package.pt2",
    "ONNX model": "model.onnx",
}
EXPORTED: tuple[ProgramKind, ...] = ("exported program", "dynamic program")
DYNAMIC = ("None", "True", "False")

#: A cold first call that is so many times the baseline's is asked for again, in both: of one program two differed by up
#: to half on a shared machine, and the tightest limit that ships is 1.25.
AGAIN_BEYOND = 1.1
AGAIN = 2

Answer = dict[str, Any] | ArmEnded
Outputs = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class _Made:
    """What one arm made: the record of it so far, and what is needed to load it elsewhere."""

    program: SavedProgram
    file: Path
    inputs: Path
    eager: Mapping[str, Outputs] = field(default_factory=dict)
    """Eager outputs of the release that made it, by the inputs' shape."""
    wrong: tuple[str, ...] = ()
    """Names of the wrong inputs that lie beside it."""

    @property
    def ok(self) -> bool:
        return self.program.outcome is Outcome.OK


class ProgramExaminer:
    """Compiles and exports for the arms of one cell; ``start`` is as for `workers.examination.Examiner`."""

    def __init__(
        self,
        cell: Cell,
        scratch: Path,
        workload: str,
        start: Callable[[str, str, Path | None], RunnerSession],
        start_timeout_s: float,
    ) -> None:
        self.cell = cell
        self.workload = workload
        self._scratch = scratch / "programs"
        self._start = start
        self._start_timeout_s = start_timeout_s
        self._timeout_s = cell.measuring.step_timeout_s
        self._at_once = 2 if DEVICES[cell.backend] == "cpu" else 1

    def compile_and_export(self, arms: Iterable[Arm]) -> dict[str, CompileExport]:
        """Return what each arm made of the module, and how both releases met what was saved."""
        arms = list(arms)
        # Only what runs the same work on two releases is carried across.
        others = {Side.BASELINE.value: Side.CANDIDATE.value, Side.CANDIDATE.value: Side.BASELINE.value}
        with ThreadPoolExecutor(max_workers=self._at_once) as pool:
            made = dict(zip((arm.name for arm in arms), pool.map(self._make, arms), strict=True))
            for _ in range(AGAIN if _slower({name: one for name, (one, _) in made.items()}) else 0):
                again = pool.map(self._cold_again, arms)
                made = {
                    arm.name: (_with_cold(made[arm.name][0], answer), made[arm.name][1])
                    for arm, answer in zip(arms, again, strict=True)
                }
            saved = {name: programs for name, (_, programs) in made.items()}

            def meet(arm: Arm) -> tuple[dict[ProgramKind, Loaded], dict[ProgramKind, Loaded]]:
                other = others.get(arm.name, "")
                return self._meet(arm, saved[arm.name], saved.get(other, {}))

            met = dict(zip((arm.name for arm in arms), pool.map(meet, arms), strict=True))

            def refuse(arm: Arm) -> dict[str, WrongInput]:
                return self._wrong(arm, saved[arm.name].get("compiled package"))

            wrong = dict(zip((arm.name for arm in arms), pool.map(refuse, arms), strict=True))
        found = {}
        for name, (compiled, programs) in made.items():
            own = met[name][0]
            elsewhere = met.get(others.get(name, ""), ({}, {}))[1]
            found[name] = compiled.model_copy(
                update={
                    "programs": {
                        kind: one.program.model_copy(
                            update={
                                "loaded": own.get(kind),
                                "elsewhere": elsewhere.get(kind),
                                "wrong_inputs": wrong[name] if kind == "compiled package" else {},
                            }
                        )
                        for kind, one in programs.items()
                    }
                }
            )
        return found

    # -- making -------------------------------------------------------------------------------------------------

    def _make(self, arm: Arm) -> tuple[CompileExport, dict[ProgramKind, _Made]]:
        """Compile cold and make what leaves Python in one process; compile warm, and over all shapes, in the next."""
        folder = self._scratch / arm.name
        folder.mkdir(parents=True, exist_ok=True)
        caches = self._caches(arm, "compile")
        compiles, exports = ("compile" in self.cell.programs), ("export" in self.cell.programs)
        first: dict[str, dict[str, Any]] = {"compile": {"op": "compile"}} if compiles else {}
        if exports:
            for kind in EXPORTED:
                first[kind] = {
                    "op": "export",
                    "dynamic": kind == "dynamic program",
                    "file": str(folder / FILES[kind]),
                    "inputs": str(folder / f"{FILES[kind]}.inputs"),
                }
            programs = [str(folder / FILES[kind]) for kind in reversed(EXPORTED)]
            first["ONNX model"] = {"op": "onnx", "programs": programs, "file": str(folder / FILES["ONNX model"])}
        answers = self._ask(arm, "compile-cold", caches, first)
        compiled = self._compiled(arm, caches, answers["compile"]) if compiles else CompileExport()
        return compiled, self._saved(arm, folder, answers) if exports else {}

    def _compiled(self, arm: Arm, caches: Path, cold: Answer) -> CompileExport:
        second: dict[str, dict[str, Any]] = {"compile": {"op": "compile"}}
        second |= {dynamic: {"op": "recompile", "dynamic": dynamic} for dynamic in DYNAMIC}
        answers = self._ask(arm, "compile-warm", caches, second)
        warm = answers["compile"]
        ended = next((one for one in (cold, warm) if isinstance(one, ArmEnded)), None)
        fields: dict[str, Any] = {
            "compile_outcome": ended.outcome if ended else Outcome.OK,
            "compile_reason": ended.reason if ended else "",
            "recompiles": tuple(
                found for dynamic in DYNAMIC if (found := _recompiles(dynamic, answers[dynamic])) is not None
            ),
        }
        if not isinstance(cold, ArmEnded):
            fields |= {name: cold[name] for name in ("graphs", "graph_breaks", "break_reasons")}
            fields |= {"cold_ns": cold["first_call_ns"], "cold_cache": cold["cache"]}
            fields["compiled"] = _comparisons(cold["outputs"], cold["eager"])
        if not isinstance(warm, ArmEnded):
            fields |= {"warm_ns": warm["first_call_ns"], "warm_cache": warm["cache"]}
            fields["compiled_warm"] = _comparisons(warm["outputs"], warm["eager"])
        return CompileExport(**fields)

    def _cold_again(self, arm: Arm) -> Answer:
        caches = self._caches(arm, "again")
        shutil.rmtree(caches, ignore_errors=True)
        return self._ask(arm, "compile-again", caches, {"compile": {"op": "compile"}})["compile"]

    def _saved(self, arm: Arm, folder: Path, answers: Mapping[str, Answer]) -> dict[ProgramKind, _Made]:
        found: dict[ProgramKind, _Made] = {}
        for kind in EXPORTED:
            answer = answers[kind]
            # Where no shapes vary there is nothing to export but the one.
            if isinstance(answer, ArmEnded) or answer["file"] is not None:
                file = folder / FILES[kind]
                inputs = folder / f"{FILES[kind]}.inputs"
                if isinstance(answer, ArmEnded):
                    found[kind] = _Made(_program(answer), file, inputs)
                else:
                    found[kind] = _Made(_program(answer), file, inputs, answer["eager"], tuple(answer["wrong"]))
        # What goes on from here goes on from the program that takes all shapes, if it could be made.
        source = next((found[kind] for kind in reversed(EXPORTED) if kind in found and found[kind].ok), None)
        if source is None:
            return found
        made = dict(answers)
        if "package" in self.cell.programs:
            fields = {"program": str(source.file), "file": str(folder / FILES["compiled package"])}
            asked = {"op": "package", "threads": self._threads("compiled package"), **fields}
            made |= self._ask(arm, "package", self._caches(arm, "package"), {"compiled package": asked}, bare=True)
        further: tuple[ProgramKind, ...] = ("compiled package", "ONNX model")
        for kind in further:
            if kind in made:
                found[kind] = replace(source, program=_program(made[kind]), file=folder / FILES[kind])
        return found

    # -- meeting again ------------------------------------------------------------------------------------------

    def _meet(
        self, arm: Arm, own: Mapping[ProgramKind, _Made], others: Mapping[ProgramKind, _Made]
    ) -> tuple[dict[ProgramKind, Loaded], dict[ProgramKind, Loaded]]:
        """Return how ``arm`` loads what it made itself, and what the other release made."""
        wanted: dict[str, _Made] = {f"own/{kind}": made for kind, made in own.items() if made.ok}
        # ONNX Runtime reads ONNX models, whichever release wrote them.
        wanted |= {f"others/{kind}": made for kind, made in others.items() if made.ok and kind != "ONNX model"}
        questions = {name: self._load_fields(made, name.partition("/")[2]) for name, made in wanted.items()}
        answers = self._ask(arm, "load", self._caches(arm, "load"), questions, bare=True)
        found: dict[str, dict[ProgramKind, Loaded]] = {"own": {}, "others": {}}
        for name, made in wanted.items():
            whose, _, kind = name.partition("/")
            found[whose][kind] = _loaded(answers[name], made)  # type: ignore[index]
        return found["own"], found["others"]

    def _wrong(self, arm: Arm, made: _Made | None) -> dict[str, WrongInput]:
        """Return what the package does with each wrong input, in processes of their own: some end it."""
        if made is None or not made.ok:
            return {}
        found = {}
        for index, name in enumerate(made.wrong):
            fields = self._load_fields(made, "compiled package") | {"op": "wrong_input", "name": name}
            answer = self._ask(arm, f"wrong-{index + 1}", self._caches(arm, "load"), {"wrong": fields}, bare=True)
            found[name] = _wrong_input(answer["wrong"])
        return found

    def _load_fields(self, made: _Made, kind: str) -> dict[str, Any]:
        return {
            "op": "load",
            "kind": kind,
            "file": str(made.file),
            "inputs": str(made.inputs),
            "threads": self._threads(kind),
        }

    def _threads(self, kind: str) -> int:
        """Return a package's threads as in service: at one torch can raise where at two an exception ends the process.

        (2.12.1 and 2.13.0, a token out of range: no exception leaves a loop that several threads run.)
        """
        return self.cell.control.determinism_threads if kind == "compiled package" else self.cell.measuring.threads

    # -- asking -------------------------------------------------------------------------------------------------

    def _ask(
        self,
        arm: Arm,
        purpose: str,
        caches: Path,
        questions: Mapping[str, Mapping[str, Any]],
        *,
        bare: bool = False,
    ) -> dict[str, Answer]:
        """Put ``questions`` to one fresh runner; one that ends it is its answer, and the rest go to another.

        A ``bare`` runner has no workload.
        """
        answers: dict[str, Answer] = {}
        while len(answers) < len(questions):
            left = [name for name in questions if name not in answers]
            try:
                with self._start(arm.name, purpose, caches) as session:
                    session.hello(self._start_timeout_s)
                    if not bare:
                        fields = setup_fields(self.cell, arm, self.workload)
                        session.request("setup", self._timeout_s, **fields, step=False)
                    for name in left:
                        folder = self._scratch / "outputs" / arm.name / purpose / name.replace("/", "-")
                        folder.mkdir(parents=True, exist_ok=True)
                        asked = dict(questions[name])
                        answers[name] = session.request(
                            asked.pop("op"), self._timeout_s, directory=str(folder), **asked
                        )
            except ArmEnded as ended:
                answers[next(name for name in left if name not in answers)] = ended
        return answers

    def _caches(self, arm: Arm, purpose: str) -> Path:
        """Return an empty folder for compiled code, the same for one purpose of one arm."""
        return self._scratch / "caches" / arm.name / purpose


def _slower(compiled: Mapping[str, CompileExport]) -> bool:
    """Return whether the candidate's cold first call is so much longer that once is not enough to say it."""
    baseline, candidate = (compiled.get(side.value) for side in (Side.BASELINE, Side.CANDIDATE))
    if baseline is None or candidate is None or not baseline.cold_ns or not candidate.cold_ns:
        return False
    return candidate.cold_ns > AGAIN_BEYOND * baseline.cold_ns


def _with_cold(compiled: CompileExport, answer: Answer) -> CompileExport:
    """Return ``compiled`` with one cold first call more, if it was one."""
    if compiled.cold_ns is None or isinstance(answer, ArmEnded) or answer["cache"] in ("warm", "mixed"):
        return compiled
    return compiled.model_copy(update={"cold_again_ns": (*compiled.cold_again_ns, answer["first_call_ns"])})


def _program(answer: Answer) -> SavedProgram:
    if isinstance(answer, ArmEnded):
        return SavedProgram(outcome=answer.outcome, reason=answer.reason, operators=_named_in(answer.reason))
    return SavedProgram(
        outcome=Outcome.OK,
        size_bytes=answer["size_bytes"],
        made_ns=answer["made_ns"],
        operators=tuple(answer.get("operators", ())),
    )


def _named_in(reason: str) -> tuple[str, ...]:
    """Return the operators that a runner names at the head of why it could not make a program."""
    head, _, _ = reason.partition(": ")
    return tuple(head.removeprefix("operators ").split(", ")) if head.startswith("operators ") else ()


def _recompiles(dynamic: Any, answer: Answer) -> Recompiles | None:
    """Return what became of all shapes; None where the workload names none."""
    if isinstance(answer, ArmEnded):
        return Recompiles(dynamic=dynamic, outcome=answer.outcome, reason=answer.reason)
    if not answer["calls"]:
        return None
    calls = tuple(
        ShapeCall(
            shape=call["shape"],
            new_graphs=call["new_graphs"],
            reasons=tuple(call["reasons"]),
            ran=call["ran"],
            outputs=_comparisons(call["outputs"], call["eager"]),
        )
        for call in answer["calls"]
    )
    return Recompiles(
        dynamic=dynamic,
        outcome=Outcome.OK,
        calls=calls,
        limit_hit=answer["limit_hit"],
        pass_ns=answer["pass_ns"],
        eager_pass_ns=answer["eager_pass_ns"],
    )


def _loaded(answer: Answer, made: _Made) -> Loaded:
    if isinstance(answer, ArmEnded):
        return Loaded(outcome=answer.outcome, reason=answer.reason)
    outputs = {shape: _comparisons(answer["outputs"].get(shape, {}), eager) for shape, eager in made.eager.items()}
    return Loaded(outcome=Outcome.OK, outputs=outputs)


def _wrong_input(answer: Answer) -> WrongInput:
    if not isinstance(answer, ArmEnded):
        return WrongInput(result=answer["result"], words=answer["words"])
    if answer.outcome is Outcome.TIMED_OUT:
        return WrongInput(result="no answer", words=answer.reason)
    thrown = re.search(r"what\(\): *(.+)", answer.log_tail)
    return WrongInput(result="aborted", words=f"{answer.reason}: {thrown[1].strip()}" if thrown else answer.reason)


def _comparisons(outputs: Outputs, eager: Outputs) -> dict[str, Comparison]:
    """Return every compiled or loaded output against the eager one; one that is missing has another shape."""
    found = {}
    for name, reference in eager.items():
        entry = outputs.get(name)
        if entry is None:
            found[name] = Comparison(
                finite=False,
                reference_finite=True,
                same_shape=False,
                bitwise_equal=False,
                rms_error=float("nan"),
                max_error=float("nan"),
                reference_rms=float("nan"),
                gain=float("nan"),
            )
        else:
            equal = entry.get("sha256") == reference.get("sha256")
            found[name] = compare(load(entry), load(reference), bitwise_equal=equal)
    return found
