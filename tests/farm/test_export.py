"""What other tools read is what was measured: no failed arm and no invalid cell becomes a number on the way."""

from __future__ import annotations

import csv
import json
from pathlib import PurePosixPath
from typing import Any

import pytest

from farm.export.asv import COLUMNS, merged, to_asv
from farm.export.pytorch import to_pytorch_v3
from farm.export.table import HEADER, to_csv
from farm.model import Evidence, Outcome, Validity
from tests.evidence import HOST, cell, ended, environment, evidence, memory, ok, restarts, result, tier


@pytest.fixture
def run() -> Evidence:
    """One cell that went well, one with a new path that failed, one that is invalid, one that nobody ran."""
    good, wide, bad, gone = cell(), cell("wide", features=("flex",)), cell("bad"), cell("gone")
    times = {"baseline": [10.0, 10.1, 10.2, 10.3, 10.4, 10.5], "candidate": 11.0}
    return evidence(
        [
            (good, result(good, times=times)),
            (wide, result(wide, {"candidate+flex": ended(Outcome.OUT_OF_MEMORY, "27 GiB asked")})),
            (bad, result(bad, validity=Validity(valid=False, reasons=("throttled",)))),
            (gone, None),
        ],
        tier(),
        unfinished={gone.id: "no worker"},
    )


def rows(found: Evidence) -> list[dict[str, str]]:
    return list(csv.DictReader(to_csv(found).splitlines()))


def of(found: list[dict[str, str]], cell_id: str, arm: str, metric: str = "step_p50_ns") -> list[dict[str, str]]:
    return [row for row in found if (row["cell_id"], row["arm"], row["metric"]) == (cell_id, arm, metric)]


def test_a_table_has_a_row_for_every_restart_with_its_unit(run: Evidence) -> None:
    assert tuple(to_csv(run).splitlines()[0].split(",")) == HEADER
    found = of(rows(run), "block/infer@cpu", "baseline")
    assert [row["restart"] for row in found] == ["1", "2", "3", "4", "5", "6"]
    assert [float(row["value"]) for row in found] == [1e7, 1.01e7, 1.02e7, 1.03e7, 1.04e7, 1.05e7]
    assert {(row["unit"], row["outcome"], row["validity"]) for row in found} == {("ns", "ok", "valid")}
    assert {row["release"] for row in found} == {"2.12.1+cpu"}
    (peak,) = of(rows(run), "block/infer@cpu", "candidate", "peak_step_bytes")
    assert (peak["value"], peak["unit"], peak["restart"]) == (str(2**24), "bytes", "")


@pytest.mark.parametrize(
    ("cell_id", "arm", "outcome", "validity"),
    [
        ("wide/infer@cpu", "candidate+flex", "out of memory: 27 GiB asked", "valid"),
        ("bad/infer@cpu", "baseline", "ok", "invalid: throttled"),
        ("gone/infer@cpu", "candidate", "not run", "no worker"),
    ],
)
def test_what_is_no_number_is_empty_and_never_zero(
    run: Evidence, cell_id: str, arm: str, outcome: str, validity: str
) -> None:
    found = [row for row in rows(run) if (row["cell_id"], row["arm"]) == (cell_id, arm)]
    assert found
    assert {(row["outcome"], row["validity"]) for row in found} == {(outcome, validity)}
    assert {row["value"] for row in found} == {""}


def test_a_disturbed_restart_and_a_sensor_that_reads_zero_are_no_numbers() -> None:
    given = cell()
    six = restarts({"baseline": 10.0, "candidate": [10.0, 0.0, 10.0, 10.0, 10.0, 10.0]})
    six = (six[0].model_copy(update={"invalid": "suspended"}), *six[1:])
    zero = ok(memory=memory(0, process=(0,)))
    found = rows(evidence([(given, result(given, {"candidate": zero}, restarts=six))], tier()))
    first, second, *others = of(found, given.id, "candidate")
    assert (first["value"], first["validity"]) == ("", "invalid: suspended")
    assert (second["value"], second["validity"][:26]) == ("", "invalid: sensor implausibl")
    assert {row["value"] for row in others} == {"10000000"}
    assert not of(found, given.id, "candidate", "peak_step_bytes")
    text, left_out = to_pytorch_v3(evidence([(given, result(given, {"candidate": zero}, restarts=six))], tier()))
    metrics = [record["metric"] for record in json.loads(text)]
    # No graph breaks is a count that was read.
    assert min(value for m in metrics if m["name"] != "graph_breaks" for value in m["benchmark_values"]) > 0
    assert "block/infer@cpu, candidate, restart 1: invalid: suspended" in left_out


def test_a_reason_is_no_formula_of_a_spreadsheet() -> None:
    given = cell()
    hostile = Validity(valid=True, arms={"candidate": ("x",)})
    found = evidence([(given, None)], tier(), unfinished={given.id: '=HYPERLINK("http://x")\nsecond line'})
    assert {row["validity"] for row in rows(found)} == {'\'=HYPERLINK("http://x") second line'}
    arms = rows(evidence([(given, result(given, validity=hostile))], tier()))
    assert {row["validity"] for row in of(arms, given.id, "candidate")} == {"invalid: x"}
    assert {row["validity"] for row in of(arms, given.id, "baseline")} == {"valid"}


def records(found: Evidence) -> tuple[list[dict[str, Any]], list[str]]:
    text, left_out = to_pytorch_v3(found)
    return json.loads(text), left_out


def test_records_have_the_fields_of_the_benchmark_database(run: Evidence) -> None:
    found, _ = records(run)
    (record,) = [
        one
        for one in found
        if one["metric"]["name"] == "step_p50_ns"
        and one["benchmark"]["extra_info"]["cell"] == "block/infer@cpu"
        and one["benchmark"]["extra_info"]["arm"] == "candidate"
    ]
    assert set(record) == {
        "schema_version",
        "timestamp",
        "name",
        "runners",
        "benchmark",
        "model",
        "dependencies",
        "metric",
    }
    assert set(record["benchmark"]) == {"name", "mode", "dtype", "extra_info"}
    assert set(record["model"]) == {"name", "type", "backend", "origins", "extra_info"}
    assert record["model"]["name"] == "block"
    assert record["benchmark"]["dtype"] == "float32"
    assert record["metric"]["benchmark_values"] == [1.1e7] * 6
    (runner,) = record["runners"]
    assert (runner["type"], runner["cpu_info"], runner["cpu_count"]) == ("cpu", HOST.cpu, HOST.cores)
    torch = record["dependencies"]["torch"]
    assert set(torch) == {"repo", "branch", "sha", "version", "extra_info"}
    assert (torch["repo"], torch["version"]) == ("pytorch/pytorch", "2.13.0+cpu")
    assert torch["extra_info"]["wheel_sha256"] == environment("2.13.0").release.sha256
    # Its table holds maps of texts.
    for part in ("benchmark", "model", "metric"):
        assert all(isinstance(value, str) for value in record[part]["extra_info"].values())


def test_records_leave_out_what_is_no_number_and_say_so(run: Evidence) -> None:
    found, left_out = records(run)
    named = {(one["benchmark"]["extra_info"]["cell"], one["benchmark"]["extra_info"]["arm"]) for one in found}
    assert ("wide/infer@cpu", "candidate+flex") not in named
    assert ("bad/infer@cpu", "baseline") not in named
    assert left_out == [
        "wide/infer@cpu, candidate+flex: out of memory: 27 GiB asked",
        "bad/infer@cpu, baseline: invalid: throttled",
        "bad/infer@cpu, candidate: invalid: throttled",
        "gone/infer@cpu, baseline: no worker",
        "gone/infer@cpu, candidate: no worker",
    ]


def test_a_results_folder_of_asv_holds_a_file_for_each_release(run: Evidence) -> None:
    files, left_out = to_asv(run)
    keys = {"2.12.1": environment("2.12.1"), "2.13.0": environment("2.13.0")}
    names = {version: f"{made.release.sha256[:8]}-torch{version}+cpu-py3.11.json" for version, made in keys.items()}
    assert set(files) == {
        PurePosixPath("benchmarks.json"),
        PurePosixPath("bench-1/machine.json"),
        *(PurePosixPath("bench-1", name) for name in names.values()),
    }
    benchmarks = json.loads(files[PurePosixPath("benchmarks.json")])
    assert benchmarks.pop("version") == 2
    old, new = (json.loads(files[PurePosixPath("bench-1", names[version])]) for version in ("2.12.1", "2.13.0"))
    assert (old["version"], old["result_columns"], old["params"]["machine"]) == (2, list(COLUMNS), "bench-1")
    assert set(old["results"]) | set(new["results"]) == set(benchmarks)
    name = "block.infer.cpu.old.time_step_p50"
    row = dict(zip(COLUMNS, old["results"][name], strict=False))
    assert row["result"] == pytest.approx([0.01025])
    assert row["samples"] == [pytest.approx([0.0100, 0.0101, 0.0102, 0.0103, 0.0104, 0.0105])]
    assert row["version"] == benchmarks[name]["version"]
    # asv's own word for failed; what is invalid is not there.
    assert new["results"]["wide.infer.cpu.flex.time_step_p50"][0] == [None]
    assert not [found for found in new["results"] if found.startswith(("bad.", "gone."))]
    assert "bad/infer@cpu, candidate: invalid: throttled" in left_out


def test_a_machine_cannot_name_itself_out_of_the_folder() -> None:
    given = cell()
    host = HOST.model_copy(update={"name": "../../etc/cron"})
    files, _ = to_asv(evidence([(given, result(given, host=host))], tier()))
    assert all(".." not in place.parts and not place.is_absolute() and len(place.parts) <= 2 for place in files)


def test_what_an_earlier_run_left_stays() -> None:
    assert json.loads(merged('{"version": 2, "a": 1}', '{"version": 2, "b": 2}')) == {"version": 2, "a": 1, "b": 2}
    old, new = (
        json.dumps({"version": 2, "result_columns": ["result"], "results": results})
        for results in ({"x": [[1]], "y": [[1]]}, {"y": [[2]]})
    )
    assert json.loads(merged(old, new))["results"] == {"x": [[1]], "y": [[2]]}
    for other in ('{"version": 1}', "[]", "no", '{"version": 2, "result_columns": ["params"], "results": {}}'):
        with pytest.raises(ValueError, match=r"version|Expecting|columns"):
            merged(other, new)
