"""What happened to this machine since a mark: it slept, its clock jumped, it slowed down, somebody else came.

A cell is watched by its clocks from beginning to end, and each of its restarts by `MachineWatch`: a restart in which
something happened is repeated, so that the others stand.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import psutil

from workers.accelerators import Accelerator, measured_device, sharing, slowed
from workers.sensors import Machine, Power, clock, heat, power, speed_limit, throttle_count

__all__ = ["MachineWatch", "Watch", "read_clocks"]

#: Clocks may disagree by this much before something stood still or jumped.
CLOCK_TOLERANCE_S = 2.0
#: A device that our last runner has just left shows load for up to a second; it is looked at again until then.
PATIENCE_S = 2.0
POLL_S = 0.5
#: Backends without a device of their own.
HOSTS = ("cpu", "distributed")

Clocks = tuple[float, float, float]


def read_clocks() -> Clocks:
    """Return three clocks in seconds: time awake, time since the machine started, time of day."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time()
    # On macOS it is CLOCK_UPTIME_RAW that stands still while the machine sleeps, and CLOCK_MONOTONIC that does not.
    awake = getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)
    return time.clock_gettime(awake), time.clock_gettime(time.CLOCK_MONOTONIC), time.time()


class Watch:
    """Three clocks, started together: what each counts tells a suspended machine from a jumped clock."""

    def __init__(self, clocks: Callable[[], Clocks] = read_clocks) -> None:
        self._clocks = clocks
        self._started = clocks()
        self._excused = (0.0, 0.0)

    def lost(self) -> tuple[float, float]:
        """Return how long the machine was suspended and by how much its clock jumped (s), since the start."""
        awake, boot, wall = (now - then for now, then in zip(self._clocks(), self._started, strict=True))
        return boot - awake, wall - boot

    def excuse(self, lost: tuple[float, float]) -> None:
        """Leave out what ``lost`` of another watch says: it happened in a restart that is not judged."""
        self._excused = (self._excused[0] + lost[0], self._excused[1] + lost[1])

    def reasons(self) -> list[str]:
        """Return what the clocks say against what was measured meanwhile; empty where they agree."""
        suspended, jumped = (lost - excused for lost, excused in zip(self.lost(), self._excused, strict=True))
        found = []
        if suspended > CLOCK_TOLERANCE_S:
            found.append(f"machine suspended for {suspended:.0f} s")
        if abs(jumped) > CLOCK_TOLERANCE_S:
            found.append(f"clock jumped by {jumped:+.0f} s")
        return found


class MachineWatch:
    """Sees what happened to the machine in one restart: `mark` before its runners start, `reasons` when it is over.

    ``reasons`` wants the runners alive or just gone: a device's clock is looked at while it is still warm. ``cell`` is
    the watch over the whole cell, which then leaves out what a restart already answers for. The vendor's tools are
    asked for their own backends only; all others cost a few milliseconds.
    """

    def __init__(
        self,
        backend: str,
        machine: Machine | None = None,
        *,
        cell: Watch | None = None,
        clocks: Callable[[], Clocks] = read_clocks,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._backend = backend
        self._machine = machine or Machine()
        self._cell = cell
        self._clocks = clocks
        self._sleep = sleep
        self.mark()

    def mark(self) -> None:
        """Begin anew; nothing of ours runs on the device now."""
        self._watch = Watch(self._clocks)
        self._throttles = throttle_count(self._machine)
        self._power = power(self._machine)
        self._shared = self._wait_until_free()

    def reasons(self) -> list[str]:
        """Return what happened since the mark, one short phrase each; empty where nothing did."""
        found = self._watch.reasons()
        if found and self._cell is not None:
            self._cell.excuse(self._watch.lost())
        found += self._slowed()
        found += dict.fromkeys([*_against_power(self._power), *_against_power(power(self._machine))])
        found += self._shared
        device = self._device()
        if device is not None:
            found += filter(None, (slowed(device), "" if self._shared else _strangers(device)))
        return found

    def _device(self) -> Accelerator | None:
        return None if self._backend in HOSTS else measured_device(self._backend, self._machine)

    def _slowed(self) -> list[str]:
        found = []
        throttles = throttle_count(self._machine)
        if throttles is not None and self._throttles is not None and throttles > self._throttles:
            found.append(f"throttled: the kernel counted {throttles - self._throttles} more events")
        limit = speed_limit(self._machine)
        if limit is not None and limit < 100:
            found.append(f"throttled: the processors are held at {limit} % of their speed")
        seen = clock(self._machine)
        if seen is not None and seen.below_floor:
            found.append(f"throttled: a busy core runs at {seen.mhz:.0f} MHz, rated for {seen.rated_mhz:.0f}")
        hot = heat(self._machine)
        if hot is not None and hot.too_hot:
            found.append(f"throttled: the processor is at {hot.celsius:.0f} °C, its limit is {hot.limit_celsius:.0f}")
        return found

    def _wait_until_free(self) -> list[str]:
        """Return who shares the device, after a moment's patience with what has just ended."""
        left = PATIENCE_S
        while True:
            device = self._device()
            said = sharing(device) if device is not None else ""
            # What merely cannot be shown is said once a cell by `host_checks`, and invalidates nothing.
            if not said.startswith("device shared"):
                return []
            if left <= 0:
                return [said]
            self._sleep(POLL_S)
            left -= POLL_S


def _against_power(seen: Power) -> list[str]:
    found = []
    if seen.on_battery:
        found.append("on battery")
    if seen.low_power_mode:
        found.append("throttled: low power mode is on")
    return found


def _strangers(device: Accelerator) -> str:
    """Return who else computes on the device beside our runners.

    A container may show the ids of its host, where our own runner is a stranger too: only those that exist here count.
    """
    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    strangers = sorted(pid for pid in device.pids - own if psutil.pid_exists(pid))
    return f"device shared: {device.name} is used by process {', '.join(map(str, strangers))}" if strangers else ""
