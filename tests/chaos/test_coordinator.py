"""Server and aggregators that die, forget, or come in pairs: nothing is lost, nothing counts twice."""

from __future__ import annotations

import pytest

from farm.broker import keys
from farm.envelope import load_key, seal
from farm.model import RunState
from farm.settings import Home
from tests.chaos.conftest import Fleet, until

pytestmark = pytest.mark.chaos


def test_a_server_that_restarts_in_mid_cell_loses_no_result(fleet: Fleet) -> None:
    fleet.seconds.write_text("1.5")
    fleet.start_worker("blue")
    run = fleet.submit(2)
    fleet.wait_for_start()
    fleet.kill("server")
    until(lambda: fleet.lines("end"), "the end of a cell without a server")
    until(lambda: list((fleet.root / "blue" / "outbox").glob("*.json")), "its result in the outbox")
    fleet.start_server()
    assert fleet.wait(run) is RunState.COMPLETE
    assert len(fleet.evidence(run).results) == 2


def test_a_server_that_forgets_everything_loses_no_cell(fleet: Fleet) -> None:
    fleet.seconds.write_text("0.5")
    fleet.start_worker("blue")
    run = fleet.submit(4)
    fleet.wait_for_start(2)
    fleet.server.flushall()
    assert fleet.wait(run) is RunState.COMPLETE
    results = fleet.evidence(run).results
    assert sorted(result.cell_id for result in results) == [f"block/case-{number}@cpu" for number in range(4)]


def test_an_aggregator_that_is_killed_goes_on_where_it_was(fleet: Fleet) -> None:
    fleet.seconds.write_text("0.5")
    fleet.start_worker("blue")
    run = fleet.submit(4)
    fleet.wait_for_start(2)
    fleet.kill("aggregator")
    until(lambda: len(fleet.lines("end")) >= 2, "work without an aggregator")
    fleet.start_aggregator()
    assert fleet.wait(run) is RunState.COMPLETE
    assert len(fleet.evidence(run).results) == 4


def test_two_aggregators_count_no_cell_twice(fleet: Fleet) -> None:
    fleet.start_aggregator("second")
    fleet.seconds.write_text("0.2")
    fleet.start_worker("blue")
    run = fleet.submit(6)
    assert fleet.wait(run) is RunState.COMPLETE
    evidence = fleet.evidence(run)
    assert len(evidence.results) == 6
    assert evidence.extras == ()
    assert len(fleet.lines()) == 6


def test_a_result_that_arrives_twice_counts_once_and_garbage_not_at_all(fleet: Fleet) -> None:
    fleet.start_worker("blue")
    run = fleet.submit()
    assert fleet.wait(run) is RunState.COMPLETE
    result = fleet.evidence(run).results[0]
    again = seal("result", result, load_key(Home(fleet.root / "blue").keys, "worker"))
    for envelope in (again, again, "nothing", '{"kind": "result"}'):
        fleet.server.xadd(keys.RESULTS, {"envelope": envelope})
    fleet.server.xadd(keys.RESULTS, {"other": "field"})
    until(lambda: fleet.server.xlen(keys.RESULTS) == 0, "an empty stream")
    evidence = fleet.evidence(run)
    assert len(evidence.results) == 1
    assert evidence.extras == ()
    until(lambda: fleet.said("aggregator").count("a result was refused") == 3, "three refusals")
    assert fleet.wait(fleet.submit()) is RunState.COMPLETE


def test_a_plan_that_cannot_be_read_is_refused_and_the_next_is_taken(fleet: Fleet) -> None:
    fleet.server.xadd(keys.SUBMIT, {"token": "x", "plan": b"nothing"})
    fleet.server.xadd(keys.SUBMIT, {"other": "field"})
    fleet.start_worker("blue")
    assert fleet.wait(fleet.submit()) is RunState.COMPLETE
