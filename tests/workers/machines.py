"""Machines laid out as files and recorded answers of tools, for what reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from workers.sensors import Machine


@dataclass
class Told:
    """Tools that say what was recorded: by the longest beginning of their command line, one answer after the other.

    The last answer is given for ever; a command that is not in the list is a tool that is missing.
    """

    answers: dict[str, list[str]]
    asked: list[str] = field(default_factory=list)

    def __call__(self, *command: str) -> str | None:
        line = " ".join(command)
        self.asked.append(line)
        for beginning in sorted(self.answers, key=len, reverse=True):
            if line.startswith(beginning):
                given = self.answers[beginning]
                return given.pop(0) if len(given) > 1 else given[0]
        return None

    def machine(self, root: Path, system: str = "linux") -> Machine:
        return Machine(root=root, system=system, ask=self)


def lay(root: Path, files: dict[str, str]) -> None:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content + "\n")


def laptop(root: Path) -> Told:
    """A bare-metal Linux laptop on mains: four threads of two cores, turbo on, powersave."""
    files = {
        "proc/cpuinfo": "model name\t: Intel(R) Core(TM) i5-1135G7 @ 2.40GHz\nflags\t\t: fpu vme ht avx2",
        "proc/stat": "cpu  1000 20 300 50000 100 10 30 0 0 0\ncpu0 250 5 75 12500 25 2 7 0 0 0",
        "proc/loadavg": "2.81 1.90 1.20 3/1200 4242",
        "proc/pressure/cpu": "some avg10=14.20 avg60=3.00 avg300=1.00 total=123456",
        "proc/meminfo": "MemTotal:       16000000 kB\nMemFree:         500000 kB\nMemAvailable:    900000 kB\n"
        "SwapTotal:       8000000 kB\nSwapFree:        6000000 kB",
        "proc/self/cgroup": "0::/user.slice/user-1000.slice/session-2.scope",
        "proc/sys/kernel/randomize_va_space": "2",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        "sys/devices/system/cpu/online": "0-3",
        "sys/devices/system/cpu/intel_pstate/no_turbo": "0",
        "sys/firmware/acpi/platform_profile": "balanced",
        "sys/class/power_supply/AC/type": "Mains",
        "sys/class/power_supply/AC/online": "1",
        "sys/class/power_supply/BAT0/type": "Battery",
        "sys/class/power_supply/BAT0/status": "Charging",
        "sys/class/power_supply/BAT0/capacity": "71",
        "sys/class/power_supply/mouse/type": "Battery",
        "sys/class/power_supply/mouse/scope": "Device",
        "sys/class/power_supply/mouse/status": "Discharging",
        "sys/class/hwmon/hwmon0/name": "nvme",
        "sys/class/hwmon/hwmon0/temp1_input": "99000",
        "sys/class/hwmon/hwmon1/name": "coretemp",
        "sys/class/hwmon/hwmon1/temp1_input": "61000",
        "sys/class/hwmon/hwmon1/temp1_max": "100000",
        "sys/class/hwmon/hwmon1/temp2_input": "58000",
        "sys/class/hwmon/hwmon1/temp2_max": "100000",
    }
    for core in range(4):
        folder = f"sys/devices/system/cpu/cpu{core}"
        files |= {
            f"{folder}/cpufreq/scaling_governor": "powersave",
            f"{folder}/cpufreq/scaling_driver": "intel_pstate",
            f"{folder}/cpufreq/scaling_cur_freq": "3800000",
            f"{folder}/cpufreq/scaling_max_freq": "4200000",
            f"{folder}/cpufreq/cpuinfo_max_freq": "4200000",
            f"{folder}/cpufreq/base_frequency": "2400000",
            f"{folder}/thermal_throttle/core_throttle_count": "2",
            f"{folder}/thermal_throttle/package_throttle_count": "5",
            f"{folder}/topology/thread_siblings_list": f"{core % 2},{core % 2 + 2}",
        }
    lay(root, files)
    return Told({})


def guest(root: Path) -> Told:
    """A virtual machine of two processors on a quiet host, as a cloud gives it."""
    lay(
        root,
        {
            "proc/cpuinfo": "model name\t: Intel(R) Xeon(R) Processor\nflags\t\t: fpu avx512f hypervisor",
            "proc/stat": "cpu  566324 0 107303 3127638 9211 0 2300 280 0 0",
            "proc/loadavg": "0.05 0.10 0.20 1/200 77",
            "proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1",
            "proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 12000000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB",
            "proc/sys/kernel/randomize_va_space": "2",
            "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never",
            "sys/devices/system/cpu/online": "0-1",
            "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0",
            "sys/devices/system/cpu/cpu1/topology/thread_siblings_list": "1",
        },
    )
    (root / "sys/class/power_supply").mkdir(parents=True)
    return Told({})


def container(root: Path) -> Told:
    """A container with one and a half of a server's 16 processors, and little to see."""
    lay(
        root,
        {
            "proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD EPYC 9554\nflags\t\t: fpu avx512f",
            "proc/loadavg": "14.00 14.00 14.00 20/900 7",
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/cpu.max": "150000 100000",
            "proc/sys/kernel/randomize_va_space": "0",
            "sys/devices/system/cpu/online": "0-15",
        },
    )
    return Told({})


def macbook(root: Path) -> Told:
    """A MacBook on mains: nothing in files, everything by tools."""
    return Told(
        {
            "pmset -g batt": [
                "Now drawing from 'AC Power'\n -InternalBattery-0 (id=22806627)\t100%; charged; 0:00 remaining"
            ],
            "pmset -g therm": [
                "Note: No thermal warning level has been recorded\nNote: No performance warning level has been recorded"
            ],
            "pmset -g": [
                "System-wide power settings:\nCurrently in use:\n standby              1\n powermode            0"
            ],
            "sysctl -n kern.hv_vmm_present": ["0\n"],
            "sysctl -n hw.physicalcpu": ["10\n"],
            "sysctl -n vm.loadavg": ["{ 1.20 1.40 1.50 }\n"],
            "sysctl -n vm.swapusage": ["total = 2048.00M  used = 512.00M  free = 1536.00M  (encrypted)\n"],
            "ioreg -r -d 1 -c IOAccelerator": [
                '+-o AGXAcceleratorG14X  <class AGXAcceleratorG14X>\n  {\n    "PerformanceStatistics" = '
                '{"In use system memory"=512000000,"Device Utilization %"=3,"Renderer Utilization %"=2}\n  }'
            ],
        }
    )
