"""What this machine is and can do, found without torch: a worker's capabilities come from here."""

from __future__ import annotations

import contextlib
import platform
import re
import shutil
import socket
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import psutil

from farm.errors import UsageError
from farm.model import Host
from farm.settings import Home
from workers.noise import Calibrations

__all__ = ["probe_host"]

#: uv's target triples, by sys.platform and machine.
TRIPLES = {
    ("linux", "x86_64"): "x86_64-unknown-linux-gnu",
    ("linux", "aarch64"): "aarch64-unknown-linux-gnu",
    ("darwin", "arm64"): "aarch64-apple-darwin",
}


#: Where the kernel's driver shows AMD's devices.
KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
#: A driver in trouble lets its tools hang.
TOOL_TIMEOUT_S = 20.0


def probe_host(home: Home | None = None) -> Host:
    """Return this machine as a comparison must know it, with what ``home`` (the default one) knows of its noise.

    The machine itself is probed once. Raises UsageError where torch has no wheels for it.
    """
    machine = _machine()
    calibration = Calibrations(home or Home.default()).newest()
    return machine if calibration is None else machine.model_copy(update={"calibration": calibration})


@lru_cache(maxsize=1)
def _machine() -> Host:
    key = (sys.platform, platform.machine())
    if key not in TRIPLES:
        known = ", ".join(f"{system} {machine}" for system, machine in TRIPLES)
        raise UsageError(f"this machine is '{key[0]} {key[1]}'; a worker runs on {known}")
    return Host(
        name=socket.gethostname(),
        platform=TRIPLES[key],
        os=_os(),
        cpu=_cpu(),
        cores=psutil.cpu_count(logical=True) or 1,
        memory_bytes=psutil.virtual_memory().total,
        capabilities=("cpu", *_cuda(), *_rocm(), *_mps()),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
    )


def _os() -> str:
    if sys.platform == "darwin":
        # The build, not only the release: an update of the system has broken MPS results (CASES.md C3).
        return f"macOS {platform.mac_ver()[0]} ({_words('sw_vers', '-buildVersion')})"
    with contextlib.suppress(OSError):
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, kernel {platform.release()}"
    return f"Linux, kernel {platform.release()}"


def _cpu() -> str:
    if sys.platform == "darwin":
        return _words("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.machine()


def _cuda() -> list[str]:
    """Return "cuda.sm90" for the devices that the driver shows."""
    listed = _words("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
    found = {line.strip().replace(".", "") for line in listed.splitlines()}
    return [f"cuda.sm{architecture}" for architecture in sorted(found) if architecture.isdigit()]


def _rocm() -> list[str]:
    """Return "rocm.gfx942" for the devices that the kernel driver shows."""
    found = set()
    for properties in KFD_NODES.glob("*/properties"):
        with contextlib.suppress(OSError):
            version = re.search(r"^gfx_target_version (\d+)$", properties.read_text(), re.MULTILINE)
            if version and int(version[1]):
                major, minor, stepping = int(version[1]) // 10000, int(version[1]) // 100 % 100, int(version[1]) % 100
                found.add(f"rocm.gfx{major}{minor:x}{stepping:x}")
    return sorted(found)


def _mps() -> list[str]:
    """Return "mps.m3" on Apple silicon."""
    if sys.platform != "darwin":
        return []
    chip = re.search(r"Apple (M\d+)", _cpu())
    return [f"mps.{chip[1].lower()}" if chip else "mps"]


def _words(*command: str) -> str:
    """Return what ``command`` prints, "" where it is missing or fails."""
    if shutil.which(command[0]) is None:
        return ""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TOOL_TIMEOUT_S)
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""
