"""A workload on trial: what is written runs, and what lacks something is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.workload_new import source_of
from farm.catalogue import read_workload
from farm.matrix import load_matrix
from farm.settings import Home
from workers import checking
from workers.checking import Checked, check

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

LACKS = '''"""A workload that lacks what it can."""
import random
import torch
from workloads.contract import Workload

class Lacks(Workload):
    """Unseeded numbers, a cast of its own, zeros."""
    cases = {"one": {"suites": ["smoke"]}, "other": {"suites": ["standard"]}}

    def setup(self, p, path, device):
        self.x = torch.full((8, 8), random.SystemRandom().random(), device=device)

    def step(self):
        return {"y": self.x.float() @ self.x.float(), "z": self.x * 0}
'''


@pytest.fixture
def tried(resolution: Any, shared_home: Path, built: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Checked]:
    """Try a file's smoke cases on the candidate, in short restarts."""
    same = dataclasses.replace(resolution, aa=True)
    matrix = load_matrix()
    short = matrix.suites["smoke"].model_copy(update={"restart_s": 0.2, "warmup_s": 0.5})
    matrix = dataclasses.replace(matrix, suites={**matrix.suites, "smoke": short})
    candidate = dataclasses.replace(
        same, environments=dict.fromkeys(resolution.environments, resolution.environments["candidate"])
    )
    monkeypatch.setattr(checking, "resolve", lambda *arguments, **more: candidate)

    def run(file: Path) -> Checked:
        spec = read_workload(file)
        cases = [case for case in spec.cases if "smoke" in case.suites]
        return check(spec, cases, "2.13.0", Home(shared_home), matrix, lambda cells, results, told: None, lambda: None)

    return run


def test_the_file_that_is_written_for_a_start_is_sound(tried: Callable[[Path], Checked], tmp_path: Path) -> None:
    file = tmp_path / "our_norm.py"
    file.write_text(source_of("our_norm"))
    found = tried(file)
    assert [one for one in found.findings if one.severity == "problem" and "against itself" not in one.what] == []
    assert {judged.arm for judged in found.verdicts} == {"candidate", "candidate+fused"}


def test_what_a_workload_lacks_is_told(tried: Callable[[Path], Checked], tmp_path: Path) -> None:
    file = tmp_path / "lacks.py"
    file.write_text(LACKS)
    found = tried(file)
    assert [cell.case for cell in found.cells] == ["one"]
    problems = [one.what for one in found.findings if one.severity == "problem"]
    for expected in (
        "no seed: the same seed gives other outputs in one process",
        "no oracle: the oracle is no more precise than the work: 'y' is float32 in it",
        "output 'z' is zero everywhere: no fault would be seen",
        "output not deterministic: 5 different results in 5 repeats",
        "step too short to time",
    ):
        assert any(problem.startswith(expected) for problem in problems), expected
