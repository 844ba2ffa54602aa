"""`farm rollback` as it is typed: what it prints, for whom, and how it exits."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from farm.settings import Home
from tests.cli.conftest import Farm
from tests.wheels import make_wheel
from tests.workers.user_environments import hold, install, keep_run, make_environment, make_wheels, snapshot

#: No index and no settings of this machine.
ALONE = {"UV_NO_INDEX": "1", "UV_NO_CONFIG": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Wheels, and an environment with the candidate in it."""
    wheels = tmp_path_factory.mktemp("wheels")
    _, candidate = make_wheels(wheels)
    root = make_environment(tmp_path_factory.mktemp("user") / "venv")
    install(root, *(wheels / package.wheel for package in candidate.packages))
    return wheels, root


@pytest.fixture
def root(made: tuple[Path, Path], home: Path, tmp_path: Path) -> Path:
    """A copy of that environment, beside a home with a run and the baseline's wheels."""
    wheels, served = made
    locks = make_wheels(wheels)
    hold(Home(home), locks[0], wheels)
    keep_run(Home(home), "20261203-ab", locks)
    return Path(shutil.copytree(served, tmp_path / "venv", symlinks=True))


def test_the_plan_is_shown_and_nothing_is_changed(farm: Farm, root: Path) -> None:
    before = snapshot(root)
    shown = farm("rollback", "--env", "venv", **ALONE)
    assert shown.returncode == 0, shown.stderr
    for words in (
        "installed:    torch 2.13.0+cpu, installed by uv",
        "goes back to: torch 2.12.1+cpu (the baseline of run 20261203-ab, rehearsed there in 3.0 s)",
        "in the wheelhouse",
        "Other packages, which stay as they are: 1.",
        "Network: not needed.",
        "Nothing was changed. To do it: farm rollback --env venv --yes",
    ):
        assert words in shown.stdout, words
    assert snapshot(root) == before
    as_json = json.loads(farm("rollback", "--env", "venv", "--json", **ALONE).stdout)
    assert [(move["name"], move["after"]) for move in as_json["moves"]][:1] == [("torch", "2.12.1")]


def test_it_is_done_proven_verified_and_undone(farm: Farm, root: Path) -> None:
    before = snapshot(root)
    done = farm("rollback", "--env", "venv", "--yes", "--keep", **ALONE)
    assert done.returncode == 0, done.stderr
    assert "torch says: 2.12.1, built for no device" in done.stdout
    assert "  nvidia-blas 13 -> none\n" in done.stdout
    assert "farm: exchanging 4 packages" in done.stderr
    verified = farm("rollback", "--env", "venv", "--verify", "--json", **ALONE)
    assert verified.returncode == 0
    assert json.loads(verified.stdout)["proof"]["wrong"] == []
    shown = farm("rollback", "--env", "venv", "--undo", **ALONE)
    assert "--undo --yes puts torch 2.13.0+cpu back" in shown.stdout
    undone = farm("rollback", "--env", "venv", "--undo", "--yes", **ALONE)
    assert undone.returncode == 0, undone.stderr
    assert "  torch 2.12.1 -> 2.13.0\n" in undone.stdout
    assert snapshot(root) == before


def test_a_swapped_torch_exits_with_4_and_is_named(farm: Farm, root: Path, made: tuple[Path, Path]) -> None:
    farm("rollback", "--env", "venv", "--yes", **ALONE)
    wheels = made[0]
    vision = make_wheel(wheels, "torchvision", "0.28.0", requires=["torch==2.13.0"])
    install(root, wheels / "torch-2.13.0-py3-none-any.whl", vision)
    found = farm("rollback", "--env", "venv", "--verify", **ALONE)
    assert found.returncode == 4
    assert "WRONG: torch is 2.13.0, wanted is 2.12.1" in found.stdout
    assert "asks for torch==2.13.0, which excludes 2.12.1" in found.stdout
    shown = farm("rollback", "--env", "venv", "--to", "2.12.1", **ALONE)
    assert "would break: torchvision 0.28.0 needs torch==2.13.0" in shown.stdout
    refused = farm("rollback", "--env", "venv", "--yes", "--to", "2.12.1", **ALONE)
    assert refused.returncode == 2
    assert "say --companions move to take it along" in refused.stderr


def test_what_cannot_be_meant_is_one_line_and_2(farm: Farm, root: Path) -> None:
    for arguments, words in (
        (("--env", "nowhere"), "there is nothing at 'nowhere'"),
        (("--env", "venv", "--verify"), "the farm rolled nothing back in"),
        (("--env", "venv", "--undo"), "there is nothing to undo in 'venv'"),
        (("--env", "venv", "--undo", "--yes"), "nothing was rolled back in"),
        (("--env", "venv", "--verify", "--yes"), "--verify looks and changes nothing"),
        (("--env", "venv", "--undo", "--to", "2.12"), "it takes no --to"),
        (("--env", "venv", "--to", "2.x"), "'2.x' is not a release"),
    ):
        ended = farm("rollback", *arguments, **ALONE)
        assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
        assert words in ended.stderr
        assert "Traceback" not in ended.stderr


def test_a_release_that_is_neither_here_nor_served_names_what_is_missing(farm: Farm, root: Path) -> None:
    ended = farm("rollback", "--env", "venv", "--to", "2.10.0", **ALONE)
    assert ended.returncode == 2
    assert "--to '2.10.0': the configured index serves no such torch" in ended.stderr
