"""Bad input ends with one clear line and the right exit code; never with a traceback, never with a run half begun."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from cli.main import COMMANDS
from farm.matrix import load_matrix
from tests.cli.conftest import ROOT, Farm

MATRIX = (ROOT / "farm" / "default_matrix.toml").read_text()


def changed(tmp_path: Path, old: str, new: str) -> Path:
    """Return the default matrix with one text in place of another."""
    assert MATRIX.count(old) >= 1, old
    path = tmp_path / "changed.toml"
    path.write_text(MATRIX.replace(old, new, 1))
    return path


def test_the_unchanged_matrix_is_accepted(tmp_path: Path) -> None:
    assert load_matrix(changed(tmp_path, "seed = 20260701", "seed = 20260701")).suites


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["submit"], ["--candidate"]),
        (["submit", "--candidate", "2.1o"], ["2.1o"]),
        (["submit", "--candidate", ""], ["release"]),
        (["submit", "--candidate", "2.13", "--baseline", "two"], ["two"]),
        (["submit", "--candidate", "2.13", "--suite", "smokey"], ["smokey", "smoke, standard"]),
        (["submit", "--candidate", "2.13", "--backend", "tpu"], ["tpu", "cuda"]),
        (["submit", "--candidate", "2.13", "--timeout", "-1"], ["-1"]),
        (["submit", "--candidate", "2.13", "--require", "rollback"], ["rollback", "adopt"]),
        (["submit", "--candidate", "2.13", "--matrix", "nowhere.toml"], ["nowhere.toml"]),
        (["plan", "--candidate", "2.1o"], ["2.1o"]),
        (["report", "nosuch"], ["nosuch"]),
        (["report"], ["no run yet", "farm submit"]),
        (["watch", "nosuch"], ["nosuch"]),
        (["worker"], ["FARM_URL"]),
        (["up", "--port", "0"], ["0"]),
        (["workload", "show", "nosuch"], ["nosuch", "flex_attention"]),
        (["frobnicate"], ["frobnicate", "submit"]),
        (["submit", "--candidate", "2.13", "--frobnicate"], ["--frobnicate"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and value and value[0] in COMMANDS else None,
)
def test_what_cannot_be_meant_is_a_usage_error(farm: Farm, arguments: list[str], words: list[str]) -> None:
    ended = farm(*arguments)
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    for word in words:
        assert word in ended.stderr
    assert ended.stdout == ""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name = "flex_attention"', 'name = "flux_attention"', ["flux_attention", "flex_attention"]),
        ('"latency", "throughput"', '"latencies", "throughput"', ["latencies", "latency", "gates"]),
        ("p50_ratio = 1.15", "p50_ratio = -1.15", ["p50_ratio", "-1.15", "line"]),
        ('current_baseline = "2.12"', "current_baseline = 2.12", ["2.12", '"2.12"', "text"]),
        ("schema_version = 1", "schema_version = ", ["line"]),
        ("restart_s", "restart", ["restart", "allowed"]),
        ("looks = [5]", "looks = [3]", ["looks", "5"]),
    ],
    ids=["workload", "gate", "negative limit", "float version", "no TOML", "unknown key", "too few restarts"],
)
def test_a_matrix_that_cannot_be_meant_names_file_place_and_what_is_allowed(
    farm: Farm, tmp_path: Path, old: str, new: str, words: list[str]
) -> None:
    ended = farm("submit", "--candidate", "2.13", "--matrix", changed(tmp_path, old, new))
    assert ended.returncode == 2, ended.stderr
    for word in ["changed.toml", *words]:
        assert word in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_home_that_cannot_be_written_is_named(farm: Farm, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    ended = farm("submit", "--candidate", "2.13", FARM_HOME=str(file / "home"))
    assert ended.returncode == 2
    assert str(file / "home") in ended.stderr
    assert "FARM_HOME" in ended.stderr


def test_a_home_with_a_space_is_refused_before_every_compiled_path_fails_there(farm: Farm, tmp_path: Path) -> None:
    ended = farm("submit", "--candidate", "2.13", FARM_HOME=str(tmp_path / "my home"))
    assert ended.returncode == 2
    assert "torch.compile" in ended.stderr
    assert not (tmp_path / "my home").exists()


def test_a_backend_without_a_machine_is_incomplete_and_says_so(farm: Farm) -> None:
    ended = farm("submit", "--candidate", "2.13", "--backend", "rocm")
    assert ended.returncode == 3
    assert "rocm: no worker" in ended.stderr
    assert "mps" not in ended.stderr


@pytest.mark.parametrize("arguments", [["status"], ["submit", "--candidate", "2.13"], ["watch", "x"]])
def test_a_farm_that_does_not_answer_is_infrastructure(farm: Farm, arguments: list[str]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ended = farm(*arguments, FARM_URL=f"redis://user:secret@127.0.0.1:{port}/0")
    assert ended.returncode == 4, ended.stderr
    assert f"127.0.0.1:{port}" in ended.stderr
    assert "secret" not in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("url", ["http://somewhere", "nonsense"])
def test_an_address_that_is_none_is_a_usage_error(farm: Farm, url: str) -> None:
    ended = farm("status", FARM_URL=url)
    assert ended.returncode == 2, ended.stderr
    assert url in ended.stderr
    assert "redis://" in ended.stderr


def test_a_port_that_is_taken_is_named(farm: Farm) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = farm("up", "--port", port)
    assert ended.returncode == 2
    assert f"port {port}" in ended.stderr
    assert "--port" in ended.stderr


def test_settings_that_cannot_be_meant_name_their_file(farm: Farm, tmp_path: Path) -> None:
    (tmp_path / "farm.toml").write_text("baseline = 2.10\n")
    ended = farm("submit", "--candidate", "2.13")
    assert ended.returncode == 2
    assert "farm.toml" in ended.stderr
    assert 'baseline = "2.10"' in ended.stderr


def test_damaged_evidence_is_named(farm: Farm, home: Path) -> None:
    folder = home / "runs" / "20261201-abcdef"
    folder.mkdir(parents=True)
    (folder / "evidence.json").write_text('{"schema_version": 1')
    ended = farm("report", "20261201-abcdef")
    assert ended.returncode == 4
    assert str(folder / "evidence.json") in ended.stderr
    assert "Traceback" not in ended.stderr
