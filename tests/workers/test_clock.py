"""Steps on a device that works by itself: the engine times them right, and wrong times give themselves away."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workers.runner.clock import (
    EventClock,
    HostClock,
    SteppedClock,
    clock_for,
    time_window,
    waited_between,
    waited_ns,
)

MS = 1_000_000
STEPS = 10
STEP_NS = 5 * MS
#: A window that the machine interrupts is no fault of what is tested: one of these is left alone.
TRIES = 5


class Device:
    """A device as torch shows one: work is queued, `step` returns at once, and a thread does it in order.

    Its time is a counter of its own: work moves it by exactly what it takes, and waiting for the host moves it to the
    host's. So what its events say does not depend on how busy this machine is. ``holds`` keeps the work back until
    the host waits for it, as a device does that gets its work in batches.
    """

    def __init__(self, *, holds: bool = False) -> None:
        self.now_ns = 0
        self._holds = holds
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._held: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def launch(self, work_ns: int) -> None:
        """Give the device work of ``work_ns`` and return at once."""

        def work() -> None:
            # A sleep never ends early.
            time.sleep(work_ns / 1e9)
            self.now_ns += work_ns

        self._give(work)

    def stamp(self, event: Event) -> None:
        self._give(lambda: setattr(event, "at_ns", self.now_ns))

    def synchronize(self) -> None:
        for work in self._held:
            self._queue.put(work)
        self._held.clear()
        self._queue.join()

    def Event(self, *, enable_timing: bool) -> Event:
        assert enable_timing
        return Event(self)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _give(self, work: Callable[[], None]) -> None:
        if self._holds:
            self._held.append(work)
        else:
            self._queue.put(work)

    def _work(self) -> None:
        while True:
            idle = self._queue.empty()
            work = self._queue.get()
            if work is None:
                return
            if idle and not self._holds:
                self.now_ns = max(self.now_ns, time.perf_counter_ns())
            work()
            self._queue.task_done()


class Event:
    """A stamp that the device sets when it gets there."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.at_ns: int | None = None

    def record(self) -> None:
        self.at_ns = None
        self._device.stamp(self)

    def elapsed_time(self, end: Event) -> float:
        if self.at_ns is None or end.at_ns is None:
            raise RuntimeError("device not ready")
        return (end.at_ns - self.at_ns) / 1e6


class NeverWaits(HostClock):
    """The mistake of CASES.md M6: the host's clock alone, on a device."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.synchronise = device.synchronize  # type: ignore[method-assign]


class EventsThatNobodyWaitsFor(EventClock):
    """The same mistake with events: the wall is read while the device works."""

    def run(self, step: Callable[[], object], steps: int) -> None:
        self._events = [self._device.Event(enable_timing=True) for _ in range(steps + 1)]
        self._steps = steps
        began = time.perf_counter_ns()
        self._events[0].record()
        for event in self._events[1:]:
            step()
            event.record()
        self._wall_ns = time.perf_counter_ns() - began


@pytest.fixture
def device() -> Iterator[Device]:
    made = Device(holds=True)
    yield made
    made.close()


@pytest.fixture
def eager_device() -> Iterator[Device]:
    made = Device()
    yield made
    made.close()


def durations(reply: dict[str, Any]) -> list[int]:
    return [int(duration) for duration in np.frombuffer(reply["steps_ns"], "<u8")]


# -- right ----------------------------------------------------------------------------------------------------------


def test_events_tell_every_step_of_a_device_that_works_by_itself(device: Device) -> None:
    reply = time_window(EventClock(device), lambda: device.launch(STEP_NS), STEPS)
    assert durations(reply) == [STEP_NS] * STEPS
    assert reply["device_ns"] == STEPS * STEP_NS
    assert reply["wall_ns"] >= reply["device_ns"]


def test_events_are_recorded_again_in_the_next_window_whatever_its_length(device: Device) -> None:
    clock = EventClock(device)
    given = iter([3 * MS] * 4 + [1 * MS] * 2 + [2 * MS] * 5)
    windows = [time_window(clock, lambda: device.launch(next(given)), steps) for steps in (4, 2, 5)]
    assert [durations(reply) for reply in windows] == [[3 * MS] * 4, [1 * MS] * 2, [2 * MS] * 5]
    assert [reply["device_ns"] for reply in windows] == [12 * MS, 2 * MS, 10 * MS]


def test_a_host_that_cannot_feed_the_device_shows_in_the_steps_as_gaps(eager_device: Device) -> None:
    def slow_host() -> None:
        time.sleep(0.010)
        eager_device.launch(1 * MS)

    reply = time_window(EventClock(eager_device), slow_host, STEPS)
    # The device worked for 10 ms of the 100.
    assert reply["device_ns"] > STEPS * 5 * MS
    assert sum(durations(reply)) == pytest.approx(reply["device_ns"], abs=STEPS)


def test_a_clock_that_waits_after_every_step_holds_all_of_its_work(device: Device) -> None:
    reply = time_window(SteppedClock(device), lambda: device.launch(STEP_NS), STEPS)
    assert min(durations(reply)) >= STEP_NS
    assert sum(durations(reply)) == reply["wall_ns"]
    assert reply["device_ns"] is None


@pytest.mark.parametrize("kind", [EventClock, SteppedClock])
def test_after_a_right_window_nothing_is_left_to_wait_for(device: Device, kind: Callable[[Device], Any]) -> None:
    clock = kind(device)
    waits = [time_window(clock, lambda: device.launch(STEP_NS), 2)["sync_ns"] for _ in range(TRIES)]
    assert min(waits) < STEP_NS / 5


def test_work_of_the_host_is_timed_with_nothing_between_two_steps() -> None:
    reply = time_window(HostClock(), lambda: time.sleep(0.002), 5)
    assert min(durations(reply)) >= 2 * MS
    assert sum(durations(reply)) == reply["wall_ns"]
    assert reply["device_ns"] is None
    assert min(time_window(HostClock(), lambda: None, 5)["sync_ns"] for _ in range(TRIES)) < MS


# -- wrong, and told ------------------------------------------------------------------------------------------------


def test_a_clock_that_does_not_wait_is_wrong_and_the_last_synchronisation_gives_it_away(device: Device) -> None:
    replies = [time_window(NeverWaits(device), lambda: device.launch(STEP_NS), STEPS) for _ in range(TRIES)]
    # Ten steps of 5 ms, told as what it takes to queue them.
    assert min(reply["wall_ns"] for reply in replies) < STEP_NS
    # All of the work is still there to be waited for, in every one.
    assert min(reply["sync_ns"] for reply in replies) >= STEPS * STEP_NS


def test_events_that_nobody_waits_for_tell_more_than_the_wall_has_seen(device: Device) -> None:
    clock = EventsThatNobodyWaitsFor(device)
    replies = [time_window(clock, lambda: device.launch(STEP_NS), STEPS) for _ in range(TRIES)]
    seen = min(replies, key=lambda reply: reply["wall_ns"])
    assert seen["wall_ns"] < seen["device_ns"] / 10
    assert min(reply["sync_ns"] for reply in replies) >= STEPS * STEP_NS


def test_work_left_beside_the_events_is_in_the_wall_and_not_between_them(eager_device: Device) -> None:
    beside = Device()

    class TwoQueues:
        """A device with a second stream, on which its events are not recorded."""

        Event = eager_device.Event

        def synchronize(self) -> None:
            eager_device.synchronize()
            beside.synchronize()

    try:
        replies = [time_window(EventClock(TwoQueues()), lambda: beside.launch(STEP_NS), STEPS) for _ in range(TRIES)]
    finally:
        beside.close()
    assert min(reply["device_ns"] for reply in replies) < STEPS * STEP_NS / 2
    assert min(reply["wall_ns"] for reply in replies) >= STEPS * STEP_NS


# -- around them ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [lambda device: HostClock(), EventClock, SteppedClock])
def test_a_step_that_raises_is_told_by_its_number(device: Device, kind: Callable[[Device], Any]) -> None:
    clock = kind(device)
    left = iter(range(2))
    with pytest.raises(StopIteration):
        time_window(clock, lambda: next(left), 5)
    assert clock.reached == 3


@pytest.mark.parametrize(("kind", "clock"), [("cpu", HostClock), ("cuda", EventClock), ("mps", SteppedClock)])
def test_a_kind_of_device_has_its_clock(kind: str, clock: type) -> None:
    class Torch:
        cuda = mps = accelerator = None

    assert type(clock_for(kind, Torch)) is clock


def test_waiting_is_summed_over_threads_that_come_and_go_and_come_under_a_used_number() -> None:
    before = {"1": 100, "2": 50, "3": 900}
    after = {"1": 130, "3": 40, "4": 7}
    assert waited_between(before, after) == 30 + 40 + 7


def test_a_system_that_hides_its_threads_says_nothing_of_their_waiting(tmp_path: Path) -> None:
    assert waited_ns(tmp_path / "none") is None
    (tmp_path / "1").mkdir()
    assert waited_ns(tmp_path) is None
    (tmp_path / "1" / "schedstat").write_text("812 4711 3\n")
    (tmp_path / "2").mkdir()
    assert waited_ns(tmp_path) == {"1": 4711}
