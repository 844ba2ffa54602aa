"""The truth in the database: nothing counts twice, nothing is thrown away, two hands never do one step."""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from farm.errors import EXIT_INFRASTRUCTURE, InfrastructureFailed, UsageError
from farm.model import CellResult, Plan, RunState
from farm.settings import Home
from farm.store import Store
from tests import evidence as made

Found = TypeVar("Found")

CELL = made.cell()


def a_plan(*cells, created: str = "2026-07-01T10:00:00+00:00") -> Plan:
    return made.plan(cells or (CELL,), [made.tier()], created=created)


def answer(run: str = "run", attempt: int = 1, **more: object) -> CellResult:
    return made.result(CELL).model_copy(update={"run_id": run, "attempt": attempt, "worker": f"w{attempt}"} | more)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(Home(tmp_path / "home"))


def at_once(steps: list[Callable[[], Found]]) -> list[Found]:
    """Return what ``steps`` return, each taken by a hand of its own at the same moment."""
    gate = threading.Barrier(len(steps))
    found: list[Found] = []

    def take(step: Callable[[], Found]) -> None:
        gate.wait()
        found.append(step())

    hands = [threading.Thread(target=take, args=(step,)) for step in steps]
    for hand in hands:
        hand.start()
    for hand in hands:
        hand.join()
    return found


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
    store.move(cell, "failed", reason="cancelled")
    assert store.accept_result(answer()) == "extra"
    evidence = store.evidence("run")
    assert evidence.results == ()
    assert evidence.unfinished == {CELL.id: "cancelled"}
    assert len(evidence.extras) == 1


def test_a_result_of_a_cell_that_was_given_up_as_lost_counts_while_the_run_is_open(store: Store) -> None:
    """CASES.md Q4."""
    dispatched(store)
    (cell,) = store.cells("run")
    store.move(cell, "failed", reason="lost 3 times", lost=3)
    assert store.accept_result(answer()) == "counted"
    assert store.evidence("run").unfinished == {}


def test_a_result_of_a_lost_cell_of_a_run_that_is_over_is_kept(store: Store) -> None:
    dispatched(store)
    (cell,) = store.cells("run")
    store.move(cell, "failed", reason="lost 3 times", lost=3)
    store.finish("run", RunState.INCOMPLETE)
    assert store.accept_result(answer()) == "extra"
    assert len(store.evidence("run").extras) == 1


def test_another_answer_to_the_same_attempt_is_kept(store: Store) -> None:
    """CASES.md Q1, Q4: an order that was delivered twice is measured twice, and one of the two counts."""
    dispatched(store)
    assert store.accept_result(answer()) == "counted"
    other = answer().model_copy(update={"worker": "another"})
    assert store.accept_result(other) == "extra"
    assert store.accept_result(other) == "extra"
    assert store.accept_result(answer()) == "extra"
    assert [late.worker for late in store.evidence("run").extras] == ["another"]


@pytest.mark.parametrize(
    "wrong",
    [answer(run="nosuch"), answer(cell_id="nosuch"), answer(attempt=9), answer(attempt=0), answer(attempt=-1)],
    ids=["run", "cell", "attempt", "before the first", "negative"],
)
def test_an_answer_to_what_was_never_asked_is_refused(store: Store, wrong: CellResult) -> None:
    dispatched(store)
    assert store.accept_result(wrong).startswith("refused: ")
    assert store.evidence("run").results == ()


def test_of_answers_that_come_at_once_one_counts(store: Store, tmp_path: Path) -> None:
    dispatched(store, attempt=8)
    hands = [Store.open(Home(tmp_path / "home")) for _ in range(8)]
    said = at_once([lambda a=a, s=s: s.accept_result(answer(attempt=a)) for a, s in enumerate(hands, 1)])
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


def test_one_answer_that_is_delivered_by_many_at_once_counts_once(store: Store, tmp_path: Path) -> None:
    """CASES.md Q1 and Q7: the stream is read by two aggregators."""
    dispatched(store)
    hands = [store, *(Store.open(Home(tmp_path / "home")) for _ in range(3))]
    said = at_once([lambda hand=hand: hand.accept_result(answer()) for hand in hands])
    assert sorted(said) == ["counted", "extra", "extra", "extra"]
    assert store.evidence("run").results == (answer(),)
    assert store.evidence("run").extras == ()


def test_of_many_hands_that_move_a_cell_at_once_one_does(store: Store, tmp_path: Path) -> None:
    store.create_run("run", a_plan())
    hands = [Store.open(Home(tmp_path / "home")) for _ in range(6)]
    seen = [(hand, *hand.cells("run")) for hand in hands]
    moved = at_once([lambda hand=hand, cell=cell: hand.move(cell, "queued", attempt=1) for hand, cell in seen])
    assert sorted(moved) == [False] * 5 + [True]


def test_a_run_that_is_handed_in_by_two_at_once_is_written_once(store: Store, tmp_path: Path) -> None:
    hands = [Store.open(Home(tmp_path / "home")) for _ in range(4)]
    written = at_once([lambda hand=hand: hand.create_run("run", a_plan()) for hand in hands])
    assert sorted(written) == [False, False, False, True]
    assert len(store.cells("run")) == 1


def test_a_new_store_is_opened_by_many_at_once(tmp_path: Path) -> None:
    for folder in range(5):
        home = Home(tmp_path / str(folder))
        stores = at_once([lambda home=home: Store.open(home)] * 4)
        assert len(stores) == 4
        assert stores[0].create_run("run", a_plan())
        assert [one.state("run") for one in stores] == [RunState.RUNNING] * 4


def test_a_cell_that_was_given_out_again_is_not_moved_by_who_saw_it_before(store: Store) -> None:
    dispatched(store)
    (old,) = store.cells("run")
    assert store.move(old, "pending", lost=1)
    (pending,) = store.cells("run")
    assert store.move(pending, "queued", attempt=2)
    assert not store.move(old, "running", worker="asleep")
    (now,) = store.cells("run")
    assert (now.state, now.attempt, now.lost, now.worker) == ("queued", 2, 1, "")


def test_a_result_of_a_cell_that_waits_to_be_sent_again_counts(store: Store) -> None:
    dispatched(store)
    (cell,) = store.cells("run")
    store.move(cell, "pending", lost=1)
    assert store.accept_result(answer()) == "counted"
    (done,) = store.cells("run")
    assert (done.state, done.worker) == ("done", "w1")
    assert not store.move(cell, "queued", attempt=2)


def test_a_late_result_that_comes_twice_is_kept_once_and_another_one_beside_it(store: Store) -> None:
    dispatched(store, attempt=3)
    store.accept_result(answer(attempt=3))
    for late in (1, 2, 1):
        assert store.accept_result(answer(attempt=late)) == "extra"
    assert [result.attempt for result in store.evidence("run").extras] == [1, 2]


def test_evidence_has_the_order_of_the_plan_and_says_what_is_missing(store: Store) -> None:
    cells = [made.cell(case=case) for case in ("d", "b", "a", "c")]
    store.create_run("run", a_plan(*cells))
    for cell in store.cells("run"):
        store.move(cell, "queued", attempt=1)
    for cell in (cells[3], cells[0], cells[1]):
        assert store.accept_result(made.result(cell, run_id="run")) == "counted"
    evidence = store.evidence("run")
    assert [result.cell_id for result in evidence.results] == [cells[0].id, cells[1].id, cells[3].id]
    assert evidence.unfinished == {cells[2].id: "queued, not finished"}
    assert evidence.state is RunState.RUNNING


def test_a_number_that_is_none_is_stored_as_it_is(store: Store) -> None:
    dispatched(store)
    broken = made.result(CELL, {"candidate": made.ok(items_per_step=math.nan)}, run_id="run")
    store.accept_result(broken)
    (found,) = store.evidence("run").results
    assert repr(found) == repr(broken)


def test_what_was_written_is_there_when_the_store_is_opened_again(store: Store, tmp_path: Path) -> None:
    dispatched(store)
    store.accept_result(answer())
    before = store.evidence("run")
    store.close()
    assert Store.open(Home(tmp_path / "home")).evidence("run") == before


def test_the_three_newest_runs_are_named_where_one_is_not_known(store: Store) -> None:
    for day in range(1, 6):
        store.create_run(f"run-{day}", a_plan(created=f"2026-07-0{day}T10:00:00+00:00"))
    with pytest.raises(UsageError) as refused:
        store.plan("run-9")
    assert str(refused.value) == "there is no run 'run-9'; the newest are: run-5, run-4, run-3"


def test_a_store_that_cannot_be_opened_says_where_and_what_may_be_wrong(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.database.mkdir(parents=True)
    with pytest.raises(InfrastructureFailed) as failed:
        Store.open(home)
    assert str(home.database) in str(failed.value)
    assert "unable to open database file; is the disk full or its folder read-only?" in str(failed.value)
    assert failed.value.exit_code == EXIT_INFRASTRUCTURE
