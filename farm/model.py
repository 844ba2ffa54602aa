"""What goes over the wire and into the store: frozen models with one schema version and units in the names.

The data flow one way: a `Plan` holds `Environment`s and `Cell`s; a worker answers a cell with one
`CellResult`; gates turn plan and results into `Verdict`s; the decision rule turns verdicts into a `Judgement`.
Nothing in this module decides or measures.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Any, Literal

import numpy as np
import zstandard
from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1
"""Of everything below. A message with another version is refused with words, never guessed at."""

MAX_SAMPLES_BYTES = 8 * 1024 * 1024
"""Upper limit of one window's decompressed samples: a compressed bomb must not fill a coordinator."""


class Model(BaseModel):
    """A frozen record that refuses fields it does not know."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        # JSON holds neither bytes nor NaN, and evidence holds both: as null, a NaN could not be read back.
        ser_json_bytes="base64",
        val_json_bytes="base64",
        ser_json_inf_nan="strings",
    )

    def digest(self, exclude: set[str] | None = None) -> str:
        """Return the SHA-256 (hex) of the canonical JSON: sorted keys, no spaces, ``exclude`` left out."""
        data = self.model_dump(mode="json", exclude=exclude)
        text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()


# -- the closed vocabularies ------------------------------------------------------------------------------------


class Side(StrEnum):
    BASELINE = "baseline"
    CANDIDATE = "candidate"


class Outcome(StrEnum):
    """How an arm ended in a cell."""

    OK = "ok"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    OUT_OF_MEMORY = "out of memory"
    UNSUPPORTED = "unsupported"
    FELL_BACK = "fell back"
    BACKEND_UNREACHABLE = "backend unreachable"
    NO_ENVIRONMENT = "no environment"
    """The arm's environment could not be built; the installer's last words are the reason."""
    FAILED = "failed"
    """The workload itself raised, or returned nothing; its own words are the reason."""


class Status(StrEnum):
    """A gate's answer."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    UNTESTED = "untested"
    NOT_APPLICABLE = "not applicable"


class Decision(StrEnum):
    ADOPT = "adopt"
    ISOLATE = "isolate"
    DEFER = "defer"
    ROLLBACK = "rollback"


class Gate(StrEnum):
    CORRECTNESS = "correctness"
    LATENCY = "latency"
    THROUGHPUT = "throughput"
    PEAK_MEMORY = "peak_memory"
    DETERMINISM = "determinism"
    COMPILE_EXPORT = "compile_export"
    ROLLBACK = "rollback"


class Question(StrEnum):
    VERSION = "version"
    """The old path on both releases: is the candidate no worse?"""
    FEATURE = "feature"
    """The new path beside the old one, both on the candidate: does it bring the gain set beforehand?"""


Backend = Literal["mps", "cuda", "rocm", "cpu", "distributed"]
Track = Literal["production", "prototype"]

# -- the plan ---------------------------------------------------------------------------------------------------


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
    kind: Literal["measure", "rehearsal"] = "measure"
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
    broken_control: str | None = None
    """"build variant differs": measured all the same, and never better than `defer`."""


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
    rollback_s: float
    """Longest rehearsal of the way back, seconds."""
    feature_gain: float
    """Ratio of median step times (new path / old path) that the feature must reach, 0.9 is 10 % faster."""
    feature_memory_gain: float | None = None
    """Or the ratio of peak memory that earns its place instead; None: only time counts."""
    reason: dict[str, str] = Field(default_factory=dict)
    """Why a number is what it is, by field name."""


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
    """"baseline@<target>", "candidate@<target>"."""
    environments: dict[str, Environment]
    refused: tuple[EnvironmentRefused, ...] = ()
    requested_backends: tuple[Backend, ...]
    unserved_backends: dict[str, str]
    """Backends of the matrix that no cell covers, with the reason: "no worker", "not requested"."""
    matrix_digest: str
    matrix_source: str
    versions: dict[str, str]
    """The matrix's names for the two sides: current_baseline, pytorch_2_13."""
    tiers: tuple[Tier, ...]
    caveats: tuple[str, ...]
    cells: tuple[Cell, ...]
    sources: dict[str, str] = Field(default_factory=dict)
    """Source text of a user's own workloads, by workload name; the catalogue's travel by digest alone."""
    seed: int

    @property
    def plan_digest(self) -> str:
        """SHA-256 of all but when, how, from where and beside whom it was asked: equal questions have equal digests."""
        return self.digest(exclude={"created", "requested", "command", "matrix_source", "unserved_backends"})


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


# -- what a worker answers --------------------------------------------------------------------------------------


def pack_ns(samples: np.ndarray) -> bytes:
    """Return ``samples`` (nanoseconds) as zstd-compressed little-endian uint64."""
    return zstandard.ZstdCompressor(level=3).compress(np.ascontiguousarray(samples, dtype="<u8").tobytes())


def unpack_ns(packed: bytes) -> np.ndarray:
    """Return the uint64 nanoseconds that `pack_ns` packed. Raises ValueError for damaged or oversized data."""
    try:
        raw = zstandard.ZstdDecompressor().decompress(packed, max_output_size=MAX_SAMPLES_BYTES)
    except zstandard.ZstdError as error:
        raise ValueError(f"samples cannot be decompressed: {error}") from error
    return np.frombuffer(raw, dtype="<u8")


class Window(Model):
    """A stretch of steady steps of one arm."""

    block: int
    position: int
    """Place within its block, from 0."""
    steps_ns: bytes
    """Duration of each counted step, `pack_ns`."""
    wall_ns: int
    """The whole window, the dropped first step included."""
    cpu_ns: int
    minor_faults: int


class ArmTiming(Model):
    """One runner's life in one restart."""

    import_ns: int
    setup_ns: int
    first_step_ns: int
    warmup_ns: int
    steady: bool
    """The warm-up rule was met before its cap."""
    output_digest: str
    """Over all outputs of the first step: equal across restarts where the work is repeatable."""
    windows: tuple[Window, ...]


class Restart(Model):
    """One fresh process an arm: the unit of inference."""

    index: int
    order: tuple[str, ...]
    """Arms in the order in which they were started."""
    arms: dict[str, ArmTiming]
    unsteady: bool = False
    """First and last third differ by more than 2 % (STATISTICS.md 4): kept, and said."""


class Comparison(Model):
    """Error of one output against a reference of the same shape. Computed in float64."""

    finite: bool
    reference_finite: bool
    same_shape: bool
    bitwise_equal: bool
    rms_error: float
    max_error: float
    reference_rms: float
    gain: float
    """Projection on the reference, <x, r> / <r, r>: 1.01 where everything is 1 % too large."""


class Output(Model):
    """One named output or gradient of one arm."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str
    """Of its bytes as computed."""
    against_oracle: Comparison | None
    against_reference: Comparison | None
    """Against the arm that it is compared with: the baseline, or for a new path the old one."""


class Memory(Model):
    """Peak memory of steady steps, measured apart from timing and with the allocator as it comes."""

    allocator_peak_bytes: int | None
    """Peak of live allocations above the level before the step, from the profiler or the device allocator."""
    reserved_peak_bytes: int | None
    process_peak_bytes: tuple[int, ...]
    """Peak resident set of each repeat (Linux: VmHWM after clear_refs)."""


class Examination(Model):
    """The untimed pass of one arm: what it computes, whether it repeats, what it holds."""

    outputs: dict[str, Output]
    repeat_digests: tuple[str, ...]
    """Digest over all outputs of each repeat in one process, at `Control.determinism_threads` threads."""
    memory: Memory | None
    items_per_step: float
    item: str
    """What a step processes: "tokens", "samples"."""
    path_ran: str
    """Which implementation really ran, in the workload's own words."""
    warnings: tuple[str, ...] = ()


class CompileExport(Model):
    """torch.compile and torch.export of one arm: made in one process, met again in another."""

    compile_outcome: Outcome
    compile_reason: str = ""
    graphs: int | None = None
    graph_breaks: int | None = None
    cold_ns: int | None = None
    """First call, new process, empty cache folder."""
    warm_ns: int | None = None
    """First call, second process, the same cache folder."""
    compiled: dict[str, Comparison] = Field(default_factory=dict)
    """Compiled outputs against eager ones of the same arm."""
    export_outcome: Outcome
    export_reason: str = ""
    export_bytes: int | None = None
    reloaded: dict[str, Comparison] = Field(default_factory=dict)
    """Outputs of the saved program, loaded in a fresh process, against eager ones."""


class ArmResult(Model):
    """How one arm ended."""

    outcome: Outcome
    reason: str = ""
    facts: dict[str, Any] = Field(default_factory=dict)
    """What the runner said of itself: torch, build, python, libraries loaded, CPU capability."""
    command: tuple[str, ...] = ()
    log_tail: str = ""
    """End of the runner's stdout and stderr, capped."""
    examination: Examination | None = None
    compile_export: CompileExport | None = None


class Rehearsal(Model):
    """The way back, walked: the baseline's wheels over the candidate, with the network off."""

    outcome: Outcome
    reason: str = ""
    steps_ns: dict[str, int] = Field(default_factory=dict)
    network_off_by: str = ""
    """How the network was really off: "network namespace", "sandbox-exec", or why it could not be."""
    reinstalled: tuple[str, ...] = ()
    """"torch 2.13.0 -> 2.12.1", sorted."""
    mismatches: tuple[str, ...] = ()
    """Where what is installed differs from the baseline's lock; empty is right."""
    control_equal: bool | None = None
    """Control outputs bitwise as before the upgrade."""
    last_words: str = ""

    @property
    def duration_ns(self) -> int:
        """Time to be back: the reinstallation and its proof, without the preparation."""
        return sum(ns for name, ns in self.steps_ns.items() if not name.startswith("prepare"))


class Validity(Model):
    """Whether a cell's numbers mean anything; decided before any number is shown."""

    valid: bool
    reasons: tuple[str, ...] = ()
    arms: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """What makes the times of one arm mean nothing: comparisons of the other arms stand."""


class Host(Model):
    """The machine, as far as a comparison must know it."""

    name: str
    platform: str
    os: str
    cpu: str
    cores: int
    memory_bytes: int
    capabilities: tuple[str, ...]
    python: str

    @property
    def target(self) -> str:
        """What environments are resolved for: "x86_64-unknown-linux-gnu, Python 3.11"."""
        return f"{self.platform}, Python {self.python}"


class CellResult(Model):
    """A worker's one answer to one attempt at a cell."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    cell_id: str
    attempt: int
    worker: str
    host: Host
    started: str
    """UTC, ISO 8601."""
    validity: Validity
    arms: dict[str, ArmResult]
    restarts: tuple[Restart, ...] = ()
    rehearsal: Rehearsal | None = None
    moved_packages: tuple[str, ...] = ()
    """What differs between the arms' environments beside torch itself: "setuptools 81.0.0 -> 84.2.1"."""
    wall_ns: int
    measured_ns: int = 0
    """Inside measured windows; over `wall_ns` it is the share that was not overhead."""
    phases_ns: dict[str, int] = Field(default_factory=dict)
    stopped_because: str = ""
    """"settled", "restarts used up", "budget ended"."""


# -- what is made of it -----------------------------------------------------------------------------------------


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


class Coverage(Model):
    """How much was compared, before any decision is read."""

    cells: int
    comparable: int
    invalid: int
    missing_on_candidate: int
    missing_on_baseline: int
    not_run: int
    untested_backends: dict[str, str]


class Judgement(Model):
    """One application of one set of thresholds to stored evidence."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    plan_digest: str
    matrix_digest: str
    coverage: Coverage
    cells: tuple[CellVerdicts, ...]
    rows: tuple[DecisionRow, ...]
    tiers: tuple[TierDecision, ...]
    alarms: tuple[str, ...] = ()


class RunState(StrEnum):
    RUNNING = "running"
    COMPLETE = "complete"
    INCOMPLETE = "incomplete"


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


class Evidence(Model):
    """Everything behind a run's figures: enough to judge it again."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    state: RunState
    plan: Plan
    results: tuple[CellResult, ...]
    extras: tuple[CellResult, ...] = ()
    """Results that arrived after their cell was decided: kept, never counted."""
    unfinished: dict[str, str] = Field(default_factory=dict)
    """Cells without a result, with the reason."""


class Progress(Model):
    """Where a worker stands with a cell: what `farm watch` shows."""

    run_id: str
    cell_id: str
    attempt: int
    worker: str
    phase: str
    """"environments", "examine", "compile", "measure", "rehearse"."""
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
