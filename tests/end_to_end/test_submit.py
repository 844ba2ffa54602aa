"""`farm submit` as a user types it: real queues, a real worker, both releases, and what is left when it ends."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from farm.model import RunState, Status
from farm.settings import Home
from farm.store import Store

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

ROOT = Path(__file__).parent.parent.parent
#: Resolving, starting, measuring one small cell and judging took 25 s here.
PATIENCE_S = 300.0
#: A killed farm's parts notice within a second; their runners end with them.
GONE_S = 20.0

BLOCK = {"name": "transformer_block", "cases": ["infer-fp32"]}

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path, shared_home: Path) -> Iterator[Start]:
    """Start `farm` with arguments, by default in the home whose environments are built; end what a test leaves."""
    running: list[subprocess.Popen[str]] = []

    def begin(*arguments: object, home: Path = shared_home, **variables: str) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FARM_")}
        environment |= {"FARM_HOME": str(home), "PYTHONPATH": str(ROOT), "COLUMNS": "120"} | variables
        process = subprocess.Popen(
            [sys.executable, "-m", "cli.main", *map(str, arguments)],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=60)


def submit(start: Start, matrix: Path, *more: object, **variables: object) -> subprocess.Popen[str]:
    releases = () if "--candidate" in more else ("--candidate", "2.13.0", "--baseline", "2.12.1")
    return start("submit", *releases, "--matrix", matrix, *more, **variables)


@contextmanager
def leaves_nothing(process: subprocess.Popen[str]) -> Iterator[None]:
    """Assert that everything `process` started during the block is gone soon after it."""
    seen: dict[int, psutil.Process] = {}

    def look() -> None:
        if process.poll() is None:
            seen.update({child.pid: child for child in psutil.Process(process.pid).children(recursive=True)})

    look()
    try:
        yield
    finally:
        look()
        deadline = time.monotonic() + GONE_S
        alive = list(seen.values())
        while alive and time.monotonic() < deadline:
            _, alive = psutil.wait_procs(alive, timeout=0.2)
        assert alive == []


def wait_for_phase(process: subprocess.Popen[str], phase: str) -> str:
    """Read progress until a line names ``phase``; return what was read."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if phase in line:
            return said
    raise AssertionError(f"ended before '{phase}':\n{said}")


def run_id(said: str) -> str:
    found = re.search(r"^run (\S+):", said, re.MULTILINE)
    assert found, said
    return found[1]


def test_a_run_decides_leaves_a_page_and_its_command_asks_the_same_again(
    start: Start, write_matrix: Callable[..., Path], tmp_path: Path, shared_home: Path
) -> None:
    process = submit(start, write_matrix(BLOCK, gates="correctness latency rollback"))
    text, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    assert "build variant" in said
    assert re.search(r"transformer_block\s+cpu\s+serving\s+defer", text)
    page = Path(next(line for line in text.splitlines() if line.startswith("page: ")).removeprefix("page: "))
    assert page.read_text().startswith("<!doctype html>")
    digest = next(line for line in text.splitlines() if line.startswith("plan ")).removeprefix("plan ")
    reproduce = text.split("reproduce: ")[1].split("\nplan ")[0]
    command = shlex.split(" ".join(reproduce.split()))
    assert command[:2] == ["farm", "submit"]
    assert "--candidate 2.13.0 --baseline 2.12.1" in reproduce

    again = start(*command[1:], "--json", home=tmp_path / "clean-home")
    with leaves_nothing(again):
        text, said = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 0, said
    judgement = json.loads(text)
    assert judgement["plan_digest"].startswith(digest)
    assert {row["workload"] for row in judgement["rows"]} == {"transformer_block"}


def test_a_release_against_itself_is_said_to_be_a_a_and_no_cell_fails(
    start: Start, write_matrix: Callable[..., Path]
) -> None:
    gates = "correctness latency throughput peak_memory determinism"
    process = submit(start, write_matrix(BLOCK, gates=gates), "--candidate", "2.12.1", "--baseline", "2.12.1", "--json")
    text, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    assert "A/A" in said
    judgement = json.loads(text)
    verdicts = [verdict for cell in judgement["cells"] for verdict in cell["verdicts"]]
    assert len(verdicts) >= 5
    assert Status.FAIL.value not in {verdict["status"] for verdict in verdicts}, verdicts
    assert {row["decision"] for row in judgement["rows"]} == {"defer"}
    assert all("A/A" in row["reason"] for row in judgement["rows"])


@pytest.mark.parametrize("phase", ["examine", "measure"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_its_evidence_and_leaves_no_process(
    start: Start, write_matrix: Callable[..., Path], shared_home: Path, phase: str, number: signal.Signals
) -> None:
    process = submit(start, write_matrix(BLOCK, gates="correctness latency", restart_s=5.0))
    said = wait_for_phase(process, phase)
    with leaves_nothing(process):
        process.send_signal(number)
        _, rest = process.communicate(timeout=60)
    assert process.returncode == 3, rest
    assert "Traceback" not in rest
    name = run_id(said)
    assert f"farm report {name}" in rest
    assert Store.open(Home(shared_home)).state(name) is RunState.INCOMPLETE
    report = start("report", name)
    text, problems = report.communicate(timeout=60)
    assert report.returncode == 0, problems
    assert "interrupted" in text


def test_a_killed_command_takes_its_farm_along_and_its_run_is_closed_later(
    start: Start, write_matrix: Callable[..., Path], shared_home: Path
) -> None:
    process = submit(start, write_matrix(BLOCK, gates="correctness latency", restart_s=5.0))
    name = run_id(wait_for_phase(process, "measure"))
    with leaves_nothing(process):
        process.kill()
        process.wait()
    status = start("status", "--json")
    text, _ = status.communicate(timeout=60)
    assert {run["run_id"]: run["state"] for run in json.loads(text)["runs"]}[name] == "incomplete"


@pytest.mark.parametrize("part", ["valkey-server", "farm.aggregator", "workers.agent"])
def test_a_part_that_dies_is_named_and_ends_the_rest(
    start: Start, write_matrix: Callable[..., Path], shared_home: Path, part: str
) -> None:
    process = submit(start, write_matrix(BLOCK, gates="correctness latency", restart_s=5.0))
    name = run_id(wait_for_phase(process, "measure"))
    leash = next(child for child in psutil.Process(process.pid).children() if any(part in a for a in child.cmdline()))
    with leaves_nothing(process):
        leash.children()[0].kill()
        _, rest = process.communicate(timeout=60)
    assert process.returncode == 4, rest
    named = {"valkey-server": "server", "farm.aggregator": "aggregator", "workers.agent": "worker"}[part]
    assert f"the {named} was killed by SIGKILL" in rest
    assert "Traceback" not in rest
    assert Store.open(Home(shared_home)).state(name) is RunState.INCOMPLETE


def test_parts_in_terminals_of_their_own_make_a_fleet(
    start: Start, write_matrix: Callable[..., Path], tmp_path: Path, shared_home: Path
) -> None:
    """A coordinator, a worker with another home, a submitter with a third: no disk is shared."""
    coordinator = start("up", home=tmp_path / "coordinator")
    assert coordinator.stdout is not None
    url = coordinator.stdout.readline().strip().removeprefix("export FARM_URL=")
    assert url.startswith("redis://")
    worker = start("worker", "--name", "blue", home=shared_home, FARM_URL=url)
    with leaves_nothing(worker), leaves_nothing(coordinator):
        process = submit(start, write_matrix(BLOCK), "--json", home=tmp_path / "submitter", FARM_URL=url)
        text, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said
        name = json.loads(text)["run_id"]
        watch = start("watch", name, home=tmp_path / "reader", FARM_URL=url)
        assert "complete" in watch.communicate(timeout=60)[0]
        report = start("report", name, "--json", home=tmp_path / "reader", FARM_URL=url)
        assert json.loads(report.communicate(timeout=60)[0]) == json.loads(text)
        status = start("status", "--json", home=tmp_path / "reader", FARM_URL=url)
        seen = json.loads(status.communicate(timeout=60)[0])
        assert [run["run_id"] for run in seen["runs"]] == [name]
        assert seen["workers"][0]["worker"].startswith("blue-")
        assert seen["queues"] == {"bench.cpu": 0}
        for process in (worker, coordinator):
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
    assert coordinator.returncode == 0
    assert worker.returncode == 0
