"""A run as a whole: where it stands, and everything behind its figures."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from farm.model.plan import Plan
from farm.model.result import CellResult
from farm.model.words import SCHEMA_VERSION, Model


class RunState(StrEnum):
    RUNNING = "running"
    COMPLETE = "complete"
    INCOMPLETE = "incomplete"


class Standing(Model):
    """Where the window of a run in stages stands."""

    number: int
    """Of the stage that goes on, counted from 1; of the last one where the run is over."""
    stages: int
    name: str
    done: int
    """Cells of that stage that are over."""
    total: int
    days: int | None = None
    """Planned length of all stages together."""


class RunRow(Model):
    """A run in a list."""

    run_id: str
    state: RunState
    created: str
    candidate: str
    baseline: str
    done: int
    """Cells with a result."""
    total: int
    standing: Standing | None = None
    """None where the run has no stages."""


class Evidence(Model):
    """Everything behind a run's figures: enough to judge it again."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    state: RunState
    plan: Plan
    results: tuple[CellResult, ...]
    extras: tuple[CellResult, ...] = ()
    """Results that arrived after their cell was decided: kept, never counted."""
    elsewhere: tuple[CellResult, ...] = ()
    """Answers of another machine of the same class to cells that failed, by the planned cell's id: kept beside."""
    unfinished: dict[str, str] = Field(default_factory=dict)
    """Cells without a result, with the reason."""
    still_open: tuple[str, ...] = ()
    """Those of them that wait or are measured: a run that goes on."""
    skipped: dict[str, str] = Field(default_factory=dict)
    """Cells of a later stage that nobody needed after an earlier one, with the reason: the run is complete without."""

    def without_result(self, cell_id: str) -> tuple[str, str]:
        """Return "skipped" or "not run" for ``cell_id``, which has no result, and the reason, "" where none is known.

        What a run left out on purpose is skipped; what it wanted and has not got was not run.
        """
        if cell_id in self.skipped:
            return "skipped", self.skipped[cell_id]
        return "not run", self.unfinished.get(cell_id, "")

    def why_no_result(self, cell_id: str) -> str:
        """Return why ``cell_id`` has no result, "not run: no worker for bench.cpu"."""
        return ": ".join(part for part in self.without_result(cell_id) if part)


class Progress(Model):
    """Where a worker stands with a cell: what `farm watch` shows."""

    run_id: str
    cell_id: str
    attempt: int
    worker: str
    phase: str
    """"environments", "examine", "compile", "measure", "confirm", "as it comes", "rehearse"."""
    arm: str = ""
    restart: int = 0
    restarts: int = 0
    ratio: float | None = None
    """Of the medians so far, the first challenger over its reference."""
    interval: tuple[float, float] | None = None
    """Of that ratio; None while there are too few restarts for one."""
    limit: float | None = None
    """The limit that it is nearest to."""
    elapsed_s: float
    remaining_s: float | None = None
