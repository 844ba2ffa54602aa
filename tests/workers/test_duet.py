"""What a window keeps of its steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from farm.envelope import MAX_PACKED_BYTES, pack
from farm.model import Measuring, Window, pack_ns
from tests.evidence import cell, life, result
from workers.duet import MAX_SAMPLES, Duet


def kept(steps: int) -> np.ndarray:
    """Return what is kept of a window whose steps took 0, 1, 2 … ns."""
    reply = {"steps_ns": np.arange(steps, dtype="<u8").tobytes()}
    runner = SimpleNamespace(session=SimpleNamespace(request=lambda *_, **__: reply))
    duet = Duet(["a"], [], Measuring(), cast(Any, None), {}, seed=1, progress=cast(Any, None), cancelled=lambda: False)
    return duet._window("a", cast(Any, {"a": runner}), steps)[0]


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_window_of_few_steps_keeps_each(steps: int) -> None:
    assert list(kept(steps)) == list(range(steps))


@pytest.mark.parametrize("steps", [5, MAX_SAMPLES + 1])
def test_the_first_of_many_is_dropped(steps: int) -> None:
    assert list(kept(steps)) == list(range(1, steps))


@pytest.mark.parametrize("steps", [MAX_SAMPLES + 2, 15_000, 1_000_000])
def test_of_very_many_a_thousand_at_most_are_kept_evenly_spaced(steps: int) -> None:
    found = kept(steps)
    assert MAX_SAMPLES / 2 <= len(found) <= MAX_SAMPLES
    assert len(set(np.diff(found))) == 1
    assert np.median(found) == pytest.approx(steps / 2, rel=0.01)


def test_the_largest_result_of_a_standard_cell_fits_an_envelope() -> None:
    generator = np.random.default_rng(7)
    steps = pack_ns(generator.integers(7_000, 9_000, MAX_SAMPLES).astype("<u8"))
    window = Window(block=0, position=0, steps_ns=steps, wall_ns=10**8, cpu_ns=10**8, minor_faults=0)
    # 12 restarts of 8 s in windows of 120 ms.
    timing = life(10.0).model_copy(update={"windows": (window,) * 34})
    made = result(cell())
    restarts = tuple(
        made.restarts[0].model_copy(update={"index": index, "arms": {"baseline": timing, "candidate": timing}})
        for index in range(12)
    )
    assert len(pack(made.model_copy(update={"restarts": restarts}))) < MAX_PACKED_BYTES
