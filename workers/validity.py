"""Whether a cell's numbers mean anything, before any of them is shown (MLPerf's habit).

A restart in which something happened to the machine is repeated (`against_restart`, `workers.watch.MachineWatch`);
what is left of a cell then is `validity_of` the whole, and of each arm.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

import numpy as np

from farm.model import ArmTiming, Restart, Side, Validity, Window, unpack_ns
from farm.statistics import arm_modes, counted, drift, pooled_samples
from workers.watch import Watch

__all__ = ["against_restart", "validity_of"]

#: More than this share of an arm's restarts without a steady state makes it `never steady`.
UNSTEADY_SHARE = 0.5
#: Share of the time for which a restart's threads wanted a processor and waited. One busy thread on two cores waited
#: 0 % alone and beside one busy neighbour, 38 to 50 % beside two (which alternating windows stand: STATISTICS.md), 73 %
#: beside three and 77 % beside four.
WAITED_LIMIT = 0.6
#: Share of all processors that others kept busy: in the same trials 50 %, 70 %, 88 % and 89 %.
FOREIGN_LIMIT = 0.8
#: Share of the processor time asked for that other guests got. Chosen, not measured (stolen time was below 1 % in the
#: trials): half of what is stood of waiting, since the runner's own clock runs on meanwhile.
STOLEN_LIMIT = 0.2
#: One more synchronisation may take this share of a window, and the device's clock may differ from the wall's by it.
#: An honest synchronisation of an idle device takes microseconds of a window of 120 ms.
SYNC_SHARE = 0.05
#: Processor time may exceed wall time by this much a processor: both are read one after the other.
CPU_TOLERANCE = 1.05
#: Steps may add up to this much more than their window: a device's events are rounded.
SUM_TOLERANCE = 1.01
#: So many equal samples are no coincidence, not even in ticks of 0.5 µs (CUDA's events).
CONSTANT_FROM = 20
#: The baseline may slow down by this much over a cell. The worst drift of an unthrottled machine moved medians by 10 %
#: within a session (STATISTICS.md, one after the other, settled).
TREND_LIMIT = 0.15


def against_restart(restart: Restart, cores: int | None = None) -> str:
    """Return why this restart's numbers are not to be used, "" where they are.

    Only what concerns every arm alike is said here: other programs, a hypervisor, a clock or device that misleads all.
    What one arm alone shows repeats with it; `validity_of` holds it against that arm, and the others stand. ``cores``
    is the machine's number of processors.
    """
    cores = cores or os.cpu_count() or 1
    lives = list(restart.arms.values())
    found = _interference([window for life in lives for window in life.windows], cores)
    seen = [_faults(life, len(restart.cores) or cores) for life in lives]
    found += [words for kind, words in (seen[0] if seen else {}).items() if all(kind in faults for faults in seen)]
    return "; ".join(found)


def validity_of(reasons: Iterable[str], watch: Watch, restarts: Sequence[Restart], wanted: int = 1) -> Validity:
    """Return the validity of a cell from its broken controls, its clocks and its restarts, and of each of its arms.

    Restarts that are invalid were repeated where the budget allowed: the cell is invalid only where fewer than
    ``wanted`` valid ones are left.
    """
    judged = counted(restarts)
    found = [*reasons, *watch.reasons(), *_too_few(restarts, len(judged), wanted)]
    trend = _trend([*judged, *counted(restarts, "confirming")])
    if trend:
        found.append(trend)
    names = sorted({name for restart in judged for name in restart.arms})
    arms = {name: tuple(against) for name in names if (against := _against(name, judged))}
    repeated = tuple(
        f"restart {restart.index + 1}{'' if restart.purpose == 'judging' else f' ({restart.purpose})'}: "
        f"{restart.invalid}"
        for restart in restarts
        if restart.invalid
    )
    return Validity(valid=not found, reasons=tuple(found), arms=arms, repeated=repeated)


# -- the machine ---------------------------------------------------------------------------------------------------


def _interference(windows: Sequence[Window], cores: int) -> list[str]:
    """Return what others took of the processors; windows whose sensors are hidden say nothing."""
    found = []
    seen = [window for window in windows if window.waited_ns is not None]
    waited = _waiting(seen)
    if waited > WAITED_LIMIT:
        found.append(f"interference: its threads waited {waited * 100:.0f} % of the time for a processor")
    seen = [window for window in windows if window.foreign_ns is not None]
    wall = sum(window.wall_ns for window in seen)
    foreign = sum(window.foreign_ns or 0 for window in seen)
    if wall and foreign > FOREIGN_LIMIT * wall * cores:
        found.append(f"interference: others kept {foreign / wall / cores * 100:.0f} % of the processors busy")
    seen = [window for window in windows if window.stolen_ns is not None]
    stolen = sum(window.stolen_ns or 0 for window in seen)
    asked = stolen + sum(window.cpu_ns + (window.foreign_ns or 0) for window in seen)
    if asked and stolen > STOLEN_LIMIT * asked:
        found.append(f"interference: the hypervisor gave {stolen / asked * 100:.0f} % of the processor time to others")
    return found


def _waiting(windows: Sequence[Window]) -> float:
    """Return the share of their time for which threads waited for a processor.

    Of wall time, or for several threads of all that they wanted; a runner that sleeps while its device works wants
    little, and waits little.
    """
    waited = sum(window.waited_ns or 0 for window in windows)
    wall = sum(window.wall_ns for window in windows)
    wanted = waited + sum(window.cpu_ns for window in windows)
    return waited / max(wall, wanted) if waited else 0.0


def _too_few(restarts: Sequence[Restart], valid: int, wanted: int) -> list[str]:
    """Return the commonest reasons of invalid restarts, where they leave fewer valid ones than asked for."""
    thrown = [restart.invalid for restart in restarts if restart.purpose == "judging" and restart.invalid]
    if not thrown or valid >= wanted:
        return []
    # The same reason carries another figure in each restart.
    kinds: dict[str, list[str]] = {}
    for reasons in thrown:
        for words in dict.fromkeys(reasons.split("; ")):
            kinds.setdefault(re.sub(r"[\d.,]+", "#", words), []).append(words)
    common = sorted(kinds.values(), key=len, reverse=True)[:3]
    total = len(thrown) + valid
    return [f"{alike[0]} (in {len(alike)} of {total} restarts; {valid} of {wanted} valid ones)" for alike in common]


def _trend(restarts: Sequence[Restart]) -> str:
    """Return that the baseline became slower and slower, "" where it did not.

    Time that its threads spent waiting is taken out first: a neighbour that comes is interference, not heat.
    """
    names = {name for restart in restarts for name in restart.arms}
    if not names:
        return ""
    control = Side.BASELINE.value if Side.BASELINE in names else min(names)
    times = [time for restart in restarts if (time := _working_time(restart.arms.get(control))) > 0]
    change = drift(times) - 1.0
    if change <= TREND_LIMIT:
        return ""
    return f"throttled: the {control} slowed by {change * 100:.0f} % over the cell"


def _working_time(life: ArmTiming | None) -> float:
    """Return the mean step (ns) of one runner without its waiting, 0 where it was not measured."""
    if life is None:
        return 0.0
    samples = pooled_samples(life)
    return float(samples.mean()) * (1.0 - _waiting(life.windows)) if len(samples) else 0.0


# -- one arm -------------------------------------------------------------------------------------------------------


def _against(arm: str, restarts: Sequence[Restart]) -> list[str]:
    """Return what one arm's runners say against its times."""
    lives = [restart.arms[arm] for restart in restarts if arm in restart.arms]
    found = []
    unsteady = sum(not life.steady for life in lives)
    if unsteady > UNSTEADY_SHARE * len(lives):
        found.append(f"never steady in {unsteady} of {len(lives)} restarts")
    seen = [
        _faults(restart.arms[arm], len(restart.cores) or os.cpu_count() or 1)
        for restart in restarts
        if arm in restart.arms
    ]
    faults: dict[str, str] = {}
    for found_once in seen:
        faults = found_once | faults
    for kind in ("sync", "device"):
        # One late answer of a driver is none of the arm; the same in most of its lives is.
        if sum(kind in found_once for found_once in seen) <= UNSTEADY_SHARE * len(seen):
            faults.pop(kind, None)
    modes = arm_modes(restarts, arm)
    flips = [f"two modes from process to process: {modes[0] / 1e6:.4g} ms and {modes[1] / 1e6:.4g} ms"] if modes else []
    return [*found, *faults.values(), *flips]


def _faults(life: ArmTiming, cores: int) -> dict[str, str]:
    """Return what is impossible or unsynchronised in one runner's windows, by kind."""
    found: dict[str, str] = {}
    steps = [unpack_ns(window.steps_ns) for window in life.windows]
    samples = np.concatenate(steps) if steps else np.empty(0, dtype=np.uint64)
    if not len(samples):
        return found
    if not samples.all():
        # A step of 0 ns is no time (CASES.md A5).
        found["zero"] = "sensor implausible: a step took 0 ns"
    elif len(samples) >= CONSTANT_FROM and (samples == samples[0]).all():
        found["constant"] = f"sensor implausible: all {len(samples)} steps took {samples[0]} ns"
    pairs = zip(steps, life.windows, strict=True)
    if any(float(taken.astype(float).sum()) > SUM_TOLERANCE * window.wall_ns for taken, window in pairs):
        found["sum"] = "sensor implausible: the steps of a window took longer than the window"
    wall = sum(window.wall_ns for window in life.windows)
    cpu = sum(window.cpu_ns for window in life.windows)
    if cpu > CPU_TOLERANCE * wall * cores:
        found["cpu"] = f"sensor implausible: {cpu / max(wall, 1):.1f} processors' time on {cores}"
    sync = sum(window.sync_ns for window in life.windows)
    if sync > SYNC_SHARE * wall:
        found["sync"] = f"device not synchronised: one more wait took {sync / max(wall, 1) * 100:.0f} % of the windows"
    timed = [(window.device_ns, window.wall_ns) for window in life.windows if window.device_ns is not None]
    device, beside = sum(pair[0] for pair in timed), sum(pair[1] for pair in timed)
    if abs(device - beside) > SYNC_SHARE * max(device, beside):
        clocks = f"{device / 1e6:.0f} ms, the wall clock {beside / 1e6:.0f} ms"
        found["device"] = f"device not synchronised: its own clock counts {clocks}"
    return found
