"""`farm workload new` writes what runs as it stands, and touches nothing that is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.workload import command
from farm.catalogue import read_workload
from farm.errors import InfrastructureFailed, UsageError
from farm.matrix import load_matrix


def new(*arguments: str) -> str:
    return CliRunner().invoke(command, ["new", *arguments], catch_exceptions=False, standalone_mode=False).output


def test_what_is_written_is_a_workload_and_the_matrix_that_ships_with_it_alone(tmp_path: Path) -> None:
    said = new("our_norm", "--to", str(tmp_path / "work"))
    spec = read_workload(tmp_path / "work" / "our_norm.py")
    assert [path.name for path in spec.paths] == ["by_hand", "fused"]
    matrix, shipped = load_matrix(tmp_path / "work" / "our_norm.toml"), load_matrix()
    (work,) = matrix.workloads
    assert (work.spec.name, work.features, work.own) == ("our_norm", ("fused",), True)
    assert (matrix.tiers, matrix.suites, matrix.stages) == (shipped.tiers, shipped.suites, shipped.stages)
    assert f"farm workload check {tmp_path / 'work' / 'our_norm.py'}" in said
    assert f"--matrix {tmp_path / 'work' / 'our_norm.toml'}" in said


@pytest.mark.parametrize("name", ["our_norm.py", "our_norm.toml"])
def test_what_is_there_is_not_touched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match="is there already and was not touched"):
        new("our_norm", "--to", str(tmp_path))
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


@pytest.mark.parametrize("name", ["Our-Norm", "1st", "../up", "", "x" * 65, "é"])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be a workload's name"):
        new(name, "--to", str(tmp_path))


def test_a_name_of_the_catalogue_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is a workload 'flex_attention' already"):
        new("flex_attention", "--to", str(tmp_path))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureFailed, match="cannot be written"):
        new("our_norm", "--to", str(tmp_path / "file" / "work"))
