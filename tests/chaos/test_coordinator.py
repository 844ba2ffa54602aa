"""Server and aggregators that die, forget, or come in pairs: nothing is lost, nothing counts twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.evidence import find_evidence
from farm.broker import keys
from farm.broker.celery_app import TASK, make_celery
from farm.envelope import load_key, seal
from farm.errors import UsageError
from farm.model import CellOrder, RunState
from farm.settings import Home, Settings
from tests.chaos.conftest import Fleet, until
from tests.evidence import cell

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


def test_a_report_says_that_a_run_still_goes_on_and_finds_the_newest_that_is_over(fleet: Fleet, tmp_path: Path) -> None:
    elsewhere, settings = Home(tmp_path / "elsewhere").prepare(), Settings(url=fleet.url)
    with pytest.raises(UsageError, match="there is no run yet"):
        find_evidence(elsewhere, settings, None)
    run = fleet.submit()
    with pytest.raises(UsageError, match=f"run '{run}' is still running; follow it: farm watch {run}"):
        find_evidence(elsewhere, settings, run)
    fleet.start_worker("blue")
    fleet.wait(run)
    assert find_evidence(elsewhere, settings, None).run_id == run


def test_an_order_for_a_cell_that_is_decided_is_not_measured_again(fleet: Fleet) -> None:
    fleet.start_worker("blue")
    run = fleet.submit()
    fleet.wait(run)
    (counted,) = fleet.evidence(run).results
    assert fleet.server.get(keys.attempt(run, counted.cell_id)) == b"0"
    order = CellOrder(run_id=run, attempt=2, cell=cell(case="case-0", id=counted.cell_id), environments={})
    make_celery(fleet.url, ["bench.cpu"], "test").send_task(
        TASK, args=[seal("order", order, load_key(fleet.home.keys, "coordinator"))], queue="bench.cpu"
    )
    until(lambda: fleet.server.llen("farm:bench.cpu") == 0, "the order to be taken")
    fleet.wait(fleet.submit())
    assert [line["attempt"] for line in fleet.lines() if line["cell"] == counted.cell_id] == [1, 1]


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
