"""One runner of the candidate release for all, and a Python of any release for what a runner has no request for."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workers.runner_environment import runner_environment
from workers.session import RunnerSession
from workers.stage import make_stage

START_S = 120.0
ANSWER_S = 120.0

Examine = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def session(candidate_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunnerSession]:
    """Give a runner of the candidate release, started once for a file's tests, which switch nothing off for good."""
    root = tmp_path_factory.mktemp("runner")
    environment = runner_environment({"OMP_NUM_THREADS": "1"}, root / "caches", settled_allocator=False)
    with RunnerSession(candidate_python, make_stage(root / "stage", None), environment, root / "log") as started:
        started.hello(START_S)
        yield started


@pytest.fixture
def examine(session: RunnerSession, tmp_path: Path) -> Examine:
    """Give ``examine(workload, path, parameters, **asked)``: set up and examined, a file's path or a name's module."""

    def examine(workload: str | Path, path: str, parameters: dict[str, Any], **asked: Any) -> dict[str, Any]:
        reference = str(workload) if isinstance(workload, Path) else f"workloads.{workload}"
        fields = {"workload": reference, "parameters": parameters, "path": path, "seed": 1, "device": "cpu"}
        session.request("setup", ANSWER_S, **fields, threads=1)
        folder = tmp_path / f"outputs-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        request = {"oracle": True, "repeats": 1, "threads": 1, "memory": False} | asked
        return session.request("examine", ANSWER_S, directory=str(folder), **request)

    return examine


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Run a file beside this one by a release's Python, with ``words`` and further folders to import from.

    Returns what it printed.
    """
    root = tmp_path_factory.mktemp("inside")
    stage = make_stage(root / "stage", None)

    def run(python: Path, file: str, *words: str, folders: tuple[Path, ...] = ()) -> str:
        environment = runner_environment({"OMP_NUM_THREADS": "1"}, root / "caches", settled_allocator=False)
        ended = subprocess.run(
            [str(python), "-W", "ignore", str(Path(__file__).parent / file), *words],
            env=os.environ | environment | {"PYTHONPATH": os.pathsep.join(map(str, (stage, *folders)))},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        return ended.stdout

    return run
