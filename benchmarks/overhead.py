"""How much of a cell's wall time is spent inside measured windows, and where the rest of a restart goes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.measured import folder_of, order_of, plan_of
from farm.model import Cell, Gate, Plan, Restart
from farm.settings import Home
from workers.cell import run_cell
from workers.duet import Duet, Life, Pair
from workers.environments import build
from workers.examination import reference_of, setup_fields
from workers.probe import probe_host
from workers.runner_environment import runner_environment
from workers.session import RunnerSession
from workers.stage import make_stage, workload_reference

#: Restarts, and seconds inside windows of each as in the standard suite.
RESTARTS, RESTART_S = 2, 8.0


def run(quick: bool) -> dict[str, Any]:
    """Return the phases of one cell: the transformer block at its smoke and, unless ``quick``, its standard length."""
    plan, home = plan_of("2.13.0", "2.12.1")
    first = next(cell for cell in plan.cells if cell.workload == "transformer_block" and cell.kind == "measure")
    gates = tuple(gate for gate in first.gates if gate is not Gate.COMPILE_EXPORT)
    rows = []
    shares = []
    for suite, restart_s in (("smoke", 0.8), ("standard", 8.0))[: 1 if quick else 2]:
        measuring = first.measuring.model_copy(update={"restart_s": restart_s, "budget_s": 240.0})
        cell = first.model_copy(update={"gates": gates, "measuring": measuring})
        result = run_cell(order_of(plan, cell), home, lambda _: None, None, lambda: False, worker="benchmark")
        shares.append(result.measured_ns / result.wall_ns)
        rows.append(
            [
                f"{suite}, {restart_s} s a restart",
                len(result.restarts),
                result.wall_ns / 1e9,
                result.phases_ns.get("examine", 0) / 1e9,
                result.phases_ns.get("measure", 0) / 1e9,
                result.measured_ns / 1e9,
                shares[-1],
            ]
        )
    return {
        "claim": "a longer restart is mostly measuring; a smoke cell is mostly starting",
        "headers": ["cell", "restarts", "wall, s", "examine, s", "measure, s", "in windows, s", "share"],
        "rows": rows,
        "ratio": shares[-1] / shares[0],
    }


# -- one restart, taken apart --------------------------------------------------------------------------------------


@dataclass
class _Asked:
    """One request to a runner: when it was under way, and the processor time that the driver took meanwhile."""

    op: str
    begin: float
    end: float
    driver_s: float


@dataclass
class _Log:
    started: float = 0.0
    asked: list[_Asked] = field(default_factory=list)


class _Watched(RunnerSession):
    """A session that keeps what was asked of it."""

    log_of: _Log

    def hello(self, timeout_s: float) -> dict[str, Any]:
        return self._timed("hello", lambda: super(_Watched, self).hello(timeout_s))

    def request(self, op: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        return self._timed(op, lambda: super(_Watched, self).request(op, timeout_s, **fields))

    def _timed(self, op: str, ask: Any) -> dict[str, Any]:
        driver, begin = time.process_time(), time.monotonic()
        reply: dict[str, Any] = ask()
        self.log_of.asked.append(_Asked(op, begin, time.monotonic(), time.process_time() - driver))
        return reply


def run_windows(quick: bool) -> dict[str, Any]:
    """Return where the time of a restart goes, of every cell of the smoke suite on the CPU."""
    plan, home = plan_of("2.13.0", "2.12.1")
    rows = []
    for cell in (cell for cell in plan.cells if cell.kind == "measure"):
        restarts, logs = _measured(plan, home, cell, 1.0 if quick else RESTART_S)
        rows += _row(cell, restarts, logs)
    return {
        "claim": "after the warm-up a restart is windows, and the driver sleeps through them",
        "headers": [
            "cell",
            "start, s",
            "set-up, s",
            "first step or compile, s",
            "warm-up, s",
            "after it, s",
            "in windows, %",
            "driver, % of a core",
        ],
        "rows": rows,
        "ratio": min(row[6] for row in rows) / 100,
    }


def _measured(
    plan: Plan, home: Home, cell: Cell, restart_s: float
) -> tuple[list[Restart], dict[tuple[int, str], _Log]]:
    """Return the restarts of ``cell`` by the farm's own engine, and what it asked of every runner."""
    folder = folder_of(home, "overhead")
    stage = make_stage(home.stage, None)
    target = probe_host().target
    pythons = {arm.name: build(plan.environments[arm.environments[target]], home).python for arm in cell.arms}
    fields = {arm.name: setup_fields(cell, arm, workload_reference(cell.workload, None)) for arm in cell.arms}
    environment = runner_environment(cell.control.environment_variables, folder, settled_allocator=True)
    logs: dict[tuple[int, str], _Log] = {}

    def start(life: Life) -> RunnerSession:
        logs[life.restart, life.arm] = _Log(time.monotonic())
        session = _Watched(pythons[life.arm], stage, environment, folder / f"{life.arm}.log")
        session.log_of = logs[life.restart, life.arm]
        return session

    references = {arm.name: reference_of(arm) for arm in cell.arms}
    duet = Duet(
        list(references),
        [Pair(name, reference, ()) for name, reference in references.items() if reference is not None],
        cell.measuring.model_copy(update={"looks": (RESTARTS,), "restart_s": restart_s, "budget_s": 600.0}),
        start,
        fields,
        seed=0,
        progress=lambda _: None,
        cancelled=lambda: False,
    )
    return duet.run().restarts, logs


def _row(cell: Cell, restarts: list[Restart], logs: Mapping[tuple[int, str], _Log]) -> list[list[Any]]:
    """Return the row of one cell, means over its restarts; none where no restart was measured."""
    parts = [_parts(restart, {arm: logs[restart.index, arm] for arm in restart.arms}) for restart in restarts]
    if not parts:
        return []
    means = [sum(values) / len(parts) for values in zip(*parts, strict=True)]
    return [[cell.id, *means]]


def _parts(restart: Restart, logs: Mapping[str, _Log]) -> list[float]:
    """Return seconds of start, set-up, first step, warm-up and after it; and percentages in windows and of a core."""
    asked = [request for log in logs.values() for request in log.asked]
    started = min(log.started for log in logs.values())
    said_hello = max(request.end for request in asked if request.op == "hello")
    windows = {arm: [request for request in log.asked if request.op == "window"] for arm, log in logs.items()}
    # A runner's last windows are those that were kept; those before them were its warm-up.
    kept = [request for arm, found in windows.items() for request in found[-len(restart.arms[arm].windows) :]]
    warm = min(request.begin for request in kept)
    done = max(request.end for request in kept)
    first_warming = min(request.begin for found in windows.values() for request in found)
    inside = sum(window.wall_ns for timing in restart.arms.values() for window in timing.windows) / 1e9
    return [
        said_hello - started,
        sum(timing.setup_ns for timing in restart.arms.values()) / 1e9,
        sum(timing.first_step_ns for timing in restart.arms.values()) / 1e9,
        warm - first_warming,
        done - warm,
        100 * inside / (done - warm),
        100 * sum(request.driver_s for request in kept) / sum(request.end - request.begin for request in kept),
    ]
