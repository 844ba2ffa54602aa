"""What a machine's files and tools say of its noise, from machines laid out as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.model import HostCheck
from tests.workers.machines import Told, container, guest, laptop, lay, macbook
from workers.hygiene import device_checks, host_checks, pin_to
from workers.sensors import Machine

H200 = "GPU-1, 0, 4, 143771, 345, 1980, 31, Disabled, 0x0000000000000001, NVIDIA H200"
NAMES = (
    "virtual machine",
    "governor",
    "turbo",
    "cores",
    "threads",
    "pinning",
    "SMT",
    "address layout",
    "environment size",
    "allocator",
    "huge pages",
    "compile caches",
    "other load",
    "memory",
    "swap",
    "power",
    "temperature",
)


def checks(machine: Machine, allowed: tuple[int, ...], threads: int = 1) -> dict[str, HostCheck]:
    return {check.name: check for check in host_checks(threads, "cpu", machine, allowed)}


def states(found: dict[str, HostCheck]) -> dict[str, str]:
    return {name: f"{check.state}: {check.found}" for name, check in found.items()}


def test_a_laptop_is_told_its_knobs(tmp_path: Path) -> None:
    found = checks(laptop(tmp_path).machine(tmp_path), (0, 1, 2, 3))
    assert states(found) == {
        "virtual machine": "good: none: this is the machine itself",
        "governor": "poor: powersave",
        "turbo": "poor: on: the clock falls with heat",
        "cores": "good: 4 of 4",
        "threads": "good: 1 a runner, 2 cores",
        "pinning": "good: possible: 0 or 1 in turn",
        "SMT": "poor: 2 threads a core: another program on the second one slows the first",
        "address layout": "good: random in every process",
        "environment size": "good: the farm draws it anew for every runner",
        "allocator": "good: the farm settles glibc's for timing",
        "huge pages": "good: madvise",
        "compile caches": "good: the farm keeps a folder for each arm",
        "other load": "poor: somebody waited for a processor in 14.2 % of the last 10 s, load 2.81 on 4 processors",
        "memory": "poor: 0.9 GiB free",
        "swap": "poor: 1.9 GiB in use",
        "power": "good: mains",
        "temperature": "good: 61 °C, limit 100",
    }
    assert found["turbo"].advice == "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo"
    assert found["governor"].advice == "sudo cpupower frequency-set -g performance"


def test_a_guest_says_that_its_host_decides(tmp_path: Path) -> None:
    found = states(checks(guest(tmp_path).machine(tmp_path), (0, 1)))
    assert found["virtual machine"].startswith("poor: a guest")
    assert found["governor"] == "unknown: no cpufreq below /sys: the host of this guest decides"
    assert found["turbo"] == "unknown: no switch below /sys: the host of this guest decides"
    assert found["temperature"] == "unknown: no sensor below /sys: the host of this guest decides"
    assert found["huge pages"].startswith("poor: always")
    assert found["power"] == "good: no battery"
    assert found["swap"] == "good: not in use"


def test_a_container_is_told_its_quota_and_what_it_cannot_see(tmp_path: Path) -> None:
    found = states(checks(container(tmp_path).machine(tmp_path), tuple(range(16))))
    assert found["cores"] == "poor: 16 of 16, with a quota of 1.5 processors' time"
    assert found["address layout"] == "poor: fixed"
    assert found["other load"] == "poor: load 14 on 16 processors"
    assert found["power"] == "unknown: where it comes from cannot be seen"
    assert found["memory"] == "unknown: how much is free cannot be read"
    assert found["SMT"] == "unknown: no topology below /sys"


def test_the_quota_of_a_group_above_counts(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "proc/self/cgroup": "0::/work.slice/farm.scope",
            "sys/fs/cgroup/work.slice/cpu.max": "200000 100000",
            "sys/fs/cgroup/work.slice/farm.scope/cpu.max": "max 100000",
        },
    )
    found = checks(Told({}).machine(tmp_path), (0, 1, 2))
    assert found["cores"].found == "3 of an unknown number, with a quota of 2 processors' time"


def test_a_macbook_is_asked_by_its_tools(tmp_path: Path) -> None:
    found = states(checks(macbook(tmp_path).machine(tmp_path, "darwin"), ()))
    assert found["virtual machine"] == "good: none: this is the machine itself"
    assert found["governor"].startswith("unknown: macOS")
    assert found["cores"] == "good: all 10"
    assert found["pinning"] == "poor: macOS lets nobody pin"
    assert found["other load"] == "good: load 1.2 on 10 processors"
    assert found["swap"] == "poor: 0.5 GiB in use"
    assert found["power"] == "good: mains"
    assert found["temperature"] == "unknown: macOS shows it to root only"


def test_a_machine_that_shows_nothing_passes_nothing_in_silence(tmp_path: Path) -> None:
    found = checks(Told({}).machine(tmp_path), ())
    assert tuple(found) == NAMES
    unknown = {name for name, check in found.items() if check.state == "unknown"}
    assert unknown == set(NAMES) - {"environment size", "allocator", "compile caches"}
    assert all(check.found for check in found.values())


@pytest.mark.parametrize("made", [laptop, guest, container])
def test_what_is_poor_says_what_to_do_and_what_it_is_worth(tmp_path: Path, made: object) -> None:
    told: Told = made(tmp_path)  # type: ignore[operator]
    poor = [check for check in checks(told.machine(tmp_path), (0, 1), threads=2).values() if check.state == "poor"]
    assert poor
    assert all(check.advice and check.worth for check in poor)


@pytest.mark.parametrize(("threads", "state"), [(1, "good"), (2, "poor"), (3, "poor")])
def test_a_runner_leaves_a_core_for_everything_else(tmp_path: Path, threads: int, state: str) -> None:
    assert checks(guest(tmp_path).machine(tmp_path), (0, 1), threads)["threads"].state == state


# -- the device ----------------------------------------------------------------------------------------------------


def gpu(line: str, users: str = "") -> Told:
    return Told({"nvidia-smi --query-gpu": [line], "nvidia-smi --query-compute-apps": [users]})


def test_an_idle_gpu_is_exclusive_and_hides_whether_its_clock_is_locked(tmp_path: Path) -> None:
    found = {check.name: check for check in device_checks("cuda", gpu(H200).machine(tmp_path))}
    assert states(found) == {
        "device driver": "poor: loaded anew by every process",
        "device clock": "unknown: at 345 of 1980 MHz and idle: whether it is locked shows under load only",
        "device exclusive": "good: NVIDIA H200 is idle and empty",
    }
    assert found["device driver"].advice == "sudo nvidia-smi -pm 1"


def test_exclusivity_that_cannot_be_shown_says_so(tmp_path: Path) -> None:
    """CASES.md M9."""
    hidden = "GPU-1, [N/A], [N/A], [N/A], [N/A], [N/A], [N/A], Enabled, [N/A], NVIDIA H200 MIG 1g.18gb"
    found = {check.name: check for check in device_checks("cuda", gpu(hidden).machine(tmp_path))}
    assert states(found) == {
        "device driver": "good: stays loaded",
        "device clock": "unknown: NVIDIA H200 MIG 1g.18gb does not show it",
        "device exclusive": "unknown: exclusivity could not be shown: "
        "NVIDIA H200 MIG 1g.18gb hides its utilisation and used memory",
    }


def test_a_gpu_that_another_job_fills_is_shared_whoever_it_is(tmp_path: Path) -> None:
    taken = H200.replace(" 0, 4,", " 0, 40960,")
    found = {check.name: check for check in device_checks("cuda", gpu(taken).machine(tmp_path))}
    assert found["device exclusive"].state == "poor"
    assert "40.0 GiB of NVIDIA H200 are in use" in found["device exclusive"].found


def test_the_gpu_of_a_mac_shows_its_load_and_nothing_else(tmp_path: Path) -> None:
    found = {check.name: check for check in device_checks("mps", macbook(tmp_path).machine(tmp_path, "darwin"))}
    assert states(found) == {
        "device clock": "unknown: Apple GPU does not show it",
        "device exclusive": "unknown: exclusivity could not be shown: Apple GPU hides its used memory",
    }


def test_a_driver_that_does_not_answer_is_unknown(tmp_path: Path) -> None:
    found = device_checks("cuda", Told({}).machine(tmp_path))
    assert [(check.name, check.state) for check in found] == [
        ("device clock", "unknown"),
        ("device exclusive", "unknown"),
    ]


def test_cells_of_the_cpu_ask_no_device(tmp_path: Path) -> None:
    told = gpu(H200)
    assert device_checks("cpu", told.machine(tmp_path)) == ()
    assert told.asked == []


# -- pinning -------------------------------------------------------------------------------------------------------


def turns(machine: Machine, allowed: tuple[int, ...], threads: int, count: int) -> list[tuple[int, ...]]:
    return [pin_to(index, threads, machine, allowed) for index in range(count)]


def test_restarts_take_turns_on_the_cores_and_leave_core_0_alone(tmp_path: Path) -> None:
    machine = Told({}).machine(tmp_path)
    assert turns(machine, (0, 1, 2, 3), 1, 4) == [(1,), (2,), (3,), (1,)]
    assert turns(machine, (0, 1, 2, 3), 2, 3) == [(1, 2), (2, 3), (1, 3)]


def test_two_processors_are_left_to_the_scheduler(tmp_path: Path) -> None:
    assert turns(guest(tmp_path).machine(tmp_path), (0, 1), 1, 3) == [(), (), ()]


def test_one_thread_of_a_core_is_used(tmp_path: Path) -> None:
    machine = laptop(tmp_path).machine(tmp_path)
    assert turns(machine, (0, 1, 2, 3), 1, 3) == [(0,), (1,), (0,)]


def test_slow_cores_of_a_mixed_machine_are_left_out(tmp_path: Path) -> None:
    lay(tmp_path, {f"sys/devices/system/cpu/cpu{n}/cpu_capacity": "1024" if n < 3 else "446" for n in range(6)})
    assert turns(Told({}).machine(tmp_path), tuple(range(6)), 1, 3) == [(1,), (2,), (1,)]


@pytest.mark.parametrize(("allowed", "threads"), [((0, 1), 2), ((0,), 1), ((), 1), ((0, 1, 2), 4)])
def test_where_there_is_nothing_to_choose_nothing_is_pinned(
    tmp_path: Path, allowed: tuple[int, ...], threads: int
) -> None:
    assert pin_to(0, threads, Told({}).machine(tmp_path), allowed) == ()


def test_macos_pins_nothing(tmp_path: Path) -> None:
    assert pin_to(0, 1, macbook(tmp_path).machine(tmp_path, "darwin"), (0, 1, 2, 3)) == ()
