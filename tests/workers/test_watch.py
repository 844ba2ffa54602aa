"""What happened to a machine since a mark, from recorded sensors."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.workers.machines import Told, laptop
from workers.watch import MachineWatch, Watch, read_clocks

SMI = "GPU-1, {busy}, {used}, 143771, {mhz}, 1980, {celsius}, Enabled, {reasons}, NVIDIA H200"
IDLE = SMI.format(busy=0, used=4, mhz=345, celsius=31, reasons="0x0000000000000001")


def clocks(*readings: tuple[float, float, float]) -> Watch:
    told = iter(readings)
    return Watch(lambda: next(told))


def smi(*answers: str, pids: Iterable[int] = ()) -> Told:
    """nvidia-smi that gives one answer after the other, and then the last for ever."""
    users = "\n".join(f"GPU-1, {pid}" for pid in pids)
    return Told({"nvidia-smi --query-gpu": list(answers), "nvidia-smi --query-compute-apps": [users]})


def cuda(tmp_path: Path, told: Told) -> MachineWatch:
    return MachineWatch("cuda", told.machine(tmp_path), sleep=lambda _: None)


# -- clocks --------------------------------------------------------------------------------------------------------


def test_clocks_that_agree_say_nothing() -> None:
    assert clocks((10, 10, 1000), (70, 70, 1060)).reasons() == []
    assert Watch().reasons() == []


def test_a_machine_that_slept_is_told_from_a_clock_that_was_set() -> None:
    assert clocks((10, 10, 1000), (70, 3670, 4660)).reasons() == ["machine suspended for 3600 s"]
    assert clocks((10, 10, 1000), (70, 70, 460)).reasons() == ["clock jumped by -600 s"]


def test_the_real_clocks_run_together() -> None:
    before, began = read_clocks(), time.monotonic()
    passed = [now - then for now, then in zip(read_clocks(), before, strict=True)]
    assert all(-0.5 < each < time.monotonic() - began + 0.5 for each in passed)


def test_what_a_restart_answers_for_is_not_held_against_the_cell(tmp_path: Path) -> None:
    """A laptop that slept in one restart repeats that one: the others stand."""
    readings = [(0.0, 0.0, 0.0), (60.0, 660.0, 660.0)]
    cell = Watch(lambda: readings[-1])
    cell._started = readings[0]
    told = iter([readings[0], readings[0], *[readings[1]] * 9])
    watch = MachineWatch("cpu", laptop(tmp_path).machine(tmp_path), cell=cell, clocks=lambda: next(told))
    watch.mark()
    assert watch.reasons() == ["machine suspended for 600 s"]
    assert cell.reasons() == []


# -- the processor -------------------------------------------------------------------------------------------------


def test_a_quiet_laptop_on_mains_says_nothing(tmp_path: Path) -> None:
    assert MachineWatch("cpu", laptop(tmp_path).machine(tmp_path)).reasons() == []


def test_a_machine_that_hides_everything_says_nothing(tmp_path: Path) -> None:
    assert MachineWatch("cpu", Told({}).machine(tmp_path)).reasons() == []


@pytest.mark.parametrize(
    ("path", "content", "reason"),
    [
        (
            "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count",
            "9",
            "throttled: the kernel counted 7 more events",
        ),
        ("sys/class/power_supply/BAT0/status", "Discharging", "on battery"),
        ("sys/firmware/acpi/platform_profile", "low-power", "throttled: low power mode is on"),
        ("sys/class/hwmon/hwmon1/temp1_input", "101000", "throttled: the processor is at 101 °C, its limit is 100"),
    ],
)
def test_what_changes_after_the_mark_is_named(tmp_path: Path, path: str, content: str, reason: str) -> None:
    watch = MachineWatch("cpu", laptop(tmp_path).machine(tmp_path))
    (tmp_path / path).write_text(content)
    assert watch.reasons() == [reason]
    (tmp_path / "sys/class/power_supply/BAT0/status").write_text("Charging")
    (tmp_path / "sys/firmware/acpi/platform_profile").write_text("balanced")
    (tmp_path / "sys/class/hwmon/hwmon1/temp1_input").write_text("60000")
    watch.mark()
    assert watch.reasons() == []


def test_a_busy_core_far_below_its_base_clock_is_throttled(tmp_path: Path) -> None:
    watch = MachineWatch("cpu", laptop(tmp_path).machine(tmp_path))
    for core in range(4):
        (tmp_path / f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq").write_text("800000")
    assert watch.reasons() == ["throttled: a busy core runs at 800 MHz, rated for 2400"]


def test_a_clock_that_a_setting_holds_low_is_slow_on_purpose(tmp_path: Path) -> None:
    machine = laptop(tmp_path).machine(tmp_path)
    for core in range(4):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{core}/cpufreq"
        (folder / "scaling_cur_freq").write_text("800000")
        (folder / "scaling_driver").write_text("acpi-cpufreq")
    assert MachineWatch("cpu", machine).reasons() == []


def test_a_mac_says_what_its_tool_says(tmp_path: Path) -> None:
    told = Told(
        {
            "pmset -g batt": ["Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1)\t84%; discharging; 3:02"],
            "pmset -g therm": ["CPU_Scheduler_Limit \t= 100\n\tCPU_Available_CPUs \t= 8\n\tCPU_Speed_Limit \t= 60"],
            "pmset -g": ["System-wide power settings:\nCurrently in use:\n lowpowermode         1\n sleep    1"],
        }
    )
    assert MachineWatch("mps", told.machine(tmp_path, "darwin")).reasons() == [
        "throttled: the processors are held at 60 % of their speed",
        "on battery",
        "throttled: low power mode is on",
    ]


# -- the device ----------------------------------------------------------------------------------------------------


def test_a_device_of_our_own_at_its_clock_is_fine(tmp_path: Path) -> None:
    busy = SMI.format(busy=98, used=9000, mhz=1755, celsius=64, reasons="0x0000000000000004")
    assert cuda(tmp_path, smi(IDLE, busy)).reasons() == []


@pytest.mark.parametrize("mhz", [1070, 1188])
def test_a_device_that_stays_at_54_to_60_percent_of_its_clock_is_throttled(tmp_path: Path, mhz: int) -> None:
    """CASES.md M8: with its reason, and at once."""
    slow = SMI.format(busy=99, used=9000, mhz=mhz, celsius=83, reasons="0x0000000000000004")
    began = time.monotonic()
    found = cuda(tmp_path, smi(IDLE, slow)).reasons()
    assert found == [f"throttled: NVIDIA H200 runs at {mhz} of 1980 MHz ({mhz / 19.8:.0f} %)"]
    assert time.monotonic() - began < 1.0


def test_a_device_that_says_what_slows_it_is_throttled_at_any_clock(tmp_path: Path) -> None:
    hot = SMI.format(busy=99, used=9000, mhz=1755, celsius=87, reasons="0x0000000000000024")
    expected = ["throttled: NVIDIA H200 says software thermal slowdown at 87 °C"]
    assert cuda(tmp_path, smi(IDLE, hot)).reasons() == expected


def test_a_device_whose_clock_somebody_locked_is_slow_on_purpose(tmp_path: Path) -> None:
    locked = SMI.format(busy=99, used=9000, mhz=1095, celsius=50, reasons="0x0000000000000002")
    assert cuda(tmp_path, smi(IDLE, locked)).reasons() == []


def test_an_idle_device_is_not_throttled(tmp_path: Path) -> None:
    assert cuda(tmp_path, smi(IDLE)).reasons() == []


@pytest.mark.parametrize(
    ("busy", "used", "reason"),
    [
        (57, 4, "device shared: NVIDIA H200 is 57 % busy with nothing of ours on it"),
        (0, 40960, "device shared: 40.0 GiB of NVIDIA H200 are in use with nothing of ours on it"),
    ],
)
def test_a_job_whose_process_id_is_hidden_is_seen_all_the_same(
    tmp_path: Path, busy: int, used: int, reason: str
) -> None:
    """CASES.md M9."""
    told = smi(SMI.format(busy=busy, used=used, mhz=1755, celsius=60, reasons="0x0000000000000000"))
    assert cuda(tmp_path, told).reasons() == [reason]


def test_what_our_last_runner_left_behind_is_waited_for(tmp_path: Path) -> None:
    warm = SMI.format(busy=80, used=9000, mhz=1755, celsius=60, reasons="0x0000000000000000")
    assert cuda(tmp_path, smi(warm, warm, IDLE)).reasons() == []


def test_a_process_of_another_on_the_device_is_named(tmp_path: Path) -> None:
    """CASES.md Q8: another job on the measured device, this time one whose id is seen."""
    other = os.getppid()
    expected = [f"device shared: NVIDIA H200 is used by process {other}"]
    assert cuda(tmp_path, smi(IDLE, pids=[other])).reasons() == expected


def test_our_own_runner_and_ids_of_another_namespace_are_no_strangers(tmp_path: Path) -> None:
    told = smi(IDLE)
    watch = cuda(tmp_path, told)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as runner:
        told.answers["nvidia-smi --query-compute-apps"] = [f"GPU-1, {runner.pid}\nGPU-1, 4194999"]
        assert watch.reasons() == []


def test_a_device_that_hides_its_load_invalidates_nothing(tmp_path: Path) -> None:
    hidden = "GPU-1, [N/A], [N/A], [N/A], [N/A], [N/A], [N/A], Enabled, [N/A], NVIDIA H200 MIG 1g.18gb"
    assert cuda(tmp_path, smi(hidden)).reasons() == []


def test_tools_of_a_device_are_not_asked_for_cells_of_the_cpu(tmp_path: Path) -> None:
    told = smi(IDLE)
    MachineWatch("cpu", told.machine(tmp_path)).reasons()
    assert told.asked == []
