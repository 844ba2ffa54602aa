"""The aggregator gives a stage to the queues when the one before it is over, and a restart changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from farm import aggregator as module
from farm.aggregator import Aggregator
from farm.broker import keys
from farm.broker.client import FarmClient, Presence
from farm.envelope import load_key, pack, seal
from farm.model import CellResult, Plan, RunState
from farm.settings import Home
from tests import evidence as made
from tests.farm.test_stages import SLOW, in_stages

SINGLE = ["block/infer@cpu", "other/infer@cpu"]
GATES = ["gates/block-infer@cpu", "gates/other-infer@cpu", "rollback/control@cpu"]
CANARY = ["canary/block-infer@cpu", "canary/other-infer@cpu"]


class Coordinator:
    """An aggregator that is ticked by hand, and a worker that answers what it is told to."""

    def __init__(self, server: Any, url: str, root: Path, plan: Plan) -> None:
        self.server, self.url, self.home, self.plan = server, url, Home(root / "home").prepare(), plan
        self.farm = Aggregator(self.home, url, "coordinator")
        self.present()
        server.xadd(keys.SUBMIT, {"token": "aaaaaaaa", "plan": pack(plan)})
        self.farm.tick()
        self.run: str = server.get(keys.created("aaaaaaaa")).decode()

    def present(self, *queues: str) -> None:
        presence = Presence(
            worker="w", host=made.HOST, queues=queues or ("bench.cpu",), public_key="", version="1", since=0
        )
        self.server.set(keys.presence("w"), presence.model_dump_json())

    def restart(self) -> None:
        self.farm.store.close()
        self.farm = Aggregator(self.home, self.url, "coordinator")

    def states(self) -> dict[str, str]:
        return {cell.cell_id: cell.state for cell in self.farm.store.cells(self.run)}

    def out(self) -> list[str]:
        """Return the cells that are on the queues."""
        return [cell for cell, state in self.states().items() if state == "queued"]

    def answer(self, cells: Iterable[str], change: Callable[[CellResult], CellResult] = lambda result: result) -> None:
        """Take results of ``cells`` in and move on; cells of one capability leave two at a time."""
        for name in cells:
            (cell,) = (cell for cell in self.plan.cells if cell.id == name)
            good = made.rehearsed() if cell.kind == "rehearsal" else made.result(cell)
            result = change(good).model_copy(update={"run_id": self.run})
            key = load_key(self.home.keys, "worker")
            self.server.xadd(keys.RESULTS, {"envelope": seal("result", result, key)})
            self.farm.tick()
        self.farm.tick()

    def answer_all(self, cells: list[str]) -> None:
        left = list(cells)
        while left:
            now = [cell for cell in left if cell in self.out()]
            assert now, (left, self.states())
            self.answer(now)
            left = [cell for cell in left if cell not in now]


@pytest.fixture
def coordinator(server: Any, farm_server: str, tmp_path: Path) -> Coordinator:
    return Coordinator(server, farm_server, tmp_path, in_stages())


def slower(result: CellResult) -> CellResult:
    (cell,) = (cell for cell in in_stages().cells if cell.id == result.cell_id)
    return made.result(cell, times=SLOW)


def test_a_stage_begins_when_every_cell_of_the_one_before_is_over(coordinator: Coordinator) -> None:
    assert coordinator.out() == SINGLE
    coordinator.answer(SINGLE[:1])
    assert coordinator.out() == SINGLE[1:]
    coordinator.answer(SINGLE[1:])
    assert set(coordinator.out()) <= set(GATES)
    coordinator.answer_all(GATES)
    assert coordinator.out() == CANARY
    coordinator.answer_all(CANARY)
    assert coordinator.farm.store.state(coordinator.run) is RunState.COMPLETE


@pytest.mark.parametrize("after", [0, 2, 3, 5])
def test_a_coordinator_that_is_started_again_goes_on_in_the_same_stage(coordinator: Coordinator, after: int) -> None:
    for cell in [*SINGLE, *GATES, *CANARY][:after]:
        coordinator.answer_all([cell])
    before = coordinator.states()
    coordinator.restart()
    coordinator.farm.tick()
    assert coordinator.states() == before
    coordinator.answer_all([*SINGLE, *GATES, *CANARY][after:])
    assert coordinator.farm.store.state(coordinator.run) is RunState.COMPLETE


def test_a_cell_that_was_given_up_is_over_too(coordinator: Coordinator) -> None:
    coordinator.answer(SINGLE[:1])
    lost = next(cell for cell in coordinator.farm.store.cells(coordinator.run) if cell.cell_id == SINGLE[1])
    coordinator.farm.store.move(lost, "failed", reason="lost 3 times")
    coordinator.farm.tick()
    assert set(coordinator.out()) <= set(GATES)
    assert coordinator.out()


def test_what_nobody_needs_any_more_is_skipped_and_the_run_is_complete(coordinator: Coordinator) -> None:
    coordinator.answer(SINGLE, slower)
    coordinator.farm.tick()
    assert {coordinator.states()[cell] for cell in (*GATES, *CANARY)} == {"skipped"}
    evidence = coordinator.farm.store.evidence(coordinator.run)
    assert (evidence.state, evidence.unfinished, evidence.still_open) == (RunState.COMPLETE, {}, ())
    assert set(evidence.skipped) == {*GATES, *CANARY}
    assert evidence.skipped[GATES[0]].startswith("stage 1 of 3, single, ended with serving: ")


def test_what_is_over_can_be_read_while_the_rest_goes_on(coordinator: Coordinator) -> None:
    client = FarmClient(coordinator.url)
    assert client.evidence_so_far(coordinator.run) is None
    coordinator.answer(SINGLE)
    evidence = client.evidence_so_far(coordinator.run)
    assert evidence is not None
    assert evidence.state is RunState.RUNNING
    assert [result.cell_id for result in evidence.results] == SINGLE
    assert evidence.unfinished[CANARY[0]] == "stage 3 of 3, canary, has not begun"
    row = client.run(coordinator.run)
    assert row is not None
    assert row.standing is not None
    assert (row.standing.number, row.standing.name, row.standing.done, row.standing.total) == (2, "gates", 0, 3)


def test_a_stage_waits_for_its_worker_as_long_as_it_is_planned(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.answer(SINGLE)
    coordinator.answer_all(GATES)
    for cell in coordinator.farm.store.cells(coordinator.run):
        if cell.state == "queued":
            coordinator.farm.store.move(cell, "pending")
    coordinator.present("bench.cuda.sm90")
    now = module.time.time()
    monkeypatch.setattr(module.time, "time", lambda: now + 4.9 * 86400)
    coordinator.farm.tick()
    assert {coordinator.states()[cell] for cell in CANARY} == {"pending"}
    monkeypatch.setattr(module.time, "time", lambda: now + 5.1 * 86400)
    coordinator.farm.tick()
    assert {coordinator.states()[cell] for cell in CANARY} == {"failed"}


def test_a_run_that_cannot_be_judged_is_measured_all_the_same(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise ValueError("damaged")

    monkeypatch.setattr("farm.judge.judge", broken)
    coordinator.answer(SINGLE, slower)
    assert coordinator.out()


def test_cancelling_ends_the_stages_that_have_not_begun(coordinator: Coordinator) -> None:
    FarmClient(coordinator.url).cancel(coordinator.run, "cancelled")
    coordinator.farm.tick()
    assert set(coordinator.states().values()) == {"failed"}
    assert coordinator.farm.store.state(coordinator.run) is RunState.INCOMPLETE
