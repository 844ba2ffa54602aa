"""`farm isolate` end to end on wheels of a few kilobytes: real resolution, environments, runners, verdicts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import workers.isolating
from cli.again import asked_again
from cli.beside import Kept, findings_of
from cli.isolate import command, judged_with
from cli.report import command as report
from farm.again import Inquiry, Told
from farm.errors import Incomplete
from farm.judge import judge
from farm.model import Cell, CellResult, Evidence, Gate, Isolation, Status
from farm.settings import Home
from tests.tiny_torch import companions, kept_run, triton, undisturbed, working_torch
from tests.wheels import Index, installers_alone, make_wheel, serve
from workers.wheelhouse import kept_environments


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    installers_alone(monkeypatch, tmp_path / "cache")
    with serve(tmp_path / "index") as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        for wheel in companions(tmp_path / "made"):
            served.add(wheel)
        yield served


@pytest.fixture
def ran(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Evidence]:
    """Measure torch 1.1.0 beside 1.0.0, as they are served by then, and keep the run in the home."""
    home = Home(tmp_path / "home").prepare()
    monkeypatch.setenv("FARM_HOME", str(home.root))
    undisturbed(monkeypatch, tmp_path)

    def run(*, measured: bool = True) -> Evidence:
        return kept_run(tmp_path, home, "1.1.0", "1.0.0", measured=measured)

    return run


def isolate(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["r1", *arguments])


def found_by(ended: Result) -> Isolation:
    assert ended.exit_code == 0, (ended.output, ended.exception)
    return Isolation.model_validate(json.loads(ended.stdout))


def test_the_companion_that_slows_the_step_is_named_and_the_report_shows_it(
    tmp_path: Path, index: Index, ran: Callable[..., Evidence]
) -> None:
    """Given a slow triton and a new vendor library, I expect triton to carry the change and the other not."""
    made = tmp_path / "made"
    index.add(working_torch(made, "1.0.0", requires=["triton==3.6.0", "nvidia-cudnn==9.1"]))
    index.add(working_torch(made, "1.1.0", requires=["triton==3.7.0", "nvidia-cudnn==9.2"]))
    index.add(triton(made, "3.6.0"))
    index.add(triton(made, "3.7.0", slow=True))
    for version in ("9.1", "9.2"):
        index.add(make_wheel(made, "nvidia-cudnn", version))
    evidence = ran()
    judged = judge(evidence)
    latency = next(v for v in judged.cells[0].verdicts if v.gate is Gate.LATENCY)
    assert latency.status is Status.FAIL, latency

    isolation = found_by(isolate("--json"))

    answers = {verdict.held.name: verdict.answer for verdict in isolation.verdicts}
    assert answers == {"triton": "carries the change", "nvidia-cudnn": "does not"}, [
        verdict.reason for verdict in isolation.verdicts
    ]
    assert isolation.carriers == {Gate.LATENCY: ("triton",)}
    assert isolation.conclusions[Gate.LATENCY] == "triton 3.6.0 -> 3.7.0 carries the change"
    home = Home(tmp_path / "home")
    assert findings_of(home, "r1") == [isolation]
    assert len(list(home.environments.glob("*/farm-environment.json"))) == 2
    # A lock that holds something must never stand in for its release.
    assert len(kept_environments(home)) == 2
    # What it proved is judged beside what was registered.
    assert "kept apart: companion triton 3.6.0" in judged_with(evidence, home)
    for kind in ("table", "markdown", "html"):
        shown = CliRunner().invoke(report, ["r1", "--format", kind])
        assert "carries the change" in shown.stdout.replace("&gt;", ">"), (kind, shown.output)


def test_torch_itself_is_named_where_nothing_held_brings_the_results_back(
    tmp_path: Path, index: Index, ran: Callable[..., Evidence]
) -> None:
    """Given wrong results of torch's own, one companion that is innocent and one that torch asks for at import."""
    made = tmp_path / "made"
    index.add(working_torch(made, "1.0.0", requires=["triton==3.6.0", "cuda-bindings==13.0"]))
    picky = "import cuda_bindings\nassert cuda_bindings.__version__ == '13.1', 'libcuda.so.13.1 is missing'"
    index.add(working_torch(made, "1.1.0", wrong=True, requires=["triton==3.7.0", "cuda-bindings==13.1"], extra=picky))
    for name, versions in (("triton", ("3.6.0", "3.7.0")), ("cuda-bindings", ("13.0", "13.1"))):
        for version in versions:
            index.add(make_wheel(made, name, version))
    ran(measured=False)

    isolation = found_by(isolate("doze", "--gate", "correctness", "--json"))

    answers = {verdict.held.name: verdict for verdict in isolation.verdicts}
    assert answers["triton"].answer == "does not"
    assert answers["cuda-bindings"].answer == "cannot be held"
    assert "libcuda.so.13.1 is missing" in answers["cuda-bindings"].reason
    said = isolation.conclusions[Gate.CORRECTNESS]
    assert said.startswith("torch itself, or what could not be ruled out: cuda-bindings cannot be held")
    assert isolation.carriers == {}


def test_where_nothing_moved_but_torch_it_is_torch_and_nothing_is_measured(
    tmp_path: Path, index: Index, ran: Callable[..., Evidence]
) -> None:
    index.add(working_torch(tmp_path / "made", "1.0.0"))
    index.add(working_torch(tmp_path / "made", "1.1.0", wrong=True))
    ran(measured=False)

    ended = isolate("doze", "--gate", "correctness")

    assert ended.exit_code == 0, ended.output
    assert "correctness: torch itself: nothing else moved" in ended.stdout
    assert findings_of(Home(tmp_path / "home"), "r1")[0].rounds == ()


def test_an_interrupted_isolation_goes_on_where_it_was(
    tmp_path: Path, index: Index, ran: Callable[..., Evidence], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given vendor libraries that cannot be held together and an interruption once they are held one by one."""
    made = tmp_path / "made"
    picky = "import nvidia_cudnn\nassert nvidia_cudnn.__version__ == '9.2', 'libcudnn.so.9.2 is missing'"
    libraries = ("nvidia-cudnn", "nvidia-cublas")
    index.add(working_torch(made, "1.0.0", requires=[f"{name}==9.1" for name in libraries]))
    needs = [f"{name}==9.2" for name in libraries]
    index.add(working_torch(made, "1.1.0", wrong=True, requires=needs, extra=picky))
    for name in libraries:
        for version in ("9.1", "9.2"):
            index.add(make_wheel(made, name, version))
    evidence = ran(measured=False)
    home, measure = Home(tmp_path / "home"), workers.isolating.measure

    def interrupted(inquiry: Inquiry, cell: Cell, *rest: Any) -> CellResult:
        if len(cell.arms) == 4:
            raise KeyboardInterrupt
        return measure(inquiry, cell, *rest)

    monkeypatch.setattr(workers.isolating, "measure", interrupted)
    ended = isolate("doze", "--gate", "correctness")
    assert isinstance(ended.exception, Incomplete)
    assert "interrupted; measurements kept: 1" in str(ended.exception)
    assert findings_of(home, "r1") == []
    assert len(list(home.environments.glob("*/farm-environment.json"))) == 2

    inquiry = asked_again(evidence, "doze", ("correctness",), None, None)
    begun = Kept(home, "r1", Isolation).begun(inquiry.key())
    assert begun is not None
    said: list[str] = []
    told = Told(lambda progress: None, said.append)
    given_up = workers.isolating.isolate(inquiry, home, told, lambda isolation: None, begun, deadline=0.0)
    assert said == ["not held one by one, for want of time: nvidia-cublas, nvidia-cudnn"]
    assert given_up.rounds == begun.rounds

    monkeypatch.setattr(workers.isolating, "measure", measure)
    isolation = found_by(isolate("doze", "--gate", "correctness", "--json"))
    assert isolation.rounds[:1] == begun.rounds
    assert [round_.result.attempt for round_ in isolation.rounds] == [1, 2]
    answers = {verdict.held.name: verdict.answer for verdict in isolation.verdicts}
    assert answers == {
        "vendor libraries": "cannot be held",
        "nvidia-cublas": "does not",
        "nvidia-cudnn": "cannot be held",
    }
    assert findings_of(home, "r1") == [isolation]
    assert [path.name for path in (home.runs / "r1" / "isolations").glob("*unfinished*")] == []
