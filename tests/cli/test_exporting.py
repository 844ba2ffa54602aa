"""`farm export`: to stdout, to a file, to a folder; and what is left out is said on stderr."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from cli.evidence import keep_evidence
from farm.model import Evidence, Outcome
from farm.settings import Home
from tests.cli.conftest import Farm
from tests.evidence import cell, ended, evidence, result, tier


@pytest.fixture
def kept(home: Path) -> Evidence:
    good, broken = cell(), cell("broken")
    run = evidence(
        [(good, result(good)), (broken, result(broken, {"candidate": ended(Outcome.CRASHED, "signal 11")}))], tier()
    )
    keep_evidence(Home(home), run)
    return run


def test_csv_goes_to_stdout_and_to_a_file(farm: Farm, kept: Evidence, tmp_path: Path) -> None:
    printed = farm("export", kept.run_id)
    assert (printed.returncode, printed.stderr) == (0, "")
    rows = list(csv.DictReader(printed.stdout.splitlines()))
    assert {row["run_id"] for row in rows} == {kept.run_id}
    assert {row["value"] for row in rows if row["outcome"] == "crashed: signal 11"} == {""}
    assert farm("export", kept.run_id, "-o", "run.csv").returncode == 0
    assert (tmp_path / "run.csv").read_text() == printed.stdout


def test_records_are_json_and_what_is_missing_is_told_apart(farm: Farm, kept: Evidence) -> None:
    printed = farm("export", kept.run_id, "--format", "pytorch-v3")
    assert printed.returncode == 0
    assert {record["schema_version"] for record in json.loads(printed.stdout)} == {"v3"}
    assert "left out: broken/infer@cpu, candidate: crashed: signal 11" in printed.stderr


def test_a_folder_of_asv_grows_with_a_second_run(farm: Farm, kept: Evidence, tmp_path: Path) -> None:
    assert farm("export", kept.run_id, "--format", "asv", "-o", "results").returncode == 0
    other = cell("other")
    (tmp_path / "other.json").write_text(evidence([(other, result(other))], tier()).model_dump_json())
    again = farm("export", "other.json", "--format", "asv", "-o", "results")
    assert again.returncode == 0, again.stderr
    known = json.loads((tmp_path / "results/benchmarks.json").read_text())
    assert {name.partition(".")[0] for name in known if name != "version"} == {"block", "broken", "other"}
    for path in (tmp_path / "results/bench-1").glob("*-torch*.json"):
        assert {name.partition(".")[0] for name in json.loads(path.read_text())["results"]} >= {"block", "other"}


def test_a_folder_that_is_not_asvs_stays_as_it_is(farm: Farm, kept: Evidence, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/benchmarks.json").write_text("[]")
    ended = farm("export", kept.run_id, "--format", "asv", "-o", "mine")
    assert ended.returncode == 2
    assert "benchmarks.json" in ended.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["benchmarks.json"]


def test_asv_without_a_folder_is_a_usage_error(farm: Farm, kept: Evidence) -> None:
    ended = farm("export", kept.run_id, "--format", "asv")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "-o .asv/results" in ended.stderr
