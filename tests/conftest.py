"""Fixtures that several rooms share: the measured environments, made once by the farm itself and reused."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

ROOT = Path(__file__).parent.parent

#: Everything the tests install stays in one ignored folder of the checkout, so that a second run is quick.
TEST_HOME = Path(os.environ.get("FARM_TEST_HOME", ROOT / ".farm-test"))

# A shell that starts the suite in the background has it ignore Ctrl-C, and every command under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test is timed: a busy machine is no fault of what is tested.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="session")
def farm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a real server for queues, shared by tests one after the other."""
    from farm.broker.server import prepare_server, wait_for_server

    command, url = prepare_server(tmp_path_factory.mktemp("server"), None)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            wait_for_server(url, 20.0, None)
            yield url
        finally:
            process.terminate()


@pytest.fixture
def server(farm_server: str) -> Iterator[Any]:
    """A connection to a real server with nothing on it."""
    import redis

    connection = redis.Redis.from_url(farm_server)
    connection.flushall()
    yield connection
    connection.close()


@pytest.fixture(scope="session")
def shared_home() -> Path:
    """A home that outlives the test run: its environments are content-addressed."""
    TEST_HOME.mkdir(parents=True, exist_ok=True)
    return TEST_HOME


@pytest.fixture(scope="session")
def resolution(shared_home: Path):
    """2.13.0 beside 2.12.1 on this machine's CPU, resolved as `farm submit` does."""
    from farm.releases import resolve
    from workers.probe import probe_host

    host = probe_host()
    return resolve("2.13.0", "2.12.1", platform=host.platform, python=host.python, backend="cpu", baseline_default=None)


@pytest.fixture(scope="session")
def built(shared_home: Path, resolution):
    """Both environments, built: a mapping of side to `BuiltEnvironment`."""
    from farm.settings import Home
    from workers.environments import build

    home = Home(shared_home)
    return {side: build(environment, home) for side, environment in resolution.environments.items()}


@pytest.fixture(scope="session")
def baseline_python(request: pytest.FixtureRequest) -> Path:
    """Python of the environment with torch 2.12.1."""
    return _python(request, "FARM_TEST_BASELINE_PYTHON", "baseline")


@pytest.fixture(scope="session")
def candidate_python(request: pytest.FixtureRequest) -> Path:
    """Python of the environment with torch 2.13.0."""
    return _python(request, "FARM_TEST_CANDIDATE_PYTHON", "candidate")


def _python(request: pytest.FixtureRequest, variable: str, side: str) -> Path:
    if variable in os.environ:
        return Path(os.environ[variable])
    python: Path = request.getfixturevalue("built")[side].python
    return python
