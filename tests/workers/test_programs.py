"""Programs that leave Python, carried between two real releases; what ends a process ends no more than its answer."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farm.model import Arm, Cell, CompileExport, Control, Gate, Measuring, Outcome, Side
from workers.programs import ProgramExaminer
from workers.runner_environment import runner_environment
from workers.session import RunnerSession
from workers.stage import make_stage

pytestmark = pytest.mark.torch

START_S = 120.0

USERS = """
import torch
from workloads.contract import Workload

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 8))
    def forward(self, x):
        return x @ self.weight

class Users(Workload):
    cases = {"one": {"suites": ["smoke"]}}
    exports = True
    def setup(self, p, path, device):
        self.module = Scaled()
        self.x = torch.randn(3, 8)
    def step(self):
        raise RuntimeError("what is compiled cold is not stepped before")
    def program(self):
        return self.module, (self.x,)
"""

VARYING = """
    def shapes(self):
        return [(torch.randn(rows, 8),) for rows in (1, 5)]
    def dynamic_shapes(self):
        return ({0: torch.export.Dim("rows", min=1, max=6)},)
    def wrong_inputs(self):
        return {"kills": (self.x,), "too many": (torch.randn(7, 8),)}
"""


def cell(*programs: Any) -> Cell:
    return Cell(
        id="users/one@cpu",
        backend="cpu",
        capability="cpu",
        workload="users",
        case="one",
        parameters={},
        production_shape=False,
        arms=tuple(Arm(name=side.value, side=side, path="eager", environments={}) for side in Side),
        control=Control(workload_digest="ab" * 32, seed=7, environment_variables={}),
        measuring=Measuring(step_timeout_s=60.0),
        gates=(Gate.COMPILE_EXPORT,),
        programs=programs,
    )


class CopiedPackage(RunnerSession):
    """A runner whose package is the exported program: AOTInductor takes half a minute; an input kills it as there."""

    def request(self, op: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        if op == "package":
            shutil.copy(fields["program"], fields["file"])
            return {"size_bytes": Path(fields["file"]).stat().st_size, "made_ns": 1}
        if fields.get("name") == "kills":
            os.kill(self.pid, signal.SIGABRT)
        if fields.get("kind") == "compiled package":
            fields["kind"] = "exported program"
        return super().request(op, timeout_s, **fields)


@pytest.fixture
def examine(
    baseline_python: Path, candidate_python: Path, tmp_path: Path
) -> Callable[..., tuple[dict[str, CompileExport], list[tuple[str, str]]]]:
    """Examine the programs of a user's workload in both releases; return them and who was started for what."""

    def run(of: Cell, source: str) -> tuple[dict[str, CompileExport], list[tuple[str, str]]]:
        stage = make_stage(tmp_path / "stage", source)
        started = []

        def start(arm: str, purpose: str, caches: Path | None) -> RunnerSession:
            started.append((arm, purpose))
            assert caches is not None
            environment = runner_environment({"OMP_NUM_THREADS": "1"}, caches, settled_allocator=False)
            python = baseline_python if arm == "baseline" else candidate_python
            return CopiedPackage(python, stage, environment, tmp_path / f"{arm}-{purpose}.log")

        return ProgramExaminer(of, tmp_path, "user_workload", start, START_S).compile_and_export(of.arms), started

    return run


def test_programs_are_loaded_by_both_releases_without_their_source(examine: Callable[..., Any]) -> None:
    found, started = examine(cell("export", "package"), USERS + VARYING)
    for made in found.values():
        assert made.compile_outcome is None
        assert {kind: program.outcome for kind, program in made.programs.items()} == {
            "exported program": Outcome.OK,
            "dynamic program": Outcome.OK,
            "compiled package": Outcome.OK,
            "ONNX model": Outcome.UNSUPPORTED,
        }
        assert made.programs["ONNX model"].reason == "no onnxscript"
        for kind in ("exported program", "dynamic program", "compiled package"):
            shapes = ["3x8"] if kind == "exported program" else ["3x8", "1x8", "5x8"]
            for loaded in (made.programs[kind].loaded, made.programs[kind].elsewhere):
                assert loaded.outcome is Outcome.OK
                assert list(loaded.outputs) == shapes
                assert all(one["y"].bitwise_equal for one in loaded.outputs.values())
        # What ends a process takes no other answer with it.
        met = made.programs["compiled package"].wrong_inputs
        assert {name: one.result for name, one in met.items()} == {
            "kills": "aborted",
            "too many": "refused",
        }
        assert "SIGABRT" in met["kills"].words
        assert made.programs["exported program"].wrong_inputs == {}
    assert len({purpose for arm, purpose in started if arm == "baseline" and purpose.startswith("wrong")}) == 2


def test_a_program_that_cannot_be_exported_is_told_and_nothing_is_made_of_it(examine: Callable[..., Any]) -> None:
    broken = USERS.replace("return x @ self.weight", "return x if x.sum() > 0 else x @ self.weight")
    found, started = examine(cell("export", "package"), broken)
    for made in found.values():
        (only,) = made.programs.items()
        assert only[0] == "exported program"
        assert only[1].outcome is Outcome.FAILED
        assert "data-dependent" in only[1].reason
    assert {purpose for _, purpose in started} == {"compile-cold"}
