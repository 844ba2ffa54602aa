"""What the recorder plans, and the one door to everything."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.measured import WORKS
from benchmarks.record import plan, steps_per_window


def test_the_whole_plan_takes_70_minutes_and_holds_every_work_under_every_condition() -> None:
    asked = plan(None)
    assert sum(minutes for _, _, minutes in asked) == 70
    assert {(work, condition) for work in WORKS for condition in ("quiet", "noisy")} == {
        (work, condition) for work, condition, _ in asked
    }


def test_a_shorter_plan_is_shared_out_alike() -> None:
    assert sum(minutes for _, _, minutes in plan(7.0)) == pytest.approx(7.0)


@pytest.mark.parametrize(("slowest_ms", "steps"), [(1, 120), (7, 17), (39, 5), (50, 2), (100, 1), (800, 1), (2500, 1)])
def test_windows_hold_as_many_steps_as_the_engines(slowest_ms: float, steps: int) -> None:
    assert steps == steps_per_window(slowest_ms * 1e6)


@pytest.mark.parametrize("arguments", [["record", "-o", "x"], ["record", "--work", "slow", "--plan", "-o", "x"]])
def test_record_wants_one_work_or_the_whole_plan(arguments: list[str]) -> None:
    ended = CliRunner().invoke(main, arguments)
    assert (ended.exit_code, "name one --work, or ask for the whole --plan" in ended.output) == (2, True)


def test_a_recording_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "kept.npz"
    path.write_bytes(b"")
    ended = CliRunner().invoke(main, ["record", "--work", "memory", "-o", str(path)])
    assert (ended.exit_code, "is there already" in ended.output) == (2, True)


@pytest.mark.parametrize("command", ["record", "replay", "live", "figures"])
def test_every_command_has_help(command: str) -> None:
    assert CliRunner().invoke(main, [command, "--help"]).exit_code == 0


def test_a_name_that_is_no_command_is_a_benchmarks() -> None:
    ended = CliRunner().invoke(main, ["nonsense", "--quick"])
    assert ended.exit_code == 2
    assert list(BENCHMARKS)[-1] in ended.output


@pytest.mark.parametrize("work", WORKS)
def test_every_work_is_one_workload_that_takes_extra_work(work: str) -> None:
    tree = ast.parse(WORKS[work].read_text(encoding="utf-8"))
    (kind,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    declared = next(
        ast.literal_eval(node.value)
        for node in kind.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "parameters"
    )
    assert declared["extra"]["default"] == 0.0
