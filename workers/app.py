"""The worker's Celery application: one task, one cell at a time, whatever else the machine runs."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import redis
from celery import Celery

from farm.broker import keys
from farm.broker.celery_app import TASK, make_celery
from farm.broker.client import Presence
from farm.capability import closure, queue_of, queue_to
from farm.envelope import EnvelopeRefused, load_key, public_text, unseal
from farm.model import CellOrder, CellResult, Host, Progress, Validity
from farm.settings import Home
from workers.lease import machine_lease
from workers.outbox import Outbox

__all__ = ["CellRunner", "Desk", "make_app", "say"]

CellRunner = Callable[..., CellResult]

PRESENCE_S = 3.0
PRESENCE_LIFE_S = 10


class Desk:
    """What a worker holds: its identity, its outbox, and the cell that it is at."""

    def __init__(self, url: str, home: Home, name: str, host: Host, run_cell: CellRunner, version: str) -> None:
        self.home, self.name, self.host, self.version = home, name, host, version
        self.queues = tuple(queue_of(capability) for capability in closure(host.capabilities))
        self.redis: Any = redis.Redis.from_url(url, socket_timeout=10, health_check_interval=10)
        self.stopping = threading.Event()
        self._key = load_key(home.keys, "worker")
        self._outbox = Outbox(home.outbox, self._key)
        self._run_cell = run_cell
        self._since = time.time()
        self._busy: CellOrder | None = None
        self._given_up = ""
        """A run that was cancelled while a cell of it was in work, as the presence last saw it."""
        self._trusted: str | None = None
        self._is_away = False

    # -- being there --------------------------------------------------------------------------------------------

    def beat(self) -> None:
        """Say that this worker is there and send what waits in the outbox, until `stopping`."""
        while not self.stopping.is_set():
            self.show()
            self.stopping.wait(PRESENCE_S)

    def show(self) -> None:
        """Renew the presence once; a server that is away is met again next time."""
        busy = self._busy
        presence = Presence(
            worker=self.name,
            host=self.host,
            queues=self.queues,
            public_key=public_text(self._key),
            busy_run=busy.run_id if busy else "",
            busy_cell=busy.cell.id if busy else "",
            busy_attempt=busy.attempt if busy else 0,
            version=self.version,
            since=self._since,
        )
        try:
            self.redis.set(keys.presence(self.name), presence.model_dump_json(), ex=PRESENCE_LIFE_S)
            if busy is not None and self.redis.exists(keys.cancel(busy.run_id)):
                self._given_up = busy.run_id
            self._outbox.flush(self.redis)
        except (redis.RedisError, OSError) as error:
            self._away(error)
        else:
            if self._is_away:
                self._is_away = False
                say("the server is back")

    def _away(self, error: Exception) -> None:
        """Say once that the server is away; a cell in work goes on, and its result waits in the outbox."""
        if not self._is_away:
            self._is_away = True
            say(f"the server is away, waiting for it: {error}")

    def leave(self) -> None:
        """Give back what is in work and say that this worker is gone."""
        self.stopping.set()
        busy = self._busy
        say(f"leaving; {busy.cell.id} is given back" if busy else "leaving")
        try:
            if busy is not None:
                self.redis.set(keys.back(busy.run_id, busy.cell.id), busy.attempt, ex=3600)
            self.redis.delete(keys.presence(self.name))
        except redis.RedisError as error:
            self._away(error)

    # -- one cell -----------------------------------------------------------------------------------------------

    def work(self, envelope: str) -> str:
        """Measure the cell in ``envelope``; return in one word what became of it."""
        try:
            order = unseal(envelope, "order", CellOrder, self._coordinator())
        except EnvelopeRefused as error:
            say(f"an order was refused: {error}")
            return "refused"
        current = self.redis.get(keys.attempt(order.run_id, order.cell.id))
        if current is not None and int(current) != order.attempt:
            return "stale"
        if self._cancelled(order.run_id):
            return "cancelled"
        self._busy = order
        self.show()
        began = time.monotonic()
        say(f"{order.run_id} {order.cell.id}: attempt {order.attempt}")
        try:
            result = self._measure(order)
            if result is None:
                say(f"{order.run_id} {order.cell.id}: given up, the run was cancelled")
                return "abandoned"
            say(f"{order.run_id} {order.cell.id}: measured in {time.monotonic() - began:.0f} s")
            self._outbox.put(result)
            self._outbox.flush(self.redis)
        finally:
            self._busy = None
            if not self.stopping.is_set():
                self.show()
        return "sent"

    def _measure(self, order: CellOrder) -> CellResult | None:
        began = time.monotonic()

        def report(progress: Progress) -> None:
            try:
                self.redis.hset(keys.progress(order.run_id), order.cell.id, progress.model_dump_json())
            except redis.RedisError as error:
                self._away(error)

        def waiting() -> None:
            report(
                Progress(
                    run_id=order.run_id,
                    cell_id=order.cell.id,
                    attempt=order.attempt,
                    worker=self.name,
                    phase="waiting for the machine",
                    elapsed_s=time.monotonic() - began,
                )
            )

        def cancelled() -> bool:
            # The presence asks the server, in its own thread: one that does not answer would hold up every block.
            return self.stopping.is_set() or self._given_up == order.run_id

        with machine_lease(waiting, cancelled) as lease:
            if lease is None:
                return None
            try:
                result = self._run_cell(order, self.home, report, lease, cancelled, worker=self.name)
            except Exception as error:
                # Whatever breaks the worker itself is said in the cell: never a cell without an answer.
                say(traceback.format_exc())
                result = self._broken(order, error, began)
        return None if cancelled() else result

    def _broken(self, order: CellOrder, error: Exception, began: float) -> CellResult:
        return CellResult(
            run_id=order.run_id,
            cell_id=order.cell.id,
            attempt=order.attempt,
            worker=self.name,
            host=self.host,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            validity=Validity(valid=False, reasons=(f"worker error: {type(error).__name__}: {error}",)),
            arms={},
            wall_ns=round((time.monotonic() - began) * 1e9),
        )

    def _cancelled(self, run_id: str) -> bool:
        try:
            return bool(self.redis.exists(keys.cancel(run_id)))
        except redis.RedisError:
            # A measurement goes on while the server is away; its result waits in the outbox.
            return False

    def _coordinator(self) -> str | None:
        """Return the coordinator's key: the first that this worker saw there."""
        if self._trusted is None:
            found = self.redis.get(keys.KEY)
            self._trusted = found.decode() if found else None
        return self._trusted


def make_app(url: str, desk: Desk) -> Celery:
    """Return the Celery application that hands every order to ``desk``."""
    # What only this worker can answer goes first: somebody waits for it to end a run.
    app = make_celery(url, (queue_to(desk.name), *desk.queues), desk.name)

    @app.task(name=TASK)
    def cell(envelope: str) -> str:
        return desk.work(envelope)

    return app


def say(line: str) -> None:
    """Write one line of a worker's log, which is its terminal."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stderr.flush()
