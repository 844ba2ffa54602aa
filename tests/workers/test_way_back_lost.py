"""A package that the baseline pins is no longer served: the rollback gate fails today, and names it (CASES.md V5)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.gates import judge_gate
from farm.matrix import load_matrix
from farm.model import Backend, CellOrder, CellResult, Gate, Host, Outcome, Status
from farm.pip_settings import pip_settings
from farm.plan import PlanRequest, make_plan
from farm.releases import Resolution, resolve
from farm.settings import Home
from tests.evidence import ask
from tests.wheels import Index, installers_alone, make_companions, make_torch, make_wheel, serve
from workers.cell import run_cell
from workers.probe import probe_host
from workers.wheelhouse import keep_closure, kept_environments

CUDNN = "nvidia-cudnn-cu13==9.20.0.48"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index that serves both releases, and the library that the baseline pins."""
    installers_alone(monkeypatch, tmp_path / "uv-cache")
    monkeypatch.setattr("workers.wheelhouse.RESERVE_BYTES", 0)
    wheels = make_companions(tmp_path / "wheels")
    make_torch(wheels, "2.12.1", requires=(CUDNN,))
    make_torch(wheels, "2.13.0", requires=("nvidia-cudnn-cu13==9.24.0.1",))
    for version in ("9.20.0.48", "9.24.0.1"):
        make_wheel(wheels, "nvidia-cudnn-cu13", version)
    with serve(tmp_path / "index") as index:
        for wheel in wheels.iterdir():
            index.add(wheel)
        monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
        yield index
    pip_settings.cache_clear()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").prepare()


def resolved(backend: Backend, host: Host, home: Home) -> Resolution:
    return resolve(
        "2.13",
        "2.12.1",
        platform=host.platform,
        python=host.python,
        backend=backend,
        kept=kept_environments(home),
    )


def rehearsed(home: Home) -> CellResult:
    """The answer of this machine to the rehearsal of a run that is submitted now."""
    host = probe_host().model_copy(update={"capabilities": ("cpu",)})
    plan = make_plan(
        load_matrix(None),
        PlanRequest("2.13", "2.12.1", "smoke", ("cpu",)),
        [host],
        lambda backend, host: resolved(backend, host, home),
    )
    cell = next(cell for cell in plan.cells if cell.kind == "rehearsal")
    order = CellOrder(run_id="r-1", attempt=1, cell=cell, environments=plan.environments, refused=plan.refused)
    return run_cell(order, home, lambda _: None, None, lambda: False, worker="here")


def test_it_fails_today_and_the_requirement_is_named(index: Index, home: Home, tmp_path: Path) -> None:
    index.remove(tmp_path / "wheels/nvidia_cudnn_cu13-9.20.0.48-py3-none-any.whl")
    result = rehearsed(home)
    assert result.arms["baseline"].outcome is Outcome.NO_ENVIRONMENT
    found = judge_gate(Gate.ROLLBACK, ask(way_back=result))
    assert found.status is Status.FAIL
    assert f"it needs {CUDNN}, and no configured index serves that" in found.reason


def test_with_its_wheels_kept_the_way_back_is_walked(index: Index, home: Home, tmp_path: Path) -> None:
    host = probe_host()
    for environment in resolved("cpu", host, home).environments.values():
        assert keep_closure(environment, home) == {}
    index.remove(tmp_path / "wheels/nvidia_cudnn_cu13-9.20.0.48-py3-none-any.whl")
    result = rehearsed(home)
    # The small torch computes nothing, so that the control ends it; both environments are there.
    assert result.rehearsal is not None
    assert "control workload" in result.rehearsal.reason
    assert result.rehearsal.outcome is not Outcome.NO_ENVIRONMENT
    assert Outcome.NO_ENVIRONMENT not in {arm.outcome for arm in result.arms.values()}
