"""What a worker answers: outcomes, numbers and reasons, never a verdict."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import zstandard
from pydantic import Field

from farm.model.host import Host, HostCheck
from farm.model.words import SCHEMA_VERSION, Model, Outcome, StateKind

MAX_SAMPLES_BYTES = 8 * 1024 * 1024
"""Upper limit of one window's decompressed samples: a compressed bomb must not fill a coordinator."""


def pack_ns(samples: np.ndarray) -> bytes:
    """Return ``samples`` (nanoseconds) as zstd-compressed little-endian uint64."""
    return zstandard.ZstdCompressor(level=3).compress(np.ascontiguousarray(samples, dtype="<u8").tobytes())


def unpack_ns(packed: bytes) -> np.ndarray:
    """Return the uint64 nanoseconds that `pack_ns` packed. Raises ValueError for damaged or oversized data."""
    return np.frombuffer(decompress(packed, MAX_SAMPLES_BYTES), dtype="<u8")


def decompress(packed: bytes, limit: int) -> bytes:
    """Return what one zstd frame holds. Raises ValueError for a damaged one and for more than ``limit`` bytes."""
    try:
        # A frame that says its size gets memory for all of it: max_output_size holds for the others alone.
        size = zstandard.frame_content_size(packed)
        if size > limit:
            raise ValueError(f"cannot be decompressed: {size} bytes are more than the {limit} that are taken")
        return zstandard.ZstdDecompressor().decompress(packed, max_output_size=limit, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"cannot be decompressed: {error}") from error


class Window(Model):
    """A stretch of steady steps of one arm."""

    block: int
    position: int
    """Place within its block, from 0."""
    steps_ns: bytes
    """Duration of each counted step, or of a thousand of them evenly spaced; `pack_ns`."""
    wall_ns: int
    """The whole window, the dropped first step included."""
    cpu_ns: int
    minor_faults: int
    device_ns: int | None = None
    """Between the device's own events, first step to last; None where the host's clock times the work."""
    sync_ns: int = 0
    """One more synchronisation, appended to the window: long where work was still under way (CASES.md M6)."""
    waited_ns: int | None = None
    """Time for which the runner's threads were ready and did not get a processor; None where the system hides it."""
    foreign_ns: int | None = None
    """Processor time that all others took on the machine meanwhile."""
    stolen_ns: int | None = None
    """Processor time that the hypervisor gave to another guest meanwhile."""


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
    cache: Literal["none", "cold", "warm"] = "none"
    """Whether its compiled programs were made or found there; "none" where nothing was compiled."""


class Restart(Model):
    """One fresh process an arm: the unit of inference."""

    index: int
    purpose: Literal["judging", "confirming", "as it comes"] = "judging"
    """What it is for: the first answer, its repeat before anything is accused, or the allocator left as it comes."""
    order: tuple[str, ...]
    """Arms in the order in which they were started."""
    arms: dict[str, ArmTiming]
    unsteady: bool = False
    """First and last third differ by more than 2 % (STATISTICS.md 4): kept, and said."""
    invalid: str = ""
    """What happened to the machine meanwhile; such a restart is kept, repeated, and never judged."""
    cores: tuple[int, ...] = ()
    """Processors that its runners were pinned to; empty is all."""
    blocks_ns: int = 0
    """Wall time from its first measured window to the end of its last."""


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
    outside_bytes: int | None = None
    """Device memory in use beyond the allocator's pool: context and library workspaces (CASES.md M12)."""
    allocations: int | None = None
    """How often a step allocates; with `allocated_bytes` it tells exactly whether a release allocates otherwise."""
    allocated_bytes: int | None = None
    """Sum of what a step allocates, live at once or not."""


class Operator(Model):
    """One operator of a trace."""

    name: str
    calls: int
    self_ns: int
    """Without its children, on the host."""
    device_ns: int = 0


class Trace(Model):
    """One profiled step: untimed, for reading."""

    operators: tuple[Operator, ...]
    """Those with the longest self time, the longest first."""
    sha256: str
    """Of Chrome's trace format as JSON."""
    size_bytes: int
    packed: bytes = b""
    """The trace itself, one zstd frame; empty where it is too large to travel and stays on the worker."""


class Drill(Model):
    """A path, switched off as an operator would: whether another one ran then."""

    how: str
    result: Literal["switched off", "still on", "failed"]
    ran: str
    """What ran then, or why nothing did."""
    took_ns: int
    """From the switch to the end of the next step."""


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
    faults_per_step: float | None = None
    """Minor page faults of a steady step with the allocator as it comes."""
    trace: Trace | None = None
    facts: dict[str, bool | float | str] = Field(default_factory=dict)
    """What the workload tells of a step beside its outputs, by name; judged by no gate."""
    drill: Drill | None = None
    """None where the path has no switch, or is the old one."""


CacheTemperature = Literal["none", "cold", "warm", "mixed"]
ProgramKind = Literal["exported program", "dynamic program", "compiled package", "ONNX model"]
"""How a module leaves Python: exported for one shape, for shapes that vary, compiled ahead of time, as ONNX."""


class ShapeCall(Model):
    """One call of a compiled module, in the order in which shapes come."""

    shape: str
    """"1x37": of the inputs."""
    new_graphs: int
    """Compiled for this call."""
    reasons: tuple[str, ...] = ()
    """Why it was compiled again, in torch's words."""
    ran: Literal["compiled", "eager"]
    """What a second call of this shape ran, by its profile."""
    outputs: dict[str, Comparison]
    """Against eager ones."""


class Recompiles(Model):
    """One way of torch.compile over all shapes of a workload."""

    dynamic: Literal["None", "True", "False"]
    outcome: Outcome
    reason: str = ""
    calls: tuple[ShapeCall, ...] = ()
    limit_hit: str = ""
    """Torch's words where it compiled no further: new shapes run eager from then on, and nothing else says so."""
    pass_ns: int | None = None
    """All shapes once more, nothing left to compile; median of some passes."""
    eager_pass_ns: int | None = None

    @property
    def graphs(self) -> int:
        return sum(call.new_graphs for call in self.calls)


class Loaded(Model):
    """A saved program in a fresh process, which has no source of the model."""

    outcome: Outcome
    reason: str = ""
    outputs: dict[str, dict[str, Comparison]] = Field(default_factory=dict)
    """Against the eager ones of the release that made it, by the inputs' shape, then by name."""


class WrongInput(Model):
    """What a program did with inputs that it was not made for, in a process of its own."""

    result: Literal["refused", "accepted", "aborted", "no answer"]
    """"refused": an error that can be caught. "accepted": outputs. "aborted": it took the process with it."""
    words: str = ""


class SavedProgram(Model):
    """A program on its way out of Python: made, saved, loaded again here and by the other release."""

    outcome: Outcome
    """Of making and saving it."""
    reason: str = ""
    size_bytes: int | None = None
    made_ns: int | None = None
    operators: tuple[str, ...] = ()
    """By name: those outside Core ATen, which another runtime need not know; or those on which making it failed."""
    loaded: Loaded | None = None
    """By the release that made it."""
    elsewhere: Loaded | None = None
    """By the other release."""
    wrong_inputs: dict[str, WrongInput] = Field(default_factory=dict)


class CompileExport(Model):
    """torch.compile and the ways out of Python of one arm: made in one process, met again in others."""

    compile_outcome: Outcome | None = None
    """None where it is not asked."""
    compile_reason: str = ""
    graphs: int | None = None
    graph_breaks: int | None = None
    break_reasons: dict[str, int] = Field(default_factory=dict)
    """How often the graph broke for which reason, in torch's words."""
    cold_ns: int | None = None
    """First call, new process, empty cache folder."""
    cold_cache: CacheTemperature = "none"
    """What that process found in the caches by torch's own count: "none" where it tells nothing."""
    cold_again_ns: tuple[int, ...] = ()
    """The same again, each with a process and an empty cache folder of its own, where one answer was not enough."""
    warm_ns: int | None = None
    """First call, second process, the same cache folder."""
    warm_cache: CacheTemperature = "none"
    compiled: dict[str, Comparison] = Field(default_factory=dict)
    """Compiled outputs against eager ones of the same arm."""
    compiled_warm: dict[str, Comparison] = Field(default_factory=dict)
    """The same of the second process, whose program came from the cache (CASES.md V10)."""
    recompiles: tuple[Recompiles, ...] = ()
    """Over the shapes that the workload names; empty where it names none."""
    programs: dict[ProgramKind, SavedProgram] = Field(default_factory=dict)

    @property
    def least_cold_ns(self) -> int | None:
        """Return the shortest cold first call: what else a machine does only ever adds to it."""
        return None if self.cold_ns is None else min((self.cold_ns, *self.cold_again_ns))


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
    ended_while_timed: bool = False
    """It was examined well and ended in a timed restart, where the runners of all arms are alive at once."""


class KeptState(Model):
    """What became of one kind of state that the candidate wrote, under the reinstalled baseline."""

    result: Literal["readable", "rebuilt", "unreadable", "not written"]
    """"readable": loaded, with the numbers that were written. "rebuilt": made again, and right."""
    reason: str = ""
    """The library's own words where it is not well."""
    write_ns: int = 0
    read_ns: int = 0


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
    control_ran: bool = True
    """The control workload ran on the baseline to begin with; without it nothing can be proven."""
    again_ns: dict[str, int] = Field(default_factory=dict)
    """The same steps, walked a second time from the candidate."""
    leftovers: tuple[str, ...] = ()
    """What the candidate left and nobody will use: bytecode without a source, its compile cache."""
    state: dict[StateKind, KeptState] = Field(default_factory=dict)
    """What became of what the candidate wrote, by kind."""
    last_words: str = ""

    @property
    def duration_ns(self) -> int:
        """Time to be back: the reinstallation and its proof, without the preparation and without opening state."""
        return sum(ns for name, ns in self.steps_ns.items() if not name.startswith(("prepare", "state")))


class Validity(Model):
    """Whether a cell's numbers mean anything; decided before any number is shown."""

    valid: bool
    reasons: tuple[str, ...] = ()
    arms: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """What makes the times of one arm mean nothing: comparisons of the other arms stand."""
    repeated: tuple[str, ...] = ()
    """Why restarts were thrown away and repeated within the budget."""


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
    checks: tuple[HostCheck, ...] = ()
    """The machine's state when the cell began."""
    noise: tuple[float, ...] = ()
    """Earlier A/A ratios of this very case on this machine, the newest last."""
