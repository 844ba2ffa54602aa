"""What `farm isolate` is asked about, and what `farm submit --isolate` leaves out, without a measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import workers.isolating
from cli.again import inquiry_of
from cli.beside import Kept, findings_of
from cli.evidence import keep_evidence
from cli.isolate import estimated_s, isolate_failing
from farm.again import Inquiry
from farm.errors import EnvironmentFailed
from farm.judge import judge
from farm.model import Evidence, Gate, Isolation, LockedPackage
from farm.settings import Home
from tests import evidence as made
from tests.cli.conftest import Farm
from workers.probe import probe_host


def failing_run(*names: str) -> Evidence:
    """Return a run whose cells are all slower, of releases that brought another triton."""
    cells = [made.cell(name, "infer") for name in names]
    evidence = made.evidence([(one, made.result(one, times={"candidate": 11.0})) for one in cells])
    locks = {}
    for key, environment in evidence.plan.environments.items():
        version = "3.6.0" if environment.release.version == "2.12.1" else "3.7.0"
        triton = LockedPackage(name="triton", version=version, wheel="", sha256=version, url="")
        locks[key] = environment.model_copy(update={"packages": (*environment.packages, triton)})
    return evidence.model_copy(update={"plan": evidence.plan.model_copy(update={"environments": locks})})


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ([], "several cells of run 'r-1' fail; name one of them:"),
        (["infer"], "'infer' is a part of several cells; name one of them:"),
        (["absent"], "run 'r-1' has no cell 'absent'; it has:"),
        (["first", "--tier", "none"], "no tier 'none' asks about cell 'first/infer@cpu'; those that do: serving"),
        (["first", "--gate", "rollback"], "'rollback' is not one of"),
        (["well"], "cell 'well/infer@cpu' fails no gate for serving; name one to ask all the same: --gate latency"),
    ],
)
def test_what_cannot_be_meant_is_said_with_what_could_be(farm: Farm, home: Path, asked: list[str], said: str) -> None:
    well = made.cell("well")
    evidence = failing_run("first", "second")
    kept = evidence.model_copy(
        update={
            "plan": evidence.plan.model_copy(update={"cells": (*evidence.plan.cells, well)}),
            "results": (*evidence.results, made.result(well)),
        }
    )
    keep_evidence(Home(home), kept)
    ended = farm("isolate", "r-1", *asked)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_run_in_which_nothing_fails_has_nothing_to_isolate(farm: Farm, home: Path) -> None:
    keep_evidence(Home(home), made.run_of(made.cell()))
    ended = farm("isolate", "r-1")
    assert ended.returncode == 2
    assert "no cell of run 'r-1' fails correctness or latency or throughput or peak_memory" in ended.stderr


def placed(evidence: Evidence, environments: dict[str, dict[str, str]], **more: Any) -> Evidence:
    """Return ``evidence`` with its arms' environments where ``environments`` says, by arm and target."""
    cells = tuple(
        cell.model_copy(
            update={
                "arms": tuple(
                    arm.model_copy(update={"environments": environments.get(arm.name, {})}) for arm in cell.arms
                )
            }
        )
        for cell in evidence.plan.cells
    )
    return evidence.model_copy(update={"plan": evidence.plan.model_copy(update={"cells": cells, **more})})


def test_a_cell_of_another_kind_of_machine_is_isolated_there(farm: Farm, home: Path) -> None:
    keep_evidence(Home(home), placed(failing_run("first"), {}))
    ended = farm("isolate", "r-1")
    assert ended.returncode == 2
    assert "ask on the machine that measured it" in ended.stderr


def test_a_workload_that_is_another_one_by_now_is_refused(farm: Farm, home: Path) -> None:
    evidence = failing_run("first")
    old, new = evidence.plan.environments
    here = {"baseline": {probe_host().target: old}, "candidate": {probe_host().target: new}}
    keep_evidence(Home(home), placed(evidence, here, sources={"first": "print('not what was measured')"}))
    ended = farm("isolate", "r-1", "first")
    assert ended.returncode == 2
    assert "is another one than run 'r-1' measured" in ended.stderr


def test_both_arms_of_one_wheel_have_no_change_to_look_into(farm: Farm, home: Path) -> None:
    evidence = failing_run("first")
    here = {probe_host().target: next(iter(evidence.plan.environments))}
    keep_evidence(Home(home), placed(evidence, {"baseline": here, "candidate": here}))
    ended = farm("isolate", "r-1", "first", "--gate", "latency")
    assert ended.returncode == 2
    assert "an A/A run has no change to look into" in ended.stderr


def answered(inquiry: Inquiry) -> Isolation:
    return Isolation(
        run_id=inquiry.evidence.run_id,
        cell_id=inquiry.cell.id,
        tier="serving",
        gates=(Gate.LATENCY,),
        created="2026-07-01T10:00:00+00:00",
        moved=(),
        environments={},
        rounds=(),
    )


def test_the_run_itself_isolates_what_fits_and_names_the_command_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given two failing cells of at most 180 s each, I expect 100 s to hold none and 200 s both."""
    home, evidence = Home(tmp_path), failing_run("first", "second")
    monkeypatch.setattr(workers.isolating, "isolate", lambda inquiry, *_: answered(inquiry))
    assert estimated_s(inquiry_of(evidence, judge(evidence), evidence.plan.cells[0])) == 180.0
    assert isolate_failing(evidence, judge(evidence), home, 100.0) == []
    assert "not isolated: first/infer@cpu needs up to 180 s and 100 s are left" in (said := capsys.readouterr().err)
    assert "later: farm isolate r-1 second/infer@cpu" in said
    found = isolate_failing(evidence, judge(evidence), home, 200.0)
    assert [one.cell_id for one in found] == ["first/infer@cpu", "second/infer@cpu"]
    assert len(findings_of(home, "r-1")) == 2


def test_a_cell_that_cannot_be_isolated_leaves_the_others_and_an_interruption_leaves_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, evidence = Home(tmp_path), failing_run("first", "second", "third")

    def isolate(inquiry: Inquiry, *_: object) -> Isolation:
        if inquiry.cell.workload == "first":
            raise EnvironmentFailed("no space left")
        if inquiry.cell.workload == "second":
            return answered(inquiry)
        raise KeyboardInterrupt

    monkeypatch.setattr(workers.isolating, "isolate", isolate)
    found = isolate_failing(evidence, judge(evidence), home, 1000.0)
    assert [one.cell_id for one in found] == ["second/infer@cpu"]
    said = capsys.readouterr().err
    assert "not isolated: first/infer@cpu: no space left" in said
    assert "not isolated: third/infer@cpu: interrupted; measurements kept: 0" in said


def test_a_second_isolation_of_a_run_at_once_is_refused(farm: Farm, home: Path) -> None:
    keep_evidence(Home(home), failing_run("first"))
    with Kept(Home(home), "r-1", Isolation).alone():
        ended = farm("isolate", "r-1")
    assert ended.returncode == 2
    assert "another isolation of this run is going on" in ended.stderr
