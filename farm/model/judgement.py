"""What is made of plan and results: figures, verdicts, decisions."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from farm.model.words import SCHEMA_VERSION, Backend, Decision, Gate, Model, Question, Status, Track


class Figure(Model):
    """A number with its interval and the limit that it is held against."""

    name: str
    """"p50 ratio", "peak memory ratio"."""
    value: float
    low: float | None = None
    high: float | None = None
    limit: float | None = None
    unit: str = ""
    """"" for a ratio, else "s", "bytes"."""


class Verdict(Model):
    """A gate's answer for one tier."""

    gate: Gate
    status: Status
    reason: str
    figure: Figure | None = None
    others: tuple[Figure, ...] = ()


class CellVerdicts(Model):
    """Every gate's verdict on one question of one cell, for one tier."""

    cell_id: str
    workload: str
    case: str
    backend: Backend
    track: Track
    production_shape: bool
    question: Question
    arm: str
    reference: str
    tier: str
    caveats: tuple[str, ...] = ()
    broken_control: str | None = None
    verdicts: tuple[Verdict, ...]


class DecisionRow(Model):
    """What one workload (or one path of it) on one backend should do, for one tier."""

    question: Question
    workload: str
    path: str
    backend: Backend
    tier: str
    decision: Decision
    would: Decision | None = None
    """What it would have been, had the production shapes been measured."""
    decided_by: Gate | None
    """None where no gate decided: production shapes untested, no worker."""
    cell_id: str | None
    reason: str
    figure: Figure | None = None
    would_change: str
    """What would change the decision."""
    warnings: tuple[str, ...] = ()


class TierDecision(Model):
    """The worst of the rows that a tier requires."""

    tier: str
    decision: Decision
    would: Decision | None = None
    reason: str
    keep_apart: tuple[str, ...] = ()


class StageTier(Model):
    """What a stage said of a tier, with all that the stages before it had found."""

    tier: str
    decision: Literal["go on", "end", "go back", "stay", "untested"]
    """"end": no later stage is measured for it; "go back" and "stay" are for what is in service."""
    reason: str


class StageDecision(Model):
    """Where a stage stands and what it decided."""

    name: str
    cells: int
    done: int
    """With a result."""
    given_up: int
    """Without one, and over."""
    left_out: int
    """Not measured, because an earlier stage ended every tier that they were for."""
    tiers: tuple[StageTier, ...]
    """Empty until all of its cells are over."""

    @property
    def over(self) -> bool:
        return self.done + self.given_up + self.left_out == self.cells


class Coverage(Model):
    """How much was compared, before any decision is read."""

    cells: int
    comparable: int
    invalid: int
    missing_on_candidate: int
    missing_on_baseline: int
    not_run: int
    untested_backends: dict[str, str]


class FalseAlarms(Model):
    """What the A/A cells of a run say of its own measuring."""

    cells: int
    """A/A cells with a valid answer."""
    failed: int
    """Of them with a gate that failed: false accusations."""
    changed: int
    """Of them whose interval of the median leaves 1 out."""
    on_record: int
    """Earlier A/A ratios of these cases on these machines."""
    on_record_beyond: int
    """Of them beyond the tightest limit of the run."""


class Judgement(Model):
    """One application of one set of thresholds to stored evidence."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    plan_digest: str
    matrix_digest: str
    """Of the matrix whose limits judge: the plan's own, or the one that was named afterwards."""
    registered: bool = True
    """These limits were frozen in the plan before the first cell ran."""
    coverage: Coverage
    cells: tuple[CellVerdicts, ...]
    rows: tuple[DecisionRow, ...]
    tiers: tuple[TierDecision, ...]
    stages: tuple[StageDecision, ...] = ()
    """In the plan's order; empty where it has none."""
    alarms: tuple[str, ...] = ()
    false_alarms: FalseAlarms | None = None
    """None where no A/A cell was planned."""
    unstable: dict[str, str] = Field(default_factory=dict)
    """Cells whose own A/A history is wider than a limit that judges them, with that history in words."""


class Flip(Model):
    """Something that other limits answer otherwise."""

    what: Literal["verdict", "row", "tier"]
    tier: str
    question: Question
    subject: str
    """Of a verdict its cell, of a row its workload or path and backend, of a tier nothing."""
    gate: Gate | None = None
    before: str
    """"pass", "defer"; "not asked" where only the other limits ask."""
    after: str
    figure: Figure | None = None
    """Under the other limits."""
    limit_before: float | None = None


class Rejudgement(Model):
    """Stored evidence judged again, beside what its own plan says of it."""

    judgement: Judgement
    flips: tuple[Flip, ...] = ()
