"""Wheels of a torch of a few kilobytes that the real runner can work with: pure Python, one kind of tensor.

What a step takes and gives is in the wheels: `slow` and `wrong` of torch's own, `SLOW` of a companion named triton.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

import workers.again
import workers.validity
from cli.evidence import keep_evidence
from farm.matrix import load_matrix
from farm.model import CellOrder, Evidence, RunState
from farm.plan import PlanRequest, make_plan
from farm.releases import resolve
from farm.settings import Home
from tests.wheels import make_torch, make_wheel
from workers.cell import run_cell
from workers.lease import machine_lease
from workers.probe import probe_host

__all__ = ["MATRIX", "WORKLOAD", "companions", "kept_run", "triton", "undisturbed", "working_torch", "write_matrix"]

TORCH = '''
import array, contextlib, sys, time
from torch import version
from torch.version import __version__

SLOW, WRONG = {slow}, {wrong}
{extra}

class _Dtype:
    def __init__(self, name, code):
        self.name, self.code = name, code
    def __repr__(self):
        return "torch." + self.name

float64, float32, uint8 = _Dtype("float64", "d"), _Dtype("float32", "f"), _Dtype("uint8", "B")

class device:
    def __init__(self, name):
        self.type = name

class _Values:
    def __init__(self, values):
        self.values = values
    def tobytes(self):
        return self.values.tobytes()
    def astype(self, code):
        return _Values(array.array("d", self.values))
    def tofile(self, path):
        with open(path, "wb") as file:
            self.values.tofile(file)

strided = "strided"

class Tensor:
    requires_grad = is_meta = False
    layout = strided
    device = device("cpu")
    def __init__(self, values, dtype=float32):
        self.dtype, self._values = dtype, array.array(dtype.code, values)
    @property
    def shape(self):
        return (len(self._values),)
    def _same(self, *_):
        return self
    detach = contiguous = cpu = reshape = requires_grad_ = _same
    def is_floating_point(self):
        return True
    def numel(self):
        return len(self._values)
    def view(self, dtype):
        return Tensor(self._values.tobytes(), uint8)
    def to(self, dtype):
        return Tensor(self._values, dtype)
    def double(self):
        return self.to(float64)
    def numpy(self):
        return _Values(self._values)
    def __float__(self):
        return float(self._values[0])

def ones(count, device=None):
    return Tensor([1.0] * count)

def work(x):
    """Sleep, which a busy machine disturbs little; be wrong in float32 where this release is."""
    time.sleep(0.002 * (2 if SLOW else 1) * (2 if getattr(sys.modules.get("triton"), "SLOW", False) else 1))
    return Tensor([value * (1.5 if WRONG and x.dtype is float32 else 1.0) for value in x._values], x.dtype)

class OutOfMemoryError(Exception):
    pass

def get_rng_state():
    return Tensor([0], uint8)
def equal(one, other):
    return one.numpy().tobytes() == other.numpy().tobytes()

class nn:
    class Module:
        pass

class optim:
    class Optimizer:
        pass

class backends:
    class cpu:
        @staticmethod
        def get_cpu_capability():
            return "DEFAULT"

_threads = 1
def set_num_threads(count):
    global _threads
    _threads = count
def get_num_threads():
    return _threads
def manual_seed(seed):
    pass
def set_warn_always(wanted):
    pass

try:
    import triton
except ImportError:
    pass
'''

PROFILER = """
import contextlib, enum, json

class ProfilerActivity(enum.Enum):
    CPU = 1
    CUDA = 2

def supported_activities():
    return {ProfilerActivity.CPU}

_events = []

@contextlib.contextmanager
def record_function(name):
    _events.append({"name": name, "ts": 1.0, "dur": 10.0})
    yield
    for size, total in ((4096, 4096), (-4096, 0)):
        args = {"Device Type": 0, "Bytes": size, "Total Allocated": total}
        _events.append({"name": "[memory]", "ts": 2.0, "args": args})

class profile:
    def __init__(self, activities=(), profile_memory=False):
        pass
    def __enter__(self):
        _events.clear()
        return self
    def __exit__(self, *_):
        return False
    def export_chrome_trace(self, path):
        with open(path, "w") as file:
            json.dump({"traceEvents": _events}, file)
    def key_averages(self):
        return []
"""

WORKLOAD = '''
"""A step of two milliseconds in the tests' own torch."""

from __future__ import annotations

import torch

from workloads.contract import Workload


class Doze(Workload):
    item = "samples"
    parameters = {"values": {"default": 64, "doc": "values of the output"}}
    paths = {"eager": "as written"}
    cases = {"tiny": {"suites": ["smoke"], "parameters": {}}}

    def setup(self, p, path, device):
        self.x = torch.Tensor([float(value + 1) for value in range(p.values)])

    def step(self):
        return {"y": torch.work(self.x)}
'''

MATRIX = """
schema_version = 1
backends = ["cpu"]
gates = ["correctness", "latency"]
decisions = ["adopt", "isolate", "defer", "rollback"]

[versions]
current_baseline = "1.0"

[caveats]
hardware = "one machine"

[suite.smoke]
aa_share = 0.0
looks = [6]
alpha = 0.016
window_ms = 12.0
restart_s = 0.15
warmup_s = 0.5
budget_s = 60.0
step_timeout_s = 30.0
confirm = false

[[tier]]
name = "serving"
description = "what the test asks"
backends = ["cpu"]
required = ["correctness", "latency"]
p50_ratio = 1.3
throughput_ratio = 0.7
peak_memory_ratio = 1.5
determinism = "bitwise"
compile_ratio = 2.0
graph_breaks = 0
rollback_s = 120.0
feature_gain = 0.95

[[workload]]
name = "doze"
file = "doze.py"
"""


def working_torch(
    folder: Path,
    version: str,
    *,
    slow: bool = False,
    wrong: bool = False,
    git: str = "",
    requires: Sequence[str] = (),
    extra: str = "",
    tag: str = "py3-none-any",
) -> Path:
    """Return a wheel of torch ``version`` whose step is twice as long if ``slow`` and 1.5 times too large if ``wrong``.

    ``extra`` is code that runs when torch is imported.
    """
    told = f"__version__ = {version!r}\ncuda = None\nhip = None\ngit_version = {git or f'rev-{version}'!r}\n"
    module = TORCH.replace("{slow}", str(slow)).replace("{wrong}", str(wrong)).replace("{extra}", extra)
    files = {
        "torch/__init__.py": module,
        "torch/version.py": told,
        "torch/profiler.py": PROFILER,
    }
    return make_torch(folder, version, requires=requires, files=files, tag=tag)


def triton(folder: Path, version: str, *, slow: bool = False) -> Path:
    """Return a wheel of a companion that doubles the step of whatever torch it is installed with, if ``slow``."""
    return make_wheel(folder, "triton", version, files={"triton/__init__.py": f"SLOW = {slow}\n"})


def companions(folder: Path) -> list[Path]:
    """Return wheels of what the runner needs beside torch: a numpy of nothing, and msgpack's own pure Python."""
    found = importlib.util.find_spec("msgpack")
    assert found is not None
    assert found.origin is not None
    own = Path(found.origin).parent
    files = {f"msgpack/{file.name}": file.read_text() for file in own.glob("*.py")}
    return [make_wheel(folder, "numpy", "1.0"), make_wheel(folder, "msgpack", "1.0", files=files)]


def undisturbed(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let no neighbour of this test invalidate what it measures: twice the time is told apart all the same.

    Nor is the machine waited for, which may be measuring for hours: its lock is one in ``folder``.
    """
    monkeypatch.setattr(workers.again, "machine_lease", partial(machine_lease, path=folder / "machine.lock"))
    monkeypatch.setattr(workers.validity, "WAITED_LIMIT", math.inf)
    monkeypatch.setattr(workers.validity, "FOREIGN_LIMIT", math.inf)
    monkeypatch.setattr(workers.validity, "STOLEN_LIMIT", math.inf)
    monkeypatch.setattr(workers.validity, "TREND_LIMIT", math.inf)


def write_matrix(folder: Path) -> Path:
    """Write the workload and a matrix that asks about it into ``folder``; return the matrix."""
    (folder / "doze.py").write_text(WORKLOAD)
    path = folder / "matrix.toml"
    path.write_text(MATRIX)
    return path


def kept_run(folder: Path, home: Home, candidate: str, baseline: str, *, measured: bool = True) -> Evidence:
    """Keep a run of ``candidate`` beside ``baseline``, as the configured index serves them now, in ``home`` as r1."""
    host = probe_host()
    resolution = resolve(candidate, baseline, platform=host.platform, python=host.python, backend="cpu")
    plan = make_plan(
        load_matrix(write_matrix(folder)),
        PlanRequest(candidate, baseline, "smoke", ("cpu",)),
        [host],
        lambda backend, machine: resolution,
    )
    results = []
    for cell in plan.cells if measured else ():
        order = CellOrder(
            run_id="r1", attempt=1, cell=cell, environments=plan.environments, source=plan.sources[cell.workload]
        )
        results.append(run_cell(order, home, lambda progress: None, None, lambda: False, worker="here"))
    evidence = Evidence(run_id="r1", state=RunState.COMPLETE, plan=plan, results=tuple(results))
    keep_evidence(home, evidence)
    return evidence
