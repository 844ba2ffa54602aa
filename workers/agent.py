"""`python -m workers.agent`: this machine as a worker of the farm that FARM_URL names."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import signal
import sys
import threading
import warnings
from importlib.metadata import version

import psutil
from celery import signals
from celery.exceptions import CPendingDeprecationWarning, SecurityWarning

from farm.settings import Home
from workers.app import CellRunner, Desk, make_app, say
from workers.probe import probe_host

__all__ = ["main"]


def main(url: str, home: Home, name: str | None = None, run_cell: CellRunner | None = None) -> int:
    """Take cells until SIGTERM or Ctrl-C; return 0. ``run_cell`` is what measures, by default `workers.cell`."""
    if run_cell is None:
        from workers.cell import run_cell as measure

        run_cell = measure
    host = probe_host()
    # Two workers on one machine are two workers; the machine's lease keeps them from measuring at once.
    label = re.sub(r"[^A-Za-z0-9-]", "-", name or host.name)
    desk = Desk(url, home, f"{label}-{secrets.token_hex(3)}", host, run_cell, version("pytorch-farm"))
    beating = threading.Thread(target=desk.beat, name="presence", daemon=True)
    beating.start()

    def stop(*_: object) -> None:
        desk.leave()
        # Runners end with their pipes and their parent; an installer would go on writing where the next worker builds.
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        # The order was given back, so nothing is left to wait for.
        os._exit(0)

    _quiet()
    worker = make_app(url, desk).Worker(
        # A thread, not a process: the benchmark is a process of its own, and presence must know the cell.
        pool="threads",
        concurrency=1,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        loglevel="WARNING",
        hostname=desk.name,
        quiet=True,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    say(f"worker {desk.name} takes cells of {', '.join(desk.queues)}; Ctrl-C gives back what is in work and ends")

    # Celery installs handlers of its own when it starts; ours come back once it is ready.
    @signals.worker_ready.connect(weak=False)
    def _ready(**_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)

    worker.start()
    desk.leave()
    return int(worker.exitcode or 0)


def _quiet() -> None:
    """Keep Celery's own words off the terminal: what matters of them is said by the desk, once and in one line."""

    @signals.setup_logging.connect(weak=False)
    def _configured(**_: object) -> None:
        for name in ("celery", "kombu"):
            logging.getLogger(name).setLevel(logging.CRITICAL)

    warnings.filterwarnings("ignore", category=SecurityWarning)
    warnings.filterwarnings("ignore", category=CPendingDeprecationWarning)


if __name__ == "__main__":
    sys.exit(main(os.environ["FARM_URL"], Home.default().prepare()))
