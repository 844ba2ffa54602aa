"""A farm of real processes over a real server, with cells that are slept through."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from farm.broker.client import FarmClient
from farm.broker.server import prepare_server, wait_for_server
from farm.model import Evidence, RunState
from farm.settings import Home
from farm.store import Store
from tests import evidence as made

ROOT = Path(__file__).parent.parent.parent
#: Longer than any of these takes on a busy machine.
PATIENCE_S = 60.0


def until(true: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Return the first true value of ``true()``."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        found = true()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited in vain for {what}")


@dataclass
class Fleet:
    """Parts by name; each can be killed and started again."""

    root: Path
    parts: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    url: str = ""
    port: int | None = None

    def __post_init__(self) -> None:
        self.log, self.seconds = self.root / "cells.log", self.root / "seconds"
        self.log.touch()
        self.seconds.write_text("0.3")
        self.start_server()
        self.start_aggregator()

    @property
    def home(self) -> Home:
        return Home(self.root / "home")

    @property
    def client(self) -> FarmClient:
        return FarmClient(self.url)

    @property
    def server(self) -> Any:
        return redis.Redis.from_url(self.url)

    def start_server(self) -> None:
        command, self.url = prepare_server(self.home.server / "coordinator", self.port)
        self.port = int(self.url.rpartition(":")[2].partition("/")[0])
        self._start("server", command)
        wait_for_server(self.url, 20.0, None)

    def start_aggregator(self, name: str = "aggregator") -> None:
        self._start(name, [sys.executable, "-m", "tests.chaos.hasty", "aggregator"])

    def start_worker(self, name: str = "blue", capability: str = "cpu") -> None:
        arguments = [str(self.log), str(self.seconds), name, capability]
        self._start(name, [sys.executable, "-m", "tests.chaos.hasty", "worker", *arguments], home=self.root / name)

    def _start(self, name: str, command: list[str], home: Path | None = None) -> None:
        environment = os.environ | {
            "FARM_URL": self.url,
            "FARM_HOME": str(home or self.home.root),
            "PYTHONPATH": str(ROOT),
        }
        with (self.root / f"{name}.log").open("ab") as output:
            self.parts[name] = subprocess.Popen(command, env=environment, stdout=output, stderr=output, cwd=ROOT)

    def kill(self, name: str) -> None:
        part = self.parts.pop(name)
        part.kill()
        part.wait()

    def stop(self, name: str) -> int:
        part = self.parts.pop(name)
        part.terminate()
        return part.wait(20)

    def said(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text()

    def close(self) -> None:
        for name in list(self.parts):
            self.kill(name)

    # -- runs -----------------------------------------------------------------------------------------------------

    def submit(self, count: int = 1, capability: str = "cpu") -> str:
        names = [f"case-{number}" for number in range(count)]
        cells = [
            made.cell(
                case=name, id=f"block/{name}@{capability}", capability=capability, backend=capability.split(".")[0]
            )
            for name in names
        ]
        return self.client.submit(made.plan(cells, [made.tier()]))

    def wait(self, run_id: str) -> RunState:
        """Return the state of a run that is over."""
        over = (RunState.COMPLETE, RunState.INCOMPLETE)
        until(lambda: self.client.state(run_id) in over, f"the end of {run_id}")
        state = self.client.state(run_id)
        assert state is not None
        return state

    def evidence(self, run_id: str) -> Evidence:
        store = Store.open(self.home)
        try:
            return store.evidence(run_id)
        finally:
            store.close()

    def lines(self, what: str = "start") -> list[dict[str, Any]]:
        """Return what the workers have written: each start, or each end, of a cell."""
        found = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in found if line["what"] == what]

    def wait_for_start(self, count: int = 1) -> dict[str, Any]:
        """Return the line of the ``count``-th start."""
        until(lambda: len(self.lines()) >= count, f"start number {count}")
        return self.lines()[count - 1]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    farm = Fleet(tmp_path)
    yield farm
    farm.close()
