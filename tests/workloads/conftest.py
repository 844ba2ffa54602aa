"""Parts of tests that run inside a measured environment."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from workers.runner_environment import runner_environment
from workers.stage import make_stage

Inside = Callable[..., str]


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Inside:
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
