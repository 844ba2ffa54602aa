"""`python -m farm.aggregator`: hands out cells, takes results in, repeats lost work, closes runs. It never measures.

The database is the truth and the server is transport: every step here can be killed and taken again.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from typing import Any

import redis
from celery import Celery
from kombu.exceptions import OperationalError
from sqlalchemy.exc import DBAPIError

from farm.broker import keys
from farm.broker.celery_app import TASK, make_celery
from farm.broker.client import Presence, presences
from farm.capability import queue_of, queue_to
from farm.elsewhere import elsewhere_id, original_id, same_class, to_confirm
from farm.envelope import EnvelopeRefused, load_key, pack, public_text, seal, unpack, unseal
from farm.errors import EXIT_INFRASTRUCTURE, FarmError
from farm.model import CellOrder, CellResult, Host, Plan, RunState
from farm.settings import Home
from farm.stages import Window, evidence_before, skipped, window_of
from farm.store import OPEN, SKIPPED, CellRow, Store

__all__ = ["Aggregator", "main", "result_digest"]

TICK_S = 0.2
#: A presence is renewed every 3 s and gone after 10 s (workers/agent.py); work is lost that long after, not sooner.
GRACE_S = 12.0
#: A queued cell that an idle worker has not taken after this long is in nobody's book (celery#7950).
VANISHED_S = 15.0
#: A cell that no live worker can take waits this long for one to come.
UNSERVED_S = 60.0
MAX_LOST = 3
#: A worker that is up, idle and takes nothing (celery#10205) must not keep a run open for ever: after five minutes.
MAX_ATTEMPTS = 20
KEEP_S = 30 * 86400


def result_digest(run_id: str, cell_id: str, attempt: int) -> str:
    """Return the name of one attempt's done marker."""
    return hashlib.sha256(f"{run_id} {cell_id} {attempt}".encode()).hexdigest()[:24]


class Aggregator:
    """One coordinator's loop over its store and its server. ``owner`` marks the runs that are its own."""

    def __init__(self, home: Home, url: str, owner: str) -> None:
        self.store = Store.open(home)
        self.owner = owner
        self._redis: Any = redis.Redis.from_url(url, socket_timeout=10, health_check_interval=10)
        self._key = load_key(home.keys, "coordinator")
        self._url = url
        self._celery: Celery | None = None
        self._queues: set[str] = set()
        self._plans: dict[str, Plan] = {}
        self._windows: dict[str, Window] = {}
        self._entered: dict[tuple[str, int], float] = {}
        """When this process first saw a later stage go on."""
        self._looked: set[tuple[str, int | None]] = set()
        """Where this process asked already what is to be measured on another machine: before a stage, or the end."""
        self._measured_on: dict[tuple[str, str], Host] = {}
        self._served: dict[str, float] = {}
        self._began = time.time()

    def tick(self) -> None:
        """Take in what has arrived, then move every open run on."""
        self._redis.set(keys.KEY, public_text(self._key))
        self._take_submissions()
        self._take_results()
        workers = presences(self._redis)
        for run_id in self.store.open_runs(self.owner):
            self._move_run(run_id, workers)

    # -- in -----------------------------------------------------------------------------------------------------

    def _take_submissions(self) -> None:
        for entry, fields in self._redis.xrange(keys.SUBMIT, count=20):
            try:
                token = fields[b"token"].decode()
                plan = unpack(fields[b"plan"], Plan)
            except (EnvelopeRefused, KeyError, UnicodeDecodeError) as error:
                _say(f"a submission was refused: {error}")
            else:
                run_id = f"{plan.created[:10].replace('-', '')}-{token[:6]}"
                # False where it is there already: we ended between its row and the end of its entry.
                if self.store.create_run(run_id, plan, self.owner) or self.store.state(run_id) is not None:
                    self._publish(run_id)
                    self._redis.set(keys.created(token), run_id, ex=3600)
                else:
                    _say("a submission was refused: its plan names a cell twice")
            self._redis.xdel(keys.SUBMIT, entry)

    def _take_results(self) -> None:
        for entry, fields in self._redis.xrange(keys.RESULTS, count=20):
            try:
                result = unseal(fields[b"envelope"].decode(), "result", CellResult)
            except (EnvelopeRefused, KeyError, UnicodeDecodeError) as error:
                _say(f"a result was refused: {error}")
            else:
                answer = self.store.accept_result(result)
                _say(f"{result.run_id} {result.cell_id} attempt {result.attempt} from {result.worker}: {answer}")
                digest = result_digest(result.run_id, result.cell_id, result.attempt)
                self._redis.set(keys.done(digest), answer, ex=KEEP_S)
                self._redis.hdel(keys.progress(result.run_id), result.cell_id)
                if answer == "counted":
                    # A later attempt that still waits in a queue is one that nobody needs to measure.
                    self._redis.set(keys.attempt(result.run_id, result.cell_id), 0, ex=KEEP_S)
            self._redis.xdel(keys.RESULTS, entry)

    # -- a run --------------------------------------------------------------------------------------------------

    def _move_run(self, run_id: str, workers: list[Presence]) -> None:
        cells = self.store.cells(run_id)
        cancelled = self._redis.get(keys.cancel(run_id))
        flight: dict[str, int] = {}
        for cell in cells:
            if cancelled and cell.state in OPEN:
                self.store.move(cell, "failed", reason=cancelled.decode())
            elif cell.state in ("queued", "running"):
                self._look_after(cell, self._able(cell, workers))
                flight[cell.capability] = flight.get(cell.capability, 0) + 1
        if not cancelled:
            for cell in self._due(run_id, workers):
                if _is_planned(cell):
                    self._dispatch(cell, workers, flight)
                else:
                    self._dispatch_elsewhere(cell, self._able(cell, workers))
        self._publish(run_id)

    def _due(self, run_id: str, workers: list[Presence]) -> list[CellRow]:
        """Return the pending cells of the stage that goes on; a later one begins when none of it is open."""
        window = self._window(run_id)

        def goes_on() -> int | None:
            return window.goes_on(cell.cell_id for cell in self.store.cells(run_id) if cell.state in OPEN)

        at = goes_on()
        if at != 0 and (run_id, at) not in self._looked:
            self._looked.add((run_id, at))
            self._confirm_elsewhere(run_id, workers)
            at = goes_on()
        if at and (run_id, at) not in self._entered:
            self._enter(run_id, at)
        return [c for c in self.store.cells(run_id) if c.state == "pending" and window.number(c.cell_id) == at]

    def _enter(self, run_id: str, number: int) -> None:
        """Show what the stages before ``number`` decided, and leave out the cells that nobody needs after it.

        A coordinator that is started again does it again, from the same results and with the same end.
        """
        from farm.judge import judge

        evidence = self.store.evidence(run_id)
        try:
            needless = skipped(evidence.plan, judge(evidence_before(evidence, number)), number)
        except Exception as error:
            # One run that cannot be judged must not stop the others; to measure it all the same is the safe side.
            _say(f"{run_id}: what came before stage {number + 1} cannot be judged, so it is measured: {error!r}")
            needless = {}
        for cell in self.store.cells(run_id):
            if cell.state == "pending" and cell.cell_id in needless:
                self.store.move(cell, SKIPPED, reason=needless[cell.cell_id])
        name = evidence.plan.stages[number].name
        _say(f"{run_id}: stage {number + 1}, {name}, begins; {len(needless)} of its cells are skipped")
        self._redis.set(keys.evidence(run_id), pack(self.store.evidence(run_id)), ex=KEEP_S)
        self._entered[run_id, number] = time.time()

    def _confirm_elsewhere(self, run_id: str, workers: list[Presence]) -> None:
        """Add the cells that failed to the run once more, for another machine of the same class, where one is up.

        A coordinator that is started again adds none twice: they are in the store by name.
        """
        from farm.judge import judge

        if len({worker.host.name for worker in workers}) < 2:
            return
        evidence = self.store.evidence(run_id)
        try:
            accused = to_confirm(judge(evidence), evidence.plan)
        except Exception as error:
            _say(f"{run_id}: it cannot be judged what is to be confirmed on another machine: {error!r}")
            return
        capabilities = {cell.id: cell.capability for cell in evidence.plan.cells}
        for cell_id in accused:
            capability = capabilities[cell_id]
            others = [worker for worker in workers if self._stands_in(worker, run_id, cell_id, capability)]
            if others and self.store.add_cell(run_id, elsewhere_id(cell_id), capability):
                _say(f"{run_id}: {cell_id} fails; it is measured again on another machine of its class")

    def _stands_in(self, worker: Presence, run_id: str, cell_id: str, capability: str) -> bool:
        """Return whether ``worker`` is on another machine of the class that ``cell_id`` was measured on."""
        key = (run_id, cell_id)
        if key not in self._measured_on:
            result = self.store.result(run_id, cell_id)
            if result is None:
                return False
            self._measured_on[key] = result.host
        return queue_of(capability) in worker.queues and same_class(self._measured_on[key], worker.host)

    def _able(self, cell: CellRow, workers: list[Presence]) -> list[Presence]:
        """Return the workers that may take ``cell``: all of its queue's, or those of another machine."""
        if _is_planned(cell):
            return workers
        original = original_id(cell.cell_id)
        return [worker for worker in workers if self._stands_in(worker, cell.run_id, original, cell.capability)]

    def _dispatch_elsewhere(self, cell: CellRow, able: list[Presence]) -> None:
        """Queue a cell for one worker of another machine, an idle one first; give it up where none is left."""
        if not able:
            if time.time() - max(cell.since, self._began) > UNSERVED_S:
                self.store.move(cell, "failed", reason="no other machine of its class is up any more")
            return
        worker = min(able, key=lambda found: bool(found.busy_cell))
        if self.store.move(cell, "queued", attempt=cell.attempt + 1, worker=""):
            self._send(cell, cell.attempt + 1, queue_to(worker.worker))

    def _dispatch(self, cell: CellRow, workers: list[Presence], flight: dict[str, int]) -> None:
        """Queue a cell where a live worker will take it soon; the rest waits here, where it can be counted."""
        queue = queue_of(cell.capability)
        consumers = sum(queue in worker.queues for worker in workers)
        if not consumers:
            window = self._window(cell.run_id)
            number = window.number(cell.cell_id)
            entered = self._entered.get((cell.run_id, number), 0.0)
            since = max(self._served.get(queue, 0.0), cell.since, self._began, entered)
            # A window of weeks sees machines come and go: there the planned days are what a cell waits.
            days = window.stages[number].days if window.stages else None
            if time.time() - since > (days * 86400 if days else UNSERVED_S):
                self.store.move(cell, "failed", reason=f"no worker for queue '{queue}'")
            return
        self._served[queue] = time.time()
        if flight.get(cell.capability, 0) >= 2 * consumers:
            return
        if self.store.move(cell, "queued", attempt=cell.attempt + 1, worker=""):
            flight[cell.capability] = flight.get(cell.capability, 0) + 1
            self._send(cell, cell.attempt + 1, queue)

    def _send(self, row: CellRow, attempt: int, queue: str) -> None:
        plan = self._plan(row.run_id)
        planned = next(cell for cell in plan.cells if cell.id == original_id(row.cell_id))
        cell = planned.model_copy(update={"id": row.cell_id})
        used = {key for arm in cell.arms for key in arm.environments.values()}
        order = CellOrder(
            run_id=row.run_id,
            attempt=attempt,
            cell=cell,
            environments={key: value for key, value in plan.environments.items() if key in used},
            refused=plan.refused,
            source=plan.sources.get(cell.workload),
        )
        self._redis.set(keys.attempt(row.run_id, row.cell_id), attempt, ex=KEEP_S)
        self._sender(queue).send_task(TASK, args=[seal("order", order, self._key)], queue=queue)

    def _sender(self, queue: str) -> Celery:
        if self._celery is None or queue not in self._queues:
            self._queues.add(queue)
            self._celery = make_celery(self._url, sorted(self._queues), "aggregator")
        return self._celery

    def _look_after(self, cell: CellRow, workers: list[Presence]) -> None:
        """Follow a cell that is out: claimed, given back, lost with its worker, or lost on the way."""
        holder = next(
            (
                w
                for w in workers
                if (w.busy_run, w.busy_cell, w.busy_attempt) == (cell.run_id, cell.cell_id, cell.attempt)
            ),
            None,
        )
        age = time.time() - cell.since
        given_back = self._redis.get(keys.back(cell.run_id, cell.cell_id))
        if given_back and int(given_back) == cell.attempt:
            self.store.move(cell, "pending", worker="")
        elif holder is not None:
            if cell.state == "queued":
                self.store.move(cell, "running", worker=holder.worker)
            elif age > GRACE_S / 2:
                self.store.move(cell, "running")
        elif cell.state == "running" and age > GRACE_S:
            self._lost(cell, f"worker '{cell.worker}' is gone or dropped it")
        elif cell.state == "queued" and age > VANISHED_S and self._idle(cell, workers):
            self._vanished(cell)

    @staticmethod
    def _idle(cell: CellRow, workers: list[Presence]) -> bool:
        queue = queue_of(cell.capability)
        able = [worker for worker in workers if queue in worker.queues]
        return not able or any(not worker.busy_cell for worker in able)

    def _lost(self, cell: CellRow, why: str) -> None:
        lost = cell.lost + 1
        _say(f"{cell.run_id} {cell.cell_id} attempt {cell.attempt} is lost: {why}")
        self._redis.hdel(keys.progress(cell.run_id), cell.cell_id)
        if lost >= MAX_LOST:
            self.store.move(cell, "failed", lost=lost, reason=f"lost {lost} times, last: {why}")
        else:
            self.store.move(cell, "pending", lost=lost, worker="")

    def _vanished(self, cell: CellRow) -> None:
        where = f"{cell.run_id} {cell.cell_id} attempt {cell.attempt}"
        if cell.attempt < MAX_ATTEMPTS:
            _say(f"{where} vanished on its way; it is sent again")
            self.store.move(cell, "pending", worker="")
            return
        queue = queue_of(cell.capability)
        _say(f"{where} is given up")
        reason = f"sent {cell.attempt} times and never taken; restart the workers of queue '{queue}'"
        self.store.move(cell, "failed", reason=reason)

    # -- out ----------------------------------------------------------------------------------------------------

    def _publish(self, run_id: str) -> None:
        """Close the run where nothing is open, and tell who follows it."""
        cells = self.store.cells(run_id)
        if all(cell.state not in OPEN for cell in cells):
            # What another machine did not answer leaves the first answer as it is.
            failed = any(cell.state == "failed" and _is_planned(cell) for cell in cells)
            self.store.finish(run_id, RunState.INCOMPLETE if failed else RunState.COMPLETE)
            self._redis.set(keys.evidence(run_id), pack(self.store.evidence(run_id)), ex=KEEP_S)
        shown = json.dumps([[cell.cell_id, cell.state, cell.reason] for cell in cells])
        self._redis.set(keys.cells(run_id), shown, ex=KEEP_S)
        standing = self._window(run_id).standing({cell.cell_id: cell.state not in OPEN for cell in cells})
        for row in self.store.runs(run_id):
            shown = row.model_copy(update={"standing": standing}).model_dump_json()
            self._redis.set(keys.run(run_id), shown, ex=KEEP_S)

    def _window(self, run_id: str) -> Window:
        if run_id not in self._windows:
            self._windows[run_id] = window_of(self.store.plan(run_id))
        return self._windows[run_id]

    def _plan(self, run_id: str) -> Plan:
        if run_id not in self._plans:
            self._plans = {run_id: self.store.plan(run_id)}
        return self._plans[run_id]


def _is_planned(cell: CellRow) -> bool:
    return original_id(cell.cell_id) == cell.cell_id


def _say(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stderr.flush()


def main() -> int:
    """Run until SIGTERM; a server that is away is waited for."""
    url = os.environ.get("FARM_URL", "")
    try:
        aggregator = Aggregator(Home.default().prepare(), url, os.environ.get("FARM_OWNER", "coordinator"))
    except FarmError as error:
        _say(str(error))
        return error.exit_code
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    while not stopping:
        try:
            aggregator.tick()
        except (redis.RedisError, OperationalError, OSError) as error:
            # kombu's own error is neither of the others: a server that went while an order was being sent.
            _say(f"the server is away: {error}")
            time.sleep(1.0)
        except DBAPIError as error:
            # Nothing is lost: what was not committed stays in the streams and in the workers' outboxes.
            _say(f"the store cannot be written, see whether the disk is full: {error.orig}")
            return EXIT_INFRASTRUCTURE
        time.sleep(TICK_S)
    aggregator.store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
