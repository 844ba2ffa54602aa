"""A recording comes back from its file as it was, and its lives are restarts to the farm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.recording import AGAIN, ARMS, BASE, SLOW, WARM_UP, Recording
from farm.model import unpack_ns
from farm.statistics import restart_log_ratios


def test_a_recording_comes_back_from_its_file(made, tmp_path: Path) -> None:
    recording = made(4, steps=0.01)
    recording.save(tmp_path / "recording.npz")
    back = Recording.load(tmp_path / "recording.npz")
    assert recording.facts == back.facts
    assert [life.processes for life in recording.lives] == [life.processes for life in back.lives]
    before, after = (
        [(w.arm, w.block, w.position, w.start_ns, w.wall_ns, w.faults, w.steps_ns.tolist()) for w in life.windows]
        for life in (recording.lives[3], back.lives[3])
    )
    assert before == after


def test_nothing_half_written_is_left_beside_a_recording(made, tmp_path: Path) -> None:
    made(2).save(tmp_path / "recording.npz")
    made(3).save(tmp_path / "recording.npz")
    assert [tmp_path / "recording.npz"] == list(tmp_path.iterdir())


def test_a_recording_of_another_version_is_refused_with_words(made, tmp_path: Path) -> None:
    path = tmp_path / "recording.npz"
    made(2).save(path)
    with np.load(path) as stored:
        np.savez(tmp_path / "old.npz", **{**stored, "version": np.array(0)})
    with pytest.raises(ValueError, match=r"is a recording of version 0, not 1; record again"):
        Recording.load(tmp_path / "old.npz")


def test_a_life_is_a_restart_without_its_warm_up_and_without_the_first_step_of_a_window(made) -> None:
    life = made(1).lives[0]
    restart = life.restart(0, 5)
    assert restart.order == ARMS
    assert [len(restart.arms[arm].windows) for arm in ARMS] == [12, 12, 12]
    assert {5} == {len(unpack_ns(window.steps_ns)) for window in restart.arms[BASE].windows}
    warming = [window.wall_ns for window in life.windows if window.arm == BASE and window.block == WARM_UP]
    assert sum(warming) == restart.arms[BASE].warmup_ns


def test_the_farm_reads_the_slow_down_from_a_life(made) -> None:
    restarts = [life.restart(number, 5) for number, life in enumerate(made(3).lives)]
    assert restart_log_ratios(restarts, AGAIN, BASE, "p50") == pytest.approx([0.0, 0.0, 0.0], abs=1e-6)
    slow = restart_log_ratios(restarts, SLOW, BASE, "p50")
    assert slow == pytest.approx(np.log1p([0.02, 0.03, 0.05]).tolist(), abs=1e-6)
