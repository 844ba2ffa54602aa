"""One cell, from its order to its result: environments, examination, compile and export, timing, rehearsal.

A worker never decides: what comes out are outcomes, numbers and reasons. Whatever happens to an arm is that arm's
outcome; what happens to the cell as a whole is its validity.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from farm.errors import EnvironmentFailed
from farm.model import (
    Arm,
    ArmResult,
    Cell,
    CellOrder,
    CellResult,
    Environment,
    Gate,
    Outcome,
    Progress,
    Rehearsal,
    Side,
    Validity,
)
from farm.owners import owner_name, remove_orphans
from farm.settings import Home
from farm.statistics import counted, least_restarts, ratio_interval
from workers.duet import Duet, Life, Pair, Standing, Timing
from workers.environments import BuiltEnvironment, build, differences
from workers.examination import Examiner, setup_fields
from workers.hygiene import host_checks
from workers.noise import NoiseHistory
from workers.probe import probe_host
from workers.programs import ProgramExaminer
from workers.rehearsal import rehearse
from workers.runner_environment import padding, runner_environment
from workers.session import RunnerSession
from workers.stage import make_stage, workload_reference
from workers.state import StateKeeper
from workers.surroundings import ThisMachine
from workers.validity import validity_of
from workers.watch import Watch

__all__ = ["run_cell"]

#: Importing torch takes 2.3 s here; from a cold disk it took 20 s.
START_TIMEOUT_S = 120.0
#: Gates that need restarts: their times, or whether they repeat.
TIMED = {Gate.LATENCY, Gate.THROUGHPUT, Gate.DETERMINISM}
#: How the stretches of the timed part are called in a progress display.
PHASES = {"judging": "measure", "confirming": "confirm", "as it comes": "as it comes"}


def run_cell(
    order: CellOrder,
    home: Home,
    report: Callable[[Progress], None],
    lease_fd: int | None,
    cancelled: Callable[[], bool],
    *,
    worker: str,
) -> CellResult:
    """Return the answer to ``order``: every arm measured on this machine, in one go.

    ``report`` is called with the phase as it changes; ``lease_fd`` is inherited by every runner; ``cancelled`` is
    asked between windows.
    """
    home.scratch.mkdir(parents=True, exist_ok=True)
    # A worker that was stopped or killed in a cell leaves its scratch, which may hold a whole environment.
    remove_orphans(home.scratch)
    with tempfile.TemporaryDirectory(prefix=f"{owner_name('cell')}-", dir=home.scratch) as scratch:
        return _CellRun(order, home, report, lease_fd, cancelled, worker, Path(scratch)).run()


class _CellRun:
    def __init__(
        self,
        order: CellOrder,
        home: Home,
        report: Callable[[Progress], None],
        lease_fd: int | None,
        cancelled: Callable[[], bool],
        worker: str,
        scratch: Path,
    ) -> None:
        self.order, self.cell = order, order.cell
        self.home, self.scratch = home, scratch
        self.lease_fd = lease_fd
        self.cancelled = cancelled
        self.worker = worker
        self.host = probe_host()
        self._report = report
        self._began = time.monotonic()
        self.phases_ns: dict[str, int] = {}
        self.built: dict[str, BuiltEnvironment] = {}
        self._watch = Watch()
        self._checks = host_checks(self.cell.measuring.threads, self.cell.backend)
        self.arms: dict[str, ArmResult] = {}
        self.stage = make_stage(home.stage, order.source)
        self.workload = workload_reference(self.cell.workload, order.source)

    # -- the way through ----------------------------------------------------------------------------------------

    def run(self) -> CellResult:
        started = datetime.now(UTC).isoformat(timespec="seconds")
        with self._phase("environments"):
            self._build()
        # What happens to the machine while wheels are unpacked is in no figure.
        self._watch = Watch()
        timing = Timing()
        rehearsal = None
        if self.cell.kind == "rehearsal":
            with self._phase("rehearse"):
                rehearsal = self._rehearse()
        else:
            timing = self._measure()
        moved, strangers = self._differences()
        validity = self._validity(timing, strangers)
        return CellResult(
            run_id=self.order.run_id,
            cell_id=self.cell.id,
            attempt=self.order.attempt,
            worker=self.worker,
            host=self.host,
            started=started,
            validity=validity,
            arms=self.arms,
            restarts=tuple(timing.restarts),
            rehearsal=rehearsal,
            moved_packages=moved,
            wall_ns=round((time.monotonic() - self._began) * 1e9),
            measured_ns=timing.measured_ns,
            phases_ns=self.phases_ns,
            stopped_because=timing.stopped_because,
            checks=self._checks,
            noise=self._noise(timing, validity),
        )

    def _build(self) -> None:
        """Build the environment of every arm, side by side; an arm without one ends here and the others go on."""
        wanted: dict[str, Environment] = {}
        for arm in self.cell.arms:
            environment = self._environment(arm)
            if environment is None:
                self.arms[arm.name] = self._refused(arm)
            else:
                wanted[environment.key] = environment
        failures: dict[str, EnvironmentFailed] = {}

        def build_one(environment: Environment) -> None:
            try:
                sides = [arm.side for arm in self.cell.arms if self._environment(arm) == environment]
                planned = self.cell.kind not in ("isolation", "bisection")
                self.built[environment.key] = build(environment, self.home, sides if planned else None)
            except EnvironmentFailed as error:
                failures[environment.key] = error

        with ThreadPoolExecutor(max_workers=2) as pool:
            list(pool.map(build_one, wanted.values()))
        for arm in self.cell.arms:
            failure = failures.get(arm.environments.get(self.host.target, ""))
            if failure is not None:
                self.arms[arm.name] = ArmResult(
                    outcome=Outcome.NO_ENVIRONMENT, reason=str(failure), log_tail=failure.last_words
                )

    def _measure(self) -> Timing:
        if self.cell.kind == "aa":
            # One release with itself: what it computes is examined in the cell that it stands for.
            self.arms |= {arm.name: ArmResult(outcome=Outcome.OK) for arm in self._living()}
            with self._phase("measure"):
                return self._time()
        examiner = Examiner(
            cell=self.cell,
            scratch=self.scratch,
            workload=self.workload,
            start=self._start_untimed,
            start_timeout_s=START_TIMEOUT_S,
            keep_traces=self.home.traces,
        )
        with self._phase("examine"):
            self.arms |= examiner.examine(self._living())
        if Gate.COMPILE_EXPORT in self.cell.gates:
            with self._phase("compile"):
                programs = ProgramExaminer(self.cell, self.scratch, self.workload, self._start_untimed, START_TIMEOUT_S)
                for name, found in programs.compile_and_export(self._living()).items():
                    self.arms[name] = self.arms[name].model_copy(update={"compile_export": found})
        if not TIMED & set(self.cell.gates):
            return Timing(stopped_because="no gate asks for restarts")
        with self._phase("measure"):
            return self._time()

    def _time(self) -> Timing:
        living = self._living()
        pairs = [
            pair for pair in pairs_of(self.cell) if {pair.challenger, pair.reference} <= {arm.name for arm in living}
        ]
        if not pairs:
            return Timing(stopped_because="no pair of arms to compare")
        self._tell(restarts=max(self.cell.measuring.looks))
        duet = Duet(
            [arm.name for arm in living],
            pairs,
            self.cell.measuring,
            self._start_timed,
            {arm.name: setup_fields(self.cell, arm, self.workload) for arm in living},
            seed=self.cell.control.seed + self.order.attempt,
            progress=self._progress,
            cancelled=self.cancelled,
            surroundings=ThisMachine(self.cell.backend, self.cell.measuring.threads, self._watch),
            has_programs=self._has_programs,
        )
        timing = duet.run(as_it_comes=self._allocates_otherwise())
        for name, ended in timing.ended.items():
            self.arms[name] = self.arms[name].model_copy(
                update={
                    "outcome": ended.outcome,
                    "reason": ended.reason,
                    "log_tail": ended.log_tail,
                    "ended_while_timed": True,
                }
            )
        return timing

    def _noise(self, timing: Timing, validity: Validity) -> tuple[float, ...]:
        """Return earlier A/A ratios of this case on this machine; one that was just measured is for the next cell."""
        environment = self._environment(self.cell.arms[0])
        if environment is None or self.cell.kind == "rehearsal":
            return ()
        history = NoiseHistory(self.home)
        known = history.of(self.cell, environment.release.variant)
        candidate = self._environment(self.cell.arms[1])
        same_work = self.cell.arms[0].path == self.cell.arms[1].path
        told = validity.valid and not validity.arms and not self.cancelled()
        if told and candidate is not None and candidate.key == environment.key and same_work:
            restarts, alpha = counted(timing.restarts), self.cell.measuring.alpha
            found = ratio_interval(restarts, Side.CANDIDATE, Side.BASELINE, "p50", alpha)
            if found is not None and found.bounded:
                history.add(self.cell, environment.release.variant, found.value)
        return known

    def _allocates_otherwise(self) -> bool:
        """Return whether the releases' steps allocate differently: the settled allocator hides what that costs."""
        seen = set()
        for name in (Side.BASELINE.value, Side.CANDIDATE.value):
            ended = self.arms.get(name)
            memory = ended.examination.memory if ended and ended.examination else None
            seen.add((memory.allocations, memory.allocated_bytes) if memory else None)
        return len(seen) > 1

    def _rehearse(self) -> Rehearsal:
        environments = {arm.side: self._environment(arm) for arm in self.cell.arms}
        baseline, candidate = environments.get(Side.BASELINE), environments.get(Side.CANDIDATE)
        if self.arms or baseline is None or candidate is None:
            reasons = "; ".join(f"{name}: {arm.reason}" for name, arm in self.arms.items())
            return Rehearsal(outcome=Outcome.NO_ENVIRONMENT, reason=reasons or "an arm has no environment here")
        folder = self.scratch / "state"
        environment = runner_environment(
            self.cell.control.environment_variables, folder / "caches", settled_allocator=False
        )
        keeper = StateKeeper(self.cell.state, self.stage, folder, environment) if self.cell.state else None
        rehearsal = rehearse(baseline, candidate, self.home, self._control, keeper)
        for arm in self.cell.arms:
            self.arms[arm.name] = ArmResult(outcome=Outcome.OK)
        return rehearsal

    def _control(self, python: Path) -> dict[str, str]:
        """Return the digests of the control workload's outputs under ``python``."""
        arm = self.cell.arms[0]
        folder = Path(tempfile.mkdtemp(prefix="control-", dir=self.scratch))
        with self._runner(python, f"control-{folder.name}", folder, settled_allocator=True) as session:
            facts = session.hello(START_TIMEOUT_S)
            session.request("setup", self.cell.measuring.step_timeout_s, **setup_fields(self.cell, arm, self.workload))
            examined = session.request(
                "examine",
                self.cell.measuring.step_timeout_s,
                directory=str(folder),
                oracle=False,
                repeats=1,
                threads=self.cell.measuring.threads,
                memory=False,
            )
        # What torch says of itself, too: another build may well compute the same.
        said = {f"torch's own {name}": str(facts.get(name)) for name in ("torch", "cuda", "hip", "git")}
        return said | {name: entry["sha256"] for name, entry in examined["outputs"].items()}

    # -- runners ------------------------------------------------------------------------------------------------

    def _start_timed(self, life: Life) -> RunnerSession:
        return self._runner(
            self._python(life.arm),
            f"{life.arm}-restart-{life.restart + 1}",
            self._caches(life.arm),
            settled_allocator=life.purpose != "as it comes",
            pad=padding(self.cell.control.seed, life.restart, life.arm),
            cores=life.cores,
        )

    def _has_programs(self, arm: str) -> bool:
        """Return whether the arm's cache folder holds compiled programs."""
        return any((self._caches(arm) / "inductor").rglob("*.py"))

    def _start_untimed(self, arm: str, purpose: str, caches: Path | None) -> RunnerSession:
        self._tell(arm=arm)
        return self._runner(self._python(arm), f"{arm}-{purpose}", caches or self._caches(arm), settled_allocator=False)

    def _runner(
        self,
        python: Path,
        name: str,
        caches: Path,
        *,
        settled_allocator: bool,
        pad: str = "",
        cores: tuple[int, ...] = (),
    ) -> RunnerSession:
        environment = runner_environment(
            self.cell.control.environment_variables, caches, settled_allocator=settled_allocator, padding=pad
        )
        log = self.scratch / f"{name}.log"
        return RunnerSession(python, self.stage, environment, log, lease_fd=self.lease_fd, cores=cores)

    def _caches(self, arm: str) -> Path:
        """One folder for compiled code an arm's lock and cell, so that it is never stale (CASES.md V10).

        It outlives the run: the examination fills it, so that every timed runner finds it warm.
        """
        content = self.cell.model_dump_json(include={"parameters", "control", "workload"})
        # Kernels that were compiled for another number of threads write past their buffers (see runner/examine.py).
        named = f"{content} {self.cell.measuring.threads} {arm}"
        digest = hashlib.sha256(named.encode()).hexdigest()[:16]
        return self.home.caches / self._key(arm) / digest

    def _python(self, arm: str) -> Path:
        return self.built[self._key(arm)].python

    def _key(self, arm: str) -> str:
        return next(a for a in self.cell.arms if a.name == arm).environments[self.host.target]

    # -- small facts --------------------------------------------------------------------------------------------

    def _living(self) -> list[Arm]:
        return [a for a in self.cell.arms if a.name not in self.arms or self.arms[a.name].outcome is Outcome.OK]

    def _environment(self, arm: Arm) -> Environment | None:
        return self.order.environments.get(arm.environments.get(self.host.target, ""))

    def _refused(self, arm: Arm) -> ArmResult:
        for refused in self.order.refused:
            if refused.side is arm.side and refused.platform == self.host.target:
                return ArmResult(outcome=Outcome.NO_ENVIRONMENT, reason=refused.reason, log_tail=refused.last_words)
        return ArmResult(
            outcome=Outcome.NO_ENVIRONMENT,
            reason=f"the plan resolved nothing for '{self.host.target}'; submit again while this worker is up",
        )

    def _differences(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return what moved with torch, and what moved and should not have, from what is installed."""
        keys = list(dict.fromkeys(key for arm in self.cell.arms if (key := arm.environments.get(self.host.target))))
        if len(keys) < 2 or not set(keys) <= self.built.keys():
            return (), ()
        return differences(self.built[keys[0]], self.built[keys[1]])

    def _validity(self, timing: Timing, strangers: tuple[str, ...]) -> Validity:
        # An isolation asks what a package does that should not differ: it is the question, not a broken control.
        strangers = () if self.cell.kind == "isolation" else strangers
        reasons = [f"control broken: {stranger} differs between the arms" for stranger in strangers]
        # What was disturbed was repeated; fewer than an interval needs, and the disturbance is what there is to say.
        wanted = min(least_restarts(self.cell.measuring.alpha), max(self.cell.measuring.looks))
        if timing.ended:
            wanted = 0  # what ended an arm is why there are no more
        return validity_of(reasons, self._watch, timing.restarts, wanted)

    @contextmanager
    def _phase(self, name: str) -> Any:
        began = time.monotonic_ns()
        self._phase_name = name
        self._tell()
        try:
            yield
        finally:
            self.phases_ns[name] = time.monotonic_ns() - began

    def _progress(self, standing: Standing) -> None:
        interval = standing.interval
        self._phase_name = PHASES[standing.purpose]
        self._tell(
            restart=standing.done,
            restarts=standing.wanted,
            ratio=interval.value if interval else None,
            interval=(interval.low, interval.high) if interval and interval.bounded else None,
            limit=standing.limit,
            remaining_s=standing.left_s,
        )

    def _tell(self, **seen: Any) -> None:
        self._report(
            Progress(
                run_id=self.order.run_id,
                cell_id=self.cell.id,
                attempt=self.order.attempt,
                worker=self.worker,
                phase=self._phase_name,
                elapsed_s=time.monotonic() - self._began,
                **seen,
            )
        )


def pairs_of(cell: Cell) -> list[Pair]:
    """Return who is compared with whom: the candidate with the baseline, each new path with the old one.

    The arms of an isolation, which hold a package, are compared as the candidate is.
    """
    measuring = cell.measuring
    pairs = []
    names = {arm.name for arm in cell.arms}
    for arm in cell.arms:
        if "+" not in arm.name and arm.name != Side.BASELINE and Side.BASELINE in names:
            means = tuple(1.0 / limit for limit in measuring.throughput_limits)
            pairs.append(Pair(arm.name, Side.BASELINE, measuring.p50_limits, measuring.p95_limits, means))
        elif "+" in arm.name:
            pairs.append(Pair(arm.name, arm.side.value, measuring.feature_limits, accuses=False))
    return pairs
