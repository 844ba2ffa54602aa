"""One release against itself on this machine, measured as cells are: how noisy the machine is.

The release's environment serves both arms, so that every difference between them is noise.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from farm.errors import EnvironmentFailed, Incomplete, UsageError
from farm.matrix import Matrix, load_matrix
from farm.model import Calibration, Cell, Environment, Measuring, Plan, Side
from farm.owners import owner_name, remove_orphans
from farm.plan import PlanRequest, make_plan
from farm.releases import resolve
from farm.settings import Home
from farm.statistics import Interval, counted, least_restarts, ratio_interval, restart_log_ratios
from workers.duet import Duet, Life, Pair, Standing, Timing
from workers.environments import build
from workers.examination import setup_fields
from workers.lease import machine_lease
from workers.probe import probe_host
from workers.runner_environment import padding, runner_environment
from workers.session import RunnerSession
from workers.stage import make_stage, workload_reference
from workers.surroundings import ThisMachine
from workers.validity import validity_of
from workers.watch import Watch

__all__ = ["LEAST_BUDGET_S", "Seen", "calibrate", "shaped"]

#: What is measured: a step of 7 ms on one thread, like most that are asked about.
WORKLOAD, CASE = "transformer_block", "infer-fp32"
#: What is allowed for the start and the warm-up of a restart (2 to 3 s on two shared cores).
START_S = 3.0
#: A restart with windows shorter than this is mostly start and says little of a cell's.
LEAST_RESTART_S = 2.0
#: Six restarts of that.
LEAST_BUDGET_S = 30.0
ARMS = (Side.BASELINE.value, Side.CANDIDATE.value)


@dataclasses.dataclass(frozen=True)
class Seen:
    """Where a calibration stands."""

    phase: str
    """"resolve", "environments", "waiting for the machine", "measure"."""
    restart: int = 0
    restarts: int = 0
    interval: Interval | None = None
    left_s: float | None = None


def calibrate(
    release: str, home: Home, matrix: Matrix, budget_s: float, progress: Callable[[Seen], None]
) -> Calibration:
    """Return what A/A of ``release`` gives on this machine in ``budget_s`` of measuring.

    ``progress`` is called as phases and restarts go by. Raises UsageError for a release that cannot be meant or a
    budget that cannot hold six restarts, EnvironmentFailed where it cannot be installed, Incomplete where the budget
    ended before there was an interval.
    """
    if budget_s < LEAST_BUDGET_S:
        raise UsageError(f"a budget of {budget_s:g} s holds no six restarts; give at least {LEAST_BUDGET_S:g}")
    progress(Seen("resolve"))
    plan = _plan(release)
    cell = next(cell for cell in plan.cells if (cell.workload, cell.case) == (WORKLOAD, CASE))
    environment = _environment(plan, cell)
    measuring = shaped(matrix.deciding, budget_s)
    # Unpacking gigabytes beside a measurement would be in its numbers.
    with machine_lease(lambda: progress(Seen("waiting for the machine")), lambda: False) as lease:
        progress(Seen("environments"))
        python = build(environment, home).python
        began = time.monotonic()
        timing = _measure(cell, measuring, python, environment.key, home, lease, progress)
        wall_s = time.monotonic() - began
    return _calibration(timing, measuring, environment, wall_s)


def shaped(measuring: Measuring, budget_s: float) -> Measuring:
    """Return ``measuring`` with one look after as many of its restarts as ``budget_s`` holds.

    Restarts become shorter before they become fewer, and six remain: fewer give no interval.
    """
    least, most = max(least_restarts(measuring.alpha), min(measuring.looks)), max(measuring.looks)
    restarts = max(least, min(most, int(budget_s / (START_S + LEAST_RESTART_S))))
    restart_s = max(LEAST_RESTART_S, min(measuring.restart_s, budget_s / restarts - START_S))
    return measuring.model_copy(update={"looks": (restarts,), "restart_s": restart_s, "budget_s": budget_s})


def _plan(release: str) -> Plan:
    host = probe_host()
    resolution = resolve(release, release, platform=host.platform, python=host.python, backend="cpu")
    request = PlanRequest(release, release, "smoke", ("cpu",))
    return make_plan(load_matrix(), request, [host], lambda backend, machine: resolution)


def _environment(plan: Plan, cell: Cell) -> Environment:
    for key in cell.arms[0].environments.values():
        return plan.environments[key]
    refused = plan.refused[0]
    raise EnvironmentFailed(f"this machine cannot be calibrated: {refused.reason}", refused.last_words)


def _measure(
    cell: Cell,
    measuring: Measuring,
    python: Path,
    key: str,
    home: Home,
    lease: int | None,
    progress: Callable[[Seen], None],
) -> Timing:
    home.scratch.mkdir(parents=True, exist_ok=True)
    remove_orphans(home.scratch)
    stage, workload = make_stage(home.stage, None), workload_reference(cell.workload, None)
    with tempfile.TemporaryDirectory(prefix=f"{owner_name('calibration')}-", dir=home.scratch) as scratch:

        def start(life: Life) -> RunnerSession:
            environment = runner_environment(
                cell.control.environment_variables,
                home.caches / key / f"calibration-{life.arm}",
                settled_allocator=True,
                padding=padding(cell.control.seed, life.restart, life.arm),
            )
            log = Path(scratch) / f"{life.arm}-restart-{life.restart + 1}.log"
            return RunnerSession(python, stage, environment, log, lease_fd=lease, cores=life.cores)

        def told(standing: Standing) -> None:
            progress(Seen("measure", standing.done, standing.wanted, standing.interval, standing.left_s))

        progress(Seen("measure", 0, max(measuring.looks), left_s=measuring.budget_s))
        return Duet(
            ARMS,
            [Pair(ARMS[1], ARMS[0], ())],
            measuring,
            start,
            {arm: setup_fields(cell, cell.arms[0], workload) for arm in ARMS},
            seed=cell.control.seed,
            progress=told,
            cancelled=lambda: False,
            surroundings=ThisMachine(cell.backend, measuring.threads, Watch()),
        ).run()


def _calibration(timing: Timing, measuring: Measuring, environment: Environment, wall_s: float) -> Calibration:
    for arm, ended in timing.ended.items():
        raise Incomplete(f"{arm} {ended.outcome}: {ended.reason}; see that 'farm submit --candidate' runs here at all")
    restarts = counted(timing.restarts)
    logs = restart_log_ratios(restarts, ARMS[1], ARMS[0], "p50")
    interval = ratio_interval(restarts, ARMS[1], ARMS[0], "p50", measuring.alpha)
    disturbed = Counter(restart.invalid for restart in timing.restarts if restart.invalid)
    if disturbed and (interval is None or not interval.bounded):
        reason, number = disturbed.most_common(1)[0]
        raise Incomplete(
            f"this machine was disturbed in {sum(disturbed.values())} of {len(timing.restarts)} restarts "
            f"({number} times: {reason}); see farm doctor, and calibrate again"
        )
    against = validity_of((), Watch(), timing.restarts)
    if against.reasons or against.arms:
        said = "; ".join([*against.reasons, *(why for reasons in against.arms.values() for why in reasons)])
        raise Incomplete(f"this machine's noise cannot be told: {said}; see farm doctor, and calibrate again")
    if interval is None or not interval.bounded:
        needed = least_restarts(measuring.alpha)
        raise Incomplete(
            f"{len(logs)} restarts fitted into {measuring.budget_s:g} s, and an interval needs {needed}; "
            f"give more: farm calibrate --budget {min(3600, 2 * measuring.budget_s):g}"
        )
    return Calibration(
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
        release=environment.release.identity,
        workload=f"{WORKLOAD}/{CASE}",
        restarts=len(logs),
        restart_s=wall_s / len(timing.restarts),
        window_s=timing.measured_ns / 1e9 / len(timing.restarts),
        sd=statistics.stdev(logs),
        ratio=interval.value,
        low=interval.low,
        high=interval.high,
    )
