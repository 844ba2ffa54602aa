"""What a window keeps of its steps, and in which order windows are taken."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from farm.envelope import MAX_PACKED_BYTES, pack
from farm.model import Measuring, Window, pack_ns, unpack_ns
from tests.evidence import cell, life, result
from tests.workers.fake_runner import FakeSession
from workers.surroundings import Surroundings
from workers.windows import MAX_SAMPLES, WindowPlan, Windows


class Counting:
    """A runner whose steps took 0, 1, 2 … ns."""

    def request(self, op: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        return {"steps_ns": np.arange(fields["steps"], dtype="<u8").tobytes(), "cpu_ns": 0}


def windows(sessions: dict[str, Any], **measuring: Any) -> Windows:
    asked = Measuring(**measuring)
    return Windows(sessions, asked, random.Random(3), Surroundings(), lambda: False)


def kept(steps: int) -> np.ndarray:
    return windows({"a": Counting()}).take("a", steps)[0]


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
    # 12 restarts of 8 s in windows of 120 ms, as many again to confirm, and 6 with the allocator as it comes.
    timing = life(10.0).model_copy(update={"windows": (window,) * 34})
    made = result(cell())
    restarts = tuple(
        made.restarts[0].model_copy(update={"index": index, "arms": {"baseline": timing, "candidate": timing}})
        for index in range(30)
    )
    assert len(pack(made.model_copy(update={"restarts": restarts}))) < MAX_PACKED_BYTES


@pytest.mark.parametrize(
    ("slowest_ms", "plan"),
    [
        (1.0, WindowPlan(120, once=False)),
        (7.0, WindowPlan(17, once=False)),
        (39.0, WindowPlan(5, once=False)),
        (50.0, WindowPlan(2, once=False)),
        (700.0, WindowPlan(1, once=False)),
        (2100.0, WindowPlan(1, once=True)),
    ],
)
def test_all_arms_have_the_window_that_fits_the_slowest(slowest_ms: float, plan: WindowPlan) -> None:
    sessions = {"a": FakeSession(0.5 * slowest_ms * 1e6, 1), "b": FakeSession(slowest_ms * 1e6, 2)}
    found = windows(sessions).plan()
    assert found.once is plan.once
    assert found.steps == pytest.approx(plan.steps, rel=0.05)


def order_of(plan: WindowPlan, arms: int, level_ms: float) -> list[list[str]]:
    """Return the arms of each block in the order in which their windows were taken."""
    names = [chr(ord("a") + index) for index in range(arms)]
    taking = windows({name: FakeSession(level_ms * 1e6, index) for index, name in enumerate(names)})
    found: dict[str, list[Window]] = {name: [] for name in names}
    taking.measure(found, plan, 20.0)
    blocks: dict[int, dict[int, str]] = {}
    for name, kept_windows in found.items():
        for window in kept_windows:
            blocks.setdefault(window.block, {})[window.position] = name
    return [[places[position] for position in sorted(places)] for _, places in sorted(blocks.items())]


def test_two_arms_go_there_and_back_by_coin() -> None:
    blocks = order_of(WindowPlan(10, once=False), 2, 10.0)
    assert {"".join(block) for block in blocks} == {"abba", "baab"}


def test_three_arms_go_in_a_random_order_and_its_reverse() -> None:
    blocks = order_of(WindowPlan(10, once=False), 3, 10.0)
    assert all(block == block[::-1] and sorted(block[:3]) == ["a", "b", "c"] for block in blocks)
    assert len({"".join(block[:3]) for block in blocks}) > 2


def test_very_slow_steps_meet_once_a_block() -> None:
    blocks = order_of(WindowPlan(1, once=True), 2, 500.0)
    assert {"".join(block) for block in blocks} == {"ab", "ba"}


def test_a_restart_goes_on_where_its_blocks_ended() -> None:
    taking = windows({"a": FakeSession(1e7, 1), "b": FakeSession(1e7, 2)})
    found: dict[str, list[Window]] = {"a": [], "b": []}
    first = taking.measure(found, WindowPlan(10, once=False), 2.0)
    taking.measure(found, WindowPlan(10, once=False), 1.0)
    assert first == pytest.approx(2e9, rel=0.25)
    assert [window.block for window in found["a"]] == sorted(window.block for window in found["a"])
    assert len({window.block for window in found["a"]}) * 2 == len(found["a"])


def test_what_the_machine_said_around_a_window_is_kept_with_it() -> None:
    class Busy(Surroundings):
        def between(self, before: Any, after: Any, own_cpu_ns: int) -> tuple[int | None, int | None]:
            return own_cpu_ns // 10, 3

    taking = Windows({"a": FakeSession(1e7, 1)}, Measuring(), random.Random(3), Busy(), lambda: False)
    found: dict[str, list[Window]] = {"a": []}
    taking.measure(found, WindowPlan(10, once=False), 0.1)
    window = found["a"][0]
    assert (window.foreign_ns, window.stolen_ns) == (window.cpu_ns // 10, 3)
    assert (window.device_ns, window.sync_ns, window.waited_ns) == (None, 7, None)
    assert len(unpack_ns(window.steps_ns)) == 9


@pytest.mark.parametrize("level_ms", [5.0, 800.0, 2500.0])
def test_a_step_of_any_length_can_become_steady(level_ms: float) -> None:
    """Five windows are looked at; a cap of 3 s an arm is over before five steps of 0.8 s are."""
    taking = windows({"a": FakeSession(level_ms * 1e6, 1), "b": FakeSession(level_ms * 1e6, 2)}, warmup_s=1e-9)
    _, steady = taking.warm_up(taking.plan())
    assert steady == {"a": True, "b": True}


def test_what_planning_saw_of_slow_steps_is_part_of_their_warm_up() -> None:
    sessions = {"a": FakeSession(800e6, 1), "b": FakeSession(800e6, 2)}
    taking = windows(sessions, warmup_s=1e-9)
    taking.warm_up(taking.plan())
    # One window of two steps to plan, and three of the five that the rule looks at.
    assert [session.windows for session in sessions.values()] == [4, 4]
