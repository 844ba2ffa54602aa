"""What a machine says of itself: processor time, clock, heat, power. Its files first, a tool where it has none.

A reader returns None where the machine hides the fact (a guest sees no clock, a container no thermal zone); whoever
asks says so, and never takes it for a good sign.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = [
    "Clock",
    "Heat",
    "Machine",
    "Power",
    "Processors",
    "Reading",
    "ask_tool",
    "clock",
    "heat",
    "power",
    "processor_list",
    "speed_limit",
    "throttle_count",
    "virtual",
]

#: A driver in trouble lets its tools hang (CASES.md M8). A healthy nvidia-smi took 0.02 to 1.5 s, cold driver included.
TOOL_TIMEOUT_S = 5.0
#: A core is kept busy this long before its clock is read: an idle core shows a clock that no work ever sees.
SPIN_S = 0.02
#: A core's clock under load is below its floor at less than this share of what it is rated or allowed for.
CLOCK_FLOOR = 0.65
#: hwmon drivers that measure a processor.
PROCESSOR_SENSORS = {"coretemp", "k10temp", "zenpower", "cpu_thermal", "soc_thermal", "acpitz"}
#: Columns of /proc/stat that are work: user, nice, system, irq, softirq (proc_stat(5)); guests are in user already.
BUSY_COLUMNS = (0, 1, 2, 5, 6)
STEAL_COLUMN = 7


def ask_tool(*command: str) -> str | None:
    """Return what ``command`` prints; None where it is missing, fails, or does not answer in `TOOL_TIMEOUT_S`."""
    if shutil.which(command[0]) is None:
        return None
    try:
        tool = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return None
    try:
        printed, _ = tool.communicate(timeout=TOOL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        tool.kill()
        # A tool that is stuck in the kernel does not even die: it is not waited for again.
        with contextlib.suppress(subprocess.TimeoutExpired):
            tool.communicate(timeout=0.5)
        return None
    return printed.decode(errors="replace") if tool.returncode == 0 else None


@dataclass(frozen=True)
class Machine:
    """Where a machine's facts are read: its files below ``root``, its tools through ``ask``."""

    root: Path = Path("/")
    system: str = sys.platform
    ask: Callable[..., str | None] = ask_tool

    def text(self, path: str) -> str | None:
        """Return the stripped content of a file, None where it cannot be read."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return None

    def number(self, path: str) -> float | None:
        try:
            return float(self.text(path) or "")
        except ValueError:
            return None

    def found(self, pattern: str) -> list[str]:
        """Return the paths below the root that match ``pattern``, sorted."""
        return sorted(str(path.relative_to(self.root)) for path in self.root.glob(pattern))


def processor_list(text: str) -> list[int]:
    """Return the numbers of a kernel list: "0-3,8" is 0, 1, 2, 3, 8."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


# -- processor time ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """Processor time of all processors together since the machine started; None where the system hides it."""

    busy_ns: int | None
    stolen_ns: int | None
    """Given to another guest while one of this machine's processors wanted to run."""


class Processors:
    """Processor time that others took during a window: one file is read before it and one after it.

    The kernel counts in ticks of 10 ms a processor, so one window of 120 ms is known to a tick or two only. Windows are
    summed over a restart before anything is said of them; as each is cut off at 0, the sum of a quiet machine comes
    out too large: by 0.1 % of the processors where this was tried, and by half a tick a window and processor at most.
    """

    def __init__(self, machine: Machine | None = None) -> None:
        self._machine = machine or Machine()
        self._tick_ns = round(1e9 / os.sysconf("SC_CLK_TCK"))

    def reading(self) -> Reading:
        if self._machine.system == "darwin":
            times = psutil.cpu_times()
            return Reading(round((times.user + times.nice + times.system) * 1e9), None)
        try:
            with (self._machine.root / "proc/stat").open() as stat:
                columns = [int(column) for column in stat.readline().split()[1:]]
        except (OSError, ValueError):
            return Reading(None, None)
        # A sandbox shows the file and fills it with zeros.
        if len(columns) <= STEAL_COLUMN or not any(columns):
            return Reading(None, None)
        busy = sum(columns[index] for index in BUSY_COLUMNS)
        return Reading(busy * self._tick_ns, columns[STEAL_COLUMN] * self._tick_ns)

    @staticmethod
    def between(before: Reading, after: Reading, own_cpu_ns: int) -> tuple[int | None, int | None]:
        """Return (foreign_ns, stolen_ns): what ran beside the ``own_cpu_ns`` of the runner, what went to other guests.

        Both are never below 0, and None where the system hides them.
        """
        foreign = stolen = None
        if before.busy_ns is not None and after.busy_ns is not None:
            foreign = max(0, after.busy_ns - before.busy_ns - own_cpu_ns)
        if before.stolen_ns is not None and after.stolen_ns is not None:
            # Some hypervisors take stolen time back.
            stolen = max(0, after.stolen_ns - before.stolen_ns)
        return foreign, stolen


# -- clock and heat ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clock:
    """The clock of a busy core."""

    mhz: float
    rated_mhz: float
    """What it should reach under load: its base clock, or the most that the settings allow where that is less."""
    held: bool
    """A setting holds it: it is slow on purpose, and stays so."""

    @property
    def below_floor(self) -> bool:
        return not self.held and self.mhz < CLOCK_FLOOR * self.rated_mhz


def clock(machine: Machine) -> Clock | None:
    """Keep one core busy for `SPIN_S` and return the fastest clock that the kernel shows meanwhile."""
    policies = machine.found("sys/devices/system/cpu/cpu[0-9]*/cpufreq")
    if not policies:
        return None
    end = time.perf_counter() + SPIN_S
    while time.perf_counter() < end:
        pass
    fastest, policy = max((machine.number(f"{policy}/scaling_cur_freq") or 0.0, policy) for policy in policies)
    allowed = machine.number(f"{policy}/scaling_max_freq") or machine.number(f"{policy}/cpuinfo_max_freq")
    if not fastest or not allowed:
        return None
    rated = min(allowed, machine.number(f"{policy}/base_frequency") or allowed)
    # "powersave" is the normal governor of the drivers that choose the clock in hardware; of the others it is the
    # lowest clock, always.
    driver = machine.text(f"{policy}/scaling_driver") or ""
    governor = machine.text(f"{policy}/scaling_governor") or ""
    held = governor in ("powersave", "userspace") and "pstate" not in driver
    return Clock(fastest / 1000, rated / 1000, held)


def throttle_count(machine: Machine) -> int | None:
    """Return how often the kernel saw a core or package throttled since the machine started, all cores together."""
    counters = machine.found("sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/*_throttle_count")
    return sum(int(machine.number(counter) or 0) for counter in counters) if counters else None


@dataclass(frozen=True)
class Heat:
    """The hottest sensor of the processor, °C."""

    celsius: float
    limit_celsius: float | None
    """Where the sensor itself calls it too hot."""

    @property
    def too_hot(self) -> bool:
        return self.limit_celsius is not None and self.celsius >= self.limit_celsius


def heat(machine: Machine) -> Heat | None:
    """Return the processor's temperature; macOS shows none to a user."""
    hottest: Heat | None = None
    for sensor in machine.found("sys/class/hwmon/hwmon*"):
        if machine.text(f"{sensor}/name") not in PROCESSOR_SENSORS:
            continue
        for entry in machine.found(f"{sensor}/temp*_input"):
            value = machine.number(entry)
            if value is None:
                continue
            prefix = entry.removesuffix("_input")
            limit = machine.number(f"{prefix}_max") or machine.number(f"{prefix}_crit")
            if hottest is None or value / 1000 > hottest.celsius:
                hottest = Heat(value / 1000, limit / 1000 if limit else None)
    return hottest


def speed_limit(machine: Machine) -> int | None:
    """Return the share (%) of their speed that macOS leaves the processors; None elsewhere and where it is silent."""
    if machine.system != "darwin":
        return None
    found = re.search(r"CPU_Speed_Limit\s*=\s*(\d+)", machine.ask("pmset", "-g", "therm") or "")
    return int(found[1]) if found else None


# -- power and guests ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Power:
    """Where the machine's power comes from."""

    on_battery: bool | None
    """False where there is no battery; None where it cannot be seen."""
    percent: int | None
    low_power_mode: bool | None


def power(machine: Machine) -> Power:
    return _power_of_macos(machine) if machine.system == "darwin" else _power_of_linux(machine)


def _power_of_macos(machine: Machine) -> Power:
    source = machine.ask("pmset", "-g", "batt") or ""
    settings = machine.ask("pmset", "-g") or ""
    drawing = re.search(r"Now drawing from '(\w+)", source)
    percent = re.search(r"(\d+)%", source)
    # Since macOS 15 "powermode" (1 is low) stands where "lowpowermode" stood.
    mode = re.search(r"^\s*(?:lowpowermode|powermode)\s+(\d)", settings, re.MULTILINE)
    return Power(
        on_battery=drawing[1] == "Battery" if drawing else None,
        percent=int(percent[1]) if percent else None,
        low_power_mode=mode[1] == "1" if mode else None,
    )


def _power_of_linux(machine: Machine) -> Power:
    profile = machine.text("sys/firmware/acpi/platform_profile")
    low = profile == "low-power" if profile else None
    if not (machine.root / "sys/class/power_supply").is_dir():
        return Power(None, None, low)
    discharging, percent = False, None
    for supply in machine.found("sys/class/power_supply/*"):
        # A mouse has a battery too; its scope says that it powers a device only.
        if machine.text(f"{supply}/type") != "Battery" or machine.text(f"{supply}/scope") == "Device":
            continue
        discharging = discharging or machine.text(f"{supply}/status") == "Discharging"
        capacity = machine.number(f"{supply}/capacity")
        percent = int(capacity) if capacity is not None else percent
    return Power(discharging, percent, low)


def virtual(machine: Machine) -> bool | None:
    """Return whether this machine is a guest of another; None where it cannot be seen."""
    if machine.system == "darwin":
        said = machine.ask("sysctl", "-n", "kern.hv_vmm_present")
        return said.strip() == "1" if said else None
    if machine.text("sys/hypervisor/type"):
        return True
    flags = re.search(r"^flags\s*:(.*)$", machine.text("proc/cpuinfo") or "", re.MULTILINE)
    return "hypervisor" in flags[1].split() if flags else None
