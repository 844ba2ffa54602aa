"""The runner in a real environment: what it says of itself, of a workload, and of workloads that are wrong."""

from __future__ import annotations

import hashlib
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.catalogue import read_workload
from farm.model import Outcome, Output
from workers.comparison import compare_outputs, load
from workers.runner_environment import runner_environment
from workers.session import ArmEnded, RunnerSession
from workers.stage import make_stage

pytestmark = pytest.mark.torch

FIXTURES = Path(__file__).parent.parent / "fixtures" / "workloads"
DOCUMENTATION = Path(__file__).parent.parent.parent / "docs" / "adding-a-workload.md"

START_S = 120.0
ANSWER_S = 60.0

USERS_WORKLOAD = """
import torch
from workloads.contract import FellBack, Workload

class Users(Workload):
    cases = {{"one": {{"suites": ["smoke"]}}}}
    def setup(self, p, path, device):
        self.x = torch.ones(8, 8, device=device)
    def step(self):
        {step}
        return {{"y": self.x @ self.x}}
"""


class Asked:
    """One runner that every test here asks; it is set up anew each time, as often as one likes."""

    def __init__(self, session: RunnerSession, facts: dict[str, Any], folder: Path) -> None:
        self.session = session
        self.facts = facts
        self.folder = folder

    def set_up(
        self, workload: str | Path, path: str = "eager", *, seed: int = 1, device: str = "cpu", **parameters: Any
    ) -> dict[str, Any]:
        return self.session.request(
            "setup",
            ANSWER_S,
            workload=str(FIXTURES / f"{workload}.py" if isinstance(workload, str) else workload),
            parameters=parameters,
            path=path,
            seed=seed,
            device=device,
            threads=1,
        )

    def examine(
        self, name: str = "one", *, oracle: bool = True, threads: int = 2, memory: bool = False, **more: bool
    ) -> Any:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return self.session.request(
            "examine",
            ANSWER_S,
            directory=str(folder),
            oracle=oracle,
            repeats=5,
            threads=threads,
            memory=memory,
            **more,
        )

    def window(self, steps: int) -> np.ndarray:
        """Return the durations of ``steps`` steps in nanoseconds."""
        return np.frombuffer(self.session.request("window", ANSWER_S, steps=steps)["steps_ns"], "<u8")

    def both_paths(self, workload: str, old: str, new: str, dtype: str) -> tuple[dict[str, Output], dict[str, Output]]:
        """Return the outputs of both paths, each against the oracle and the new ones against the old."""
        self.set_up(workload, old, dtype=dtype)
        right = self.examine("old")
        self.set_up(workload, new, dtype=dtype)
        ported = self.examine("new", oracle=False)
        return (
            compare_outputs(right["outputs"], right["oracle"], None),
            compare_outputs(ported["outputs"], right["oracle"], right["outputs"]),
        )


@pytest.fixture(scope="module")
def running(candidate_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, ...]]:
    root = tmp_path_factory.mktemp("runner")
    environment = runner_environment({"OMP_NUM_THREADS": "1"}, root / "caches", settled_allocator=False)
    with RunnerSession(candidate_python, make_stage(root / "stage", None), environment, root / "log") as session:
        yield session, session.hello(START_S)


@pytest.fixture
def asked(running: tuple[Any, ...], tmp_path: Path) -> Asked:
    return Asked(*running, tmp_path)


# -- what it says of itself and of a workload ---------------------------------------------------------------------


def test_hello_says_which_torch_this_is_and_that_its_libraries_are_its_own(asked: Asked) -> None:
    assert asked.facts["torch"].startswith("2.13.0")
    assert asked.facts["pid"] == asked.session.pid
    assert any("libtorch_cpu" in library for library in asked.facts["libraries"])
    assert asked.facts["stranger_libraries"] == []
    assert asked.facts["import_ns"] > 0


def test_the_seed_alone_decides_the_numbers(asked: Asked) -> None:
    first = asked.set_up("reordered_sum", "forwards", seed=7)["output_digest"]
    asked.window(3)
    assert asked.set_up("reordered_sum", "forwards", seed=7)["output_digest"] == first
    assert asked.set_up("reordered_sum", "forwards", seed=8)["output_digest"] != first


def test_a_window_times_every_step_and_nothing_between(asked: Asked) -> None:
    asked.set_up("reordered_sum", "forwards")
    reply = asked.session.request("window", ANSWER_S, steps=9)
    durations = np.frombuffer(reply["steps_ns"], "<u8")
    assert len(durations) == 9
    assert int(durations.sum()) == reply["wall_ns"]
    assert reply["minor_faults"] >= 0
    # Nothing of the CPU is left to be waited for, and no device has a clock of its own.
    assert reply["device_ns"] is None
    assert 0 <= reply["sync_ns"] < 10**7
    assert (reply["waited_ns"] is not None) == Path("/proc/self/schedstat").exists()


def test_a_step_that_fails_in_a_window_is_told_by_its_number(asked: Asked, tmp_path: Path) -> None:
    workload = tmp_path / "users.py"
    # The set-up's step is the first one.
    counted = "self.count = getattr(self, 'count', 0) + 1; assert self.count < 4, 'tired'"
    workload.write_text(USERS_WORKLOAD.format(step=counted))
    asked.set_up(workload)
    with pytest.raises(ArmEnded, match=r"AssertionError: tired \(step 4\)"):
        asked.window(9)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_outputs_are_handed_over_exactly_as_float64_files(asked: Asked, dtype: str) -> None:
    asked.set_up("wrong_scale", "as_is", dtype=dtype)
    entry = asked.examine()["outputs"]["y"]
    values = load(entry)
    assert (entry["dtype"], entry["shape"]) == (dtype, [1, 4, 128, 72])
    # Turned back into the case's own type, they are the bits that the digest was taken of.
    if dtype == "bfloat16":
        bits = (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    else:
        bits = values.astype({"float32": "<f4", "float16": "<f2"}[dtype]).tobytes()
    assert hashlib.sha256(bits).hexdigest() == entry["sha256"]


def test_memory_of_a_step_is_what_its_tensors_take(asked: Asked) -> None:
    asked.set_up("reordered_sum", "forwards", tokens=256, out=1024)
    found = asked.examine(memory=True)["memory"]
    output_bytes = 256 * 1024 * 4
    # The product's packed copy may come on top, but no second output.
    assert output_bytes <= found["allocator_peak_bytes"] < 2 * output_bytes
    assert found["reserved_peak_bytes"] is None
    assert len(found["process_peak_bytes"]) == 3
    assert min(found["process_peak_bytes"]) > output_bytes


def test_the_allocators_peak_of_a_training_step_is_the_same_however_often_it_is_asked_for(asked: Asked) -> None:
    asked.set_up("gradients_scaled", "plain")
    peaks = [asked.examine(memory=True)["memory"]["allocator_peak_bytes"] for _ in range(3)]
    assert len(set(peaks)) == 1


# -- ports that are wrong, and one that is not --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("workload", "old", "new"),
    [
        ("mask_off_by_one", "is_causal", "shifted_mask"),
        ("wrong_scale", "as_is", "padded"),
        ("dropped_bias", "modules", "functional"),
    ],
)
def test_a_wrong_port_is_ten_times_further_from_the_oracle(
    asked: Asked, workload: str, old: str, new: str, dtype: str
) -> None:
    right, ported = asked.both_paths(workload, old, new, dtype)
    # Measured ratios of these errors: at least 20 in bfloat16 and 10^5 in float32.
    assert ported["y"].against_oracle.rms_error > 10 * right["y"].against_oracle.rms_error
    assert abs(right["y"].against_oracle.gain - 1) < 5e-4
    assert abs(ported["y"].against_oracle.gain - 1) > 5e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_one_percent_too_large_are_seen_in_the_gain_while_outputs_are_equal(asked: Asked, dtype: str) -> None:
    right, ported = asked.both_paths("gradients_scaled", "plain", "scaled", dtype)
    assert ported["y"].against_reference.bitwise_equal
    gradients = [name for name in right if name.startswith("grad.")]
    assert len(gradients) == 4
    for name in gradients:
        assert right[name].against_oracle.gain == pytest.approx(1.0, abs=5e-4)
        assert ported[name].against_oracle.gain == pytest.approx(1.01, abs=5e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sum_in_another_order_differs_in_bits_and_is_as_near_to_the_oracle(asked: Asked, dtype: str) -> None:
    right, ported = asked.both_paths("reordered_sum", "forwards", "backwards", dtype)
    assert not ported["y"].against_reference.bitwise_equal
    assert ported["y"].against_oracle.rms_error < 1.1 * right["y"].against_oracle.rms_error
    assert ported["y"].against_oracle.gain == pytest.approx(right["y"].against_oracle.gain, abs=1e-4)


def test_a_nan_is_handed_over_as_one_and_the_oracle_has_none(asked: Asked) -> None:
    right, ported = asked.both_paths("returns_nan", "first_key", "nothing", "float32")
    assert right["y"].against_oracle.finite
    assert not ported["y"].against_oracle.finite
    assert ported["y"].against_oracle.reference_finite
    assert math.isnan(ported["y"].against_oracle.rms_error)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("input", "it changes x_NK, and so output 'y'"),
        ("grows", "output 'y' is float32 (8, 8) in step 1 and float32 (16, 8) in step 2"),
    ],
)
def test_a_step_that_does_other_work_each_time_is_refused_by_name(asked: Asked, path: str, told: str) -> None:
    asked.set_up("unsteady", path)
    with pytest.raises(ArmEnded, match=re.escape(told)) as ended:
        asked.examine()
    assert ended.value.outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("path", "warnings"),
    [
        ("steady", []),
        ("weights", ["a step trains layer.weight, layer.bias"]),
        ("counts", ["a step changes seen"]),
        ("draws", ["a step draws random numbers"]),
    ],
)
def test_what_a_step_leaves_behind_without_other_work_is_told(asked: Asked, path: str, warnings: list[str]) -> None:
    asked.set_up("unsteady", path)
    assert asked.examine()["warnings"] == warnings


def test_facts_travel_as_plain_values_and_a_nan_as_a_word(asked: Asked) -> None:
    asked.set_up("switchable", "fused")
    assert asked.examine()["facts"] == {"skipped": 0.5, "loss": "nan", "fused": True}


@pytest.mark.parametrize(
    ("path", "result", "ran"),
    [
        ("fused", "switched off", "plain ran"),
        ("stuck", "still on", "fused"),
        ("broken", "failed", "RuntimeError: no such flag"),
    ],
)
def test_the_drill_tells_whether_a_switch_works(asked: Asked, path: str, result: str, ran: str) -> None:
    asked.set_up("switchable", path)
    found = asked.examine(drill=True)["drill"]
    assert (found["result"], found["ran"]) == (result, ran)
    assert found["took_ns"] > 0


@pytest.mark.parametrize(("workload", "path"), [("switchable", "plain"), ("reordered_sum", "backwards")])
def test_the_old_path_and_one_without_a_switch_have_no_drill(asked: Asked, workload: str, path: str) -> None:
    asked.set_up(workload, path)
    assert asked.examine(drill=True)["drill"] is None


def test_a_race_of_two_threads_shows_in_the_repeats_and_one_thread_repeats(asked: Asked) -> None:
    asked.set_up("index_put_accumulate")
    assert len(set(asked.examine(threads=2)["repeat_digests"])) > 1
    assert len(set(asked.examine(threads=1)["repeat_digests"])) == 1


def test_slowed_does_its_percentage_of_work_and_returns_the_same_bits(asked: Asked) -> None:
    digests, products = set(), []
    for path in ("as_is", "slowed"):
        digests.add(asked.set_up("slowed", path, extra_percent=50)["output_digest"])
        operators = asked.examine(trace=True)["trace"]["operators"]
        products.append(next(entry["calls"] for entry in operators if entry["name"] == "aten::addmm_"))
    assert len(digests) == 1
    assert products == [100, 150]


# -- outcomes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "outcome", "reason"),
    [
        ("raise FellBack('the slow path ran')", Outcome.FELL_BACK, "the slow path ran"),
        ("raise MemoryError", Outcome.OUT_OF_MEMORY, "MemoryError"),
        ("torch.empty(1 << 50)", Outcome.OUT_OF_MEMORY, "can't allocate memory"),
        ("return [self.x]", Outcome.FAILED, "step 1 returned list; return a mapping of names to tensors"),
        ("return {'y': 1.0}", Outcome.FAILED, "output 'y' is float; every output is a tensor"),
        (
            "return {'y': self.x.to('meta')}",
            Outcome.BACKEND_UNREACHABLE,
            "output 'y' is on meta, the cell asks for cpu",
        ),
    ],
)
def test_what_goes_wrong_in_a_step_is_an_outcome_in_one_line(
    asked: Asked, tmp_path: Path, step: str, outcome: Outcome, reason: str
) -> None:
    workload = tmp_path / "users.py"
    workload.write_text(USERS_WORKLOAD.format(step=step))
    with pytest.raises(ArmEnded) as ended:
        asked.set_up(workload)
    assert ended.value.outcome is outcome
    assert reason in ended.value.reason
    assert "\n" not in ended.value.reason
    assert "Traceback" in ended.value.log_tail


def test_the_example_of_the_documentation_runs_as_it_stands(asked: Asked, tmp_path: Path) -> None:
    example = DOCUMENTATION.read_text().partition("```python\n")[2].partition("```")[0]
    file = tmp_path / "rms_norm.py"
    file.write_text(example)
    declared = read_workload(file)
    assert declared.summary == "RMSNorm as a team wrote it, beside torch's own."
    (case,) = declared.cases
    assert asked.set_up(file, "by_hand", **case.parameters)["items"] == 512
    oracle = asked.examine()["oracle"]
    asked.set_up(file, "fused", **case.parameters)
    found = compare_outputs(asked.examine("fused", oracle=False)["outputs"], oracle, None)["y"].against_oracle
    assert found.rms_error < 0.004 * found.reference_rms


def test_a_device_that_this_torch_cannot_use_is_unreachable_in_its_own_words(asked: Asked) -> None:
    with pytest.raises(ArmEnded, match=r"torch 2\.13\.0\S* cannot use 'xpu': ") as ended:
        asked.set_up("reordered_sum", "forwards", device="xpu")
    assert ended.value.outcome is Outcome.BACKEND_UNREACHABLE


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has the device")
def test_a_build_for_cuda_on_a_machine_without_it_never_measures_the_cpu(asked: Asked) -> None:
    # CASES.md V8: a driver that is too old, or none, or a build that has no CUDA at all.
    with pytest.raises(ArmEnded, match=r"torch 2\.13\.0\S* cannot use 'cuda': ") as ended:
        asked.set_up("reordered_sum", "forwards", device="cuda")
    assert ended.value.outcome is Outcome.BACKEND_UNREACHABLE


def test_a_file_with_two_workloads_is_refused_by_name(asked: Asked, tmp_path: Path) -> None:
    workload = tmp_path / "two.py"
    workload.write_text("from workloads.contract import Workload\nclass One(Workload): ...\nclass Two(Workload): ...\n")
    with pytest.raises(ArmEnded, match="must hold one subclass of Workload; it holds One, Two") as ended:
        asked.set_up(workload)
    assert ended.value.outcome is Outcome.FAILED


# -- compiling and exporting --------------------------------------------------------------------------------------


PROGRAMS = """
import torch
from workloads.contract import Workload

class Branches(torch.nn.Module):
    def forward(self, x):
        y = x.sin() + x
        {branch}
        return y.cos()

class Program(Workload):
    cases = {{"one": {{"suites": ["smoke"]}}}}
    def setup(self, p, path, device):
        self.x = torch.randn(64)
        self.module = Branches()
    def step(self):
        return {{"y": self.module(self.x)}}
    def program(self):
        return self.module, (self.x,)
"""


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("c++")), reason="Inductor needs a C++ compiler")
def test_compiling_counts_the_graphs_and_the_break_of_a_data_dependent_branch(asked: Asked, tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(PROGRAMS.format(branch="y = y * 2 if y.sum() > 0 else y * 3"))
    asked.set_up(file)
    found = asked.session.request("compile", ANSWER_S, directory=str(tmp_path))
    assert (found["graphs"], found["graph_breaks"]) == (2, 1)
    ((reason, count),) = found["break_reasons"].items()
    assert (reason.partition(" (")[0], count) == ("Data-dependent branching", 1)
    assert found["cache"] == "cold"
    assert found["first_call_ns"] > 0
    np.testing.assert_allclose(load(found["outputs"]["y"]), load(found["eager"]["y"]), rtol=1e-5, atol=1e-6)
    # The same once more, forgotten by this process and not by its cache folder.
    assert asked.session.request("compile", ANSWER_S, directory=str(tmp_path))["cache"] == "warm"


SHAPES = """
    def shapes(self):
        torch._dynamo.config.recompile_limit = 2
        return [(torch.ones(size),) for size in (5, 1, 5, 7, 9)]
"""


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("c++")), reason="Inductor needs a C++ compiler")
def test_compiling_over_shapes_tells_graphs_reasons_and_a_limit_that_torch_keeps_to_itself(
    asked: Asked, tmp_path: Path
) -> None:
    file = tmp_path / "shapes.py"
    file.write_text(PROGRAMS.format(branch="") + SHAPES)
    asked.set_up(file)
    found = asked.session.request("recompile", ANSWER_S, directory=str(tmp_path), dynamic="False")
    calls = found["calls"]
    assert [call["shape"] for call in calls] == ["5", "1", "5", "7", "9"]
    assert [call["new_graphs"] for call in calls] == [1, 1, 0, 0, 0]
    assert [call["ran"] for call in calls] == ["compiled", "compiled", "compiled", "eager", "eager"]
    assert calls[1]["reasons"] == ["0/0: tensor 'x' size mismatch at index 0. expected 5, actual 1"]
    assert found["limit_hit"] == "Dynamo recompile limit exceeded at 7"
    assert min(found["pass_ns"], found["eager_pass_ns"]) > 0
    for call in calls:
        np.testing.assert_allclose(load(call["outputs"]["y"]), load(call["eager"]["y"]), rtol=1e-5, atol=1e-6)
    found = asked.session.request("recompile", ANSWER_S, directory=str(tmp_path), dynamic="True")
    # A single element is always compiled for itself (TORCH.md 5).
    assert [call["new_graphs"] for call in found["calls"]] == [1, 1, 0, 0, 0]
    assert found["limit_hit"] == ""
    assert {call["ran"] for call in found["calls"]} == {"compiled"}


def export(asked: Asked, folder: Path, *, dynamic: bool = False) -> dict[str, Any]:
    fields = {"file": str(folder / "program.pt2"), "inputs": str(folder / "inputs.pt")}
    return asked.session.request("export", ANSWER_S, directory=str(folder), dynamic=dynamic, **fields)


def loading(folder: Path, **more: Any) -> dict[str, Any]:
    fields = {"file": str(folder / "program.pt2"), "inputs": str(folder / "inputs.pt"), "threads": 1}
    return {"kind": "exported program", "directory": str(folder)} | fields | more


def test_an_exported_program_is_loaded_again_and_computes_the_same(asked: Asked, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAMS.format(branch=""))
    asked.set_up(file)
    exported = export(asked, tmp_path)
    found = asked.session.request("load", ANSWER_S, **loading(tmp_path))
    assert exported["size_bytes"] == (tmp_path / "program.pt2").stat().st_size
    assert exported["operators"] == []
    assert found["outputs"]["64"]["y"]["sha256"] == exported["eager"]["64"]["y"]["sha256"]
    # Nothing of it varies, so there is no other program.
    assert export(asked, tmp_path, dynamic=True) == {"ok": True, "file": None}


VARYING = """
    def shapes(self):
        return [(torch.ones(size),) for size in (1, 9)]
    def dynamic_shapes(self):
        return ({0: torch.export.Dim("size", min=1, max=64)},)
    def wrong_inputs(self):
        return {"text": ("no tensor",), "too long": (torch.ones(65),), "whole": (torch.ones(5, dtype=torch.int64),)}
"""


def test_a_program_of_varying_shapes_is_compared_on_all_of_them_and_given_wrong_ones(
    asked: Asked, tmp_path: Path
) -> None:
    file = tmp_path / "varying.py"
    file.write_text(PROGRAMS.format(branch="y = y + torch.linalg.eigh(y[:, None] * y)[0]") + VARYING)
    asked.set_up(file)
    exported = export(asked, tmp_path, dynamic=True)
    assert exported["operators"] == ["aten._linalg_eigh.default"]
    assert exported["wrong"] == ["text", "too long", "whole"]
    found = asked.session.request("load", ANSWER_S, **loading(tmp_path))
    assert list(found["outputs"]) == ["64", "1", "9"]
    for shape, outputs in found["outputs"].items():
        assert outputs["y"]["sha256"] == exported["eager"][shape]["y"]["sha256"]
    met = {
        name: asked.session.request("wrong_input", ANSWER_S, **loading(tmp_path), name=name)
        for name in exported["wrong"]
    }
    assert {name: one["result"] for name, one in met.items()} == {
        "text": "refused",
        "too long": "refused",
        "whole": "accepted",
    }
    assert "<= 64" in met["too long"]["words"]
    assert met["whole"]["words"] == "returned y 5"


def test_a_branch_on_the_data_cannot_be_exported_and_onnx_needs_its_exporter(asked: Asked, tmp_path: Path) -> None:
    file = tmp_path / "branch.py"
    file.write_text(PROGRAMS.format(branch="y = y * 2 if y.sum() > 0 else y * 3"))
    asked.set_up(file)
    with pytest.raises(ArmEnded, match=r"GuardOnDataDependentSymNode|data-dependent") as ended:
        export(asked, tmp_path)
    assert ended.value.outcome is Outcome.FAILED
    with pytest.raises(ArmEnded, match="no onnxscript") as ended:
        asked.session.request("onnx", ANSWER_S, programs=[], file=str(tmp_path / "model.onnx"))
    assert ended.value.outcome is Outcome.UNSUPPORTED


def test_a_set_up_without_a_step_does_none(asked: Asked, tmp_path: Path) -> None:
    workload = tmp_path / "users.py"
    workload.write_text(USERS_WORKLOAD.format(step="raise RuntimeError('a step')"))
    fields = {"workload": str(workload), "parameters": {}, "path": "eager", "seed": 1, "device": "cpu", "threads": 1}
    assert asked.session.request("setup", ANSWER_S, **fields, step=False)["setup_ns"] > 0


def test_a_workload_without_a_module_cannot_be_compiled(asked: Asked, tmp_path: Path) -> None:
    asked.set_up("reordered_sum", "forwards")
    with pytest.raises(ArmEnded, match="this workload has no module to compile or export") as ended:
        asked.session.request("compile", ANSWER_S, directory=str(tmp_path))
    assert ended.value.outcome is Outcome.UNSUPPORTED
