"""What accelerators say of themselves, by their vendor's tool: load, memory, clock, heat, and who uses them.

Process ids may be hidden, or be those of another namespace (CASES.md M9): whether a device is idle is judged by its
utilisation and used memory as well.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workers.sensors import Machine

__all__ = ["Accelerator", "accelerators", "measured_device", "sharing", "slowed"]

#: An idle device shows less. Desktops draw with a few per cent; a job of another shows tens.
IDLE_UTILISATION = 10.0
#: An idle device holds less: drivers keep up to 0.6 GiB of a large one for themselves.
IDLE_MEMORY_BYTES = 2**30
#: Under load, a clock below this share of the device's highest is throttled. CASES.md M8 stayed at 54 to 60 %; a power
#: limit alone takes large devices to 70 to 75 %, and nvbench discards below 75 % of the (lower) default clock.
CLOCK_FLOOR = 0.65
#: From this utilisation on, a clock is one under load: an idle device lowers it.
LOADED_UTILISATION = 20.0
#: Which devices a runner sees, by backend.
VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES"}
#: Bits of NVIDIA's clocks event reasons (nvml.h) that always mean "slower than it should be".
NVIDIA_SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
NVIDIA_IDLE = 0x01
#: The clock is where somebody locked it: slow on purpose, and steady.
NVIDIA_LOCKED = 0x02
NVIDIA_FIELDS = "uuid,utilization.gpu,memory.used,memory.total,clocks.sm,clocks.max.sm,temperature.gpu,persistence_mode"
#: The newer name and the older; a driver that does not know a field answers none of them.
NVIDIA_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
#: A process that has only opened AMD's driver holds less (54 KiB seen) and does not use the device.
AMD_PROCESS_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Accelerator:
    """One device; None is what its tool does not say."""

    name: str
    uuid: str = ""
    utilisation: float | None = None
    """Per cent of the last second or less in which something ran."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    clock_mhz: float | None = None
    highest_mhz: float | None = None
    celsius: float | None = None
    slowdowns: tuple[str, ...] = ()
    """In the vendor's words; a power limit alone is none, it shows in the clock where it matters."""
    clock_locked: bool = False
    idle: bool = False
    """The tool itself calls the device idle."""
    pids: frozenset[int] = frozenset()
    """Of processes that compute on it, as the tool names them; empty where it hides them."""
    persistent: bool | None = None
    """NVIDIA: the driver stays loaded between processes."""


def accelerators(backend: str, machine: Machine) -> list[Accelerator] | None:
    """Return the devices of ``backend``; None where no tool answers, [] for the CPU."""
    ask: dict[str, Callable[[Machine], list[Accelerator] | None]] = {"cuda": _nvidia, "rocm": _amd, "mps": _apple}
    return ask[backend](machine) if backend in ask else []


def measured_device(backend: str, machine: Machine, environ: Mapping[str, str] = os.environ) -> Accelerator | None:
    """Return the device that runners measure: the first that they see, by number or UUID in the order of the tool.

    None where no tool answers or names it. CUDA's own order puts faster devices first, which differs only where
    models are mixed.
    """
    devices = accelerators(backend, machine)
    if not devices:
        return None
    visible = environ.get(VISIBLE.get(backend, ""), "").split(",")[0].strip()
    if not visible:
        return devices[0]
    if visible.isdigit():
        return devices[int(visible)] if int(visible) < len(devices) else None
    return next((device for device in devices if device.uuid.startswith(visible)), None)


def slowed(device: Accelerator) -> str:
    """Return what slows the device, "" where nothing does; asked while it works or just after."""
    if device.slowdowns:
        heat = f" at {device.celsius:.0f} °C" if device.celsius is not None else ""
        return f"throttled: {device.name} says {' and '.join(device.slowdowns)}{heat}"
    loaded = not device.idle and (device.utilisation is None or device.utilisation >= LOADED_UTILISATION)
    if device.clock_locked or not loaded or not device.clock_mhz or not device.highest_mhz:
        return ""
    share = device.clock_mhz / device.highest_mhz
    if share >= CLOCK_FLOOR:
        return ""
    return (
        f"throttled: {device.name} runs at {device.clock_mhz:.0f} of {device.highest_mhz:.0f} MHz ({share * 100:.0f} %)"
    )


def sharing(device: Accelerator, own: Iterable[int] = ()) -> str:
    """Return who else uses a device on which nothing of ours runs: "" where nobody does, or why that is not known."""
    others = sorted(device.pids - set(own))
    if others:
        return f"device shared: {device.name} is used by process {', '.join(map(str, others))}"
    if device.utilisation is not None and device.utilisation > IDLE_UTILISATION:
        return f"device shared: {device.name} is {device.utilisation:.0f} % busy with nothing of ours on it"
    if device.memory_used_bytes is not None and device.memory_used_bytes > IDLE_MEMORY_BYTES:
        return (
            f"device shared: {device.memory_used_bytes / 2**30:.1f} GiB of {device.name} are in use "
            "with nothing of ours on it"
        )
    hidden = [
        word
        for word, value in (("utilisation", device.utilisation), ("used memory", device.memory_used_bytes))
        if value is None
    ]
    if hidden:
        return f"exclusivity could not be shown: {device.name} hides its {' and '.join(hidden)}"
    return ""


# -- NVIDIA --------------------------------------------------------------------------------------------------------


def _nvidia(machine: Machine) -> list[Accelerator] | None:
    listed = None
    for reasons in NVIDIA_REASONS:
        listed = machine.ask("nvidia-smi", f"--query-gpu={NVIDIA_FIELDS},{reasons},name", *_CSV)
        if listed is not None:
            break
    if listed is None:
        return None
    users: dict[str, set[int]] = {}
    for line in (machine.ask("nvidia-smi", "--query-compute-apps=gpu_uuid,pid", *_CSV) or "").splitlines():
        uuid, _, pid = line.partition(",")
        if pid.strip().isdigit():
            users.setdefault(uuid.strip(), set()).add(int(pid))
    found = []
    for line in listed.splitlines():
        values = [value.strip() for value in line.split(",", 9)]
        if len(values) != 10:
            continue
        uuid, busy, used, total, mhz, highest, celsius, persistence, reasons, name = values
        bits = int(reasons, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", reasons) else 0
        found.append(
            Accelerator(
                name=name,
                uuid=uuid,
                utilisation=_number(busy),
                memory_used_bytes=_scaled(_number(used), 2**20),
                memory_total_bytes=_scaled(_number(total), 2**20),
                clock_mhz=_number(mhz),
                highest_mhz=_number(highest),
                celsius=_number(celsius),
                slowdowns=tuple(words for bit, words in NVIDIA_SLOWDOWNS.items() if bits & bit),
                clock_locked=bool(bits & NVIDIA_LOCKED),
                idle=bool(bits & NVIDIA_IDLE),
                pids=frozenset(users.get(uuid, ())),
                persistent={"Enabled": True, "Disabled": False}.get(persistence),
            )
        )
    return found


_CSV = ("--format=csv,noheader,nounits",)


# -- AMD -----------------------------------------------------------------------------------------------------------


def _amd(machine: Machine) -> list[Accelerator] | None:
    metrics = _json(machine.ask("amd-smi", "metric", "--json"))
    if metrics is not None:
        return _amd_smi(metrics, _json(machine.ask("amd-smi", "process", "--json")))
    listed = _json(
        machine.ask(
            "rocm-smi", "--showuse", "--showmeminfo", "vram", "--showclocks", "--showtemp", "--showpids", "--json"
        )
    )
    return _rocm_smi(listed) if isinstance(listed, dict) else None


def _amd_smi(metrics: Any, processes: Any) -> list[Accelerator]:
    """Read AMD SMI's answers: a list of devices, since ROCm 7 inside "gpu_data"."""
    users: dict[int, set[int]] = {}
    for device in _devices(processes):
        for entry in device.get("process_list") or ():
            process = entry.get("process_info") if isinstance(entry, dict) else None
            if isinstance(process, dict) and isinstance(process.get("pid"), int):
                held = _value(process, "memory_usage", "vram_mem")
                if held is None or held >= AMD_PROCESS_BYTES:
                    users.setdefault(device.get("gpu", -1), set()).add(process["pid"])
    found: list[Accelerator] = []
    for device in _devices(metrics):
        clocks = device.get("clock")
        cores = [clocks[name] for name in clocks if name.startswith("gfx")] if isinstance(clocks, dict) else []
        throttle = device.get("throttle")
        active = [
            name.removesuffix("_violation_status").replace("_", " ")
            for name, status in (throttle.items() if isinstance(throttle, dict) else ())
            if status == "ACTIVE" and name.endswith("_violation_status") and ("thermal" in name or "prochot" in name)
        ]
        found.append(
            Accelerator(
                name=f"GPU {device.get('gpu', len(found))}",
                utilisation=_value(device, "usage", "gfx_activity"),
                memory_used_bytes=_scaled(_value(device, "mem_usage", "used_vram"), 2**20),
                memory_total_bytes=_scaled(_value(device, "mem_usage", "total_vram"), 2**20),
                clock_mhz=max((_value(core, "clk") or 0.0 for core in cores), default=None),
                highest_mhz=max((_value(core, "max_clk") or 0.0 for core in cores), default=None),
                celsius=_value(device, "temperature", "hotspot") or _value(device, "temperature", "edge"),
                slowdowns=tuple(active),
                clock_locked=any(isinstance(core, dict) and core.get("clk_locked") == "ENABLED" for core in cores),
                pids=frozenset(users.get(device.get("gpu", -1), ())),
            )
        )
    return found


def _rocm_smi(listed: Mapping[str, Any]) -> list[Accelerator]:
    """Read ROCm SMI's answer: cards, and under "system" the processes of all cards together.

    Which card a process uses is not said, so that on several cards load and memory tell alone.
    """
    cards = {name: card for name, card in listed.items() if name.startswith("card") and isinstance(card, dict)}
    pids: set[int] = set()
    for name, said in (listed.get("system") or {}).items():
        pid = re.fullmatch(r"PID\s*(\d+)", name)
        words = str(said).split(",")
        held = _number(words[2]) if len(words) > 2 else None
        if pid and (held is None or held >= AMD_PROCESS_BYTES):
            pids.add(int(pid[1]))
    found: list[Accelerator] = []
    for name, card in cards.items():
        speed = re.search(r"(\d+)\s*Mhz", str(card.get("sclk clock speed:", "")), re.IGNORECASE)
        found.append(
            Accelerator(
                name=f"GPU {name.removeprefix('card')}",
                utilisation=_number(card.get("GPU use (%)")),
                memory_used_bytes=_scaled(_number(card.get("VRAM Total Used Memory (B)")), 1),
                memory_total_bytes=_scaled(_number(card.get("VRAM Total Memory (B)")), 1),
                clock_mhz=float(speed[1]) if speed else None,
                celsius=_number(
                    card.get("Temperature (Sensor junction) (C)") or card.get("Temperature (Sensor edge) (C)")
                ),
                pids=frozenset(pids) if len(cards) == 1 else frozenset(),
            )
        )
    return found


# -- Apple ---------------------------------------------------------------------------------------------------------


def _apple(machine: Machine) -> list[Accelerator] | None:
    """Return the one device of Apple silicon: the registry tells its load and nothing else without root."""
    listed = machine.ask("ioreg", "-r", "-d", "1", "-c", "IOAccelerator")
    if listed is None:
        return None
    busy = re.search(r'"Device Utilization %"\s*=\s*(\d+)', listed)
    return [Accelerator(name="Apple GPU", utilisation=float(busy[1]) if busy else None)]


# -- words and numbers ---------------------------------------------------------------------------------------------


def _number(text: object) -> float | None:
    """Return a tool's number; None for "[N/A]", "[Not Supported]" and the like."""
    try:
        return float(str(text))
    except ValueError:
        return None


def _scaled(value: float | None, unit: int) -> int | None:
    return None if value is None else round(value * unit)


def _value(found: Any, *keys: str) -> float | None:
    """Return {"value": 40, "unit": "%"} at ``keys`` as 40.0; "N/A" anywhere on the way is None."""
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return _number(found.get("value") if isinstance(found, dict) else found)


def _devices(answer: Any) -> list[dict[str, Any]]:
    listed = answer.get("gpu_data", []) if isinstance(answer, dict) else answer
    return [device for device in listed if isinstance(device, dict)] if isinstance(listed, list) else []


def _json(text: str | None) -> Any:
    try:
        return json.loads(text or "")
    except json.JSONDecodeError:
        return None
