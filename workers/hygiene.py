"""What of this machine makes its measurements noisy, and what could be better: each a check with its outcome.

A check never passes in silence: what cannot be seen is `unknown`, with the reason. Where figures are named as measured
they are this project's own (STATISTICS.md): alternating windows of a 7 ms step on two shared cores.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from farm.model import HostCheck
from workers.accelerators import Accelerator, measured_device, sharing
from workers.pinning import PINNED_FROM, allowed_processors, by_core, pin_to, quota, siblings
from workers.sensors import Machine, heat, power, processor_list, virtual

__all__ = ["device_checks", "host_checks", "pin_to"]

#: Share of the last 10 s in which somebody waited for a processor (PSI "some") from which a machine counts as busy.
BUSY_PERCENT = 10.0
#: Where there is no PSI: load of the last minute for each processor.
BUSY_LOAD = 0.5
#: Memory that should be free for a cell: two runners of a standard case take about 1 GiB, and caches need air.
FREE_BYTES = 2 * 2**30
#: A little swap is always used; more than this was pushed out because memory ran short.
SWAP_BYTES = 256 * 2**20
#: A processor this close to its limit slows down as soon as it works.
HEAT_MARGIN_CELSIUS = 15.0

UNMEASURED = "not measured"
LAYOUT = "layout alone can turn a speed-up into a slow-down (Mytkowicz et al., ASPLOS 2009)"
#: personality(2): the process and its children have fixed addresses.
ADDR_NO_RANDOMIZE = 0x0040000


@dataclass(frozen=True)
class _Asked:
    """What the checks are about."""

    machine: Machine
    threads: int
    allowed: tuple[int, ...]

    @property
    def mac(self) -> bool:
        return self.machine.system == "darwin"


def host_checks(
    threads: int, backend: str, machine: Machine | None = None, allowed: Sequence[int] | None = None
) -> tuple[HostCheck, ...]:
    """Return all checks for cells of ``threads`` threads on ``backend``; ``allowed`` are the processors we may use."""
    machine = machine or Machine()
    asked = _Asked(machine, threads, tuple(allowed_processors() if allowed is None else allowed))
    checks = (
        _virtual_machine,
        _governor,
        _turbo,
        _cores,
        _threads,
        _pinning,
        _smt,
        _address_layout,
        _environment_size,
        _allocator,
        _huge_pages,
        _compile_caches,
        _other_load,
        _memory,
        _swap,
        _power,
        _temperature,
    )
    return (*(check(asked) for check in checks), *device_checks(backend, machine))


def device_checks(backend: str, machine: Machine | None = None) -> tuple[HostCheck, ...]:
    """Return the checks of the accelerator of ``backend``; none for backends without one."""
    if backend not in ("cuda", "rocm", "mps"):
        return ()
    device = measured_device(backend, machine or Machine())
    if device is None:
        tool = {"cuda": "nvidia-smi", "rocm": "amd-smi and rocm-smi", "mps": "ioreg"}[backend]
        silent = f"{tool} shows no device that a runner would use"
        return (_unknown("device clock", silent), _unknown("device exclusive", silent))
    return (*_persistence(device), _device_clock(backend, device), _exclusive(device))


# -- processors ----------------------------------------------------------------------------------------------------


def _all_processors(asked: _Asked) -> int:
    if asked.mac:
        return int(_first_number(asked.machine.ask("sysctl", "-n", "hw.physicalcpu")) or 0)
    return len(processor_list(asked.machine.text("sys/devices/system/cpu/online") or ""))


def _virtual_machine(asked: _Asked) -> HostCheck:
    guest = virtual(asked.machine)
    if guest is None:
        return _unknown("virtual machine", "neither the processor's flags nor the system say")
    if not guest:
        return _good("virtual machine", "none: this is the machine itself")
    return _poor(
        "virtual machine",
        "a guest: clock, turbo and neighbours belong to its host",
        "measure on a machine of your own where you can; farm calibrate says how noisy this one is",
        "as noisy as its host: 0.55 % sd of the ratio over three process pairs in 20 s on a guest (measured)",
    )


def _governor(asked: _Asked) -> HostCheck:
    policies = asked.machine.found("sys/devices/system/cpu/cpu[0-9]*/cpufreq")
    if asked.mac:
        return _unknown("governor", "macOS chooses the clock and shows neither rule nor clock")
    if not policies:
        return _unknown("governor", f"no cpufreq below /sys{_host_decides(asked)}")
    names = sorted({asked.machine.text(f"{policy}/scaling_governor") or "hidden" for policy in policies})
    if names == ["performance"]:
        return _good("governor", "performance")
    return _poor("governor", ", ".join(names), "sudo cpupower frequency-set -g performance", UNMEASURED)


def _turbo(asked: _Asked) -> HostCheck:
    if asked.mac:
        return _unknown("turbo", "macOS does not show it")
    folder = "sys/devices/system/cpu"
    for switch, on in ((f"{folder}/intel_pstate/no_turbo", "0"), (f"{folder}/cpufreq/boost", "1")):
        seen = asked.machine.text(switch)
        if seen is None:
            continue
        if seen != on:
            return _good("turbo", "off")
        off = "1" if on == "0" else "0"
        worth = f"{UNMEASURED}; alternating windows share the drift of a machine that warms up"
        return _poor("turbo", "on: the clock falls with heat", f"echo {off} | sudo tee /{switch}", worth)
    return _unknown("turbo", f"no switch below /sys{_host_decides(asked)}")


def _cores(asked: _Asked) -> HostCheck:
    total, limit = _all_processors(asked), quota(asked.machine)
    if not asked.allowed:
        return _good("cores", f"all {total}") if total else _unknown("cores", "the system does not say how many")
    found = f"{len(asked.allowed)} of {total or 'an unknown number'}"
    if limit is not None and limit < len(asked.allowed):
        return _poor(
            "cores",
            f"{found}, with a quota of {limit:g} processors' time",
            "give the container processors of its own: --cpuset-cpus=1-2 in place of --cpus=2",
            f"{UNMEASURED}; a quota that is used up stops every thread until its period of 0.1 s is over",
        )
    return _good("cores", found)


def _threads(asked: _Asked) -> HostCheck:
    cores = len(by_core(asked.machine, asked.allowed)) if asked.allowed else _all_processors(asked)
    if not cores:
        return _unknown("threads", f"{asked.threads} a runner, on an unknown number of cores")
    found = f"{asked.threads} a runner, {cores} core{'s' if cores > 1 else ''}"
    if asked.threads < cores:
        return _good("threads", found)
    advice = "fewer threads in the suite ([suite.NAME] threads = …), so that one core is left for everything else"
    if asked.threads == 1:
        advice = "a machine with a second core: everything else runs beside the measurement"
    return _poor("threads", found, advice, UNMEASURED)


def _pinning(asked: _Asked) -> HostCheck:
    if asked.mac:
        return _poor(
            "pinning", "macOS lets nobody pin", "nothing to do: the arms alternate on the same cores", UNMEASURED
        )
    if not asked.allowed:
        return _unknown("pinning", "the system does not say which processors we may use")
    turns = sorted({pin_to(index, asked.threads, asked.machine, asked.allowed) for index in range(len(asked.allowed))})
    if len(asked.allowed) < PINNED_FROM:
        return _good(
            "pinning", f"left to the scheduler: pinned on {len(asked.allowed)} processors, ratios scatter more"
        )
    if turns == [()]:
        advice = "more cores, or fewer threads in the matrix (threads = …)"
        return _poor("pinning", f"nothing to choose for {asked.threads} threads", advice, UNMEASURED)
    return _good("pinning", f"possible: {' or '.join(','.join(map(str, turn)) for turn in turns[:4])} in turn")


def _smt(asked: _Asked) -> HostCheck:
    if asked.mac:
        logical = _first_number(asked.machine.ask("sysctl", "-n", "hw.logicalcpu"))
        physical = _all_processors(asked)
        if logical is None or not physical:
            return _unknown("SMT", "sysctl does not say")
        return _good("SMT", "none") if logical == physical else _poor("SMT", "two threads a core", "", UNMEASURED)
    if not asked.machine.found("sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list"):
        return _unknown("SMT", "no topology below /sys")
    shared = max((len(siblings(asked.machine, processor)) for processor in asked.allowed), default=1)
    if shared == 1:
        return _good("SMT", "one thread a core, as far as the machine shows")
    return _poor(
        "SMT",
        f"{shared} threads a core: another program on the second one slows the first",
        "echo off | sudo tee /sys/devices/system/cpu/smt/control",
        f"{UNMEASURED}; runners use one thread a core",
    )


# -- the process ---------------------------------------------------------------------------------------------------


def _address_layout(asked: _Asked) -> HostCheck:
    if asked.mac:
        return _good("address layout", "random: macOS always has it so", LAYOUT)
    seen = asked.machine.text("proc/sys/kernel/randomize_va_space")
    if seen is None:
        return _unknown("address layout", "/proc/sys/kernel/randomize_va_space cannot be read")
    try:
        fixed = bool(int(asked.machine.text("proc/self/personality") or "0", 16) & ADDR_NO_RANDOMIZE)
    except ValueError:
        fixed = False
    if fixed:
        return _poor("address layout", "fixed for this process", "start the farm without setarch -R", LAYOUT)
    if seen != "2":
        found = "fixed" if seen == "0" else "random but for the heap"
        return _poor("address layout", found, "sudo sysctl kernel.randomize_va_space=2", LAYOUT)
    return _good("address layout", "random in every process", LAYOUT)


def _environment_size(_: _Asked) -> HostCheck:
    return _good("environment size", "the farm draws it anew for every runner", LAYOUT)


def _allocator(asked: _Asked) -> HostCheck:
    if asked.mac:
        return _unknown("allocator", "macOS's has no settings that keep it from giving memory back")
    worth = "sd between processes 0.3 to 0.7 % settled, 2 to 4.4 % as it comes (measured)"
    return _good("allocator", "the farm settles glibc's for timing", worth)


def _huge_pages(asked: _Asked) -> HostCheck:
    if asked.mac:
        return _good("huge pages", "macOS has no switch")
    seen = re.search(r"\[(\w+)\]", asked.machine.text("sys/kernel/mm/transparent_hugepage/enabled") or "")
    if seen is None:
        return _unknown("huge pages", "no transparent_hugepage below /sys")
    if seen[1] != "always":
        return _good("huge pages", seen[1])
    return _poor(
        "huge pages",
        "always: which memory gets them depends on what else ran",
        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        "little: asking for them beside a settled allocator changed the noise hardly (measured)",
    )


def _compile_caches(_: _Asked) -> HostCheck:
    return _good(
        "compile caches", "the farm keeps a folder for each arm", "a warm one beside a cold one: 18 % (CASES.md M1)"
    )


# -- the rest of the machine ---------------------------------------------------------------------------------------


def _other_load(asked: _Asked) -> HostCheck:
    machine = asked.machine
    processors = len(asked.allowed) or _all_processors(asked) or 1
    load = _first_number(machine.ask("sysctl", "-n", "vm.loadavg") if asked.mac else machine.text("proc/loadavg"))
    pressure = re.search(r"^some avg10=([\d.]+)", machine.text("proc/pressure/cpu") or "", re.MULTILINE)
    if load is None and pressure is None:
        return _unknown("other load", "neither load nor pressure can be read")
    found = f"load {load:g} on {processors} processors" if load is not None else ""
    busy = load is not None and load > BUSY_LOAD * processors
    if pressure:
        waited = float(pressure[1])
        busy = waited > BUSY_PERCENT
        found = f"somebody waited for a processor in {waited:g} % of the last 10 s" + (f", {found}" if found else "")
    if not busy:
        return _good("other load", found)
    return _poor(
        "other load",
        found,
        "stop what else runs; top shows it",
        "two busy neighbours on two cores left the p50 ratio at 0.6 % sd, and doubled it to 7 % one after the other "
        "(measured)",
    )


def _memory(asked: _Asked) -> HostCheck:
    if asked.mac:
        free = re.search(r"free percentage:\s*(\d+)%", asked.machine.ask("memory_pressure", "-Q") or "")
        total = _first_number(asked.machine.ask("sysctl", "-n", "hw.memsize"))
        available = float(free[1]) / 100 * total if free and total else None
    else:
        available = _kilobytes(asked.machine, "MemAvailable")
    if available is None:
        return _unknown("memory", "how much is free cannot be read")
    found = f"{available / 2**30:.1f} GiB free"
    if available >= FREE_BYTES:
        return _good("memory", found)
    return _poor("memory", found, "close what holds memory; top sorts by it with M", UNMEASURED)


def _swap(asked: _Asked) -> HostCheck:
    if asked.mac:
        seen = re.search(r"used = ([\d.]+)M", asked.machine.ask("sysctl", "-n", "vm.swapusage") or "")
        used = float(seen[1]) * 2**20 if seen else None
    else:
        total, free = _kilobytes(asked.machine, "SwapTotal"), _kilobytes(asked.machine, "SwapFree")
        used = total - free if total is not None and free is not None else None
    if used is None:
        return _unknown("swap", "whether it is used cannot be read")
    if used <= SWAP_BYTES:
        return _good("swap", "not in use" if not used else f"{used / 2**20:.0f} MiB in use")
    advice = "close programs" if asked.mac else "close programs, then: sudo swapoff -a && sudo swapon -a"
    return _poor("swap", f"{used / 2**30:.1f} GiB in use", advice, UNMEASURED)


def _power(asked: _Asked) -> HostCheck:
    seen = power(asked.machine)
    if seen.on_battery:
        left = f", {seen.percent} % left" if seen.percent is not None else ""
        return _poor("power", f"battery{left}", "plug it in: restarts on battery are thrown away", UNMEASURED)
    if seen.low_power_mode:
        advice = "sudo pmset -a lowpowermode 0" if asked.mac else "powerprofilesctl set performance"
        return _poor("power", "low power mode", f"{advice}; restarts in it are thrown away", UNMEASURED)
    if seen.on_battery is None:
        return _unknown("power", "where it comes from cannot be seen")
    return _good("power", "mains" if seen.percent is not None else "no battery")


def _temperature(asked: _Asked) -> HostCheck:
    seen = heat(asked.machine)
    if seen is None:
        why = "macOS shows it to root only" if asked.mac else f"no sensor below /sys{_host_decides(asked)}"
        return _unknown("temperature", why)
    if seen.limit_celsius is None:
        return _unknown("temperature", f"{seen.celsius:.0f} °C, and the sensor names no limit")
    found = f"{seen.celsius:.0f} °C, limit {seen.limit_celsius:.0f}"
    if seen.celsius < seen.limit_celsius - HEAT_MARGIN_CELSIUS:
        return _good("temperature", found)
    return _poor("temperature", found, "let it cool, clean its fan, switch turbo off", UNMEASURED)


# -- the device ----------------------------------------------------------------------------------------------------


def _persistence(device: Accelerator) -> tuple[HostCheck, ...]:
    if device.persistent is None:
        return ()
    if device.persistent:
        return (_good("device driver", "stays loaded"),)
    return (_poor("device driver", "loaded anew by every process", "sudo nvidia-smi -pm 1", UNMEASURED),)


def _device_clock(backend: str, device: Accelerator) -> HostCheck:
    if device.clock_locked:
        return _good("device clock", f"locked, at {device.clock_mhz or 0:.0f} MHz")
    if device.clock_mhz is None:
        return _unknown("device clock", f"{device.name} does not show it")
    highest = f" of {device.highest_mhz:.0f}" if device.highest_mhz else ""
    found = f"at {device.clock_mhz:.0f}{highest} MHz"
    if backend == "rocm":
        advice = "sudo rocm-smi --setperfdeterminism MHZ, with a clock that it holds under load"
        return _poor("device clock", f"{found}, not locked", advice, UNMEASURED)
    if device.idle:
        return _unknown("device clock", f"{found} and idle: whether it is locked shows under load only")
    advice = "sudo nvidia-smi --lock-gpu-clocks=MHZ, with a clock that it holds under load"
    return _poor("device clock", f"{found}, not locked", advice, UNMEASURED)


def _exclusive(device: Accelerator) -> HostCheck:
    said = sharing(device)
    if not said:
        return _good("device exclusive", f"{device.name} is idle and empty")
    if said.startswith("device shared"):
        advice = "stop what uses it: restarts beside another job are thrown away"
        return _poor("device exclusive", said, advice, UNMEASURED)
    return _unknown("device exclusive", said)


# -- words ---------------------------------------------------------------------------------------------------------


def _good(name: str, found: str, worth: str = "") -> HostCheck:
    return HostCheck(name=name, state="good", found=found, worth=worth)


def _poor(name: str, found: str, advice: str, worth: str) -> HostCheck:
    return HostCheck(name=name, state="poor", found=found, advice=advice, worth=worth)


def _unknown(name: str, why: str) -> HostCheck:
    return HostCheck(name=name, state="unknown", found=why)


def _host_decides(asked: _Asked) -> str:
    return ": the host of this guest decides" if virtual(asked.machine) else ""


def _first_number(text: str | None) -> float | None:
    seen = re.search(r"\d+(?:\.\d+)?", text or "")
    return float(seen[0]) if seen else None


def _kilobytes(machine: Machine, name: str) -> float | None:
    """Return one line of /proc/meminfo in bytes."""
    seen = re.search(rf"^{name}:\s*(\d+) kB", machine.text("proc/meminfo") or "", re.MULTILINE)
    return int(seen[1]) * 1024.0 if seen else None
