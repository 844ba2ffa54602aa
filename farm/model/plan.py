"""The frozen question: releases, environments, cells, limits."""

from __future__ import annotations

import hashlib
import json
from datetime import date
from typing import Literal

from pydantic import Field, field_validator

from farm.model.words import SCHEMA_VERSION, Backend, Gate, Model, Question, Side, StateKind, Track


class Release(Model):
    """One exact torch release on one platform, as the configured index serves it."""

    version: str
    """Public PEP 440 version without local part, "2.13.0"."""
    local: str | None
    """Local part of the wheel's version as the index names it, "cpu"; None where it has none."""
    variant: str
    """Build variant: "cpu", "cu130", "rocm7.2"."""
    platform: str
    """uv's target triple, "x86_64-unknown-linux-gnu"."""
    wheel: str
    """File name of the wheel."""
    sha256: str
    origin: str
    """Where it comes from, without credentials: an index's host, a folder, a URL."""
    requirement: str
    """The requirement that installs exactly this build, "torch===2.12.1"."""

    @property
    def identity(self) -> str:
        """Version and variant in one word, "2.13.0+cpu": the same whether or not the wheel's name says so."""
        return f"{self.version}+{self.variant}"


class LockedPackage(Model):
    """One wheel of an environment's closure, pinned by hash."""

    name: str
    """Normalised (PEP 503)."""
    version: str
    wheel: str
    sha256: str
    url: str
    """Where the resolver found it, credentials removed."""


class Environment(Model):
    """What an arm's environment holds on one platform: content-addressed by `key`."""

    release: Release
    python: str
    """Minor version of CPython, "3.11"."""
    packages: tuple[LockedPackage, ...]
    """The whole closure, sorted by name."""

    @property
    def key(self) -> str:
        """First 20 hex digits of the digest of python, platform and every (name, version, hash)."""
        pinned = [(p.name, p.version, p.sha256) for p in self.packages]
        text = json.dumps([self.python, self.release.platform, pinned])
        return hashlib.sha256(text.encode()).hexdigest()[:20]


class EnvironmentRefused(Model):
    """An environment that could not even be resolved: its arm ends as `no environment` with these words."""

    side: Side
    platform: str
    reason: str
    last_words: str = ""


class Arm(Model):
    """One side of a comparison: a torch release and an implementation path."""

    name: str
    """"baseline", "candidate", "candidate+flex"."""
    side: Side
    path: str
    environments: dict[str, str]
    """`Host.target` to `Environment.key`; a target that is missing was refused at resolution."""


class Measuring(Model):
    """How a cell is measured; the same for all its arms (STATISTICS.md, The procedure)."""

    looks: tuple[int, ...] = (6, 8, 10, 12)
    """Restarts after which the gates are looked at."""
    alpha: float = 0.016
    """One-sided error of the interval at each look (n = 6 restarts can just reach 1/64 = 0.0156)."""
    window_ms: float = 120.0
    restart_s: float = 8.0
    """Time inside windows of one restart, all arms together."""
    warmup_s: float = 3.0
    """Cap of the warm-up of one runner; reached without a steady state it is `never steady`."""
    budget_s: float = 120.0
    """Wall time for the timed part of the cell."""
    step_timeout_s: float = 120.0
    """A single request to a runner that takes longer is `timed out`."""
    confirming: int = 0
    """Restarts of the repeat that follows a failing look; without its agreement nothing is accused. 0: no repeat."""
    as_it_comes: int = 0
    """Restarts with the allocator as it comes, where the arms allocate differently: a figure of its own."""
    threads: int = 1
    p50_limits: tuple[float, ...] = ()
    """Every tier's limit of the p50 ratio (version question): measuring ends when all are settled."""
    p95_limits: tuple[float, ...] = ()
    throughput_limits: tuple[float, ...] = ()
    """Least ratios of throughput, 0.97; settled by the ratio of mean step times."""
    feature_limits: tuple[float, ...] = ()
    """Ratios (new path / old path) that the tiers ask of a feature."""


class Control(Model):
    """All that is frozen for a cell beside its parameters."""

    workload_digest: str
    """SHA-256 of the workload's source and of the contract that it stands on."""
    seed: int
    environment_variables: dict[str, str]
    determinism_threads: int = 2
    determinism_repeats: int = 5


class Cell(Model):
    """A case on one capability: the unit on a queue."""

    id: str
    """"transformer_block/infer-fp32@cpu": unique in its run."""
    kind: Literal["measure", "rehearsal", "aa", "isolation", "bisection"] = "measure"
    """"aa" measures the baseline against itself: what it accuses is a false alarm. "isolation", with arms that hold a
    package at the baseline's version, and "bisection", with a nightly as candidate, are in no plan."""
    backend: Backend
    capability: str
    workload: str
    case: str
    parameters: dict[str, int | float | str | bool]
    track: Track = "production"
    production_shape: bool = False
    arms: tuple[Arm, ...]
    control: Control
    measuring: Measuring
    gates: tuple[Gate, ...]
    caveats: tuple[str, ...] = ()
    state: tuple[StateKind, ...] = ()
    """Of a rehearsal: what the candidate writes and the baseline must open."""
    programs: tuple[Literal["compile", "export", "package"], ...] = ("compile", "export")
    """What compile_export asks of the workload's module; "package" is AOTInductor's."""
    broken_control: str | None = None
    """"build variant differs": measured all the same, and never better than `defer`."""
    stage: str = ""
    """Name of the plan's stage that it belongs to; "" where the plan has none."""
    in_service: bool = False
    """Measured again while a share of the service runs the candidate: evidence for that stage's tiers alone."""


class Tier(Model):
    """A class of use with thresholds of its own. Relative limits are candidate / baseline."""

    name: str
    description: str
    backends: tuple[Backend, ...]
    workloads: tuple[str, ...] = ()
    """Workloads that the tier requires; empty means every workload of the matrix."""
    in_service: bool = False
    """Work that already runs the candidate: a failing required gate is `rollback`."""
    required: tuple[Gate, ...]
    may_be_inconclusive: tuple[Gate, ...] = ()
    p50_ratio: float
    """Greatest ratio of median step times that is no worse: 1.03 is 3 % slower."""
    p95_ratio: float | None
    """The same of the 95th percentile; None: shown, not judged."""
    throughput_ratio: float
    """Least ratio of items per second: 0.97 is 3 % fewer."""
    peak_memory_ratio: float
    peak_memory_bytes: int | None = None
    """Absolute budget of a step's peak, beside the ratio."""
    error_multiple: float = 2.0
    """Candidate's error against the oracle over the baseline's (FlashAttention's own tests use 2)."""
    determinism: Literal["bitwise", "no worse", "off"] = "bitwise"
    compile_ratio: float
    graph_breaks: int
    """Greatest number of graph breaks more than the baseline has."""
    recompiles: int = 0
    """Greatest number of graphs more than the baseline's over the shapes that a workload names."""
    drift_ratio: float | None = None
    """Greatest drift of the control arm over a cell, either way, 1.05 is 5 %: beyond it no time is judged; None: not
    asked beside what makes a cell invalid for everybody."""
    rollback_s: float
    """Longest rehearsal of the way back, seconds."""
    state_required: tuple[StateKind, ...] = ()
    """What the baseline must be able to open, or make again, of what the candidate wrote."""
    feature_gain: float
    """Ratio of median step times (new path / old path) that the feature must reach, 0.9 is 10 % faster."""
    feature_memory_gain: float | None = None
    """Or the ratio of peak memory that earns its place instead; None: only time counts."""
    reason: dict[str, str] = Field(default_factory=dict)
    """Why a number is what it is, by field name."""
    stage: str = ""
    """Name of the stage whose cells alone it judges: what is in service there. "": all but such stages' cells."""


class Stage(Model):
    """A part of a run that begins when the one before it is complete."""

    name: str
    description: str = ""
    days: int | None = None
    """Planned length, for display; its cells wait as long for a worker that went away."""
    backends: tuple[Backend, ...] = ()
    """Whose cells it takes; empty is all."""
    gates: tuple[Gate, ...] = ()
    """What it asks of them; empty is all that no stage before it asked."""
    kinds: tuple[Literal["measure", "aa", "rehearsal"], ...] = ("measure", "aa", "rehearsal")
    in_service: tuple[str, ...] = ()
    """Tiers that run the candidate in a share of their service meanwhile: their production cells are measured again."""
    share: float | None = None
    """That share, 0.05. The operator moves it; it is recorded and shown here."""
    always: bool = False
    """True: measured whatever the stages before it found."""
    reason: str = ""
    """Why it is made like this."""


class Waiver(Model):
    """A verdict that somebody answers for until a day: it holds its tier back no longer, and every report shows it."""

    tier: str
    workload: str
    case: str = "*"
    """Shell pattern of the cases."""
    backend: Backend
    gate: Gate
    question: Question = Question.VERSION
    owner: str = Field(min_length=1)
    reason: str = Field(min_length=1)
    expires: str
    """Last day on which it holds, "2026-12-31"; held against the day on which the plan was made."""

    @field_validator("expires")
    @classmethod
    def _a_day(cls, value: str) -> str:
        return date.fromisoformat(value).isoformat()

    @property
    def subject(self) -> str:
        """ "serving: latency of block/* on cpu"."""
        asked = "" if self.question is Question.VERSION else f" ({self.question} question)"
        return f"{self.tier}: {self.gate} of {self.workload}/{self.case} on {self.backend}{asked}"


class Claim(Model):
    """A sentence of a release's text, and what would show it."""

    name: str
    sentence: str
    source: str
    """Where it stands: "release blog, 8 July 2026"."""
    workload: str
    case: str = "*"
    """Shell pattern of the cases that would show it."""
    path: str = ""
    """New path, held against the old one on the candidate; "" is the candidate against the baseline."""
    backends: tuple[Backend, ...] = ()
    """Empty is everywhere."""
    quantity: Literal["p50", "peak_memory", "cold_compile"] = "p50"
    at_most: float | None = None
    """Ratio of the new over the old that the sentence promises; None where it is about a fact."""
    up_to: bool = False
    """The sentence says "up to": one case is enough."""
    fact: str = ""
    """Name of a workload's fact, in place of a ratio."""
    equals: bool | float | str | None = None
    """What the fact is if the sentence is true."""


class PlannedWorkload(Model):
    """What must have been measured of a workload before a tier adopts a release for it."""

    backends: tuple[Backend, ...] = ()
    """Where the matrix asks for it; empty is everywhere."""
    production_cases: tuple[str, ...] = ()
    owner: str = ""
    """Who answers for it: a prototype without one is deferred."""
    maintains: bool = False
    """The team maintains its kernels: a prototype that is adopted like any other work."""


class Plan(Model):
    """The frozen question: hashed before the first cell runs."""

    schema_version: int = SCHEMA_VERSION
    created: str
    """UTC, ISO 8601."""
    suite: str
    requested: dict[str, str]
    """What was typed: candidate, baseline, backends."""
    command: tuple[str, ...]
    """The command that makes this plan again; releases pinned exactly."""
    resolution_notes: tuple[str, ...]
    """Which build variant was chosen and why, whether it is an A/A run."""
    aa: bool
    """Both arms resolved to one wheel."""
    releases: dict[str, Release]
    """"baseline@<target>, <backend>" and the candidate's: a machine may run two backends with two builds."""
    environments: dict[str, Environment]
    refused: tuple[EnvironmentRefused, ...] = ()
    requested_backends: tuple[Backend, ...]
    requested_workloads: tuple[str, ...] = ()
    """Empty is every workload of the matrix; the others are untested."""
    unserved_backends: dict[str, str]
    """Backends of the matrix that no cell covers, with the reason: "no worker", "not requested"."""
    matrix_digest: str
    matrix_source: str
    versions: dict[str, str]
    """The matrix's names for the two sides: current_baseline, pytorch_2_13."""
    tiers: tuple[Tier, ...]
    stages: tuple[Stage, ...] = ()
    """In order; empty: the run is one."""
    workloads: dict[str, PlannedWorkload] = Field(default_factory=dict)
    """Every workload of the matrix, those without a cell too."""
    caveats: tuple[str, ...]
    waivers: tuple[Waiver, ...] = ()
    claims: tuple[Claim, ...] = ()
    """What the release says of itself, written down with what would show it."""
    cells: tuple[Cell, ...]
    sources: dict[str, str] = Field(default_factory=dict)
    """Source text of a user's own workloads, by workload name; the catalogue's travel by digest alone."""
    seed: int

    @property
    def plan_digest(self) -> str:
        """SHA-256 of all but when, how, from where and beside whom it was asked: equal questions have equal digests.

        What was said while resolving names machines; what came of it stands in the releases and the cells.
        """
        aside = {"created", "requested", "command", "matrix_source", "unserved_backends", "resolution_notes"}
        return self.digest(exclude=aside)


class CellOrder(Model):
    """What a worker is handed: one attempt at one cell, with all that it needs of the plan."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    attempt: int
    """Fencing token: an answer to an older attempt counts only while the cell is open."""
    cell: Cell
    environments: dict[str, Environment]
    refused: tuple[EnvironmentRefused, ...] = ()
    source: str | None = None
    """Text of a user's own workload; None for the catalogue's."""
