"""Workers that die, leave, sleep or never come: every cell is measured, and counted once."""

from __future__ import annotations

import itertools
import os
import signal
import time

import pytest

from farm.broker import keys
from farm.broker.celery_app import TASK, make_celery
from farm.envelope import load_key, seal
from farm.judge import judge
from farm.model import CellOrder, Decision, Gate, Measuring, RunState
from tests.chaos.conftest import Fleet, until
from tests.evidence import cell, plan, tier

pytestmark = pytest.mark.chaos


def test_every_cell_is_counted_once(fleet: Fleet) -> None:
    fleet.start_worker()
    run = fleet.submit(6)
    assert fleet.wait(run) is RunState.COMPLETE
    assert len(fleet.evidence(run).results) == 6
    assert len(fleet.lines()) == 6


def test_two_workers_on_one_machine_never_measure_at_once(fleet: Fleet) -> None:
    fleet.start_worker("blue")
    fleet.start_worker("red")
    run = fleet.submit(6)
    assert fleet.wait(run) is RunState.COMPLETE
    spans = sorted((s["at"], e["at"]) for s, e in zip(fleet.lines("start"), fleet.lines("end"), strict=True))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert len({line["pid"] for line in fleet.lines()}) == 2


def test_what_one_machine_accuses_another_of_its_class_measures_again(fleet: Fleet) -> None:
    fleet.start_worker("blue")
    of = cell(case="slow-on-blue", measuring=Measuring(confirming=6))
    limits = tier(required=(Gate.CORRECTNESS, Gate.LATENCY))
    fleet.seconds.write_text("2")
    run = fleet.client.submit(plan([of], [limits]))
    fleet.wait_for_start()
    fleet.start_worker("red")
    until(lambda: len(fleet.client.presences()) == 2, "the second worker")
    assert fleet.wait(run) is RunState.COMPLETE
    found = fleet.evidence(run)
    assert [[result.host.name for result in answers] for answers in (found.results, found.elsewhere)] == [
        ["blue"],
        ["red"],
    ]
    (row,) = judge(found).rows
    assert (row.decision, row.decided_by) == (Decision.DEFER, Gate.LATENCY)
    assert "not confirmed on red" in row.reason


def test_a_worker_killed_in_mid_cell_loses_it_to_another_and_it_counts_once(fleet: Fleet) -> None:
    fleet.seconds.write_text("60")
    fleet.start_worker("blue")
    run = fleet.submit()
    fleet.wait_for_start()
    fleet.seconds.write_text("0.1")
    fleet.start_worker("red")
    fleet.kill("blue")
    assert fleet.wait(run) is RunState.COMPLETE
    assert [line["attempt"] for line in fleet.lines()] == [1, 2]
    results = fleet.evidence(run).results
    assert [(result.attempt, result.worker.split("-")[0]) for result in results] == [(2, "red")]


def test_a_worker_that_is_told_to_stop_gives_its_cell_back_at_once(fleet: Fleet) -> None:
    fleet.seconds.write_text("60")
    fleet.start_worker("blue")
    run = fleet.submit()
    fleet.wait_for_start()
    fleet.seconds.write_text("0.1")
    fleet.start_worker("red")
    until(lambda: len(fleet.client.presences()) == 2, "the second worker")
    assert fleet.stop("blue") == 0
    assert fleet.wait(run) is RunState.COMPLETE
    assert [line["attempt"] for line in fleet.lines()] == [1, 2]
    assert "is lost" not in fleet.said("aggregator")


def test_a_cell_that_takes_three_workers_along_is_failed_and_the_next_run_goes_on(fleet: Fleet) -> None:
    fleet.seconds.write_text("60")
    run = fleet.submit()
    for attempt in (1, 2, 3):
        fleet.start_worker(f"blue{attempt}")
        assert fleet.wait_for_start(attempt)["attempt"] == attempt
        fleet.kill(f"blue{attempt}")
        until(lambda a=attempt: f"attempt {a} is lost" in fleet.said("aggregator"), "its loss")
    assert fleet.wait(run) is RunState.INCOMPLETE
    evidence = fleet.evidence(run)
    assert evidence.results == ()
    assert "lost 3 times" in evidence.unfinished["block/case-0@cpu"]
    fleet.seconds.write_text("0.1")
    fleet.start_worker("red")
    assert fleet.wait(fleet.submit()) is RunState.COMPLETE


def test_a_worker_that_slept_too_long_is_answered_for_and_its_late_result_is_kept(fleet: Fleet) -> None:
    fleet.seconds.write_text("1")
    fleet.start_worker("blue")
    run = fleet.submit()
    fleet.wait_for_start()
    fleet.parts["blue"].send_signal(signal.SIGSTOP)
    # Its machine is taken while it sleeps: on another machine the second worker has a lock of its own.
    fleet.start_worker("red")
    until(lambda: "attempt 1 is lost" in fleet.said("aggregator"), "its loss")
    fleet.parts["blue"].send_signal(signal.SIGCONT)
    assert fleet.wait(run) is RunState.COMPLETE
    until(lambda: "extra" in fleet.said("aggregator") or len(fleet.lines("end")) == 1, "both answers")
    evidence = fleet.evidence(run)
    assert len(evidence.results) == 1
    assert len(evidence.results) + len(evidence.extras) == len(fleet.lines("end"))


def test_a_worker_takes_only_what_its_machine_can_do(fleet: Fleet) -> None:
    fleet.start_worker("blue")
    run = fleet.submit(capability="cuda.sm90")
    assert fleet.wait(run) is RunState.INCOMPLETE
    assert fleet.lines() == []
    assert fleet.evidence(run).unfinished == {"block/case-0@cuda.sm90": "no worker for queue 'bench.cuda.sm90'"}


def test_a_cancelled_run_ends_its_cell_and_the_worker_takes_the_next(fleet: Fleet) -> None:
    fleet.seconds.write_text("60")
    fleet.start_worker("blue")
    run = fleet.submit(2)
    fleet.wait_for_start()
    fleet.seconds.write_text("0.1")
    fleet.client.cancel(run, "interrupted")
    assert fleet.wait(run) is RunState.INCOMPLETE
    assert set(fleet.evidence(run).unfinished.values()) == {"interrupted"}
    assert fleet.wait(fleet.submit()) is RunState.COMPLETE


def test_an_order_of_a_cancelled_run_is_not_begun(fleet: Fleet) -> None:
    fleet.start_worker("blue")
    until(lambda: fleet.client.presences(), "the worker")
    fleet.client.cancel("cancelled-run", "interrupted")
    order = CellOrder(run_id="cancelled-run", attempt=1, cell=cell(id="block/cancelled@cpu"), environments={})
    sealed = seal("order", order, load_key(fleet.home.keys, "coordinator"))
    make_celery(fleet.url, ["bench.cpu"], "test").send_task(TASK, args=[sealed], queue="bench.cpu")
    assert fleet.wait(fleet.submit()) is RunState.COMPLETE
    assert "block/cancelled@cpu" not in {line["cell"] for line in fleet.lines()}


def test_forged_and_broken_orders_are_refused_and_the_worker_lives_on(fleet: Fleet) -> None:
    fleet.start_worker("blue")
    until(lambda: fleet.client.presences(), "the worker")
    sender = make_celery(fleet.url, ["bench.cpu"], "stranger")
    for order in (
        "not an envelope",
        '{"kind": "order"}',
        '{"version": 1, "kind": "order", "body": "AA==", "signature": ""}',
    ):
        sender.send_task(TASK, args=[order], queue="bench.cpu")
    assert fleet.wait(fleet.submit()) is RunState.COMPLETE
    until(lambda: fleet.said("blue").count("an order was refused") == 3, "three refusals")
    assert len(fleet.lines()) == 1


def test_the_machine_stays_taken_while_what_a_killed_worker_started_lives(tmp_path) -> None:
    """The lock belongs to whoever holds the descriptor: a benchmark outlives its worker, and so does the lock."""
    from workers.lease import machine_lease

    path = tmp_path / "lock"
    inherited = os.pipe()
    with machine_lease(lambda: None, lambda: False, path) as lease:
        assert lease is not None
        child = os.fork()
        if child == 0:
            os.read(inherited[0], 1)
            os._exit(0)
    waited: list[float] = []

    def give_up() -> bool:
        waited.append(time.monotonic())
        return len(waited) > 1

    with machine_lease(lambda: None, give_up, path) as second:
        assert second is None
    os.write(inherited[1], b"x")
    os.waitpid(child, 0)
    with machine_lease(lambda: None, lambda: True, path) as third:
        assert third is not None
    for descriptor in inherited:
        os.close(descriptor)


def test_a_worker_that_is_up_and_takes_nothing_does_not_keep_a_run_open(fleet: Fleet) -> None:
    """CASES.md Q2."""
    fleet.start_worker("blue")
    (alive,) = until(lambda: fleet.client.presences(), "the worker")
    fleet.kill("blue")
    fleet.server.set(keys.presence(alive.worker), alive.model_dump_json())
    run = fleet.submit()
    assert fleet.wait(run) is RunState.INCOMPLETE
    assert "sent 3 times and never taken" in fleet.evidence(run).unfinished["block/case-0@cpu"]


def test_nothing_of_a_run_that_is_over_stays_in_the_queue(fleet: Fleet) -> None:
    fleet.start_worker("blue")
    assert fleet.wait(fleet.submit(3)) is RunState.COMPLETE
    until(lambda: fleet.server.xlen(keys.RESULTS) == 0, "an empty stream")
    assert fleet.client.queue_lengths(["bench.cpu"]) == {"bench.cpu": 0}
    until(lambda: not list((fleet.root / "blue" / "outbox").glob("*.json")), "an empty outbox")
