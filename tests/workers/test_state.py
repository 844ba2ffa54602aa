"""State of one release opened by another: each kind with its own answer, whatever the processes do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

import pytest

from farm.model import StateKind
from farm.settings import Home
from workers import state as state_module
from workers.runner_environment import runner_environment
from workers.stage import make_stage
from workers.state import StateKeeper

#: A runner that writes a file a kind, and ends in every way that a real one may.
RUNNER = """
import json, os, pathlib, signal, sys, time
action, folder, kinds = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
for kind in kinds:
    told = folder / f"{kind}.{action}.json"
    told.write_text(json.dumps({"ended": False}))
    way = os.environ.get(f"{action} {kind}", "well")
    if way == "abort":
        sys.stderr.write("terminate called")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGABRT)
    if way == "hang":
        time.sleep(60)
    if way == "asks":
        input("overwrite? ")
    found = {"ended": True, "ns": 5}
    found |= {"error": "ValueError: too new"} if way == "error" else {"expected": 1}
    told.write_text(json.dumps(found))
"""


def keeper(tmp_path: Path, *kinds: str, **ways: str) -> StateKeeper:
    stage = tmp_path / "stage" / "runner"
    stage.mkdir(parents=True)
    (stage / "__init__.py").write_text("")
    (stage / "state.py").write_text(RUNNER)
    environment = {name.replace("_", " ", 1).replace("_", " "): way for name, way in ways.items()}
    return StateKeeper(kinds, tmp_path / "stage", tmp_path / "state", environment)


@pytest.fixture
def python() -> Path:
    return Path(sys.executable)


def test_what_is_read_well_is_readable_and_caches_are_rebuilt(tmp_path: Path, python: Path) -> None:
    keeps = keeper(tmp_path, "checkpoint", "compile cache")
    keeps.write(python)
    found = keeps.read(python)
    assert {kind: kept.result for kind, kept in found.items()} == {"checkpoint": "readable", "compile cache": "rebuilt"}
    assert found["checkpoint"].write_ns == found["checkpoint"].read_ns == 5


def test_each_kind_has_its_own_answer_though_one_kills_the_process(tmp_path: Path, python: Path) -> None:
    keeps = keeper(
        tmp_path, "checkpoint", "optimizer", "compiled package", read_checkpoint="abort", read_optimizer="error"
    )
    keeps.write(python)
    found = keeps.read(python)
    assert (found["checkpoint"].result, found["optimizer"].result) == ("unreadable", "unreadable")
    assert found["checkpoint"].reason == "the process ended with signal SIGABRT: terminate called"
    assert found["optimizer"].reason == "ValueError: too new"
    assert found["compiled package"].result == "readable"


def test_what_the_candidate_could_not_write_is_not_blamed_on_the_baseline(tmp_path: Path, python: Path) -> None:
    keeps = keeper(tmp_path, "checkpoint", "optimizer", write_checkpoint="error", write_optimizer="asks")
    keeps.write(python)
    found = keeps.read(python)
    assert (found["checkpoint"].result, found["checkpoint"].reason) == ("not written", "ValueError: too new")
    # Nobody answers: what asks has failed.
    assert found["optimizer"].result == "not written"
    assert "EOFError" in found["optimizer"].reason


def test_a_reader_that_hangs_is_ended_and_the_next_kind_is_read(
    tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeps = keeper(tmp_path, "checkpoint", "optimizer", read_checkpoint="hang")
    keeps.write(python)
    monkeypatch.setattr(state_module, "TIMEOUT_S", 1.0)
    found = keeps.read(python)
    assert (found["checkpoint"].result, found["checkpoint"].reason) == ("unreadable", "it took over 1 s")
    assert found["optimizer"].result == "readable"


@pytest.mark.torch
def test_what_2_13_wrote_is_opened_by_2_12_and_damage_is_seen(tmp_path: Path, shared_home: Path, built) -> None:
    baseline, candidate = (built[side].python for side in ("baseline", "candidate"))
    # Compiling is walked by every rehearsal of a run, and takes a minute.
    kinds = tuple(kind for kind in get_args(StateKind) if not kind.startswith("compile"))
    stage = make_stage(Home(shared_home).stage, None)
    environment = runner_environment({}, tmp_path / "caches", settled_allocator=False)
    keeps = StateKeeper(kinds, stage, tmp_path / "state", environment)
    keeps.write(candidate)
    assert {kind: kept.result for kind, kept in keeps.read(baseline).items()} == dict.fromkeys(kinds, "readable")
    damaged = tmp_path / "state" / "checkpoint.pt"
    damaged.write_bytes(damaged.read_bytes()[:200])
    found = keeps.read(baseline)
    assert found["checkpoint"].result == "unreadable"
    assert found["checkpoint"].reason
    assert found["optimizer"].result == "readable"
