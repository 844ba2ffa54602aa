"""A failing gate is measured again on another machine of its class before the decision says so; both are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farm.aggregator import Aggregator
from farm.broker import keys
from farm.broker.client import Presence
from farm.capability import queue_of
from farm.elsewhere import elsewhere_id, original_id, same_class, to_confirm
from farm.envelope import load_key, pack, seal, unseal
from farm.errors import UsageError
from farm.judge import judge
from farm.model import (
    Cell,
    CellOrder,
    CellResult,
    Decision,
    Evidence,
    Gate,
    Host,
    Measuring,
    Plan,
    Question,
    RunState,
    Status,
    Validity,
    Verdict,
)
from farm.reading import read_evidence
from farm.settings import Home
from farm.stages import evidence_before
from farm.store import Store
from tests import evidence as made
from tests.farm.test_stages import SLOW, in_stages

FAR = made.HOST.model_copy(update={"name": "bench-2"})
REPEATED = Measuring(confirming=6)
BLOCK, OTHER = made.cell(measuring=REPEATED), made.cell("other", measuring=REPEATED)
LIMITS = made.tier(required=(Gate.CORRECTNESS, Gate.LATENCY))


def slow(of: Cell = BLOCK, step: float = 12.0, **more: Any) -> CellResult:
    """Return an answer whose candidate is slow, in the first look and in its repeat."""
    found = made.result(of, times={"candidate": step}, **more)
    again = tuple(restart.model_copy(update={"purpose": "confirming"}) for restart in found.restarts)
    return found.model_copy(update={"restarts": (*found.restarts, *again)})


def accused(*answers: CellResult, limits: Any = LIMITS, of: CellResult | None = None) -> Evidence:
    found = made.evidence([(BLOCK, of or slow()), (OTHER, made.result(OTHER))], limits)
    return found.model_copy(update={"elsewhere": answers})


def latency(found: Evidence) -> Verdict:
    (cell,) = [cell for cell in judge(found).cells if cell.cell_id == BLOCK.id]
    return next(verdict for verdict in cell.verdicts if verdict.gate is Gate.LATENCY)


# -- what the other answer does ------------------------------------------------------------------------------------


def test_without_another_machine_the_repeat_stands_alone() -> None:
    verdict = latency(accused())
    assert (verdict.status, verdict.reason) == (
        Status.FAIL,
        "p50 +20.0 %: beyond the limit, confirmed: the repeat in 6 fresh processes says +20.0 % time",
    )


def test_where_another_machine_fails_too_the_accusation_stands_and_says_so() -> None:
    verdict = latency(accused(slow(host=FAR, step=11.5)))
    assert verdict.status is Status.FAIL
    assert "; confirmed on bench-2: p50 +15.0 %: beyond the limit" in verdict.reason
    (kept,) = [figure for figure in verdict.others if figure.name == "p50 ratio, on bench-2"]
    assert (kept.value, kept.limit) == (pytest.approx(1.15), None)
    judged = judge(accused(slow(host=FAR)))
    assert judged.attributed[0].startswith("block/infer is slower on all 2 machines that measured it: torch")


@pytest.mark.parametrize("in_service", [False, True])
def test_where_another_machine_passes_nothing_is_accused(in_service: bool) -> None:
    limits = LIMITS.model_copy(update={"in_service": in_service})
    found = accused(slow(step=10.0, host=FAR), limits=limits)
    verdict = latency(found)
    assert verdict.status is Status.INCONCLUSIVE
    assert "not confirmed on bench-2, another machine of its class: p50 +0.0 %" in verdict.reason
    judged = judge(found)
    (row,) = [row for row in judged.rows if row.workload == "block"]
    assert (row.decision, row.decided_by) == (Decision.DEFER, Gate.LATENCY)
    assert judged.attributed[0].startswith("block/infer moved on one machine and not on another of its class")
    assert judge(accused(limits=limits)).rows[0].decision is (Decision.ROLLBACK if in_service else Decision.ISOLATE)


def test_an_answer_that_means_nothing_changes_nothing_and_is_told() -> None:
    asleep = slow(host=FAR, step=10.0, validity=Validity(valid=False, reasons=("machine suspended",)))
    verdict = latency(accused(asleep))
    assert verdict.status is Status.FAIL
    assert verdict.reason.endswith("it cannot be told on bench-2: invalid: machine suspended")


def test_what_passes_is_not_turned_by_another_machine() -> None:
    found = accused(slow(host=FAR), of=made.result(BLOCK))
    assert latency(found).status is Status.PASS


def test_a_crash_that_another_machine_does_not_see_is_the_machines() -> None:
    crashed = made.result(BLOCK, {"candidate": made.ended()})
    found = accused(made.result(BLOCK, host=FAR), of=crashed)
    assert latency(found).reason.startswith("candidate crashed: signal 11; not confirmed on bench-2")
    assert latency(accused(crashed.model_copy(update={"host": FAR}), of=crashed)).status is Status.FAIL


def test_one_answer_counts_and_it_is_this_runs() -> None:
    stranger = slow(host=FAR, step=10.0).model_copy(update={"run_id": "another"})
    late = slow(host=FAR, step=10.0)
    assert latency(accused(stranger)).status is Status.FAIL
    assert latency(accused(slow(host=FAR), late)).status is Status.FAIL


def test_a_feature_accuses_nobody() -> None:
    of = made.cell(features=("new",), measuring=REPEATED)
    found = made.evidence([(of, made.result(of, times={"candidate+new": 12.0}))], LIMITS)
    (verdict,) = [c for c in judge(found).cells if c.question is Question.FEATURE]
    answered = found.model_copy(update={"elsewhere": (made.result(of, times={"candidate+new": 5.0}, host=FAR),)})
    assert [c for c in judge(answered).cells if c.question is Question.FEATURE] == [verdict]
    assert to_confirm(judge(found), found.plan) == []


# -- what is asked of another machine ------------------------------------------------------------------------------


def test_what_fails_and_is_required_is_confirmed_where_the_suite_repeats_failures() -> None:
    found = accused()
    assert to_confirm(judge(found), found.plan) == [BLOCK.id]
    shown = accused(limits=made.tier(required=(Gate.CORRECTNESS,)))
    assert to_confirm(judge(shown), shown.plan) == []
    once = made.cell()
    alone = made.evidence([(once, made.result(once, times={"candidate": 12.0}))], LIMITS)
    assert to_confirm(judge(alone), alone.plan) == []


def test_a_way_back_that_fails_is_no_reason_to_measure_its_cells_again() -> None:
    back = made.rehearsed(control_equal=False)
    found = made.evidence([(BLOCK, made.result(BLOCK))], made.tier(required=(Gate.ROLLBACK,)), way_back=back)
    assert to_confirm(judge(found), found.plan) == []


def test_a_class_is_the_processor_and_what_environments_are_made_for() -> None:
    assert same_class(made.HOST, FAR)
    assert not same_class(made.HOST, made.HOST)
    for other in ({"cpu": "Xeon"}, {"python": "3.12"}, {"platform": "aarch64-unknown-linux-gnu"}):
        assert not same_class(made.HOST, FAR.model_copy(update=other))


# -- kept ----------------------------------------------------------------------------------------------------------


def test_both_answers_travel_with_the_evidence() -> None:
    found = accused(slow(host=FAR))
    again = read_evidence(found.model_dump_json(), "run.json")
    assert again == found
    assert judge(again) == judge(found)
    wrong = found.model_copy(update={"elsewhere": (slow().model_copy(update={"cell_id": "nobody"}),)})
    with pytest.raises(UsageError, match=r"elsewhere\[0\].cell_id: no cell \"nobody\" is planned"):
        read_evidence(wrong.model_dump_json(), "run.json")


def test_what_was_known_before_a_stage_holds_no_later_answer() -> None:
    plan = in_stages()
    late = next(cell for cell in plan.cells if cell.stage == "canary")
    found = made.run_of(BLOCK).model_copy(update={"plan": plan, "elsewhere": (made.result(late, host=FAR),)})
    assert evidence_before(found, 2).elsewhere == ()
    assert evidence_before(found, 3).elsewhere == found.elsewhere


# -- the coordinator -----------------------------------------------------------------------------------------------


class Coordinator:
    """An aggregator that is ticked by hand, with workers that are there because they say so."""

    def __init__(self, server: Any, url: str, root: Path, plan: Plan) -> None:
        self.server, self.url, self.home = server, url, Home(root / "home").prepare()
        self.farm = Aggregator(self.home, url, "coordinator")
        self.present("near", made.HOST)
        server.xadd(keys.SUBMIT, {"token": "aaaaaaaa", "plan": pack(plan)})
        self.farm.tick()
        self.run: str = server.get(keys.created("aaaaaaaa")).decode()

    def present(self, worker: str, host: Host, busy: str = "") -> None:
        presence = Presence(
            worker=worker,
            host=host,
            queues=("bench.cpu",),
            public_key="",
            busy_cell=busy,
            busy_run=self.run if busy else "",
            version="1",
            since=0,
        )
        self.server.set(keys.presence(worker), presence.model_dump_json())

    def restart(self) -> None:
        self.farm.store.close()
        self.farm = Aggregator(self.home, self.url, "coordinator")

    def states(self) -> dict[str, str]:
        return {cell.cell_id: cell.state for cell in self.farm.store.cells(self.run)}

    def answer(self, result: CellResult, cell_id: str = "") -> None:
        sent = result.model_copy(update={"run_id": self.run, "cell_id": cell_id or result.cell_id})
        self.server.xadd(keys.RESULTS, {"envelope": seal("result", sent, load_key(self.home.keys, "worker"))})
        self.farm.tick()

    def orders(self, queue: str) -> list[str]:
        """Return the cells whose orders wait on ``queue``."""
        import base64
        import json

        found = []
        for raw in self.server.lrange(keys.PREFIX + queue, 0, -1):
            body = json.loads(base64.b64decode(json.loads(raw)["body"]))
            found.append(unseal(body[0][0], "order", CellOrder, None).cell.id)
        return found

    def evidence(self) -> Evidence:
        return self.farm.store.evidence(self.run)


@pytest.fixture
def coordinator(server: Any, farm_server: str, tmp_path: Path) -> Coordinator:
    return Coordinator(server, farm_server, tmp_path, made.plan([BLOCK, OTHER], [LIMITS]))


AGAIN = elsewhere_id(BLOCK.id)


def test_names_lead_from_one_to_the_other() -> None:
    assert (original_id(AGAIN), original_id(BLOCK.id)) == (BLOCK.id, BLOCK.id)


def test_what_failed_is_sent_to_another_machine_alone_and_the_run_waits_for_it(coordinator: Coordinator) -> None:
    coordinator.present("far", FAR)
    coordinator.answer(slow())
    assert AGAIN not in coordinator.states()
    coordinator.answer(made.result(OTHER))
    coordinator.farm.tick()
    assert coordinator.states() == {BLOCK.id: "done", OTHER.id: "done", AGAIN: "queued"}
    assert coordinator.farm.store.state(coordinator.run) is RunState.RUNNING
    assert coordinator.orders("bench.to.far") == [AGAIN]
    assert AGAIN not in coordinator.orders(queue_of("cpu"))
    coordinator.answer(slow(host=FAR), AGAIN)
    evidence = coordinator.evidence()
    assert evidence.state is RunState.COMPLETE
    assert [result.cell_id for result in evidence.results] == [BLOCK.id, OTHER.id]
    assert [(result.cell_id, result.host.name) for result in evidence.elsewhere] == [(BLOCK.id, "bench-2")]
    assert "confirmed on bench-2" in latency(evidence).reason


@pytest.mark.parametrize(
    "other",
    [None, {"name": "bench-1"}, {"cpu": "Xeon"}, {"python": "3.13"}],
    ids=["none", "one machine", "another processor", "another Python"],
)
def test_without_another_machine_of_the_class_the_run_is_over(
    coordinator: Coordinator, other: dict[str, str] | None
) -> None:
    if other is not None:
        coordinator.present("far", FAR.model_copy(update=other))
    coordinator.answer(slow())
    coordinator.answer(made.result(OTHER))
    assert coordinator.evidence().state is RunState.COMPLETE
    assert set(coordinator.states()) == {BLOCK.id, OTHER.id}


def test_a_coordinator_that_is_started_again_asks_no_second_time(coordinator: Coordinator) -> None:
    coordinator.present("far", FAR)
    coordinator.answer(slow())
    coordinator.answer(made.result(OTHER))
    for _ in range(2):
        coordinator.restart()
        coordinator.farm.tick()
    assert list(coordinator.states()) == [BLOCK.id, OTHER.id, AGAIN]
    coordinator.answer(slow(host=FAR), AGAIN)
    coordinator.restart()
    coordinator.farm.tick()
    assert coordinator.evidence().state is RunState.COMPLETE


def test_a_machine_that_goes_leaves_the_first_answer_as_it_is(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from farm import aggregator as module

    coordinator.present("far", FAR)
    coordinator.answer(slow())
    coordinator.answer(made.result(OTHER))
    coordinator.server.delete(keys.presence("far"))
    now = module.time.time()
    for later in (20.0, 40.0, 120.0):
        monkeypatch.setattr(module.time, "time", lambda later=later: now + later)
        coordinator.farm.tick()
    assert coordinator.states()[AGAIN] == "failed"
    evidence = coordinator.evidence()
    assert (evidence.state, evidence.unfinished, evidence.elsewhere) == (RunState.COMPLETE, {}, ())
    assert latency(evidence).status is Status.FAIL


def test_a_stage_waits_for_what_is_confirmed_elsewhere(server: Any, farm_server: str, tmp_path: Path) -> None:
    plan = in_stages()
    repeated = tuple(cell.model_copy(update={"measuring": REPEATED}) for cell in plan.cells)
    staged = Coordinator(server, farm_server, tmp_path, plan.model_copy(update={"cells": repeated}))
    staged.present("far", FAR)
    single = [cell for cell in repeated if cell.stage == "single"]
    staged.answer(slow(single[0], step=SLOW["candidate"]))
    staged.answer(made.result(single[1]))
    again = elsewhere_id(single[0].id)
    assert staged.states()[again] == "queued"
    assert [cell for cell, state in staged.states().items() if state == "queued"] == [again]
    staged.answer(made.result(single[0], host=FAR), again)
    staged.farm.tick()
    # The other machine did not see it, so the window goes on.
    assert any(state == "queued" for cell, state in staged.states().items() if cell.startswith(("gates/", "rollback/")))


def test_the_store_keeps_one_row_of_a_cell_that_was_added(tmp_path: Path) -> None:
    store = Store.open(Home(tmp_path).prepare())
    store.create_run("r-1", made.plan([BLOCK], [LIMITS]))
    assert [store.add_cell("r-1", AGAIN, "cpu") for _ in range(2)] == [True, False]
    assert [cell.cell_id for cell in store.cells("r-1")] == [BLOCK.id, AGAIN]
    assert store.result("r-1", BLOCK.id) is None
    assert store.evidence("r-1").unfinished.keys() == {BLOCK.id}
    store.close()
