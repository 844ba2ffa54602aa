"""`python -m tests.chaos.hasty aggregator` or `… worker LOG SECONDS NAME`: the real parts, with shorter patience.

The worker's cells are not measured but slept through: each start and end is a line of LOG, and SECONDS is read from
that file at each start, so that a test can change it. The candidate of a case "slow-on-NAME" is slow there alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import farm.aggregator
import workers.agent
import workers.app
from farm.model import CellOrder, CellResult, Host, Progress
from farm.settings import Home
from tests import evidence as made

#: Short enough for a test, in the product's order.
PATIENCE = {"GRACE_S": 2.0, "VANISHED_S": 2.0, "UNSERVED_S": 3.0, "MAX_ATTEMPTS": 3}
PRESENCE = {"PRESENCE_S": 0.3, "PRESENCE_LIFE_S": 1}


def sleep_through(log: Path, seconds: Path, here: Host) -> Callable[..., CellResult]:
    """Return what stands for measuring."""

    def write(what: str, order: CellOrder) -> None:
        line = {"what": what, "cell": order.cell.id, "attempt": order.attempt, "pid": os.getpid(), "at": time.time()}
        with log.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def run_cell(
        order: CellOrder,
        home: Home,
        report: Callable[[Progress], None],
        lease_fd: int | None,
        cancelled: Callable[[], bool],
        *,
        worker: str,
    ) -> CellResult:
        write("start", order)
        end = time.monotonic() + float(seconds.read_text())
        while time.monotonic() < end and not cancelled():
            time.sleep(0.02)
        write("end", order)
        times = {"candidate": 12.0} if order.cell.case == f"slow-on-{here.name}" else None
        result = made.result(order.cell, times=times)
        repeat = tuple(restart.model_copy(update={"purpose": "confirming"}) for restart in result.restarts)
        answered = {
            "run_id": order.run_id,
            "cell_id": order.cell.id,
            "attempt": order.attempt,
            "worker": worker,
            "host": here,
            "restarts": (*result.restarts, *repeat) if order.cell.measuring.confirming else result.restarts,
        }
        return result.model_copy(update=answered)

    return run_cell


def main(part: str, *arguments: str) -> int:
    """Run one part until it is told to stop."""
    for name, value in PATIENCE.items():
        setattr(farm.aggregator, name, value)
    for name, value in PRESENCE.items():
        setattr(workers.app, name, value)
    if part == "aggregator":
        return farm.aggregator.main()
    log, seconds, name, capability = arguments
    here = Host(
        name=name,
        platform="x86_64-unknown-linux-gnu",
        os="Linux",
        cpu="some cpu",
        cores=2,
        memory_bytes=2**33,
        capabilities=(capability,),
        python="3.11",
    )
    workers.agent.probe_host = lambda: here
    return workers.agent.main(
        os.environ["FARM_URL"], Home.default().prepare(), name, sleep_through(Path(log), Path(seconds), here)
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
