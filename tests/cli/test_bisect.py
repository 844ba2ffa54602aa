"""`farm bisect` end to end on wheels of a few kilobytes: an index that serves nightlies, real runners, verdicts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import workers.bisecting
from cli.beside import findings_of
from cli.bisect import command
from cli.report import command as report
from farm.again import Inquiry
from farm.errors import FarmError, UsageError
from farm.model import Bisection, Cell, CellResult, Evidence, Validity
from farm.settings import Home
from tests.tiny_torch import companions, kept_run, undisturbed, working_torch
from tests.wheels import ELSEWHERE, Index, installers_alone, serve


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index of torch 1.0.0, which is right, and 1.1.0, whose results are wrong."""
    installers_alone(monkeypatch, tmp_path / "cache")
    with serve(tmp_path / "index") as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        made = tmp_path / "made"
        for wheel in (*companions(made), working_torch(made, "1.0.0"), working_torch(made, "1.1.0", wrong=True)):
            served.add(wheel)
        yield served


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    made = Home(tmp_path / "home").prepare()
    monkeypatch.setenv("FARM_HOME", str(made.root))
    undisturbed(monkeypatch, tmp_path)
    return made


@pytest.fixture
def ran(tmp_path: Path, home: Home) -> Callable[[], Evidence]:
    """Keep a run of 1.1.0 beside 1.0.0; what the index serves by then stands for its installers."""
    return lambda: kept_run(tmp_path, home, "1.1.0", "1.0.0", measured=False)


def night(day: int) -> str:
    return f"1.1.0.dev202606{day:02d}"


def bisect(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["r1", "doze", "--gate", "correctness", *arguments])


def found_by(ended: Result) -> Bisection:
    assert ended.exit_code == 0, (ended.output, ended.exception)
    return Bisection.model_validate(json.loads(ended.stdout))


def test_the_first_bad_nightly_is_found_past_what_is_missing_broken_or_killed(
    tmp_path: Path, index: Index, home: Home, ran: Callable[[], Evidence], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a change on 8 June, no nightly on the 4th, 9th and 10th, a night that lacks a dependency and one that
    crashes, and a kill after four measurements."""
    made = tmp_path / "made"
    for day in (1, 2, 3, 5, 6, 7, 8, 11, 12):
        broken: dict[str, Any] = {"requires": ["triton==3.9"]} if day == 5 else {}
        if day == 6:
            broken = {"extra": "import os\nif 'TORCHINDUCTOR_CACHE_DIR' in os.environ: os._exit(3)"}
        index.add(working_torch(made, night(day), wrong=day >= 8, git=f"{day:02d}" * 20, **broken))
    index.add(working_torch(made, night(9), tag=ELSEWHERE))
    evidence = ran()
    measure, measured = workers.bisecting.measure, []

    def killed(inquiry: Inquiry, cell: Cell, *rest: Any) -> CellResult:
        if len(measured) == 4:
            raise SystemExit(137)
        measured.append(cell)
        return measure(inquiry, cell, *rest)

    monkeypatch.setattr(workers.bisecting, "measure", killed)
    assert bisect().exit_code == 137
    assert findings_of(home, "r1") == []
    monkeypatch.setattr(workers.bisecting, "measure", measure)

    ended = bisect("--json")

    bisection = found_by(ended)
    assert "measurements kept: 5" in ended.stderr
    steps = [(step.purpose, step.version, step.answer) for step in bisection.steps]
    assert steps == [
        ("bad end", "1.1.0", "bad"),
        ("good end", "1.0.0", "good"),
        ("probe", night(6), "cannot be told"),
        ("probe", night(5), "cannot be installed"),
        ("probe", night(7), "good"),
        ("probe", night(11), "bad"),
        ("probe", night(8), "bad"),
        ("confirmation", night(8), "bad"),
    ], [step.reason for step in bisection.steps]
    assert "triton==3.9" in bisection.steps[3].reason
    assert bisection.absent == ("20260604", "20260609 to 20260610")
    assert (bisection.last_good, bisection.first_bad, bisection.skipped) == (night(7), night(8), ())
    assert bisection.conclusion.startswith(
        f"{night(8)} is the first bad one, {night(7)} the last good one (torch 070707070707..080808080808); "
        "confirmed beside each other: correctness fail"
    )
    assert findings_of(home, "r1") == [bisection]
    kept = {path.parent.name for path in home.environments.glob("*/farm-environment.json")}
    assert kept == set(evidence.plan.environments)
    for kind in ("table", "markdown", "html"):
        shown = CliRunner().invoke(report, ["r1", "--format", kind])
        assert "is the first bad one" in shown.stdout.replace("\n  ", " "), (kind, shown.output)


def test_an_index_that_goes_away_stops_the_walk_and_condemns_no_nightly(
    tmp_path: Path, index: Index, home: Home, ran: Callable[[], Evidence], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given an index that asks for a password once the ends are measured, and one invalid measurement before."""
    for day in (1, 2, 3):
        index.add(working_torch(tmp_path / "made", night(day), wrong=day > 1))
    ran()
    measure, measured = workers.bisecting.measure, []

    def measure_and_lock(*asked: Any) -> CellResult:
        result = measure(*asked)
        measured.append(result)
        if len(measured) == 3:
            index.credentials = "user:secret"
        disturbed = Validity(valid=len(measured) > 1, reasons=() if len(measured) > 1 else ("busy",))
        return result.model_copy(update={"validity": disturbed})

    monkeypatch.setattr(workers.bisecting, "measure", measure_and_lock)
    ended = bisect()
    assert isinstance(ended.exception, FarmError)
    assert "the index refuses the credentials" in str(ended.exception)
    assert "measurements kept: 2; the same command goes on" in ended.stderr
    index.credentials = None
    bisection = found_by(bisect("--json"))
    assert bisection.first_bad == night(2)
    assert [(len(step.disturbed), step.answer) for step in bisection.steps[:2]] == [(1, "bad"), (0, "good")]


def test_ends_that_do_not_differ_are_said_and_nothing_is_walked(
    tmp_path: Path, index: Index, home: Home, ran: Callable[[], Evidence]
) -> None:
    for day in (1, 2, 3):
        index.add(working_torch(tmp_path / "made", night(day)))
    ran()
    ended = bisect("--bad", night(3))
    assert ended.exit_code == 0, ended.output
    assert f"cannot be bisected: the ends do not differ here, {night(3)} is no worse than 1.0.0" in ended.stdout
    (bisection,) = findings_of(home, "r1")
    assert bisection.measured == 1


def test_ends_with_nothing_between_are_refused_before_anything_is_measured(
    index: Index, ran: Callable[[], Evidence]
) -> None:
    ran()
    for asked, said in (
        ((), "serves no nightly of torch between 1.0.0 and 1.1.0 for"),
        (("--good", "1.1.0"), "the good end 1.1.0 is not older than the bad end 1.1.0"),
        (("--bad", "1.1.0.dev20260601"), "--bad '1.1.0.dev20260601': the configured index serves no such torch"),
        (("--good", "today"), "'today' is not a release"),
    ):
        ended = bisect(*asked)
        assert isinstance(ended.exception, UsageError), ended.exception
        assert said in str(ended.exception)
