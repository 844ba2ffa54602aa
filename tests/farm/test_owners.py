"""What a killed process left behind goes; what a living one holds, or nobody named, stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from farm.owners import is_gone, owner_name, remove_orphans


@pytest.fixture
def ended() -> str:
    """Name of a process that was killed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        name = owner_name("cell", process.pid)
        assert not is_gone(name)
        process.kill()
    return name


def test_a_process_that_was_killed_is_gone_and_this_one_is_not(ended: str) -> None:
    assert is_gone(ended)
    assert is_gone(f"{ended}-x7_abc")
    assert not is_gone(owner_name("cell"))


def test_another_process_with_the_same_number_is_not_the_owner() -> None:
    kind, pid, _ = owner_name("cell").split("-")
    assert is_gone(f"{kind}-{pid}-1000000000.00")


@pytest.mark.parametrize("name", ["", "coordinator", "cell-12", "cell-x-1.00", "notes-2026-12", "9-1-1.00"])
def test_a_name_that_names_no_process_is_never_gone(name: str) -> None:
    assert not is_gone(name)


def test_only_the_folders_of_ended_processes_are_removed(tmp_path: Path, ended: str) -> None:
    for name in (f"{ended}-abc", f"{owner_name('cell')}-abc", "coordinator"):
        (tmp_path / name / "environment").mkdir(parents=True)
    remove_orphans(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"{owner_name('cell')}-abc", "coordinator"}
    remove_orphans(tmp_path / "nosuch")
