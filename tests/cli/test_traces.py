"""`farm report --traces` writes what was profiled and says what it has not got, and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zstandard

from cli.evidence import keep_evidence
from farm.model import ArmResult, Evidence, Trace
from farm.settings import Home
from tests import evidence as made
from tests.cli.conftest import Farm

SMALL = b'{"traceEvents":[{"name":"aten::mm"}]}'
LARGE = b'{"traceEvents":[{"name":"aten::addmm"}]}'


def arms(baseline: Trace | None, candidate: Trace | None) -> dict[str, ArmResult]:
    return {"baseline": made.ok(trace=baseline), "candidate": made.ok(trace=candidate)}


@pytest.fixture
def kept(home: Path) -> Evidence:
    """A run whose baseline's trace travelled; the candidate's is too large and stayed on its worker."""
    of = made.cell()
    traces = arms(made.trace(content=SMALL), made.trace(content=LARGE, travels=False))
    found = made.evidence([(of, made.result(of, traces))])
    keep_evidence(Home(home), found)
    return found


def test_traces_are_written_and_one_that_is_elsewhere_is_named_with_its_worker(
    farm: Farm, kept: Evidence, tmp_path: Path
) -> None:
    plain, ended = farm("report"), farm("report", "--traces", "traces")
    assert (ended.returncode, ended.stdout) == (0, plain.stdout)
    assert [path.name for path in (tmp_path / "traces").iterdir()] == ["block-infer@cpu-baseline.json"]
    assert (tmp_path / "traces" / "block-infer@cpu-baseline.json").read_bytes() == SMALL
    assert "too large to travel; on 'w-1' it is traces/" in ended.stderr
    assert "Perfetto" in ended.stderr


def test_a_trace_that_stayed_on_this_very_machine_is_found(
    farm: Farm, kept: Evidence, home: Path, tmp_path: Path
) -> None:
    (home / "traces").mkdir()
    trace = made.trace(content=LARGE)
    (home / "traces" / f"{trace.sha256}.json.zst").write_bytes(zstandard.ZstdCompressor().compress(LARGE))
    ended = farm("report", kept.run_id, "--traces", "traces")
    assert "no trace" not in ended.stderr
    written = json.loads((tmp_path / "traces" / "block-infer@cpu-candidate.json").read_text())
    assert written["traceEvents"] == [{"name": "aten::addmm"}]


def test_a_damaged_trace_is_not_written(farm: Farm, home: Path, tmp_path: Path) -> None:
    of = made.cell()
    damaged = made.trace(content=SMALL).model_copy(
        update={"packed": made.trace(content=LARGE).packed, "size_bytes": 90}
    )
    keep_evidence(Home(home), made.evidence([(of, made.result(of, arms(damaged, None)))]))
    ended = farm("report", "--traces", "traces")
    assert ended.returncode == 0
    assert "baseline: the trace is damaged" in ended.stderr
    assert list((tmp_path / "traces").iterdir()) == []


def test_a_run_without_traces_says_so(farm: Farm, home: Path) -> None:
    keep_evidence(Home(home), made.run_of(made.cell()))
    assert "no traces: no arm of this run was profiled" in farm("report", "--traces", "traces").stderr


def test_a_folder_that_cannot_be_written_is_one_line(farm: Farm, kept: Evidence, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    ended = farm("report", "--traces", "taken/inside")
    assert ended.returncode == 4
    assert "traces cannot be written into 'taken/inside': Not a directory" in ended.stderr
    assert "Traceback" not in ended.stderr
