"""The truth in the database: nothing counts twice, nothing is thrown away, two hands never do one step."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from farm.errors import InfrastructureFailed, UsageError
from farm.model import CellResult, Plan, RunState
from farm.settings import Home
from farm.store import Store
from tests import evidence as made

CELL = made.cell()


def a_plan(*cells, created: str = "2026-07-01T10:00:00+00:00") -> Plan:
    return made.plan(cells or (CELL,), [made.tier()], created=created)


def answer(run: str = "run", attempt: int = 1, **more: object) -> CellResult:
    return made.result(CELL).model_copy(update={"run_id": run, "attempt": attempt, "worker": f"w{attempt}"} | more)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(Home(tmp_path / "home"))


def dispatched(store: Store, attempt: int = 1) -> None:
    """Create the run, with its cell out as ``attempt``."""
    store.create_run("run", a_plan())
    for number in range(1, attempt + 1):
        (cell,) = store.cells("run")
        assert store.move(cell, "queued", attempt=number)


def test_a_run_is_created_once_with_its_cells_in_order(store: Store) -> None:
    plan = a_plan(CELL, made.cell(case="other"))
    assert store.create_run("run", plan)
    assert not store.create_run("run", plan)
    assert [cell.cell_id for cell in store.cells("run")] == [cell.id for cell in plan.cells]
    assert store.plan("run") == plan
    assert store.state("run") is RunState.RUNNING


def test_an_unknown_run_is_refused_naming_the_newest(store: Store) -> None:
    with pytest.raises(UsageError, match="none yet"):
        store.plan("nosuch")
    store.create_run("run", a_plan())
    with pytest.raises(UsageError, match=r"'nosuch'.*run"):
        store.evidence("nosuch")


def test_of_two_hands_only_one_moves_a_cell(store: Store, tmp_path: Path) -> None:
    other = Store.open(Home(tmp_path / "home"))
    store.create_run("run", a_plan())
    (mine,), (theirs,) = store.cells("run"), other.cells("run")
    assert store.move(mine, "queued", attempt=1)
    assert not other.move(theirs, "queued", attempt=1)
    assert [(cell.state, cell.attempt) for cell in store.cells("run")] == [("queued", 1)]


def test_a_result_counts_once(store: Store) -> None:
    dispatched(store)
    assert store.accept_result(answer()) == "counted"
    assert store.accept_result(answer()) == "extra"
    evidence = store.evidence("run")
    assert evidence.results == (answer(),)
    assert evidence.extras == ()
    assert evidence.unfinished == {}


def test_an_older_attempt_counts_while_the_cell_is_open_and_the_newer_one_is_kept(store: Store) -> None:
    """CASES.md Q4."""
    dispatched(store, attempt=2)
    assert store.accept_result(answer(attempt=1)) == "counted"
    assert store.accept_result(answer(attempt=2)) == "extra"
    assert store.accept_result(answer(attempt=2)) == "extra"
    evidence = store.evidence("run")
    assert [result.attempt for result in evidence.results] == [1]
    assert [result.attempt for result in evidence.extras] == [2]


def test_a_result_after_its_cell_was_given_up_is_kept_and_changes_nothing(store: Store) -> None:
    dispatched(store)
    (cell,) = store.cells("run")
    store.move(cell, "failed", reason="lost 3 times")
    assert store.accept_result(answer()) == "extra"
    evidence = store.evidence("run")
    assert evidence.results == ()
    assert evidence.unfinished == {CELL.id: "lost 3 times"}
    assert len(evidence.extras) == 1


@pytest.mark.parametrize("wrong", [answer(run="nosuch"), answer(cell_id="nosuch"), answer(attempt=9)])
def test_an_answer_to_what_was_never_asked_is_refused(store: Store, wrong: CellResult) -> None:
    dispatched(store)
    assert store.accept_result(wrong).startswith("refused: ")
    assert store.evidence("run").results == ()


def test_of_answers_that_come_at_once_one_counts(store: Store, tmp_path: Path) -> None:
    dispatched(store, attempt=8)
    said: list[str] = []
    gate = threading.Barrier(8)

    def deliver(attempt: int) -> None:
        mine = Store.open(Home(tmp_path / "home"))
        gate.wait()
        said.append(mine.accept_result(answer(attempt=attempt)))
        mine.close()

    hands = [threading.Thread(target=deliver, args=(attempt,)) for attempt in range(1, 9)]
    for hand in hands:
        hand.start()
    for hand in hands:
        hand.join()
    assert sorted(said) == ["counted"] + ["extra"] * 7
    evidence = store.evidence("run")
    assert len(evidence.results) == 1
    assert len(evidence.extras) == 7


def test_a_run_that_is_over_stays_as_it_ended(store: Store) -> None:
    dispatched(store)
    store.finish("run", RunState.COMPLETE)
    store.finish("run", RunState.INCOMPLETE)
    assert store.state("run") is RunState.COMPLETE
    assert store.open_runs("") == []


def test_open_runs_of_an_owner_that_is_gone_are_closed_with_the_reason(store: Store) -> None:
    store.create_run("mine", a_plan(), owner="me")
    store.create_run("theirs", a_plan(), owner="them")
    assert store.end_runs(lambda owner: owner == "them", "it was killed") == ["theirs"]
    assert store.state("theirs") is RunState.INCOMPLETE
    assert store.evidence("theirs").unfinished == {CELL.id: "it was killed"}
    assert store.open_runs("me") == ["mine"]
    assert store.end_runs(lambda owner: owner == "them", "again") == []


def test_runs_are_listed_newest_first_with_their_counts(store: Store) -> None:
    store.create_run("old", a_plan(created="2026-07-01T10:00:00+00:00"))
    store.create_run("new", a_plan(CELL, made.cell(case="other"), created="2026-07-02T10:00:00+00:00"))
    (cell,) = store.cells("old")
    store.move(cell, "queued", attempt=1)
    store.accept_result(answer(run="old"))
    assert [(run.run_id, run.done, run.total) for run in store.runs()] == [("new", 0, 2), ("old", 1, 1)]
    assert [run.run_id for run in store.runs("old")] == ["old"]
    assert store.runs("nosuch") == []


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    Store.open(home).close()
    with sqlite3.connect(home.database) as connection:
        connection.execute("UPDATE version SET version = 99")
    with pytest.raises(InfrastructureFailed, match="version 99"):
        Store.open(home)


def test_a_store_that_is_no_database_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.root.mkdir()
    home.database.write_text("this is no database, and long enough for a header" * 9)
    with pytest.raises(InfrastructureFailed, match="cannot be opened"):
        Store.open(home)
