"""What commands print, and for whom: people, programs, pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.evidence import keep_evidence
from cli.main import COMMANDS
from cli.submit import exit_code
from farm.judge import judge
from farm.model import Decision, Evidence, RunState
from farm.settings import Home
from tests import evidence as made
from tests.cli.conftest import ROOT, Farm

ESCAPE = "\x1b"


@pytest.fixture
def kept(home: Path) -> Evidence:
    """A run of one cell in the home, as `farm submit` leaves it."""
    cell = made.cell()
    found = made.run_of(cell)
    keep_evidence(Home(home), found)
    return found


@pytest.mark.parametrize(
    "command",
    [
        [],
        *([name] for name in COMMANDS),
        ["workload", "list"],
        ["workload", "show"],
        *([["wheelhouse", name] for name in ("list", "verify", "prune", "watch", "pull")]),
    ],
)
def test_every_command_has_help_with_an_example(farm: Farm, command: list[str]) -> None:
    for option in ("--help", "-h"):
        ended = farm(*command, option)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.startswith("Usage: ")
        assert ended.stderr == ""
    if command != ["workload"]:
        assert "Example" in ended.stdout


def test_help_imports_nothing_heavy() -> None:
    heavy = ("celery", "numpy", "pydantic", "redis", "rich", "sqlalchemy")
    code = f"import sys, cli.main; print([name for name in {heavy} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ended.stdout.strip() == "[]"


def test_nothing_of_ours_imports_torch() -> None:
    """No torch is installed beside the farm, so that an import of it anywhere would fail."""
    files = [*(ROOT / "farm").rglob("*.py"), *(ROOT / "cli").glob("*.py"), *(ROOT / "workers").glob("*.py")]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files]
    code = f"import importlib, sys; [importlib.import_module(n) for n in {names!r}]; print('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.stdout.strip() == "False", ended.stderr


def test_the_version_is_printed(farm: Farm) -> None:
    ended = farm("--version")
    assert ended.returncode == 0
    assert ended.stdout.startswith("farm ")


def test_workloads_are_listed_for_people_and_programs(farm: Farm) -> None:
    text, plain = farm("workload", "list"), farm("workload", "list", "--json")
    assert text.returncode == plain.returncode == 0
    names = {entry["name"] for entry in json.loads(plain.stdout)}
    assert names >= {"transformer_block", "flex_attention", "linear_cross_entropy", "lce_convergence", "decoder"}
    assert all(name in text.stdout for name in names)
    shown = json.loads(farm("workload", "show", "linear_cross_entropy", "--json").stdout)
    assert shown["paths"]["lce"]["needs"] == "2.13"


def test_a_new_home_has_no_runs_and_says_how_to_start_one(farm: Farm) -> None:
    ended = farm("status")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "farm submit" in ended.stdout
    assert json.loads(farm("status", "--json").stdout) == {"runs": []}


@pytest.mark.parametrize("kind", ["table", "json", "markdown", "html"])
def test_a_stored_run_is_reported_in_every_format(farm: Farm, kept: Evidence, tmp_path: Path, kind: str) -> None:
    printed = farm("report", kept.run_id, "--format", kind)
    assert (printed.returncode, printed.stderr) == (0, "")
    assert ESCAPE not in printed.stdout
    assert kept.run_id in printed.stdout
    written = farm("report", "--format", kind, "-o", "out")
    assert written.returncode == 0
    assert written.stdout == ""
    assert (tmp_path / "out").read_text(encoding="utf-8").rstrip("\n") == printed.stdout.rstrip("\n")


def test_json_is_the_judgement_and_nothing_else(farm: Farm, kept: Evidence) -> None:
    found = json.loads(farm("report", "--json").stdout)
    assert found["run_id"] == kept.run_id
    assert found["plan_digest"] == kept.plan.plan_digest
    assert {row["decision"] for row in found["rows"]} <= {"adopt", "isolate", "defer", "rollback"}


def test_a_reader_that_leaves_early_is_no_traceback(home: Path, kept: Evidence, tmp_path: Path) -> None:
    environment = os.environ | {"FARM_HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = f"{sys.executable} -m cli.main report --format html | head -c 10"
    ended = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert len(ended.stdout) == 10
    assert "Traceback" not in ended.stderr


# -- exit codes ----------------------------------------------------------------------------------------------------


def run(*, production: bool = True, state: RunState = RunState.COMPLETE, unfinished: dict[str, str] | None = None):
    found = made.run_of(made.cell(production_shape=production))
    found = found.model_copy(update={"state": state, "unfinished": unfinished or {}})
    return found, judge(found)


def test_a_complete_run_is_0_whatever_it_decided() -> None:
    for production in (True, False):
        found, judgement = run(production=production)
        assert exit_code(found, judgement, None) == 0


def test_what_falls_short_of_require_is_1_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    found, judgement = run()
    assert {row.decision for row in judgement.rows} == {Decision.ADOPT}, judgement.rows
    assert exit_code(found, judgement, Decision.ADOPT) == 0
    found, judgement = run(production=False)
    assert exit_code(found, judgement, Decision.ADOPT) == 1
    assert "production shapes untested" in capsys.readouterr().err


def test_a_run_with_something_missing_is_3_even_where_more_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    found, judgement = run(state=RunState.INCOMPLETE, unfinished={"block/train@cpu": "no worker for queue 'bench.cpu'"})
    assert exit_code(found, judgement, Decision.ADOPT) == 3
    assert "block/train@cpu: no worker for queue" in capsys.readouterr().err
