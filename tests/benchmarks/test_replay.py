"""Replays of recordings whose truth is known, and errors of the interval and of the sequential rule."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.peers import PEERS, Clocked, arm_levels
from benchmarks.recording import AGAIN, BASE
from benchmarks.replay import Lives, Rates, cell, coverage, our_rates, peer_rates, replay_command
from farm.model import Measuring

MEASURING = Measuring()
LIMIT = 1.02
CELL_S = 120.0


def peer_named(word: str):
    """Return a peer; those whose tests come with the extra are skipped without it."""
    if word in ("pyperf", "asv"):
        pytest.importorskip(word, reason=f"{word} comes with the extra 'bench'")
    return next(peer for peer in PEERS if word in peer.name)


every_peer = pytest.mark.parametrize("word", ["torch", "pyperf", "asv", "hyperfine"])


def test_perfect_data_accuse_nobody_by_our_rule(made) -> None:
    rates = our_rates(Lives.of(made()), LIMIT, MEASURING, 200).rates.accused[CELL_S]
    assert (rates[0.0], rates[0.02], rates[0.03], rates[0.05]) == (0.0, 0.0, 1.0, 1.0)


@every_peer
def test_perfect_data_accuse_nobody_by_a_peers_rule(made, word: str) -> None:
    rates = peer_rates(Clocked(made(steps=1e-5)), peer_named(word), LIMIT, 20, at=(CELL_S,)).accused[CELL_S]
    assert rates[0.0] == 0.0


@every_peer
def test_a_slow_down_of_5_percent_in_little_noise_is_found_by_a_peer(made, word: str) -> None:
    rates = peer_rates(Clocked(made(steps=0.002)), peer_named(word), LIMIT, 20, at=(CELL_S,)).accused[CELL_S]
    assert rates[0.05] == 1.0


def test_drift_fools_the_sequential_method_and_not_ours(made) -> None:
    recording = made(level=lambda minutes: 1 + 0.04 * minutes, steps=0.002)
    theirs = peer_rates(Clocked(recording), peer_named("torch"), LIMIT, 100, at=(CELL_S,)).accused[CELL_S]
    ours = our_rates(Lives.of(recording), LIMIT, MEASURING, 500).rates.accused[CELL_S]
    assert theirs[0.0] > 0.9
    assert ours[0.0] == 0.0
    assert ours[0.05] > 0.99


def test_processes_that_differ_are_averaged_over_restarts(made) -> None:
    ours = our_rates(Lives.of(made(processes=0.004, steps=0.01)), LIMIT, MEASURING, 2000)
    rates = ours.rates.accused[CELL_S]
    assert rates[0.0] <= 0.01
    assert rates[0.05] >= 0.95
    assert ours.wrong_pass[0.05] <= 0.01


def test_the_interval_holds_the_truth_as_often_as_it_promises(made) -> None:
    errors = coverage(Lives.of(made(200, processes=0.006)), LIMIT, MEASURING, 4000)
    assert errors.promised == pytest.approx(0.968)
    assert min(errors.covered.values()) >= 0.96


def test_neither_error_of_the_sequential_rule_exceeds_its_bound_at_the_limit(made) -> None:
    errors = coverage(Lives.of(made(200, processes=0.006)), LIMIT, MEASURING, 4000)
    assert errors.bound == pytest.approx(0.064)
    assert errors.fails_at_limit <= errors.bound
    assert errors.passes_at_limit <= errors.bound


def test_a_clear_cell_ends_at_the_first_look(made) -> None:
    ours = our_rates(Lives.of(made()), LIMIT, MEASURING, 50)
    assert ours.restarts[0.05] == 6.0
    assert ours.saved[0.05] == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(
    ("ratio", "status", "restarts"), [(1.0, "pass", 6), (1.05, "fail", 6), (1.02, "inconclusive", 12)]
)
def test_a_cell_ends_as_the_engine_would_end_it(ratio: float, status: str, restarts: int) -> None:
    noise = np.tile([0.004, -0.004], 6)
    found = cell((noise + math.log(ratio)).tolist(), LIMIT, MEASURING)
    assert (status, restarts) == (found.status, found.restarts)


def test_the_time_needed_is_the_least_from_which_on_all_rates_hold() -> None:
    given = ((0.01, 0.99), (0.0, 0.5), (0.02, 1.0))
    good, blind, rash = ({0.0: false, 0.02: 0.1, 0.03: found, 0.05: found} for false, found in given)
    assert Rates("any", {60.0: good, 90.0: rash, 120.0: good, 180.0: good}).time_needed() == 120.0
    assert Rates("any", {60.0: good, 90.0: blind}).time_needed() is None


def test_a_peer_is_not_asked_for_more_time_than_was_recorded(made) -> None:
    recording = made(10)
    rates = peer_rates(Clocked(recording), peer_named("torch"), LIMIT, 5)
    assert max(rates.accused) <= 0.6 * recording.length_ns / 1e9


def test_every_arm_is_brought_to_the_base_for_the_peers(made) -> None:
    recording = made()
    expected = {BASE: 1.0, AGAIN: 1.0, 0.02: 1.02, 0.03: 1.03, 0.05: 1.05}
    assert arm_levels(recording) == pytest.approx(expected, abs=1e-6)
    steps = Clocked(recording).steps_ns
    assert steps.max() / steps.min() == pytest.approx(1.0, abs=1e-5)


def test_a_second_version_comes_from_later_in_the_recording(made) -> None:
    series = Clocked(made())
    assert (np.diff(series.clock_ns) > 0).all()
    early, late = series.between(0, 30e9), series.between(30e9, 60e9)
    assert len(early) + len(late) == len(series.between(0, 60e9))


def test_too_few_lives_are_refused_with_what_is_needed(made) -> None:
    with pytest.raises(ValueError, match=r"made, quiet: 5 lives are recorded, and a cell needs 6"):
        Lives.of(made(5))


def test_the_command_prints_rates_of_every_method(made, tmp_path: Path) -> None:
    pytest.importorskip("asv", reason="asv comes with the extra 'bench'")
    pytest.importorskip("pyperf", reason="pyperf comes with the extra 'bench'")
    made(40, steps=0.002).save(tmp_path / "made-quiet.npz")
    ended = CliRunner().invoke(replay_command, [str(tmp_path), "--replays", "50", "--peer-replays", "2"])
    assert ended.exit_code == 0, ended.output
    for peer in PEERS:
        assert f"\n{peer.name}  " in ended.output
