"""`farm decide`: the same answer for the same evidence, other limits beside the registered ones, clear refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cli.evidence import keep_evidence
from farm.model import Evidence
from farm.settings import Home
from tests.cli.conftest import Farm
from tests.evidence import cell, evidence, result, tier

EXAMPLE = Path(__file__).parent.parent.parent / "docs/examples/evidence-by-hand.json"
MATRIX = Path(__file__).parent.parent.parent / "farm/default_matrix.toml"


@pytest.fixture
def kept(home: Path) -> Evidence:
    of = cell("transformer_block")
    run = evidence([(of, result(of, times={"baseline": 10.0, "candidate": 10.4}))], tier())
    keep_evidence(Home(home), run)
    return run


@pytest.mark.parametrize("kind", ["table", "json", "markdown", "html"])
def test_the_same_evidence_gives_the_same_bytes_in_every_process(farm: Farm, tmp_path: Path, kind: str) -> None:
    shutil.copy(EXAMPLE, tmp_path / "mine.json")
    one, other = (
        farm("decide", "mine.json", "--matrix", MATRIX, "--format", kind, PYTHONHASHSEED=seed, TZ=zone)
        for seed, zone in (("1", "UTC"), ("2", "Asia/Tokyo"))
    )
    assert one.returncode == other.returncode == 0, one.stderr
    assert one.stdout == other.stdout != ""


def test_a_file_and_stdin_are_judged_without_a_home(farm: Farm, home: Path, tmp_path: Path) -> None:
    shutil.copy(EXAMPLE, tmp_path / "mine.json")
    found = farm("decide", "mine.json", "--json")
    assert json.loads(found.stdout)["judgement"]["registered"] is True
    assert "no wheel hashes are given" in found.stderr
    assert not home.exists()


def test_other_limits_are_kept_beside_the_registered_judgement_and_said(farm: Farm, home: Path, kept: Evidence) -> None:
    own = farm("decide", kept.run_id)
    assert own.returncode == 0, own.stderr
    other = farm("decide", kept.run_id, "--matrix", MATRIX)
    assert "named after the run" in other.stdout
    assert "flips" in other.stdout
    folder = home / "runs" / kept.run_id / "judgements"
    registered, afterwards = sorted(folder.iterdir(), key=lambda path: path.name, reverse=True)
    assert registered.name.startswith("registered-")
    assert afterwards.name.startswith("afterwards-")
    before = afterwards.read_bytes()
    farm("decide", kept.run_id, "--matrix", MATRIX)
    assert len(list(folder.iterdir())) == 2
    assert afterwards.read_bytes() == before
    assert "1 judgement under limits that were named afterwards" in farm("report", kept.run_id).stderr


def test_evidence_of_another_version_is_refused_with_both_numbers(farm: Farm, home: Path, kept: Evidence) -> None:
    path = home / "runs" / kept.run_id / "evidence.json"
    path.write_text(path.read_text().replace('"schema_version":1', '"schema_version":2', 1))
    for command, code in ((("decide", str(path)), 2), (("decide", kept.run_id), 4), (("report", kept.run_id), 4)):
        found = farm(*command)
        assert found.returncode == code
        assert "written in version 2 of the format, and this farm reads version 1" in found.stderr


@pytest.mark.parametrize("kind", ["table", "markdown", "html"])
def test_every_report_under_other_limits_says_so_and_shows_them(farm: Farm, kept: Evidence, kind: str) -> None:
    own, other = farm("decide", kept.run_id, "--format", kind), farm("decide", kept.run_id, "--matrix", MATRIX)
    assert "named after the run" not in own.stdout
    assert "under limits that were named after the run" in other.stdout
    # Of the other matrix alone: its tiers, with the reasons for their numbers.
    page = farm("decide", kept.run_id, "--matrix", MATRIX, "--format", kind).stdout
    assert "finetune" in page
    assert "limits that were named after the run" in page


def test_a_kept_runs_own_file_is_that_run(farm: Farm, home: Path, kept: Evidence) -> None:
    folder = home / "runs" / kept.run_id
    assert "kept in" in farm("decide", folder / "evidence.json").stderr
    assert [path.name[:10] for path in (folder / "judgements").iterdir()] == ["registered"]


def test_require_holds_the_new_judgement(farm: Farm, kept: Evidence) -> None:
    assert farm("decide", kept.run_id, "--require", "adopt").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("decide", "absent.json"), "evidence 'absent.json' cannot be read"),
        (("decide", "some/where"), "there is no file 'some/where'"),
        (("decide", "r-9"), "there is no run 'r-9'"),
        (("decide", MATRIX), "this is no JSON"),
        (("decide",), "Missing argument 'EVIDENCE'"),
        (("schema", "colour"), "'colour' is not one of"),
    ],
)
def test_what_cannot_be_judged_is_refused_in_words(
    farm: Farm, home: Path, arguments: tuple[str, ...], said: str
) -> None:
    found = farm(*arguments)
    assert found.returncode == 2
    assert said in found.stderr
    assert "Traceback" not in found.stderr
    assert not home.exists()


FORMATS = ("evidence", "plan", "result", "order", "judgement", "rejudgement", "isolation", "bisection", "matrix")


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_a_schema_with_its_version(farm: Farm, name: str) -> None:
    found = json.loads(farm("schema", name).stdout)
    assert found["$comment"] == "schema_version 1"
    assert found["properties"]
