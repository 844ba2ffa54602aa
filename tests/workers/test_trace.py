"""One profiled step of an arm: it tells by name which kernels ran, and travels with the evidence if it is small."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard

from farm.model import Arm, ArmResult, Cell, Control, Gate, Measuring, Outcome, Side, decompress
from workers import examination
from workers.examination import Examiner
from workers.runner.trace import operators_of, readable
from workers.runner_environment import runner_environment
from workers.session import RunnerSession
from workers.stage import make_stage

START_S = 120.0


def average(key: str, count: int, host_us: float, device_us: float = 0.0) -> SimpleNamespace:
    return SimpleNamespace(key=key, count=count, self_cpu_time_total=host_us, self_device_time_total=device_us)


def test_a_kernel_of_the_device_stands_where_its_time_puts_it() -> None:
    found = operators_of(
        [
            average("aten::mm", 2, 31.25, 120.0),
            average("triton_tem_fused_flex_attention_0", 1, 0.0, 912.5),
            average("cudaLaunchKernel", 3, 18.0),
        ]
    )
    assert found == [
        {"name": "triton_tem_fused_flex_attention_0", "calls": 1, "self_ns": 0, "device_ns": 912_500},
        {"name": "aten::mm", "calls": 2, "self_ns": 31_250, "device_ns": 120_000},
        {"name": "cudaLaunchKernel", "calls": 3, "self_ns": 18_000, "device_ns": 0},
    ]


def test_the_longest_twenty_are_told() -> None:
    found = operators_of([average(f"aten::op{index}", 1, float(index)) for index in range(30)])
    assert [operator["name"] for operator in found] == [f"aten::op{index}" for index in range(29, 9, -1)]


def test_a_compiled_graph_is_not_named_by_its_hash_which_no_two_releases_share() -> None:
    (found,) = operators_of([average("## Call CompiledFxGraph f6birct26laqf35fxpokvpmah6 ##", 1, 1438.3)])
    assert found["name"] == "CompiledFxGraph"


def test_a_trace_leaves_the_machines_name_and_paths_behind() -> None:
    written = """ {
      "schemaVersion": 1, "trace_id": "D0D9", "host_name": "build-7",
      "traceName": "/tmp/t.json", "traceEvents": [ {"ts": 1.25} ] }"""
    assert readable(written) == '{"schemaVersion":1,"traceEvents":[{"ts":1.25}]}'


# -- for real -------------------------------------------------------------------------------------------------------


def cell(workload: str, *paths: str, **parameters: Any) -> Cell:
    arms = tuple(
        Arm(name="candidate" if index == 0 else f"candidate+{path}", side=Side.CANDIDATE, path=path, environments={})
        for index, path in enumerate(paths)
    )
    return Cell(
        id=f"{workload}/one@cpu",
        backend="cpu",
        capability="cpu",
        workload=workload,
        case="one",
        parameters=parameters,
        production_shape=False,
        arms=arms,
        control=Control(workload_digest="ab" * 32, seed=7, environment_variables={}),
        measuring=Measuring(),
        gates=(Gate.CORRECTNESS,),
    )


class NoMarkToReset(RunnerSession):
    """A runner on a system without /proc/self/clear_refs, such as macOS: it cannot tell its peak after an oracle."""

    def request(self, op: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        reply = super().request(op, timeout_s, **fields)
        if op == "examine":
            reply["memory"]["process_peak_bytes"] = []
        return reply


@pytest.fixture
def examine(candidate_python: Path, tmp_path: Path) -> Callable[..., dict[str, ArmResult]]:
    """Examine a cell in the candidate's real environment."""

    def run(of: Cell, *, kind: type[RunnerSession] = RunnerSession, kept: Path | None = None) -> dict[str, ArmResult]:
        stage = make_stage(tmp_path / "stage", None)

        def start(arm: str, purpose: str, caches: Path | None) -> RunnerSession:
            environment = runner_environment({"OMP_NUM_THREADS": "1"}, tmp_path / arm, settled_allocator=False)
            return kind(candidate_python, stage, environment, tmp_path / f"{arm}-{purpose}.log")

        examiner = Examiner(of, tmp_path, f"workloads.{of.workload}", start, START_S, keep_traces=kept)
        return examiner.examine(of.arms)

    return run


@pytest.mark.torch
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("c++")), reason="Inductor needs a C++ compiler")
def test_the_trace_tells_which_attention_ran(examine: Callable[..., dict[str, ArmResult]]) -> None:
    found = examine(cell("flex_attention", "old", "flex", mask="sliding_window", seq=128))
    assert {result.outcome for result in found.values()} == {Outcome.OK}
    traces = {name: result.examination.trace for name, result in found.items() if result.examination}
    names = {name: [operator.name for operator in trace.operators] for name, trace in traces.items() if trace}
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in names["candidate"]
    assert any("flex_attention" in operator for operator in names["candidate+flex"])
    new = found["candidate+flex"].examination
    assert new is not None
    assert new.drill is not None
    assert (new.drill.how, new.drill.result) == ("torch.compiler.set_stance('force_eager')", "switched off")
    assert new.facts["block-sparse"] == "no: all 1 blocks are computed, the mask saves nothing"
    for trace in traces.values():
        assert trace is not None
        content = decompress(trace.packed, trace.size_bytes)
        assert (len(content), hashlib.sha256(content).hexdigest()) == (trace.size_bytes, trace.sha256)
        told = {event.get("name") for event in json.loads(content)["traceEvents"]}
        assert {operator.name for operator in trace.operators} - told <= {"CompiledFxGraph"}


@pytest.mark.torch
def test_a_trace_too_large_to_travel_stays_here_under_its_digest(
    examine: Callable[..., dict[str, ArmResult]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "MAX_PACKED_BYTES", 100)
    examined = examine(cell("transformer_block", "eager"), kept=tmp_path / "traces")["candidate"].examination
    assert examined is not None
    assert examined.trace is not None
    assert examined.trace.packed == b""
    (kept,) = (tmp_path / "traces").iterdir()
    assert kept.name == f"{examined.trace.sha256}.json.zst"
    content = zstandard.ZstdDecompressor().decompress(kept.read_bytes())
    assert hashlib.sha256(content).hexdigest() == examined.trace.sha256


@pytest.mark.torch
def test_where_a_peak_cannot_be_reset_fresh_processes_tell_theirs(
    examine: Callable[..., dict[str, ArmResult]],
) -> None:
    result = examine(cell("transformer_block", "eager"), kind=NoMarkToReset)["candidate"]
    assert result.examination is not None
    assert result.examination.memory is not None
    peaks = result.examination.memory.process_peak_bytes
    assert len(peaks) == examination.PEAK_PROCESSES
    assert min(peaks) > 50 * 2**20
