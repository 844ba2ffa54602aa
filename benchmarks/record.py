"""Record live noise: restarts of fresh runners with three arms alive at once, every window kept with its time.

Windows, blocks, warm-up and the settled allocator are those of the farm's own engine (`workers.duet`); a life is
short, so that there are many, and none is judged here.
"""

from __future__ import annotations

import math
import os
import platform
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.measured import RELEASE, WORKS, Bench
from benchmarks.neighbours import CONDITIONS, MEAN_S, neighbours
from benchmarks.recording import ARMS, SLOW, WARM_UP, Life, Recorded, Recording
from farm.statistics import STEADY_WINDOWS, is_steady
from workers.duet import START_TIMEOUT_S
from workers.lease import machine_lease
from workers.probe import probe_host
from workers.session import ArmEnded, RunnerSession
from workers.windows import DROP_FIRST_FROM, SLOW_STEP_NS, VERY_SLOW_STEP_NS

__all__ = ["SHARES", "Recorder", "calibrate", "record_command"]

#: Extra work of the slowed arm, one life after the other.
SHARES = (0.02, 0.03, 0.05)
#: As `Measuring.window_ms` and `Measuring.warmup_s`.
WINDOW_NS = 120_000_000
WARMUP_S = 3.0
STEP_TIMEOUT_S = 120.0
#: Seconds inside windows of one life, all arms together: seven blocks of 120 ms windows; of the slow step two blocks,
#: since one block of it is 4.5 s.
LIFE_S = {"transformer": 5.0, "memory": 5.0, "slow": 9.0}
#: Minutes of each recording of `--plan`: 70 together.
PLAN_MINUTES = {"transformer": 10.0, "memory": 9.0, "slow": 16.0}
#: The slow step takes at least this long, seconds.
SLOW_STEP_S = 0.75
#: Share at which the unit of extra work is measured: ten times what is asked for, so that its error is a tenth.
CALIBRATED_AT = 0.3
#: Fresh pairs of processes that are measured for it; it took 6 s each here.
CALIBRATIONS = 5
#: So many lives in a row may fail before recording ends.
FAILED_LIVES = 3

Start = Callable[[str, int], RunnerSession]


class Recorder:
    """Adds lives to one recording."""

    def __init__(self, bench: Bench, start: Start, parameters: Mapping[str, Any], recording: Recording) -> None:
        self.bench = bench
        self.parameters = dict(parameters)
        self.recording = recording
        self._start = start
        self._random = random.Random(f"{recording.facts['work']}/{recording.facts['condition']}")
        self._began = time.monotonic_ns()

    def live(self, number: int, seconds: float) -> None:
        """Record one life with ``seconds`` inside its windows. Raises `ArmEnded` for a life that did not finish."""
        life = Life(share=SHARES[number % len(SHARES)], start_ns=self._now())
        order = list(ARMS)
        self._random.shuffle(order)
        sessions: dict[str, RunnerSession] = {}
        try:
            starts = {}
            for arm in order:
                starts[arm] = self._now()
                sessions[arm] = self._start(arm, number)
            hellos = {
                arm: sessions[arm].hello(START_TIMEOUT_S) | {"hello_ns": self._now() - starts[arm]} for arm in order
            }
            life.ready_ns = self._now()
            for place, arm in enumerate(order):
                life.processes[arm] = self._set_up(sessions[arm], hellos[arm], arm, place, life.share)
            self._measure(life, order, sessions, seconds)
        finally:
            for session in sessions.values():
                session.close()
        life.end_ns = self._now()
        self.recording.lives.append(life)

    def _now(self) -> int:
        return time.monotonic_ns() - self._began

    def _set_up(
        self, session: RunnerSession, hello: Mapping[str, Any], arm: str, place: int, share: float
    ) -> dict[str, Any]:
        began = self._now()
        parameters = self.parameters | {"extra": share if arm == SLOW else 0.0}
        reply = session.request("setup", STEP_TIMEOUT_S, **self.bench.setup_fields(parameters))
        return {
            "order": place,
            "hello_ns": hello["hello_ns"],
            "import_ns": hello["import_ns"],
            "setup_wall_ns": self._now() - began,
            "setup_ns": reply["setup_ns"],
            "first_step_ns": reply["first_step_ns"],
        }

    def _measure(self, life: Life, order: Sequence[str], sessions: Mapping[str, RunnerSession], seconds: float) -> None:
        def window(arm: str, block: int, position: int, steps: int) -> Recorded:
            found = recorded_window(sessions[arm], arm, block, position, steps, self._now)
            life.windows.append(found)
            return found

        slowest = max(float(window(arm, WARM_UP, 0, 2).steps_ns[-1]) for arm in order)
        steps = steps_per_window(slowest)
        medians: dict[str, list[float]] = {arm: [] for arm in order}
        deadline = time.monotonic() + WARMUP_S * len(order)
        steady = dict.fromkeys(order, False)
        while not all(steady.values()) and (len(medians[order[0]]) < STEADY_WINDOWS or time.monotonic() < deadline):
            for arm in order:
                medians[arm].append(float(np.median(window(arm, WARM_UP, 1, steps).steps_ns)))
            steady = {arm: is_steady(medians[arm]) for arm in order}
        for arm in order:
            life.processes[arm]["steady"] = steady[arm]
        measured, block, arms = 0, 0, list(order)
        while measured < seconds * 1e9:
            self._random.shuffle(arms)
            for position, arm in enumerate(arms + arms[::-1]):
                measured += window(arm, block, position, steps).wall_ns
            block += 1


def recorded_window(
    session: RunnerSession, arm: str, block: int, position: int, steps: int, now: Callable[[], int]
) -> Recorded:
    """Return one window of a runner, with its start by ``now``."""
    start = now()
    reply = session.request("window", STEP_TIMEOUT_S, steps=steps)
    said = {name: reply[name] for name in ("waited_ns", "foreign_ns", "stolen_ns") if reply.get(name) is not None}
    return Recorded(
        arm=arm,
        block=block,
        position=position,
        start_ns=start,
        steps_ns=np.frombuffer(reply["steps_ns"], dtype="<u8"),
        wall_ns=reply["wall_ns"],
        cpu_ns=reply["cpu_ns"],
        faults=reply["minor_faults"],
        **said,
    )


def steps_per_window(slowest_ns: float) -> int:
    """Return how many steps a window has, by the engine's own rule."""
    if slowest_ns > VERY_SLOW_STEP_NS:
        return 1
    fitting = int(WINDOW_NS / slowest_ns)
    return max(1, min(2, fitting)) if slowest_ns > SLOW_STEP_NS else max(DROP_FIRST_FROM, fitting)


# -- how much extra work is a share of the step --------------------------------------------------------------------


def calibrate(bench: Bench, start: Start) -> dict[str, Any]:
    """Return the parameters with which ``extra`` is a share of the step on this machine.

    The memory-bound step and the slow one are right by count. A unit of the transformer's extra work has to be timed:
    alternating windows of a step with none and with many of it, over a few fresh pairs of processes.
    """
    if bench.work == "memory":
        return {}
    if bench.work == "slow":
        hundred = _medians(bench, start, [{"whole": 100}], 0)[0]
        return {"whole": 100 * math.ceil(SLOW_STEP_S * 1e9 / hundred)}
    units, guess = [], 800
    arms = [{"extra": 0.0, "whole": guess}, {"extra": CALIBRATED_AT, "whole": guess}]
    for number in range(CALIBRATIONS):
        plain, loaded = _medians(bench, start, arms, number)
        units.append(round(CALIBRATED_AT * guess) / (loaded / plain - 1))
    return {"whole": round(float(np.median(units)))}


def _medians(bench: Bench, start: Start, arms: Sequence[dict[str, Any]], number: int) -> list[float]:
    """Return the median over windows in turn of the median step of each of ``arms``, which are parameters."""
    sessions = [start(f"calibration-{place}", number) for place in range(len(arms))]
    medians: list[list[float]] = [[] for _ in arms]
    try:
        for session, parameters in zip(sessions, arms, strict=True):
            session.hello(START_TIMEOUT_S)
            session.request("setup", STEP_TIMEOUT_S, **bench.setup_fields(parameters))
        slowest = max(
            float(recorded_window(session, "", 0, 0, 2, time.monotonic_ns).steps_ns[-1]) for session in sessions
        )
        steps = steps_per_window(slowest)
        for _ in range(15):
            for place, session in enumerate(sessions):
                found = recorded_window(session, "", 0, 0, steps, time.monotonic_ns)
                medians[place].append(float(np.median(found.steps_ns)))
    finally:
        for session in sessions:
            session.close()
    return [float(np.median(found[5:])) for found in medians]


# -- the command ---------------------------------------------------------------------------------------------------


def record(path: Path, work: str, condition: str, minutes: float, life_s: float) -> Recording:
    """Record ``work`` under ``condition`` into ``path``, which is whole after every life."""
    bench = Bench.of(work)
    path.parent.mkdir(parents=True, exist_ok=True)
    say = lambda words: click.echo(f"{work}, {condition}: {words}", err=True)  # noqa: E731
    waiting = iter([lambda: say("waiting for the machine; another measurement holds it")])
    with machine_lease(lambda: next(waiting, lambda: None)(), lambda: False) as lease:
        parameters = calibrate(bench, lambda arm, number: bench.start(arm, number, lease))
        say(f"{parameters or 'shares are right by count'}; {minutes:g} min to {path}")
        with neighbours(condition):
            recording = Recording(_facts(work, condition, parameters, life_s))
            recorder = Recorder(bench, lambda arm, number: bench.start(arm, number, lease), parameters, recording)
            _record_until(recorder, path, time.monotonic() + minutes * 60, life_s, say)
    return recording


def _record_until(recorder: Recorder, path: Path, deadline: float, life_s: float, say: Callable[[str], None]) -> None:
    number = failed = 0
    recording = recorder.recording
    while time.monotonic() < deadline:
        try:
            recorder.live(number, life_s)
            failed = 0
        except ArmEnded as ended:
            failed += 1
            say(f"life {number + 1} is not kept: {ended}")
            if failed == FAILED_LIVES:
                raise click.ClickException(
                    f"{failed} lives in a row failed; {len(recording.lives)} are kept"
                ) from ended
        number += 1
        recording.save(path)
        if number % 10 == 0:
            say(f"{len(recording.lives)} lives, {max(0.0, deadline - time.monotonic()) / 60:.1f} min to go")
    say(f"{len(recording.lives)} lives, {path.stat().st_size / 2**20:.2f} MiB")


def _facts(work: str, condition: str, parameters: Mapping[str, Any], life_s: float) -> dict[str, Any]:
    host = probe_host()
    return {
        "work": work,
        "condition": condition,
        "release": RELEASE,
        "parameters": dict(parameters),
        "shares": list(SHARES),
        "life_s": life_s,
        "window_ms": WINDOW_NS / 1e6,
        "neighbours": {"kinds": list(CONDITIONS[condition]), "mean_s": MEAN_S},
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": host.cpu,
            "cores": host.cores,
            "memory_gib": round(host.memory_bytes / 2**30, 1),
            "system": platform.platform(terse=True),
            "python": host.python,
            "load": round(os.getloadavg()[0], 2),
        },
    }


def plan(minutes: float | None) -> list[tuple[str, str, float]]:
    """Return work, condition and minutes of every recording; ``minutes`` is the sum, shared out as `PLAN_MINUTES`."""
    whole = sum(PLAN_MINUTES.values()) * len(CONDITIONS)
    scale = (minutes or whole) / whole
    return [(work, condition, PLAN_MINUTES[work] * scale) for condition in CONDITIONS for work in WORKS]


@click.command("record")
@click.option("--work", type=click.Choice(list(WORKS)), help="What is stepped.")
@click.option("--condition", type=click.Choice(list(CONDITIONS)), default="quiet", show_default=True)
@click.option("--minutes", type=float, help="How long; with --plan of all together.  [default: 10, plan: 70]")
@click.option("--life-seconds", type=float, help="Seconds inside windows of one life, all arms together.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="A file; with --plan a folder.")
@click.option("--plan", "whole", is_flag=True, help="Every work under every condition; files that are there are left.")
def record_command(
    work: str | None, condition: str, minutes: float | None, life_seconds: float | None, output: Path, whole: bool
) -> None:
    """Record live noise for `replay`. Interrupted, it keeps what it has."""
    if whole == (work is not None):
        raise click.UsageError("name one --work, or ask for the whole --plan")
    asked = plan(minutes) if whole else [(str(work), condition, minutes or 10.0)]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for name, state, length in asked:
        path = output / f"{name}-{state}.npz" if whole else output
        if path.exists():
            if not whole:
                raise click.UsageError(f"'{path}' is there already; name another file or remove it")
            click.echo(f"{name}, {state}: '{path}' is there already", err=True)
            continue
        try:
            record(path, name, state, length, life_seconds or LIFE_S[name])
        except KeyboardInterrupt:
            raise click.ClickException(f"interrupted; '{path}' holds what was recorded") from None
