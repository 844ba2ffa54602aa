"""`farm calibrate` on this machine, with a real release; and what is left when it is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from farm.model import Calibration
from farm.settings import Home
from workers.noise import Calibrations

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

ROOT = Path(__file__).parent.parent.parent


def start(home: Path) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FARM_")}
    return subprocess.Popen(
        [sys.executable, "-m", "cli.main", "calibrate", "--release", "2.12.1", "--budget", "40", "--json"],
        cwd=home,
        env=environment | {"FARM_HOME": str(home), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def own_home(tmp_path: Path, shared_home: Path) -> Path:
    """A home of the test's own that shares the environments that are built."""
    (shared_home / "envs").mkdir(exist_ok=True)
    home = tmp_path / "home"
    home.mkdir()
    (home / "envs").symlink_to(shared_home / "envs")
    return home


def test_a_machine_is_calibrated_and_knows_it(own_home: Path) -> None:
    process = start(own_home)
    text, said = process.communicate(timeout=500)
    assert process.returncode == 0, said
    found = Calibration.model_validate(json.loads(text)["calibration"])
    assert found.restarts >= 6
    assert found.sd > 0
    assert found.low <= found.ratio <= found.high
    assert 0 < found.window_s < found.restart_s
    assert Calibrations(Home(own_home)).newest() == found


def test_an_interrupted_calibration_leaves_neither_process_nor_scratch_nor_figure(own_home: Path) -> None:
    process = start(own_home)
    assert process.stderr is not None
    for line in process.stderr:
        if "measure" in line:
            break
    time.sleep(4.0)
    runners = psutil.Process(process.pid).children(recursive=True)
    assert runners
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 3
    _, alive = psutil.wait_procs(runners, timeout=20)
    assert alive == []
    assert list((own_home / "scratch").iterdir()) == []
    assert Calibrations(Home(own_home)).newest() is None
