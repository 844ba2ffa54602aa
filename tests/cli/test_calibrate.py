"""What a calibration means is said in words, in numbers for programs, and with a warning where it means little."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import workers.calibration
from cli.calibrate import command, describe, warnings_of
from farm.matrix import Matrix, load_matrix
from farm.model import Calibration
from farm.settings import Home
from farm.statistics import Interval
from tests.farm.test_budget import calibration
from workers.calibration import Seen
from workers.noise import Calibrations

MATRIX = load_matrix()


def test_it_says_ratio_noise_floor_suites_and_what_every_limit_needs() -> None:
    text = describe(calibration(0.006), MATRIX)
    assert "torch 2.12.1+cpu against itself, transformer_block/infer-fp32: 12 restarts of 10.0 s" in text
    assert "1.0000 [0.9950, 1.0050]" in text
    assert "0.60 % from restart to restart (between 0.43 % and 1.02 %)" in text
    (floor,) = (line for line in text.splitlines() if line.startswith("noise floor"))
    assert floor.split()[2].startswith("0.4")
    assert [line.split()[0] for line in text.splitlines() if line.startswith(("smoke ", "standard "))] == [
        "smoke",
        "standard",
    ]
    for limit in (1, 2, 3, 5):
        assert f"{limit} % on this machine needs " in text
    assert "before" not in text
    assert "0.80 % on 2026-07-01" in describe(calibration(0.006), MATRIX, calibration(0.008))


def test_a_noisy_machine_needs_longer_for_the_same_limit() -> None:
    def needs(sd: float) -> str:
        return next(line for line in describe(calibration(sd), MATRIX).splitlines() if line.startswith("2 % on"))

    assert needs(0.006) == "2 % on this machine needs 1.2 min a cell (6 restarts)"
    assert needs(0.03) == "2 % on this machine needs 7.2 min a cell (36 restarts)"


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.995, 1.005, []),
        (1.001, 1.005, ["does not hold 1"]),
        (0.985, 1.01, ["2.54 % wide"]),
        (0.95, 0.98, ["does not hold 1", "3.16 % wide"]),
    ],
)
def test_a_machine_that_is_not_fit_to_measure_is_warned_of(low: float, high: float, said: list[str]) -> None:
    found = warnings_of(calibration(low=low, high=high))
    assert len(found) == len(said)
    assert all(words in warning for words, warning in zip(said, found, strict=True))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Answer for the machine: what it was asked is kept, and it is very noisy."""
    asked: dict[str, Any] = {}

    def answer(release: str, home: Home, matrix: Matrix, budget_s: float, progress: Any) -> Calibration:
        asked.update(release=release, budget_s=budget_s)
        for seen in (Seen("resolve"), Seen("measure", 6, 12, Interval(1.001, 0.99, 1.01, 6), 30.0)):
            progress(seen)
        return calibration(0.02, low=0.98, high=1.02)

    monkeypatch.setattr(workers.calibration, "calibrate", answer)
    monkeypatch.setenv("FARM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return asked


def test_it_is_kept_in_the_home_shown_as_it_goes_and_warned_of(measured: dict[str, Any], tmp_path: Path) -> None:
    ended = CliRunner().invoke(command, [])
    assert ended.exit_code == 0, ended.output
    assert measured == {"release": "2.12", "budget_s": 120.0}
    assert Calibrations(Home(tmp_path / "home")).newest() == calibration(0.02, low=0.98, high=1.02)
    assert "measure, restart 6 of 12, p50 ratio 1.001 (0.990 – 1.010), about 30 s left" in ended.stderr
    assert "limit" not in ended.stderr
    assert "4.08 % wide" in ended.stderr
    again = CliRunner().invoke(command, ["--release", "pytorch_2_13", "--budget", "60"])
    assert measured == {"release": "2.13", "budget_s": 60.0}
    assert "noise 2.00 % on 2026-07-01, 2.12.1+cpu" in again.stdout


def test_json_holds_the_calibration_and_what_follows_from_it(measured: dict[str, Any]) -> None:
    found = json.loads(CliRunner().invoke(command, ["--json"]).stdout)
    assert Calibration.model_validate(found["calibration"]) == calibration(0.02, low=0.98, high=1.02)
    assert set(found["suites"]) == {"smoke", "standard", "full"}
    assert [entry["limit"] for entry in found["limits"]] == [1.01, 1.02, 1.03, 1.05]
    assert 1.0 < found["noise_floor"] < 1.03
    assert len(found["warnings"]) == 1


@pytest.mark.parametrize(("arguments", "words"), [(["--budget", "10"], "30"), (["--release", "2.1o"], "2.1o")])
def test_what_cannot_be_meant_is_refused_before_anything_is_measured(
    measured: dict[str, Any], arguments: list[str], words: str
) -> None:
    ended = CliRunner().invoke(command, arguments)
    assert ended.exit_code != 0
    assert words in ended.output + str(ended.exception)
    assert measured == {}
