"""`farm doctor` says what it saw, for people and for programs, and measures nothing."""

from __future__ import annotations

import json
from pathlib import Path

from cli.doctor import _disk, _text
from farm.model import Calibration, HostCheck
from tests.cli.conftest import Farm
from tests.evidence import HOST

CHECKS = (
    HostCheck(name="governor", state="poor", found="powersave", advice="sudo cpupower …", worth="not measured"),
    HostCheck(name="turbo", state="unknown", found="no switch below /sys"),
    HostCheck(name="swap", state="good", found="not in use"),
)


def test_this_machine_is_checked_in_a_moment_and_always_exits_0(farm: Farm, home: Path) -> None:
    ended = farm("doctor")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\x1b" not in ended.stdout
    for words in (
        "can run:    cpu",
        "calibrated: never",
        "governor",
        "address layout",
        "other load",
        "uv at",
        "free at",
    ):
        assert words in ended.stdout, words
    assert not home.exists()


def test_programs_get_every_check_with_its_state(farm: Farm) -> None:
    found = json.loads(farm("doctor", "--json").stdout)
    assert found["host"]["capabilities"][0] == "cpu"
    assert found["host"]["calibration"] is None
    assert {check["state"] for check in found["checks"]} <= {"good", "poor", "unknown"}
    assert all(check["found"] for check in found["checks"])
    assert all(check["advice"] and check["worth"] for check in found["checks"] if check["state"] == "poor")


def test_what_is_poor_is_followed_by_what_to_do_and_what_it_is_worth() -> None:
    text = _text(HOST, CHECKS)
    assert "governor: powersave\n  to do: sudo cpupower …\n  worth: not measured" in text
    assert text.endswith("1 of 3 checks could be better, 1 could not be seen.")


def test_a_quiet_machine_is_told_so() -> None:
    assert _text(HOST, CHECKS[2:]).endswith("nothing seen that could be better.")


def test_a_calibration_is_shown_with_its_interval() -> None:
    calibration = Calibration(
        measured="2026-12-01T10:00:00+00:00",
        release="2.13.0+cpu",
        workload="transformer_block/infer-fp32",
        restarts=8,
        restart_s=12.0,
        window_s=8.0,
        sd=0.0042,
        ratio=1.0003,
        low=0.9982,
        high=1.0021,
    )
    text = _text(HOST.model_copy(update={"calibration": calibration}), CHECKS)
    assert "two runs of 2.13.0+cpu differ by 0.42 % (sd from restart to restart), ratio 1.000 [0.998, 1.002]" in text


def test_the_disk_of_a_home_that_is_not_there_yet_is_known(tmp_path: Path) -> None:
    assert f"GB free at {tmp_path / 'a' / 'b'}" in _disk(tmp_path / "a" / "b").found
