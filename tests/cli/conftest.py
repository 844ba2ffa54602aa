"""`farm` as a user starts it: a process of its own, in a folder and a home of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

Farm = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def farm(tmp_path: Path, home: Path) -> Farm:
    """Run `farm` with the given arguments; keyword arguments are environment variables, None takes one away."""

    def run(*arguments: object, **variables: str | None) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FARM_")}
        environment |= {"FARM_HOME": str(home), "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
        environment = {k: v for k, v in (environment | variables).items() if v is not None}
        return subprocess.run(
            [sys.executable, "-m", "cli.main", *map(str, arguments)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run
