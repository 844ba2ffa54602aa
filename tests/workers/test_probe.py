"""A machine says what it is and can do without torch, and says nothing that it does not know."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from farm.errors import UsageError
from farm.model import Calibration, Host
from farm.settings import Home
from workers import probe as probe_module
from workers.noise import Calibrations
from workers.probe import TRIPLES, probe_host


@pytest.fixture(autouse=True)
def afresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Probe anew, with no tools on the path but those that a test puts into the folder, and no kernel driver."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(probe_module, "KFD_NODES", tmp_path / "nodes")
    monkeypatch.setenv("FARM_HOME", str(tmp_path / "home"))
    probe_module._machine.cache_clear()
    yield folder
    probe_module._machine.cache_clear()


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def node(tmp_path: Path, number: int, version: int) -> None:
    path = tmp_path / "nodes" / str(number) / "properties"
    path.parent.mkdir(parents=True)
    path.write_text(f"cpu_cores_count 0\nsimd_count 304\ngfx_target_version {version}\nvendor_id 4098\n")


def test_every_machine_serves_cpu_cells_and_knows_itself() -> None:
    host = probe_host()
    assert isinstance(host, Host)
    assert host.capabilities[0] == "cpu"
    assert host.platform in TRIPLES.values()
    assert host.python == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert host.target == f"{host.platform}, Python {host.python}"
    assert host.cores == psutil.cpu_count()
    assert host.memory_bytes == psutil.virtual_memory().total
    assert host.name
    assert host.os
    assert host.cpu


def test_the_machine_is_probed_once() -> None:
    assert probe_host() is probe_host()


def test_the_machine_says_its_newest_calibration_as_soon_as_the_home_has_one(tmp_path: Path) -> None:
    assert probe_host().calibration is None
    known = Calibration(
        measured="2026-07-01T08:00:00+00:00",
        release="2.12.1+cpu",
        workload="transformer_block/infer-fp32",
        restarts=12,
        restart_s=10.0,
        window_s=8.0,
        sd=0.006,
        ratio=1.0,
        low=0.996,
        high=1.004,
    )
    for home in (Home.default(), Home(tmp_path / "another")):
        home.root.mkdir()
        Calibrations(home).add(known.model_copy(update={"restarts": 6}))
        Calibrations(home).add(known)
        assert probe_host(home).calibration == known
    assert probe_host().calibration == known


def test_a_probe_does_not_need_torch() -> None:
    code = "import sys, workers.probe; workers.probe.probe_host(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ("echo 9.0", ["cuda.sm90"]),
        ("echo 9.0; echo 9.0; echo 10.0", ["cuda.sm100", "cuda.sm90"]),
        ("echo 12.1", ["cuda.sm121"]),
        ("echo '[N/A]'", []),
        ("echo 'No devices were found'", []),
        ("echo 9.0; exit 9", []),
    ],
)
def test_cuda_devices_are_those_that_the_driver_shows(afresh: Path, says: str, expected: list[str]) -> None:
    tool(afresh, "nvidia-smi", says)
    assert [c for c in probe_host().capabilities if c.startswith("cuda")] == expected


def test_a_driver_tool_that_cannot_be_run_shows_no_devices(afresh: Path) -> None:
    path = afresh / "nvidia-smi"
    path.write_bytes(b"\x7fELF no program")
    path.chmod(0o755)
    assert probe_host().capabilities == ("cpu", *probe_module._mps())


@pytest.mark.parametrize(
    ("version", "name"), [(90402, "gfx942"), (90010, "gfx90a"), (110003, "gfx1103"), (120001, "gfx1201")]
)
def test_rocm_devices_have_the_name_that_the_compiler_uses(tmp_path: Path, version: int, name: str) -> None:
    node(tmp_path, 0, 0)  # the CPU is a node too
    node(tmp_path, 1, version)
    node(tmp_path, 2, version)
    assert [c for c in probe_host().capabilities if c.startswith("rocm")] == [f"rocm.{name}"]


def test_apple_silicon_says_its_chip_and_the_build_of_its_system(afresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    monkeypatch.setattr("platform.mac_ver", lambda: ("15.5", ("", "", ""), "arm64"))
    tool(afresh, "sysctl", "echo 'Apple M3 Pro'")
    tool(afresh, "sw_vers", "echo 24F74")
    host = probe_host()
    assert host.platform == "aarch64-apple-darwin"
    assert host.capabilities == ("cpu", "mps.m3")
    assert (host.cpu, host.os) == ("Apple M3 Pro", "macOS 15.5 (24F74)")


def test_a_machine_for_which_torch_has_no_wheels_is_refused_with_those_that_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(UsageError, match=f"this machine is '{sys.platform} riscv64'; a worker runs on linux x86_64"):
        probe_host()


def test_a_tool_that_hangs_is_not_waited_for_for_ever(afresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{afresh}:/usr/bin:/bin")
    tool(afresh, "nvidia-smi", "exec sleep 60")
    monkeypatch.setattr(probe_module, "TOOL_TIMEOUT_S", 0.2)
    assert not [c for c in probe_host().capabilities if c.startswith("cuda")]
