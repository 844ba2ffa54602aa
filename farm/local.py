"""A whole farm on this machine, as real processes that end with the command that started them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from farm.broker.server import prepare_server, wait_for_server
from farm.errors import InfrastructureFailed
from farm.owners import is_gone, owner_name, remove_orphans
from farm.settings import Home
from farm.store import Store

__all__ = ["LocalFarm", "end_orphaned_runs"]

LOG_LINES = 8
START_S = 20.0
END_S = 8.0
#: Owner of the runs of `farm up`: they wait for the next one.
COORDINATOR = "coordinator"


@dataclass
class _Part:
    name: str
    process: subprocess.Popen[bytes]
    leash: int
    log: Path


class LocalFarm:
    """Server, aggregator and, with ``worker``, one worker; a context manager.

    With a ``port`` the server's data stay in the home, so that a coordinator can be started again; without one they
    are this process's own and go with it.
    """

    def __init__(self, home: Home, *, worker: bool = True, port: int | None = None) -> None:
        self._home, self._worker, self._port = home, worker, port
        self._parts: list[_Part] = []
        self._kept = not worker
        self._owner = COORDINATOR if self._kept else owner_name("embedded")
        self._folder = home.server / self._owner
        self.url = ""

    def __enter__(self) -> LocalFarm:
        remove_orphans(self._home.server)
        end_orphaned_runs(self._home)
        try:
            command, self.url = prepare_server(self._folder, self._port)
            self._start("server", command)
            wait_for_server(self.url, START_S, self.check)
            self._start("aggregator", [sys.executable, "-m", "farm.aggregator"])
            if self._worker:
                self._start("worker", [sys.executable, "-m", "workers.agent"])
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self, patience_s: float = 0.0) -> None:
        """Raise InfrastructureFailed where a part has ended, or ends within ``patience_s``, with its log's end."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline and all(part.process.poll() is None for part in self._parts):
            time.sleep(0.05)
        for part in self._parts:
            if part.process.poll() is not None:
                # Who is killed outright says nothing of it.
                killed = part.process.returncode == 128 + signal.SIGKILL
                lines = part.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
                words = "" if killed else "\n".join(lines)
                raise InfrastructureFailed(f"the {part.name} {_ending(part.process.returncode)}\n{words}".rstrip())

    def close(self) -> None:
        """End every part, the last one first, and wait for it."""
        for part in reversed(self._parts):
            os.close(part.leash)
        for part in reversed(self._parts):
            try:
                part.process.wait(END_S)
            except subprocess.TimeoutExpired:
                part.process.kill()
                part.process.wait()
        self._parts.clear()
        if not self._kept:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._end_runs()

    def _end_runs(self) -> None:
        """Say in the store that what is still open ended with this farm; nobody else would ever close it."""
        if self._home.database.is_file():
            store = Store.open(self._home)
            store.end_runs(lambda owner: owner == self._owner, "the farm that measured it ended")
            store.close()

    def _start(self, name: str, command: list[str]) -> None:
        self._home.logs.mkdir(parents=True, exist_ok=True)
        log = self._home.logs / f"{name}-{os.getpid()}.log"
        read, write = os.pipe()
        os.set_inheritable(read, True)
        environment = os.environ | {"FARM_URL": self.url, "FARM_HOME": str(self._home.root), "FARM_OWNER": self._owner}
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", "farm.leash", str(read), "--", *command],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=[read],
                    start_new_session=True,
                )
        finally:
            os.close(read)
        self._parts.append(_Part(name, process, write, log))


def end_orphaned_runs(home: Home) -> None:
    """Close the runs of embedded farms whose process was killed; what was measured of them stays."""
    if home.database.is_file():
        store = Store.open(home)
        store.end_runs(is_gone, "the command that measured it was killed")
        store.close()


def _ending(status: int) -> str:
    if status > 128:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(status - 128).name}; what was measured is kept: farm status"
    return f"ended with status {status}; what was measured is kept: farm status"
