"""What a machine knows of its own noise outlives damage, a full disk and two workers that write at once."""

from __future__ import annotations

import json
import math
import multiprocessing
from pathlib import Path

import pytest

from farm.model import Calibration
from farm.settings import Home
from tests import evidence as made
from tests.farm.test_budget import calibration
from workers.noise import MOST_CALIBRATIONS, MOST_RATIOS, Calibrations, NoiseHistory

CELL = made.cell()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_ratios_are_kept_in_their_order_and_only_so_many(home: Home) -> None:
    assert NoiseHistory(home).of(CELL, "cpu") == ()
    ratios = [1 + n / 1000 for n in range(MOST_RATIOS + 5)]
    for ratio in ratios:
        NoiseHistory(home).add(CELL, "cpu", ratio)
    assert NoiseHistory(home).of(CELL, "cpu") == tuple(ratios[-MOST_RATIOS:])


def test_what_makes_another_noise_has_a_history_of_its_own_and_an_aa_cell_shares_that_of_its_case(home: Home) -> None:
    NoiseHistory(home).add(CELL, "cpu", 1.01)
    for other in (made.cell("other"), made.cell(case="train"), made.cell(capability="cuda.sm90")):
        assert NoiseHistory(home).of(other, "cpu") == ()
    assert NoiseHistory(home).of(made.cell(parameters={"dtype": "bfloat16"}), "cpu") == ()
    assert NoiseHistory(home).of(CELL, "cu130") == ()
    control = CELL.model_copy(update={"id": "aa/block-infer@cpu", "kind": "aa", "gates": ()})
    assert NoiseHistory(home).of(control, "cpu") == (1.01,)


@pytest.mark.parametrize("ratio", [math.nan, math.inf, 0.0, -1.0])
def test_a_ratio_that_no_clock_can_have_given_is_left_out(home: Home, ratio: float) -> None:
    NoiseHistory(home).add(CELL, "cpu", ratio)
    assert NoiseHistory(home).of(CELL, "cpu") == ()


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"\xff\xfe", b"[]", b'{"schema_version": 2}', b'{"schema_version": 1, "ratios": ["1.0"]}'],
)
def test_a_damaged_history_is_set_aside_with_a_word_and_begins_again(
    home: Home, capsys: pytest.CaptureFixture[str], damage: bytes
) -> None:
    NoiseHistory(home).add(CELL, "cpu", 1.01)
    (path,) = (home.root / "noise").glob("*.json")
    for found_by in ("reader", "writer"):
        path.write_bytes(damage)
        if found_by == "reader":
            assert NoiseHistory(home).of(CELL, "cpu") == ()
        NoiseHistory(home).add(CELL, "cpu", 1.02)
        assert NoiseHistory(home).of(CELL, "cpu") == (1.02,)
        said = capsys.readouterr().err
        assert said.count("is damaged") == 1
        assert said.count("\n") == 1
        assert path.with_suffix(".damaged").read_bytes() == damage


def test_a_disk_that_cannot_be_written_costs_the_entry_and_no_more(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.root.mkdir()
    (home.root / "noise").write_text("a file where the folder belongs")
    NoiseHistory(home).add(CELL, "cpu", 1.01)
    assert NoiseHistory(home).of(CELL, "cpu") == ()
    assert "cannot be written" in capsys.readouterr().err


def _add_many(root: Path, start: int) -> None:
    for n in range(start, start + 20):
        NoiseHistory(Home(root)).add(CELL, "cpu", 1 + n / 1000)


def test_two_processes_may_write_at_once(home: Home) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_add_many, args=(home.root, start)) for start in (0, 20)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert sorted(NoiseHistory(home).of(CELL, "cpu")) == [1 + n / 1000 for n in range(40)]


# -- calibrations --------------------------------------------------------------------------------------------------


def test_the_newest_calibration_speaks_for_the_machine_and_a_few_before_it_are_kept(home: Home) -> None:
    assert Calibrations(home).newest() is None
    found = [calibration(0.001 * n) for n in range(1, MOST_CALIBRATIONS + 3)]
    home.root.mkdir()
    for one in found:
        Calibrations(home).add(one)
    assert Calibrations(home).newest() == found[-1]
    assert Calibrations(home).all() == tuple(found[-MOST_CALIBRATIONS:])
    written = json.loads((home.root / "calibration.json").read_text())
    assert Calibration.model_validate(written["calibrations"][-1]) == found[-1]


def test_calibrations_of_another_farm_are_set_aside(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    home.root.mkdir()
    path = home.root / "calibration.json"
    path.write_text('{"schema_version": 1, "calibrations": [{"sd": 0.1}]}')
    assert Calibrations(home).newest() is None
    assert "calibration.json' is damaged" in capsys.readouterr().err
    assert not path.exists()
