"""A run in stages as an operator sees it: handed over, left, watched, read while it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from cli import submit, watch
from cli.evidence import find_evidence
from cli.following import _Lines
from farm.broker.client import CellState, FarmClient
from farm.errors import Incomplete
from farm.judge import judge
from farm.model import RunState
from farm.settings import Home, Settings
from farm.store import SKIPPED, Store
from tests import evidence as made
from tests.cli.conftest import Farm
from tests.farm.test_aggregator_stages import GATES, SINGLE, Coordinator, slower
from tests.farm.test_stages import in_stages


@pytest.fixture
def coordinator(server: Any, farm_server: str, tmp_path: Path) -> Coordinator:
    return Coordinator(server, farm_server, tmp_path / "there", in_stages())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--detach"], "--detach needs a coordinator"),
        (["--detach", "--require", "adopt"], "--detach needs a coordinator"),
    ],
)
def test_a_run_is_handed_over_to_a_coordinator_alone(farm: Farm, arguments: list[str], words: str) -> None:
    ended = farm("submit", "--candidate", "2.13", *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert words in ended.stderr


def test_who_does_not_stay_requires_nothing(farm: Farm, farm_server: str) -> None:
    ended = farm("submit", "--candidate", "2.13", "--detach", "--require", "adopt", FARM_URL=farm_server)
    assert ended.returncode == 2
    assert "leave out --require and --timeout" in ended.stderr


@pytest.mark.parametrize("as_json", [False, True])
def test_a_run_that_is_handed_over_prints_its_id_and_the_way_back(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = in_stages()
    monkeypatch.setattr(submit, "FarmClient", lambda _: SimpleNamespace(submit=lambda _: "r-1"))
    monkeypatch.setattr(submit, "wait_for_hosts", lambda _: [made.HOST])
    monkeypatch.setattr(submit, "plan_for", lambda *_: plan)
    asked = SimpleNamespace(settings=SimpleNamespace(url="redis://x"), home=Home(tmp_path))
    submit._hand_over(cast(Any, asked), as_json, waits=False)
    said = capsys.readouterr()
    if as_json:
        assert json.loads(said.out) == {"run_id": "r-1", "plan_digest": plan.plan_digest}
    else:
        assert said.out == "r-1\n"
        assert "follow it: farm watch r-1; what is over: farm report r-1; end it: farm watch r-1 --cancel" in said.err


def test_whoever_leaves_a_window_leaves_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(submit, "follow", interrupted)
    asked = SimpleNamespace(settings=SimpleNamespace(url="redis://x"))
    # A client that cannot cancel: whoever tried to would fail here.
    client = SimpleNamespace(submit=lambda _: "r-1")
    with pytest.raises(Incomplete, match="run r-1 goes on without this command; follow it: farm watch r-1"):
        submit._run(cast(Any, asked), cast(Any, client), in_stages(), lambda: None, None)


def test_status_and_report_say_where_the_window_stands(farm: Farm, coordinator: Coordinator) -> None:
    coordinator.answer(SINGLE)
    run = coordinator.run
    ended = farm("status", FARM_URL=coordinator.url)
    assert f"{run}: stage 2 of 3, gates: 0 of 3 cells, day " in ended.stdout
    row = json.loads(farm("status", "--json", FARM_URL=coordinator.url).stdout)["runs"][0]
    assert (row["standing"]["number"], row["standing"]["name"]) == (2, "gates")
    report = farm("report", run, FARM_URL=coordinator.url)
    assert report.returncode == 0, report.stderr
    assert "stage 1 of 3, single: complete, 2 of 2 cells" in report.stdout
    assert "stage 3 of 3, canary: waits, 0 of 2 cells" in report.stdout


def test_what_is_over_is_not_kept_for_the_whole(coordinator: Coordinator, tmp_path: Path) -> None:
    home = Home(tmp_path / "here").prepare()
    coordinator.answer(SINGLE)
    found = find_evidence(home, Settings(url=coordinator.url), coordinator.run)
    assert found.state is RunState.RUNNING
    assert not (home.runs / coordinator.run).exists()


def test_watch_can_end_a_run(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    def followed(client: FarmClient, run_id: str, _: object) -> RunState | None:
        coordinator.farm.tick()
        return client.state(run_id)

    monkeypatch.setattr(watch, "follow", followed)
    monkeypatch.setenv("FARM_URL", coordinator.url)
    monkeypatch.setenv("FARM_HOME", str(coordinator.home.root))
    kept = CliRunner().invoke(watch.command, [coordinator.run])
    assert f"run {coordinator.run}: running" in kept.output
    ended = CliRunner().invoke(watch.command, [coordinator.run, "--cancel"])
    assert (ended.exit_code, ended.output) == (3, f"run {coordinator.run}: incomplete; farm report {coordinator.run}\n")


def test_a_window_that_ended_early_is_complete(coordinator: Coordinator) -> None:
    coordinator.answer(SINGLE, slower)
    coordinator.farm.tick()
    evidence = Store.open(coordinator.home).evidence(coordinator.run)
    assert submit.exit_code(evidence, judge(evidence), None) == 0


def test_lines_name_the_stage_when_it_begins_and_cells_that_are_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _Lines(0.0)
    for number, name in ((1, "single"), (1, "single"), (2, "gates")):
        lines.show([CellState(GATES[0], SKIPPED, "stage 1 ended")], [], f"stage {number} of 3, {name}: 0 of 2 cells")
    said = capsys.readouterr().err
    assert said.count("stage 1 of 3, single: 0 of 2 cells\n") == 1
    assert said.count("stage 2 of 3, gates: 0 of 2 cells\n") == 1
    assert f"{GATES[0]}: skipped stage 1 ended" in said
