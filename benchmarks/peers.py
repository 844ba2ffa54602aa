"""What one would use instead, replayed on a recording with its real decision rule and its own order in time.

None of these measures both versions at once, so all arms of a recording serve them: every step is brought to the
base by its arm's overall ratio, and the second version's steps are then multiplied by the slow-down. What remains is
the machine's noise on its own clock, and a peer meets it where its procedure would: the second version's steps come
from later in the recording than the first one's wherever the peer measures it later.

Where the emulation errs it errs for the peer: the allocator is settled, a stretch of one process is pieced together
from several (which averages what processes differ by), and starting takes as long as it did with three arms.

Each accuses when its own test finds a difference *and* its ratio is above the limit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click
import numpy as np

from benchmarks.recording import ARMS, BASE, SLOW, WARM_UP, Recording
from farm.statistics import hodges_lehmann

__all__ = ["PEERS", "Clocked", "Peer", "asv_accuses", "hyperfine_accuses", "pyperf_accuses", "sequential_accuses"]

#: pyperf's defaults (`pyperf.Runner`): values of a process after one warm-up value, seconds a value lasts at least.
PYPERF_VALUES, PYPERF_VALUE_S = 3, 0.1
#: asv's defaults (`asv_runner.benchmarks.time`): samples of a round, seconds a sample lasts at least, warm-up.
ASV_SAMPLES, ASV_SAMPLE_S, ASV_WARMUP_S, ASV_ROUNDS = 5, 0.01, 0.1, 2
#: Steps of a whole process last this long: its start is then a fifth of it.
WHOLE_S = 5.0
#: hyperfine refuses to compare fewer runs than this.
HYPERFINE_RUNS = 2
#: What is missing without the extra, in one line.
INSTALL = "the peers' own tests are not installed; run: pip install 'pytorch-farm[bench]'"


# -- their decisions -----------------------------------------------------------------------------------------------


def sequential_accuses(first: Sequence[float], second: Sequence[float], limit: float) -> bool:
    """Return whether the ratio of medians is above ``limit``: torch.utils.benchmark has no test of its own."""
    return float(np.median(second)) > limit * float(np.median(first))


def pyperf_accuses(first: Sequence[float], second: Sequence[float], limit: float) -> bool:
    """Return whether `pyperf compare_to` calls it significant (Student's t, 95 %) and the ratio of means is above."""
    if statistics.fmean(second) <= limit * statistics.fmean(first):
        return False
    try:
        from pyperf._utils import is_significant
    except ImportError as error:
        raise click.ClickException(INSTALL) from error
    return bool(is_significant(list(map(float, first)), list(map(float, second)))[0])


def asv_accuses(first: Sequence[float], second: Sequence[float], limit: float) -> bool:
    """Return whether `asv continuous --factor LIMIT` says that it got worse: Mann-Whitney at p < 0.002, medians."""
    if float(np.median(second)) <= limit * float(np.median(first)):
        return False
    try:
        from asv._stats import is_different
        from asv_runner.statistics import compute_stats
    except ImportError as error:
        raise click.ClickException(INSTALL) from error
    samples = [list(map(float, values)) for values in (first, second)]
    stats = [compute_stats(values, 1)[1] for values in samples]
    return bool(is_different(*samples, *stats))


def hyperfine_accuses(first: Sequence[float], second: Sequence[float], limit: float) -> bool:
    """Return whether hyperfine's `scripts/welch_ttest.py` finds a difference (5 %) and the ratio of means is above."""
    means = [statistics.fmean(values) for values in (first, second)]
    if means[1] <= limit * means[0]:
        return False
    errors = [statistics.variance(values) / len(values) for values in (first, second)]
    together = sum(errors)
    if together == 0:
        return True
    freedom = together**2 / sum(e**2 / (len(v) - 1) for e, v in zip(errors, (first, second), strict=True))
    return abs(means[1] - means[0]) / math.sqrt(together) >= student_quantile(freedom)


def student_quantile(freedom: float) -> float:
    """Return Student's two-sided 95 % quantile by Cornish-Fisher's expansion: within 1 % from 3 degrees on."""
    z = statistics.NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))


# -- the recording on its clock ------------------------------------------------------------------------------------


class Clocked:
    """All steps of a recording in the order in which they ran, each brought to the base."""

    def __init__(self, recording: Recording) -> None:
        levels = arm_levels(recording)
        clock, steps = [], []
        self._lives_ns: list[int] = []
        starts: list[list[float]] = []
        for life in recording.lives:
            self._lives_ns.append(life.start_ns)
            hellos = [life.processes[arm]["hello_ns"] for arm in ARMS]
            ready = [life.processes[arm]["setup_wall_ns"] for arm in ARMS]
            starts.append([float(np.mean(hellos)), float(np.mean(ready))])
            for window in sorted(life.windows, key=lambda window: window.start_ns):
                if window.block == WARM_UP and window.position == 0:
                    continue  # the first two steps of a process
                scale = levels[life.share if window.arm == SLOW else window.arm]
                taken = np.asarray(window.steps_ns, dtype=float)
                clock.append(window.start_ns + np.cumsum(taken) - taken)
                steps.append(taken / scale)
        self.clock_ns = np.concatenate(clock)
        self.steps_ns = np.concatenate(steps)
        self._starts = np.array(starts)
        self.length_ns = recording.length_ns
        self.step_ns = float(np.median(self.steps_ns))
        self.start_ns = float(np.median(self._starts.sum(axis=1)))
        """From starting a process to its being set up, first step included."""

    def between(self, begin_ns: float, end_ns: float) -> np.ndarray:
        """Return the steps that began in a stretch of the clock."""
        first, last = np.searchsorted(self.clock_ns, [begin_ns, end_ns])
        return self.steps_ns[first:last]

    def take(self, at_ns: float, count: int) -> np.ndarray:
        """Return ``count`` steps on end from a time on, the recording's last ones where it ends before."""
        first = min(int(np.searchsorted(self.clock_ns, at_ns)), len(self.steps_ns) - count)
        return self.steps_ns[first : first + count]

    def starting(self, at_ns: float) -> float:
        """Return how long a process took to be set up in the life that ran at that time."""
        life = max(0, int(np.searchsorted(self._lives_ns, at_ns, side="right")) - 1)
        return float(self._starts[life].sum())


def arm_levels(recording: Recording) -> dict[str | float, float]:
    """Return the ratio to the base of every arm, the slowed one by its share: Hodges-Lehmann over lives."""
    logs: dict[str | float, list[float]] = {}
    for life in recording.lives:
        medians = {
            arm: np.median(np.concatenate([w.steps_ns for w in life.windows if w.arm == arm and w.block != WARM_UP]))
            for arm in ARMS
        }
        for arm in ARMS:
            logs.setdefault(life.share if arm == SLOW else arm, []).append(math.log(medians[arm] / medians[BASE]))
    return {key: math.exp(hodges_lehmann(values)) for key, values in logs.items()}


# -- their procedures ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peer:
    """A method: ``decide(series, at_ns, machine_ns, slowed, limit)`` is its answer from that machine time.

    ``slowed`` multiplies the steps of the second version. False where the time does not hold its least procedure.
    """

    name: str
    how: str
    decide: Callable[[Clocked, float, float, float, float], bool]


def _sequential(series: Clocked, at_ns: float, machine_ns: float, slowed: float, limit: float) -> bool:
    half = machine_ns / 2
    parts = [series.between(begin + series.start_ns, begin + half) for begin in (at_ns, at_ns + half)]
    if not all(map(len, parts)):
        return False
    return sequential_accuses(parts[0], parts[1] * slowed, limit)


def _pyperf(series: Clocked, at_ns: float, machine_ns: float, slowed: float, limit: float) -> bool:
    loops = 2 ** max(0, math.ceil(math.log2(PYPERF_VALUE_S * 1e9 / series.step_ns)))
    value_ns = loops * series.step_ns
    process_ns = series.start_ns + (1 + PYPERF_VALUES) * value_ns
    processes = int(machine_ns / 2 / process_ns)
    if processes < 2:
        return False
    values: list[np.ndarray] = []
    for number in range(2 * processes):
        begin = at_ns + number * process_ns + series.start_ns + value_ns
        found = series.take(begin, PYPERF_VALUES * loops).reshape(PYPERF_VALUES, loops).mean(axis=1)
        values.append(found if number < processes else found * slowed)
    first, second = np.concatenate(values[:processes]), np.concatenate(values[processes:])
    return pyperf_accuses(first.tolist(), second.tolist(), limit)


def _asv(series: Clocked, at_ns: float, machine_ns: float, slowed: float, limit: float) -> bool:
    number = max(1, math.ceil(ASV_SAMPLE_S * 1e9 / series.step_ns))
    sample_ns = number * series.step_ns
    warmup_ns = max(ASV_WARMUP_S * 1e9, sample_ns)
    process_ns = series.start_ns + warmup_ns + ASV_SAMPLES * sample_ns
    rounds = int(machine_ns / 2 / process_ns)
    if rounds < ASV_ROUNDS:
        return False
    samples: tuple[list[float], list[float]] = ([], [])
    begin = at_ns
    for turn in range(rounds):
        for version in (0, 1) if turn % 2 == 0 else (1, 0):
            taken = series.take(begin + series.start_ns + warmup_ns, ASV_SAMPLES * number)
            means = taken.reshape(ASV_SAMPLES, number).mean(axis=1) * (slowed if version else 1.0)
            samples[version].extend(means.tolist())
            begin += process_ns
    return asv_accuses(*samples, limit)


def _hyperfine(series: Clocked, at_ns: float, machine_ns: float, slowed: float, limit: float) -> bool:
    steps = max(1, round(WHOLE_S * 1e9 / series.step_ns))
    process_ns = series.start_ns + steps * series.step_ns
    runs = int(machine_ns / 2 / process_ns)
    if runs < HYPERFINE_RUNS:
        return False
    walls: tuple[list[float], list[float]] = ([], [])
    for number in range(2 * runs):
        begin, version = at_ns + number * process_ns, number // runs
        work = float(series.take(begin + series.start_ns, steps).sum())
        walls[version].append(series.starting(begin) + work * (slowed if version else 1.0))
    return hyperfine_accuses(*walls, limit)


PEERS = (
    Peer(
        "torch.utils.benchmark, one after the other",
        "half of the time in one process, half in the next; the ratio of the medians of all steps",
        _sequential,
    ),
    Peer(
        "pyperf compare_to",
        "processes of one warm-up value and 3 values of 0.1 s or more, first all of one version, then all of the "
        "other; 20 processes a version at its defaults, here as many as the time holds",
        _pyperf,
    ),
    Peer(
        "asv continuous",
        "rounds in turn, either version first; a process a round with 0.1 s of warm-up and 5 samples of 10 ms or more; "
        "2 rounds at its defaults, here as many as the time holds",
        _asv,
    ),
    Peer(
        "hyperfine, whole processes",
        f"the wall time of processes that start, set up and step for {WHOLE_S:g} s; all of one version, then the other",
        _hyperfine,
    ),
)
