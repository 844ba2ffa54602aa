"""What a submitter and a reader ask of a farm."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import redis
from pydantic import ValidationError

from farm.broker import keys
from farm.envelope import RESULTS_IN_A_RUN, pack, unpack
from farm.errors import InfrastructureFailed, UsageError
from farm.installer import redact
from farm.model import Evidence, Host, Model, Plan, Progress, RunRow, RunState

__all__ = ["CellState", "FarmClient", "Presence"]

ANSWER_S = 20.0


class Presence(Model):
    """What a worker says of itself every few seconds."""

    worker: str
    host: Host
    queues: tuple[str, ...]
    public_key: str
    busy_run: str = ""
    busy_cell: str = ""
    busy_attempt: int = 0
    version: str
    since: float


class CellState(NamedTuple):
    """Where a cell of a run is: pending, queued, running, done or failed."""

    cell_id: str
    state: str
    reason: str


class FarmClient:
    """A farm by its address. Raises InfrastructureFailed in one line where it does not answer."""

    def __init__(self, url: str) -> None:
        self._shown = redact(url)
        try:
            self._redis: Any = redis.Redis.from_url(url, socket_timeout=10, socket_connect_timeout=5)
        except ValueError as error:
            raise UsageError(f"FARM_URL '{self._shown}' is not an address: {error}; write redis://…") from error

    def submit(self, plan: Plan) -> str:
        """Hand ``plan`` over; return the run's id once the aggregator has written it down."""
        token = secrets.token_hex(8)
        with self._asking():
            self._redis.xadd(keys.SUBMIT, {"token": token, "plan": pack(plan)})
            deadline = time.monotonic() + ANSWER_S
            while time.monotonic() < deadline:
                found = self._redis.get(keys.created(token))
                if found:
                    return _text(found)
                time.sleep(0.05)
        raise InfrastructureFailed(f"no aggregator answers at {self._shown}; start one there: farm up")

    def runs(self) -> list[RunRow]:
        """Return the farm's runs, the newest first."""
        with self._asking():
            found = [self._redis.get(key) for key in self._redis.scan_iter(match=keys.run("*"), count=1000)]
        rows = [RunRow.model_validate_json(raw) for raw in found if raw]
        return sorted(rows, key=lambda row: (row.created, row.run_id), reverse=True)

    def run(self, run_id: str) -> RunRow | None:
        """Return a run as it stands in the list; None for one that the farm does not know."""
        with self._asking():
            found = self._redis.get(keys.run(run_id))
        return RunRow.model_validate_json(found) if found else None

    def state(self, run_id: str) -> RunState | None:
        found = self.run(run_id)
        return found.state if found else None

    def cells(self, run_id: str) -> list[CellState]:
        """Return every cell of a run in the plan's order."""
        with self._asking():
            found = self._redis.get(keys.cells(run_id))
        return [CellState(*entry) for entry in json.loads(found)] if found else []

    def progress(self, run_id: str) -> list[Progress]:
        """Return where workers stand with the cells that they have."""
        with self._asking():
            found = self._redis.hvals(keys.progress(run_id))
        return [Progress.model_validate_json(entry) for entry in found]

    def evidence_so_far(self, run_id: str) -> Evidence | None:
        """Return the newest evidence that the coordinator gave out: of a run in stages after each; None before."""
        with self._asking():
            found = self._redis.get(keys.evidence(run_id))
        return unpack(bytes(found), Evidence, RESULTS_IN_A_RUN) if found else None

    def evidence(self, run_id: str) -> Evidence:
        """Return the evidence of a run that is over."""
        with self._asking():
            deadline = time.monotonic() + ANSWER_S
            while time.monotonic() < deadline:
                found = self._redis.get(keys.evidence(run_id))
                if found:
                    return unpack(bytes(found), Evidence, RESULTS_IN_A_RUN)
                if not self._redis.exists(keys.run(run_id)):
                    break
                time.sleep(0.1)
        raise UsageError(f"the farm at {self._shown} has no evidence of a run '{run_id}'; see: farm status")

    def cancel(self, run_id: str, reason: str) -> None:
        with self._asking():
            self._redis.set(keys.cancel(run_id), reason, ex=7 * 86400)

    def presences(self) -> list[Presence]:
        """Return the workers that are up."""
        with self._asking():
            return presences(self._redis)

    def queue_lengths(self, queues: list[str]) -> dict[str, int]:
        with self._asking():
            return {queue: int(self._redis.llen(keys.PREFIX + queue)) for queue in queues}

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as error:
            words = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InfrastructureFailed(f"the farm at {self._shown} does not answer: {words}") from error


def presences(connection: Any) -> list[Presence]:
    """Return what every live worker says of itself."""
    found = []
    for key in connection.scan_iter(match=keys.presence("*"), count=1000):
        raw = connection.get(key)
        if raw:
            try:
                found.append(Presence.model_validate_json(raw))
            except ValidationError:
                # A worker of another version: it gets no work that it could not understand.
                continue
    return sorted(found, key=lambda presence: presence.worker)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
