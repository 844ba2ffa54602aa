"""What machines and accelerators say of themselves, from recorded files and answers of tools."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from tests.workers.machines import Told, container, guest, laptop, lay
from workers import sensors
from workers.accelerators import Accelerator, accelerators, measured_device, slowed
from workers.sensors import Machine, Processors, Reading, ask_tool, heat, power, processor_list, throttle_count, virtual

MIB = 2**20


def test_a_list_of_the_kernel_is_read() -> None:
    assert processor_list("0-3,8,10-11") == [0, 1, 2, 3, 8, 10, 11]
    assert processor_list("") == []


# -- processor time ------------------------------------------------------------------------------------------------


def test_others_had_what_was_busy_without_the_runner(tmp_path: Path) -> None:
    processors = Processors(guest(tmp_path).machine(tmp_path))
    before = processors.reading()
    assert before == Reading(busy_ns=(566324 + 107303 + 2300) * 10**7, stolen_ns=280 * 10**7)
    (tmp_path / "proc/stat").write_text("cpu  566336 0 107305 3127640 9211 0 2301 284 0 0\n")
    assert Processors.between(before, processors.reading(), 120_000_000) == (30_000_000, 40_000_000)


def test_ticks_that_round_against_the_runner_are_nothing_foreign() -> None:
    assert Processors.between(Reading(0, 50), Reading(100_000_000, 40), 118_000_000) == (0, 0)


@pytest.mark.parametrize("stat", ["", "cpu  0 0 0 0 0 0 0 0 0 0", "cpu  nonsense", "cpu  1 2 3"])
def test_hidden_processor_time_is_none(tmp_path: Path, stat: str) -> None:
    lay(tmp_path, {"proc/stat": stat})
    reading = Processors(Told({}).machine(tmp_path)).reading()
    assert Processors.between(reading, reading, 0) == (None, None)


def test_macos_counts_no_stolen_time(tmp_path: Path) -> None:
    reading = Processors(Told({}).machine(tmp_path, "darwin")).reading()
    assert reading.busy_ns is not None
    assert reading.stolen_ns is None


def test_this_machine_sees_its_own_work_and_is_read_fast() -> None:
    processors = Processors()
    before, began = processors.reading(), time.perf_counter()
    while time.perf_counter() - began < 0.2:
        pass
    after = processors.reading()
    assert (after.busy_ns or 0) - (before.busy_ns or 0) >= 100_000_000
    began = time.perf_counter()
    for _ in range(20):
        processors.reading()
    assert (time.perf_counter() - began) / 20 < 0.005


# -- the machine ---------------------------------------------------------------------------------------------------


def test_a_laptop_shows_its_heat_power_and_throttling(tmp_path: Path) -> None:
    machine = laptop(tmp_path).machine(tmp_path)
    assert heat(machine) == sensors.Heat(61.0, 100.0)
    assert power(machine) == sensors.Power(on_battery=False, percent=71, low_power_mode=False)
    assert throttle_count(machine) == 28
    assert sensors.clock(machine) == sensors.Clock(3800.0, 2400.0, held=False)
    assert virtual(machine) is False


def test_what_a_container_hides_is_none(tmp_path: Path) -> None:
    machine = container(tmp_path).machine(tmp_path)
    assert (heat(machine), throttle_count(machine), sensors.clock(machine)) == (None, None, None)
    assert power(machine) == sensors.Power(None, None, None)


def test_a_guest_knows_that_it_is_one(tmp_path: Path) -> None:
    assert virtual(guest(tmp_path).machine(tmp_path)) is True


@pytest.mark.parametrize(("said", "limit"), [("CPU_Speed_Limit \t= 85", 85), ("Note: No thermal warning level", None)])
def test_a_mac_says_how_much_of_its_speed_it_has(tmp_path: Path, said: str, limit: int | None) -> None:
    assert sensors.speed_limit(Told({"pmset -g therm": [said]}).machine(tmp_path, "darwin")) == limit


# -- tools ---------------------------------------------------------------------------------------------------------


def test_a_tool_says_what_it_prints() -> None:
    assert ask_tool(sys.executable, "-c", "print(42)") == "42\n"
    assert ask_tool(sys.executable, "-c", "raise SystemExit(9)") is None
    assert ask_tool("no-such-tool") is None


def test_a_tool_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """CASES.md M8: no hang."""
    monkeypatch.setattr(sensors, "TOOL_TIMEOUT_S", 0.2)
    began = time.monotonic()
    assert ask_tool(sys.executable, "-c", "import time; time.sleep(60)") is None
    assert time.monotonic() - began < 5.0


# -- NVIDIA --------------------------------------------------------------------------------------------------------

TWO = (
    "GPU-aaaa, 97, 20011, 24564, 2520, 3105, 71, Enabled, 0x0000000000000004, NVIDIA GeForce RTX 4090\n"
    "GPU-bbbb, 0, 1, 24576, 210, 2100, 35, Disabled, 0x0000000000000001, NVIDIA GeForce RTX 3090\n"
)


def nvidia(tmp_path: Path, **answers: list[str]) -> Machine:
    told = {"nvidia-smi --query-gpu": [TWO], "nvidia-smi --query-compute-apps": ["GPU-aaaa, 4242\nGPU-aaaa, [N/A]"]}
    return Told(told | answers).machine(tmp_path)


def test_devices_of_nvidia_are_read(tmp_path: Path) -> None:
    assert accelerators("cuda", nvidia(tmp_path)) == [
        Accelerator(
            name="NVIDIA GeForce RTX 4090",
            uuid="GPU-aaaa",
            utilisation=97.0,
            memory_used_bytes=20011 * MIB,
            memory_total_bytes=24564 * MIB,
            clock_mhz=2520.0,
            highest_mhz=3105.0,
            celsius=71.0,
            pids=frozenset({4242}),
            persistent=True,
        ),
        Accelerator(
            name="NVIDIA GeForce RTX 3090",
            uuid="GPU-bbbb",
            utilisation=0.0,
            memory_used_bytes=MIB,
            memory_total_bytes=24576 * MIB,
            clock_mhz=210.0,
            highest_mhz=2100.0,
            celsius=35.0,
            idle=True,
            persistent=False,
        ),
    ]


def test_an_older_driver_is_asked_by_the_older_name(tmp_path: Path) -> None:
    told = Told({})
    old = f"nvidia-smi --query-gpu={','.join(sensor for sensor in ('uuid', 'utilization.gpu'))}"

    def ask(*command: str) -> str | None:
        told.asked.append(" ".join(command))
        return TWO if command[1].startswith("--query-gpu") and "clocks_throttle_reasons" in command[1] else None

    found = accelerators("cuda", Machine(root=tmp_path, system="linux", ask=ask))
    assert [device.name for device in found or []] == ["NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3090"]
    assert all(line.startswith(old) for line in told.asked[:2])


@pytest.mark.parametrize(
    ("visible", "name"),
    [
        ({}, "NVIDIA GeForce RTX 4090"),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, "NVIDIA GeForce RTX 3090"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-bbbb"}, "NVIDIA GeForce RTX 3090"),
        ({"CUDA_VISIBLE_DEVICES": "7"}, None),
    ],
)
def test_the_device_that_a_runner_sees_is_the_one_that_counts(
    tmp_path: Path, visible: dict[str, str], name: str | None
) -> None:
    found = measured_device("cuda", nvidia(tmp_path), visible)
    assert (found.name if found else None) == name


@pytest.mark.parametrize(
    ("bits", "words"), [("08", "hardware slowdown"), ("c0", "hardware thermal slowdown and power brake")]
)
def test_bits_of_nvidia_are_put_into_words(tmp_path: Path, bits: str, words: str) -> None:
    line = TWO.splitlines()[0].replace("0x0000000000000004", f"0x00000000000000{bits}")
    found = accelerators("cuda", nvidia(tmp_path, **{"nvidia-smi --query-gpu": [line]})) or []
    assert slowed(found[0]) == f"throttled: NVIDIA GeForce RTX 4090 says {words} at 71 °C"


# -- AMD -----------------------------------------------------------------------------------------------------------

AMD_METRIC = {
    "gpu": 0,
    "usage": {"gfx_activity": {"value": 100, "unit": "%"}, "umc_activity": {"value": 0, "unit": "%"}},
    "mem_usage": {"total_vram": {"value": 32624, "unit": "MB"}, "used_vram": {"value": 29777, "unit": "MB"}},
    "clock": {
        "gfx_0": {
            "clk": {"value": 1500, "unit": "MHz"},
            "max_clk": {"value": 2920, "unit": "MHz"},
            "clk_locked": "DISABLED",
        },
        "mem_0": {"clk": {"value": 1258, "unit": "MHz"}, "max_clk": {"value": 1258, "unit": "MHz"}},
    },
    "temperature": {"edge": "N/A", "hotspot": {"value": 80, "unit": "C"}},
    "throttle": {
        "prochot_violation_status": "NOT ACTIVE",
        "socket_thermal_violation_status": "ACTIVE",
        "ppt_violation_status": "ACTIVE",
    },
}
AMD_PROCESSES = [
    {
        "gpu": 0,
        "process_list": [
            {"process_info": {"pid": 213534, "memory_usage": {"vram_mem": {"value": 56000, "unit": "B"}}}},
            {"process_info": {"pid": 213952, "memory_usage": {"vram_mem": {"value": 21008920000, "unit": "B"}}}},
        ],
    },
    {"gpu": 1, "process_list": [{"process_info": "No running processes detected"}]},
]


@pytest.mark.parametrize("inside", [True, False])
def test_devices_of_amd_are_read_in_both_forms_of_its_tool(tmp_path: Path, inside: bool) -> None:
    metrics = [AMD_METRIC, {"gpu": 1, "usage": "N/A", "mem_usage": "N/A"}]
    told = Told(
        {
            "amd-smi metric": [json.dumps({"gpu_data": metrics} if inside else metrics)],
            "amd-smi process": [json.dumps(AMD_PROCESSES)],
        }
    )
    found = accelerators("rocm", told.machine(tmp_path))
    assert found == [
        Accelerator(
            name="GPU 0",
            utilisation=100.0,
            memory_used_bytes=29777 * MIB,
            memory_total_bytes=32624 * MIB,
            clock_mhz=1500.0,
            highest_mhz=2920.0,
            celsius=80.0,
            slowdowns=("socket thermal",),
            pids=frozenset({213952}),
        ),
        Accelerator(name="GPU 1"),
    ]
    assert slowed(found[0]) == "throttled: GPU 0 says socket thermal at 80 °C"


def test_the_older_tool_of_amd_is_asked_where_the_newer_is_missing(tmp_path: Path) -> None:
    listed = {
        "card0": {
            "Temperature (Sensor junction) (C)": "60.0",
            "sclk clock speed:": "(173Mhz)",
            "GPU use (%)": "0",
            "VRAM Total Memory (B)": "68719476736",
            "VRAM Total Used Memory (B)": "10485760",
        },
        "system": {"PID123": "python, 1, 30000000000, 0, 0", "PID 77": "rocm-smi, 0, 0, 0, unknown"},
    }
    expected = Accelerator(
        name="GPU 0",
        utilisation=0.0,
        memory_used_bytes=10 * MIB,
        memory_total_bytes=64 * 2**30,
        clock_mhz=173.0,
        celsius=60.0,
        pids=frozenset({123}),
    )
    assert accelerators("rocm", Told({"rocm-smi": [json.dumps(listed)]}).machine(tmp_path)) == [expected]


@pytest.mark.parametrize("backend", ["cuda", "rocm", "mps"])
@pytest.mark.parametrize("said", [None, "", "No devices were found", "{", "[]", "null"])
def test_a_tool_without_an_answer_shows_no_device(tmp_path: Path, backend: str, said: str | None) -> None:
    tools = ("nvidia-smi", "amd-smi", "rocm-smi", "ioreg")
    told = Told({} if said is None else {tool: [said] for tool in tools})
    found = measured_device(backend, told.machine(tmp_path), {})
    assert found is None or (found.utilisation, found.pids) == (None, frozenset())
