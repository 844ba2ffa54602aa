"""The procedure on noise that was really recorded: how often its interval and its sequential rule err."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks.recording import BASE, Recording
from benchmarks.replay import LIMIT, TARGET, Errors, Lives, coverage, our_rates
from farm.matrix import load_matrix
from farm.model import Measuring
from farm.statistics import drift, pooled_samples
from workers.windows import DROP_FIRST_FROM

RECORDINGS = Path(__file__).parents[2] / "benchmarks" / "recordings"
#: STATISTICS.md asks the rates of 10,000 replays.
REPLAYS = 10_000
#: What chance moves a rate of 6.4 % by in 10,000 replays, three standard deviations.
CHANCE = 3 * math.sqrt(0.064 * 0.936 / REPLAYS)
#: Longer than any cell takes.
LONG_S = 1e6
NAMES = sorted(path.stem for path in RECORDINGS.glob("*.npz"))


@cache
def lives(name: str) -> Lives:
    return Lives.of(Recording.load(RECORDINGS / f"{name}.npz"))


@cache
def errors(name: str) -> Errors:
    return coverage(lives(name), LIMIT, Measuring(), REPLAYS)


def test_every_kind_of_step_was_recorded_quiet_and_beside_neighbours() -> None:
    works, conditions = ("transformer", "memory", "slow"), ("quiet", "noisy")
    assert {f"{work}-{condition}" for work in works for condition in conditions} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_interval_holds_the_truth_as_often_as_it_promises(name: str) -> None:
    found = errors(name)
    assert min(found.covered.values()) >= found.promised - CHANCE


@pytest.mark.parametrize("name", NAMES)
def test_looking_four_times_errs_no_more_often_than_its_looks_allow(name: str) -> None:
    """At a true ratio of the very limit, where either answer is wrong."""
    found = errors(name)
    assert max(found.fails_at_limit, found.passes_at_limit) <= found.bound + CHANCE


def test_the_control_arm_of_a_recorded_hour_seldom_drifts_as_far_as_a_tier_forbids() -> None:
    moved = []
    for name in NAMES:
        recorded = Recording.load(RECORDINGS / f"{name}.npz").lives
        restarts = [life.restart(number, DROP_FIRST_FROM) for number, life in enumerate(recorded)]
        times = [float(np.median(pooled_samples(restart.arms[BASE]))) for restart in restarts]
        for count in Measuring().looks:
            stretches = [times[at : at + count] for at in range(len(times) - count + 1)]
            moved += [abs(math.log(drift(stretch))) for stretch in stretches]
    limits = [tier.drift_ratio for tier in load_matrix().tiers if tier.drift_ratio is not None]
    assert sum(found > math.log(min(limits)) for found in moved) / len(moved) < 0.01


@pytest.mark.parametrize("name", NAMES)
def test_a_release_beside_itself_is_hardly_ever_accused(name: str) -> None:
    found = our_rates(lives(name), LIMIT, Measuring(), REPLAYS, at=(LONG_S,), shares=(0.0,))
    assert found.rates.accused[LONG_S][0.0] <= TARGET[0.0]
    assert found.confirmed.accused[LONG_S][0.0] <= TARGET[0.0] / 10
