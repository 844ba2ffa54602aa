"""Which processors there are for a measurement, and which of them a restart's runners are pinned to."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from workers.sensors import Machine, processor_list

__all__ = ["PINNED_FROM", "allowed_processors", "by_core", "pin_to", "quota", "siblings"]

#: Processors of less than this share of the fastest are of the slower kind of a mixed machine.
SLOWER_KIND = 0.9
#: Fewer processors than this are left to the scheduler, which moves a runner out of a neighbour's way: on two shared
#: cores A/A ratios of 36 restarts each scattered by 0.58 % pinned and by 0.46 % free.
PINNED_FROM = 4


def allowed_processors() -> tuple[int, ...]:
    """Return the processors that this process may run on; () where the system does not say (macOS)."""
    ask = getattr(os, "sched_getaffinity", None)
    return tuple(sorted(ask(0))) if ask else ()


def pin_to(
    index: int, threads: int, machine: Machine | None = None, allowed: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Return the processors for all runners of restart number ``index``; () where there is nothing to choose.

    The choice rotates from restart to restart: a processor is never quite like its neighbours (interrupts, heat, a
    favoured clock, who shares its cache), and one that is used always would put that into every ratio, where no number
    of restarts takes it out. So it is one more thing that a restart draws anew, like its memory layout; the arms of one
    restart share their processors, and their ratio does not see it. Only one thread of a core is used, of the fastest
    kind there is, and core 0, which serves most interrupts, only where there are no more than two.
    """
    machine = machine or Machine()
    usable = tuple(allowed_processors() if allowed is None else allowed)
    if machine.system == "darwin" or len(usable) < PINNED_FROM:
        return ()
    cores = _fastest(machine, list(by_core(machine, usable)))
    if len(cores) <= threads:
        return ()
    if len(cores) > 2 and 0 in siblings(machine, cores[0]):
        cores = cores[1:]
    return tuple(sorted(cores[(index + place) % len(cores)] for place in range(threads)))


def siblings(machine: Machine, processor: int) -> list[int]:
    """Return the threads of the core that ``processor`` belongs to, itself among them."""
    listed = machine.text(f"sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list")
    return processor_list(listed) if listed else [processor]


def by_core(machine: Machine, allowed: Sequence[int]) -> dict[int, list[int]]:
    """Return the allowed processors by core, under the first of each."""
    cores: dict[int, list[int]] = {}
    for processor in sorted(allowed):
        first = next((other for other in siblings(machine, processor) if other in cores), processor)
        cores.setdefault(first, []).append(processor)
    return cores


def _fastest(machine: Machine, processors: list[int]) -> list[int]:
    """Return those of the fastest kind: mixed machines have slow cores beside fast ones."""
    folder = "sys/devices/system/cpu/cpu"
    speeds = [
        machine.number(f"{folder}{processor}/cpu_capacity")
        or machine.number(f"{folder}{processor}/cpufreq/cpuinfo_max_freq")
        or 0.0
        for processor in processors
    ]
    return [p for p, speed in zip(processors, speeds, strict=True) if speed >= SLOWER_KIND * max(speeds)]


def quota(machine: Machine) -> float | None:
    """Return how many processors' time a control group leaves us; None where it sets no limit."""
    found: list[float] = []
    group = re.search(r"^0::(/.*)$", machine.text("proc/self/cgroup") or "", re.MULTILINE)
    parts = [part for part in (group[1] if group else "").split("/") if part]
    for depth in range(len(parts) + 1):
        folder = "/".join(["sys/fs/cgroup", *parts[:depth]])
        limit = re.match(r"(\d+) (\d+)", machine.text(f"{folder}/cpu.max") or "")
        if limit:
            found.append(int(limit[1]) / int(limit[2]))
    # The first version of control groups, where a container still has it.
    limited = machine.number("sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period = machine.number("sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if limited is not None and limited > 0 and period:
        found.append(limited / period)
    return min(found, default=None)
