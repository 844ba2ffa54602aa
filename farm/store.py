"""The truth: runs, cells with their attempts, one counted result a cell; append-only where it is evidence.

SQLite by default, any database that SQLAlchemy speaks by its URL.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Column,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    cast,
    create_engine,
    event,
    exists,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError, IntegrityError

from farm.elsewhere import original_id
from farm.envelope import pack, unpack
from farm.errors import InfrastructureFailed, UsageError
from farm.model import CellResult, Evidence, Plan, RunRow, RunState
from farm.settings import Home
from farm.stages import window_of

__all__ = ["OPEN", "SKIPPED", "CellRow", "Store"]

#: Of the tables below; a store with another one is refused with words.
STORE_VERSION = 1
#: States of a cell that still waits for its result.
OPEN = ("pending", "queued", "running")
#: State of a cell that an earlier stage made needless: the run is complete without it.
SKIPPED = "skipped"
#: Two that make one new database get in each other's way, in these words; the second tries again and finds it made.
CONTENDED = ("already exists", "locked")
OPENING_TRIES = 20
#: Position of a cell that was not planned: after all that were.
ADDED = 2**31 - 1

metadata = MetaData()
version_table = Table("version", metadata, Column("version", Integer))
run_table = Table(
    "run",
    metadata,
    Column("id", String, primary_key=True),
    Column("owner", String),
    Column("state", String),
    Column("created", String),
    Column("candidate", String),
    Column("baseline", String),
    Column("plan", LargeBinary),
)
cell_table = Table(
    "cell",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("cell_id", String, primary_key=True),
    Column("capability", String),
    Column("position", Integer),
    Column("state", String),
    Column("attempt", Integer),
    Column("lost", Integer),
    Column("worker", String),
    Column("since", Float),
    Column("reason", String),
)
result_table = Table(
    "result",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("cell_id", String, primary_key=True),
    Column("attempt", Integer),
    Column("payload", LargeBinary),
)
extra_table = Table(
    "extra",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("digest", String, unique=True),
    Column("run_id", String),
    Column("payload", LargeBinary),
)


@dataclass(frozen=True)
class CellRow:
    """A cell of a run: pending, queued, running, done, failed or skipped."""

    run_id: str
    cell_id: str
    capability: str
    state: str
    attempt: int
    lost: int
    worker: str
    since: float
    reason: str


class Store:
    """The coordinator's database. Raises InfrastructureFailed where the disk or the database fails."""

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url)
        if self._engine.dialect.name == "sqlite":
            event.listen(self._engine, "connect", _careful)
        for left in reversed(range(OPENING_TRIES)):
            try:
                found = self._prepare()
            except DBAPIError as error:
                if not left or not any(words in str(error.orig) for words in CONTENDED):
                    raise InfrastructureFailed(
                        f"the store '{url}' cannot be opened: {error.orig}; is the disk full or its folder read-only?"
                    ) from error
                time.sleep(0.05)
            else:
                break
        if found != STORE_VERSION:
            raise InfrastructureFailed(f"the store '{url}' has version {found}, this farm reads {STORE_VERSION}")

    def _prepare(self) -> int:
        """Make what is missing; return the version of what is there."""
        metadata.create_all(self._engine)
        with self._engine.begin() as connection:
            found: int | None = connection.execute(select(version_table.c.version)).scalar()
            if found is None:
                connection.execute(insert(version_table).values(version=STORE_VERSION))
                found = STORE_VERSION
        return found

    @classmethod
    def open(cls, home: Home) -> Store:
        """Return the store of ``home``."""
        home.root.mkdir(parents=True, exist_ok=True)
        return cls(f"sqlite:///{home.database}")

    def close(self) -> None:
        self._engine.dispose()

    def create_run(self, run_id: str, plan: Plan, owner: str = "") -> bool:
        """Write the run with all its cells pending; False where it is there already."""
        names = [plan.requested.get(side, "") for side in ("candidate", "baseline")]
        try:
            with self._engine.begin() as connection:
                connection.execute(
                    insert(run_table).values(
                        id=run_id,
                        owner=owner,
                        state=RunState.RUNNING.value,
                        created=plan.created,
                        candidate=names[0],
                        baseline=names[1],
                        plan=pack(plan),
                    )
                )
                rows = [
                    {
                        "run_id": run_id,
                        "cell_id": cell.id,
                        "capability": cell.capability,
                        "position": position,
                        "state": "pending",
                        "attempt": 0,
                        "lost": 0,
                        "worker": "",
                        "since": time.time(),
                        "reason": "",
                    }
                    for position, cell in enumerate(plan.cells)
                ]
                if rows:
                    connection.execute(insert(cell_table), rows)
        except IntegrityError:
            return False
        return True

    def open_runs(self, owner: str) -> list[str]:
        """Return the runs of ``owner`` that are not over, the oldest first."""
        found = select(run_table.c.id).where(run_table.c.owner == owner, run_table.c.state == RunState.RUNNING.value)
        with self._engine.connect() as connection:
            return [row.id for row in connection.execute(found.order_by(run_table.c.created, run_table.c.id))]

    def plan(self, run_id: str) -> Plan:
        """Return the frozen plan of a run. Raises UsageError for an unknown one, naming the newest."""
        with self._engine.connect() as connection:
            row = connection.execute(select(run_table.c.plan).where(run_table.c.id == run_id)).first()
        if row is None:
            newest = ", ".join(run.run_id for run in self.runs()[:3]) or "none yet"
            raise UsageError(f"there is no run '{run_id}'; the newest are: {newest}")
        return unpack(row.plan, Plan)

    def cells(self, run_id: str) -> list[CellRow]:
        """Return every cell of a run in the plan's order."""
        columns = [cell_table.c[name] for name in CellRow.__dataclass_fields__]
        query = select(*columns).where(cell_table.c.run_id == run_id).order_by(cell_table.c.position)
        with self._engine.connect() as connection:
            return [CellRow(**row._mapping) for row in connection.execute(query)]

    def add_cell(self, run_id: str, cell_id: str, capability: str) -> bool:
        """Add a cell that follows from what was found to an open run, pending; False where it is there already."""
        row = {
            "run_id": run_id,
            "cell_id": cell_id,
            "capability": capability,
            "position": ADDED,
            "state": "pending",
            "attempt": 0,
            "lost": 0,
            "worker": "",
            "since": time.time(),
            "reason": "",
        }
        try:
            with self._engine.begin() as connection:
                connection.execute(insert(cell_table), [row])
        except IntegrityError:
            return False
        return True

    def result(self, run_id: str, cell_id: str) -> CellResult | None:
        """Return the result that counts for a cell; None where there is none."""
        query = select(result_table.c.payload).where(result_table.c.run_id == run_id, result_table.c.cell_id == cell_id)
        with self._engine.connect() as connection:
            row = connection.execute(query).first()
        return unpack(row.payload, CellResult) if row is not None else None

    def move(self, cell: CellRow, state: str, **values: Any) -> bool:
        """Move a cell on, if it still is where ``cell`` saw it: two aggregators never both do."""
        query = (
            update(cell_table)
            .where(
                cell_table.c.run_id == cell.run_id,
                cell_table.c.cell_id == cell.cell_id,
                cell_table.c.state == cell.state,
                cell_table.c.attempt == cell.attempt,
            )
            .values(state=state, since=time.time(), **values)
        )
        with self._engine.begin() as connection:
            return connection.execute(query).rowcount == 1

    def accept_result(self, result: CellResult) -> str:
        """Count ``result`` if its cell is undecided: "counted"; else keep it: "extra"; or "refused: reason".

        Finished work of an older attempt counts too while the cell is open: it is never thrown away.
        """
        payload = pack(result)
        where = (cell_table.c.run_id == result.run_id) & (cell_table.c.cell_id == result.cell_id)
        # To close the cell comes first: of two that bring a result at once, only one sees it open.
        running = exists().where(run_table.c.id == result.run_id, run_table.c.state == RunState.RUNNING.value)
        # A cell that was given up as lost is undecided for as long as its run is open (CASES.md Q4).
        undecided = cell_table.c.state.in_(OPEN) | (
            (cell_table.c.state == "failed") & (cell_table.c.lost > 0) & running
        )
        close = update(cell_table).where(where, undecided, cell_table.c.attempt >= result.attempt)
        with self._engine.begin() as connection:
            values = {"state": "done", "worker": result.worker, "since": time.time(), "reason": ""}
            if result.attempt > 0 and connection.execute(close.values(values)).rowcount == 1:
                connection.execute(
                    insert(result_table).values(
                        run_id=result.run_id, cell_id=result.cell_id, attempt=result.attempt, payload=payload
                    )
                )
                return "counted"
            row = connection.execute(select(cell_table.c.attempt).where(where)).first()
            if row is None:
                return f"refused: run '{result.run_id}' has no cell '{result.cell_id}'"
            if not 0 < result.attempt <= row.attempt:
                return f"refused: attempt {result.attempt} was never given out"
            counted = connection.execute(
                select(result_table.c.payload).where(
                    result_table.c.run_id == result.run_id, result_table.c.cell_id == result.cell_id
                )
            ).first()
            if counted is not None and counted.payload == payload:
                return "extra"
            digest = result.digest()
            known = connection.execute(select(extra_table.c.id).where(extra_table.c.digest == digest)).first()
            if known is None:
                connection.execute(insert(extra_table).values(digest=digest, run_id=result.run_id, payload=payload))
            return "extra"

    def end_runs(self, which: Callable[[str], bool], reason: str) -> list[str]:
        """Close as incomplete every open run of an owner that ``which`` accepts; return their ids."""
        running = select(run_table.c.id, run_table.c.owner).where(run_table.c.state == RunState.RUNNING.value)
        with self._engine.begin() as connection:
            ended = [row.id for row in connection.execute(running) if which(row.owner)]
            for run_id in ended:
                mine = (cell_table.c.run_id == run_id) & cell_table.c.state.in_(OPEN)
                connection.execute(update(cell_table).where(mine).values(state="failed", reason=reason))
                connection.execute(
                    update(run_table).where(run_table.c.id == run_id).values(state=RunState.INCOMPLETE.value)
                )
        return ended

    def finish(self, run_id: str, state: RunState) -> None:
        """Close a run."""
        query = update(run_table).where(run_table.c.id == run_id, run_table.c.state == RunState.RUNNING.value)
        with self._engine.begin() as connection:
            connection.execute(query.values(state=state.value))

    def state(self, run_id: str) -> RunState | None:
        with self._engine.connect() as connection:
            found = connection.execute(select(run_table.c.state).where(run_table.c.id == run_id)).scalar()
        return RunState(found) if found else None

    def evidence(self, run_id: str) -> Evidence:
        """Return everything behind a run's figures."""
        plan = self.plan(run_id)
        results = select(result_table.c.payload).where(result_table.c.run_id == run_id)
        extras = select(extra_table.c.payload).where(extra_table.c.run_id == run_id).order_by(extra_table.c.id)
        with self._engine.connect() as connection:
            found = [unpack(row.payload, CellResult) for row in connection.execute(results)]
            late = [unpack(row.payload, CellResult) for row in connection.execute(extras)]
        order = {cell.id: position for position, cell in enumerate(plan.cells)}
        cells, window = [cell for cell in self.cells(run_id) if cell.cell_id in order], window_of(plan)
        elsewhere = [
            one.model_copy(update={"cell_id": original_id(one.cell_id)}) for one in found if one.cell_id not in order
        ]
        found = [one for one in found if one.cell_id in order]
        at = window.goes_on(cell.cell_id for cell in cells if cell.state in OPEN)

        def why(cell: CellRow) -> str:
            number = window.number(cell.cell_id)
            if not cell.reason and cell.state in OPEN and at is not None and number > at:
                return f"stage {number + 1} of {len(window.stages)}, {window.stages[number].name}, has not begun"
            return cell.reason or f"{cell.state}, not finished"

        return Evidence(
            run_id=run_id,
            state=self.state(run_id) or RunState.INCOMPLETE,
            plan=plan,
            results=tuple(sorted(found, key=lambda result: order.get(result.cell_id, 0))),
            extras=tuple(late),
            elsewhere=tuple(sorted(elsewhere, key=lambda result: order.get(result.cell_id, 0))),
            unfinished={cell.cell_id: why(cell) for cell in cells if cell.state not in ("done", SKIPPED)},
            still_open=tuple(cell.cell_id for cell in cells if cell.state in OPEN),
            skipped={cell.cell_id: cell.reason for cell in cells if cell.state == SKIPPED},
        )

    def runs(self, run_id: str | None = None) -> list[RunRow]:
        """Return all runs, the newest first, or ``run_id`` alone."""
        wanted = select(run_table).order_by(run_table.c.created.desc(), run_table.c.id)
        done = cell_table.c.state == "done"
        cells = select(cell_table.c.run_id, func.count(), func.sum(cast(done, Integer))).group_by(cell_table.c.run_id)
        if run_id is not None:
            wanted = wanted.where(run_table.c.id == run_id)
            cells = cells.where(cell_table.c.run_id == run_id)
        with self._engine.connect() as connection:
            rows = connection.execute(wanted).all()
            counts = {name: (finished or 0, total) for name, total, finished in connection.execute(cells)}
        return [
            RunRow(
                run_id=row.id,
                state=RunState(row.state),
                created=row.created,
                candidate=row.candidate,
                baseline=row.baseline,
                done=counts.get(row.id, (0, 0))[0],
                total=counts.get(row.id, (0, 0))[1],
            )
            for row in rows
        ]


def _careful(connection: Any, _: Any) -> None:
    """Write-ahead log, and a commit that is on the disk when it returns."""
    cursor = connection.cursor()
    for setting in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=10000"):
        cursor.execute(f"PRAGMA {setting}")
    cursor.close()
