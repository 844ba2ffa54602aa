"""What is made of plan and results: figures, verdicts, decisions."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from farm.model.plan import Claim, Waiver
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
    restarts: int | None = None
    """Behind the interval; None where it is not of restarts."""


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


class Waived(Model):
    """A verdict that a waiver is written for, and what became of that."""

    waiver: Waiver
    cell_id: str
    gate: Gate
    status: Status
    reason: str
    """The verdict's own."""
    state: Literal["waived", "expired", "not waivable"]


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
    """The gate whose verdict decided; of an adoption the one that is waived or forgiven, else the one that passes with
    the least to spare. None where no gate decided: production shapes untested, no worker."""
    cell_id: str | None
    reason: str
    figure: Figure | None = None
    would_change: str
    """What would change the decision."""
    kept_apart: str = ""
    """What the tier can move without: where the decision is (or would be) `isolate` "workload flex_attention",
    "prototype track: cutedsl"; of a new path that has not earned its place "path flex of flex_attention"."""
    warnings: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    """Limits of the answer that were written down before the run: the workload's own, then those of every row."""
    waived: tuple[Waived, ...] = ()
    """Verdicts of this row that a waiver is written for."""
    asked: bool = True
    """False for a prototype that has no owner and the tier does not name: shown, and no reason against the tier."""


class TierDecision(Model):
    """The worst of the rows that a tier requires."""

    tier: str
    decision: Decision
    would: Decision | None = None
    reason: str
    decided_by: Gate | None = None
    """Of the row that decided."""
    cell_id: str | None = None
    would_change: str = ""
    kept_apart: tuple[str, ...] = ()


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
    skipped: int
    """Not measured, because an earlier stage ended every tier that they were for."""
    tiers: tuple[StageTier, ...]
    """Empty until all of its cells are over."""

    @property
    def over(self) -> bool:
        return self.done + self.given_up + self.skipped == self.cells


class Coverage(Model):
    """How much was compared, before any decision is read. Every measured cell of the plan is counted in one place."""

    head: str
    """"37 of 52 comparable, 9 missing on the candidate, 6 invalid": what every report begins with."""
    cells: int
    comparable: int
    """Both arms answered and what they say is valid."""
    missing_on_candidate: int
    """The baseline alone ended well."""
    missing_on_baseline: int
    missing_on_both: int
    invalid: int
    """Measured, and what was measured means nothing: the machine, the control or the clock says so."""
    skipped: int
    """Left out on purpose: an earlier stage had ended every tier that asked for it."""
    not_run: int
    """Wanted, and without a result."""
    outcomes: dict[str, dict[str, int]] = Field(default_factory=dict)
    """How the arm that is missing ended, by "candidate", "baseline" and "both" (of both the candidate's)."""
    untested_backends: dict[str, str]
    """Backends of the matrix that no cell covers, with the reason: "no worker", "not requested"."""


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


class WaiverUse(Model):
    """A waiver of the plan and whether it was needed."""

    waiver: Waiver
    state: Literal["used", "unused", "expired", "not waivable"]
    """"unused": every verdict that it is written for passes, or none was given."""
    cells: tuple[str, ...] = ()
    """Cells whose verdict it is written for and does not pass."""


ClaimResult = Literal["reproduced", "not reproduced", "contradicted", "untested"]
""""not reproduced": something of the kind, and less than was said. "contradicted": the opposite, or next to nothing."""


class ClaimSighting(Model):
    """What one cell says to a claim."""

    cell_id: str
    result: ClaimResult
    reason: str
    figure: Figure | None = None


class ClaimAnswer(Model):
    """What the evidence says to one claim."""

    claim: Claim
    result: ClaimResult
    reason: str
    """With the figure that tells, or why nothing does."""
    cells: tuple[ClaimSighting, ...] = ()


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
    waivers: tuple[WaiverUse, ...] = ()
    """Every waiver of the plan, needed or not."""
    claims: tuple[ClaimAnswer, ...] = ()
    """What the evidence says to the release's own text; no decision rests on it."""
    alarms: tuple[str, ...] = ()
    attributed: tuple[str, ...] = ()
    """Of cases that several machines measured and that moved: whether it is torch or the machine, in words."""
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
