"""The matrix: what is compared and which limits hold, read from TOML and checked before anything runs."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from functools import cached_property
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from farm.catalogue import NO_PACKAGE, CaseSpec, WorkloadSpec, catalogue, read_workload
from farm.errors import UsageError
from farm.model import Backend, Claim, Decision, Gate, Measuring, Model, Stage, StateKind, Tier, Waiver
from farm.releases import is_torch_family
from farm.statistics import least_restarts

__all__ = ["Matrix", "Planning", "load_matrix", "matrix_schema"]

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, lt=0.5)]


class _Checked(BaseModel):
    # A limit that is not finite is none: nothing would ever lie beyond it.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class _Case(_Checked):
    name: str
    suites: tuple[str, ...] = ("standard",)
    parameters: dict[str, int | float | str | bool] = {}
    production_shape: bool = False
    packages: bool = False
    """Whether the program is compiled ahead of time, too: half a minute a release."""


class _Workload(_Checked):
    name: str
    file: str | None = None
    """A workload of the user's own, relative to the matrix."""
    features: tuple[str, ...] = ()
    """New paths that are compared with the old one on the candidate."""
    candidate_path: str | None = None
    """What the candidate's arm runs in place of the old path: code that has to change with the release."""
    cases: tuple[str, ...] | None = None
    """Only these cases; default: all of the suite."""
    case: tuple[_Case, ...] = ()
    """Further cases."""
    backends: tuple[Backend, ...] | None = None
    owner: str = ""
    """Who answers for it; a prototype without one stays at `defer`."""
    maintains: bool = False
    """The team maintains its kernels: only then may a prototype be adopted."""
    caveats: tuple[str, ...] = ()
    """Limits of every answer about it, beside those of the whole matrix."""


class _Suite(_Checked):
    looks: Annotated[tuple[Annotated[int, Field(gt=0)], ...], Field(min_length=1)]
    alpha: Share
    window_ms: Positive
    restart_s: Positive
    warmup_s: Positive
    budget_s: Positive
    step_timeout_s: Positive
    threads: Annotated[int, Field(gt=0)] = 1
    as_it_comes: Annotated[int, Field(ge=0)] = 0
    confirm: bool = True
    """Whether a failing look is repeated before anything is accused."""
    aa_share: Annotated[float, Field(ge=0, le=0.5)] = 0.1
    """A/A cells for each measured one; where it is not 0 every capability has at least one."""
    max_budget_s: Positive | None = None
    """What a noisy machine may take of a cell; by default no more than `budget_s`."""


class _Tier(_Checked):
    """As `farm.model.Tier`, with every number's range."""

    name: str
    description: str
    backends: Annotated[tuple[Backend, ...], Field(min_length=1)]
    workloads: tuple[str, ...] = ()
    in_service: bool = False
    required: Annotated[tuple[Gate, ...], Field(min_length=1)]
    may_be_inconclusive: tuple[Gate, ...] = ()
    p50_ratio: Positive
    p95_ratio: Positive | None = None
    throughput_ratio: Positive
    peak_memory_ratio: Positive
    peak_memory_bytes: Annotated[int, Field(gt=0)] | None = None
    error_multiple: Annotated[float, Field(ge=1)] = 2.0
    determinism: Literal["bitwise", "no worse", "off"] = "bitwise"
    compile_ratio: Positive
    graph_breaks: Annotated[int, Field(ge=0)]
    recompiles: Annotated[int, Field(ge=0)] = 0
    drift_ratio: Annotated[float, Field(gt=1)] | None = None
    rollback_s: Positive
    state_required: tuple[StateKind, ...] = ()
    feature_gain: Positive
    feature_memory_gain: Positive | None = None
    reason: dict[str, str] = {}

    @field_validator("required", "may_be_inconclusive", mode="before")
    @classmethod
    def _gates(cls, value: Any) -> Any:
        return tuple(_gate(name) for name in value) if isinstance(value, list | tuple) else value


class _Stage(_Checked):
    """As `farm.model.Stage`, with every number's range."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
    description: str = ""
    days: Annotated[int, Field(gt=0)] | None = None
    backends: tuple[Backend, ...] = ()
    gates: tuple[Gate, ...] = ()
    kinds: Annotated[tuple[Literal["measure", "aa", "rehearsal"], ...], Field(min_length=1)] = (
        "measure",
        "aa",
        "rehearsal",
    )
    in_service: tuple[str, ...] = ()
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    always: bool = False
    reason: str = ""

    @field_validator("gates", mode="before")
    @classmethod
    def _gates(cls, value: Any) -> Any:
        return tuple(_gate(name) for name in value) if isinstance(value, list | tuple) else value


class _Waiver(_Checked):
    """As `farm.model.Waiver`, with every part that it may not be without."""

    tier: str
    workload: str
    case: str = "*"
    backend: Backend
    gate: Gate
    question: Literal["version", "feature"] = "version"
    owner: str
    reason: str
    expires: date

    @field_validator("gate", mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        return _gate(value)

    @field_validator("owner", "reason")
    @classmethod
    def _said(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("a waiver needs an owner, a reason and an expiry; this one is empty")
        return value

    @field_validator("expires", mode="before")
    @classmethod
    def _day(cls, value: Any) -> Any:
        # A date with a time is a date too, to Python.
        if type(value) is not date:
            raise ValueError(f"{value!r} is no day; write 2026-12-31, without quotes")
        return value


class _Claim(_Checked):
    """As `farm.model.Claim`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
    sentence: Annotated[str, Field(min_length=1)]
    source: Annotated[str, Field(min_length=1)]
    workload: str
    case: str = "*"
    path: str = ""
    backends: tuple[Backend, ...] = ()
    quantity: Literal["p50", "peak_memory", "cold_compile"] = "p50"
    at_most: Positive | None = None
    up_to: bool = False
    fact: str = ""
    equals: bool | int | float | str | None = None

    @model_validator(mode="after")
    def _one_test(self) -> _Claim:
        ratio, fact = self.at_most is not None, bool(self.fact) and self.equals is not None
        if ratio == fact or (self.equals is not None) != bool(self.fact):
            raise ValueError("a claim is tested by at_most (a ratio), or by a fact and what it equals, and not by both")
        return self


class _File(_Checked):
    schema_version: Literal[1]
    seed: Annotated[int, Field(ge=0)] = 20260701
    backends: tuple[Backend, ...]
    gates: tuple[Gate, ...]
    decisions: tuple[Decision, ...]
    versions: dict[str, str]
    packages: tuple[str, ...] = ()
    """Requirements installed beside torch in every arm, in one version for all: what an export to ONNX needs."""
    workload: Annotated[tuple[_Workload, ...], Field(min_length=1)]
    suite: Annotated[dict[str, _Suite], Field(min_length=1)]
    tier: Annotated[tuple[_Tier, ...], Field(min_length=1)]
    stage: tuple[_Stage, ...] = ()
    waiver: tuple[_Waiver, ...] = ()
    claim: tuple[_Claim, ...] = ()
    caveats: dict[str, str]

    @field_validator("gates", mode="before")
    @classmethod
    def _gates(cls, value: Any) -> Any:
        return tuple(_gate(name) for name in value) if isinstance(value, list | tuple) else value

    @field_validator("decisions", mode="before")
    @classmethod
    def _decisions(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        allowed = [str(decision) for decision in Decision]
        for name in value:
            if name not in allowed:
                raise ValueError(f"unknown decision '{name}'; allowed are {', '.join(allowed)}")
        return tuple(Decision(name) for name in value)


def _gate(name: Any) -> Gate:
    allowed = [str(gate) for gate in Gate]
    if name not in allowed:
        raise ValueError(f"unknown gate '{name}'; allowed are {', '.join(allowed)}")
    return Gate(name)


@dataclass(frozen=True)
class MatrixWorkload:
    """A workload of the matrix: its declaration, the features asked about, the cases to choose from."""

    spec: WorkloadSpec
    features: tuple[str, ...]
    cases: tuple[CaseSpec, ...]
    backends: tuple[Backend, ...] | None
    own: bool
    """A user's own file, whose source travels with the plan."""
    candidate_path: str | None = None
    owner: str = ""
    maintains: bool = False
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True)
class Planning:
    """What a suite leaves to the planner, which knows the run and its machines."""

    confirm: bool = True
    aa_share: float = 0.1
    max_budget_s: float | None = None


@dataclass(frozen=True)
class Matrix:
    """A checked matrix."""

    source: str
    """"built in", or the file."""
    path: Path | None
    seed: int
    backends: tuple[Backend, ...]
    gates: tuple[Gate, ...]
    decisions: tuple[Decision, ...]
    versions: dict[str, str]
    workloads: tuple[MatrixWorkload, ...]
    suites: dict[str, Measuring]
    planning: dict[str, Planning]
    """By suite."""
    tiers: tuple[Tier, ...]
    caveats: tuple[str, ...]
    stages: tuple[Stage, ...] = ()
    """The window that a run may be asked to take, in order."""
    waivers: tuple[Waiver, ...] = ()
    claims: tuple[Claim, ...] = ()
    """What the release says of itself."""
    packages: tuple[str, ...] = ()
    """Requirements installed beside torch in every arm."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that the matrix says, the sources of its workloads included."""

        class Content(Model):
            content: list[Any]

        workloads = [
            [
                w.spec.name,
                w.spec.digest,
                list(w.features),
                w.candidate_path,
                [vars(case) for case in w.cases],
                w.backends,
                w.owner,
                w.maintains,
                w.caveats,
            ]
            for w in self.workloads
        ]
        tiers = [tier.model_dump(mode="json") for tier in self.tiers]
        suites = {
            name: [suite.model_dump(mode="json"), vars(self.planning[name])] for name, suite in self.suites.items()
        }
        content = [self.seed, self.backends, self.gates, self.decisions, self.versions, workloads, suites, tiers]
        stages = [stage.model_dump(mode="json") for stage in self.stages]
        waivers = [waiver.model_dump(mode="json") for waiver in self.waivers]
        claims = [claim.model_dump(mode="json") for claim in self.claims]
        return Content(content=[*content, self.caveats, stages, waivers, claims, self.packages]).digest()

    def release(self, request: str) -> str:
        """Return what ``request`` stands for: a name of [versions], or itself."""
        return self.versions.get(request, request)

    @property
    def deciding(self) -> Measuring:
        """How the suite is measured that limits are settled with: "standard", or the last where there is none."""
        return self.suites.get("standard") or list(self.suites.values())[-1]

    def suite(self, name: str) -> Measuring:
        """Return how suite ``name`` is measured. Raises UsageError naming the suites there are."""
        if name not in self.suites:
            raise UsageError(f"{self.source}: no suite '{name}'; allowed are {', '.join(self.suites)}")
        return self.suites[name]


def load_matrix(path: Path | None = None) -> Matrix:
    """Return the matrix in ``path``, by default the one that ships with the farm.

    Raises UsageError naming the file, the line or the key, and what is allowed.
    """
    if path is None:
        text, source = (files("farm") / "default_matrix.toml").read_text(), "built in"
    else:
        try:
            text, source = path.read_text(), str(path)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"matrix '{path}' cannot be read: {error}") from error
    where = f"matrix '{source}'"
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where}: {error}") from error
    _refuse_floats(raw.get("versions", {}), where, text)
    try:
        checked = _File.model_validate(_as_tuples(raw))
    except ValidationError as error:
        raise UsageError(_first_error(error, raw, where, text)) from None
    return _matrix(checked, where, source, path)


def matrix_schema() -> dict[str, Any]:
    """Return the JSON Schema of a matrix, whose TOML holds the same keys."""
    return _File.model_json_schema() | {"title": "Matrix"}


def _refuse_floats(versions: Any, where: str, text: str) -> None:
    """A version that TOML read as a float has lost digits: 2.10 is 2.1."""
    for name, value in versions.items() if isinstance(versions, dict) else ():
        if type(value) in (int, float):
            written = tomllib.loads(text, parse_float=str)["versions"][name]
            raise UsageError(
                f"{where}, versions.{name}: {written} is a number, and 2.10 would be 2.1; "
                f'write it as a text: "{written}"'
            )


def _as_tuples(value: Any) -> Any:
    """TOML's arrays as tuples: frozen models hold nothing that can change."""
    if isinstance(value, dict):
        return {key: _as_tuples(item) for key, item in value.items()}
    return tuple(_as_tuples(item) for item in value) if isinstance(value, list) else value


def _first_error(error: ValidationError, raw: Mapping[str, Any], where: str, text: str) -> str:
    errors = error.errors(include_url=False)
    # A key that is misspelt is unknown and missing at once; the first of these says what to mend.
    first = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
    names: list[str] = []
    here: Any = raw
    for part in first["loc"]:
        here = _inside(here, part)
        if isinstance(part, int):
            label = here.get("name", part) if isinstance(here, dict) else part
            names.append(f"[{label}]")
        else:
            names.append(f".{part}" if names else str(part))
    key = next((part for part in reversed(first["loc"]) if isinstance(part, str)), "")
    line = "" if first["type"] == "missing" else _line(text, str(first["input"]), str(key))
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "unknown key; " + _allowed(first["loc"])
    elif first["type"] == "literal_error":
        message = f"'{first['input']}' is not allowed: {message[0].lower()}{message[1:]}"
    elif first["type"] == "tuple_type" and isinstance(first["input"], dict):
        message = f"one table where a list of tables belongs; write [[{key}]]"
    elif first["type"] not in ("value_error", "missing"):
        message = f"{first['input']!r}: {message[0].lower()}{message[1:]}"
    return f"{where}{line}, {''.join(names)}: {message}"


def _inside(here: Any, part: Any) -> Any:
    try:
        return here[part]
    except (KeyError, IndexError, TypeError):
        return None


def _line(text: str, value: str, key: str) -> str:
    """Return ", line N" where one line alone holds the key and the value, else nothing."""
    inside = re.findall(r"'([^']*)'", value) if value.startswith("(") else []
    lines = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if re.match(rf"\s*{re.escape(key)}\s*=", line)
        and (value in line or value.startswith(("{", "(")))
        and all(item in line for item in inside)
    ]
    return f", line {lines[0]}" if len(lines) == 1 else ""


def _allowed(location: tuple[int | str, ...]) -> str:
    tables: dict[str, type[BaseModel]] = {
        "workload": _Workload,
        "tier": _Tier,
        "suite": _Suite,
        "stage": _Stage,
        "waiver": _Waiver,
        "claim": _Claim,
    }
    kind = tables.get(str(location[0]), _File) if len(location) > 1 else _File
    if kind is _Workload and "case" in location[:-1]:
        kind = _Case
    return f"allowed are {', '.join(sorted(kind.model_fields))}"


def _matrix(checked: _File, where: str, source: str, path: Path | None) -> Matrix:
    _refuse_twice([tier.name for tier in checked.tier], f"{where}, tier")
    _refuse_twice([entry.name for entry in checked.workload], f"{where}, workload")
    _refuse_twice(checked.gates, f"{where}, gates")
    known = catalogue()
    workloads = tuple(_workload(entry, known, where, path) for entry in checked.workload)
    names = [workload.spec.name for workload in workloads]
    for entry in checked.workload:
        for case in entry.case:
            for suite_name in case.suites:
                if suite_name not in checked.suite:
                    here = f"{where}, workload[{entry.name}].case[{case.name}].suites"
                    raise UsageError(f"{here}: unknown suite '{suite_name}'; {_list(checked.suite)}")
    for tier in checked.tier:
        for name in tier.workloads:
            if name not in names:
                raise UsageError(f"{where}, tier[{tier.name}].workloads: unknown workload '{name}'; {_list(names)}")
        for backend in tier.backends:
            if backend not in checked.backends:
                allowed = _list(checked.backends)
                raise UsageError(f"{where}, tier[{tier.name}].backends: '{backend}' is not in backends; {allowed}")
        for gate in tier.required:
            if gate not in checked.gates:
                allowed = _list(checked.gates)
                raise UsageError(f"{where}, tier[{tier.name}].required: '{gate}' is not in gates; {allowed}")
        for name in tier.reason:
            if name not in _Tier.model_fields:
                allowed = _list(sorted(_Tier.model_fields))
                raise UsageError(f"{where}, tier[{tier.name}].reason: '{name}' is no key of a tier; {allowed}")
    for name, suite in checked.suite.items():
        if list(suite.looks) != sorted(set(suite.looks)):
            raise UsageError(f"{where}, suite.{name}.looks: {list(suite.looks)} must rise; the last one ends it")
        if max(suite.looks) < least_restarts(suite.alpha):
            needed = least_restarts(suite.alpha)
            raise UsageError(f"{where}, suite.{name}.looks: alpha {suite.alpha} needs {needed} restarts to settle")
        if 0 < suite.as_it_comes < least_restarts(suite.alpha):
            needed = least_restarts(suite.alpha)
            raise UsageError(
                f"{where}, suite.{name}.as_it_comes: alpha {suite.alpha} needs {needed} restarts to bound anything; "
                "0 leaves them out"
            )
        if suite.max_budget_s is not None and suite.max_budget_s < suite.budget_s:
            raise UsageError(
                f"{where}, suite.{name}.max_budget_s: {suite.max_budget_s:g} is less than budget_s, "
                f"{suite.budget_s:g}; it says how far that may grow"
            )
    _check_stages(checked, names, where)
    _check_waivers(checked, workloads, where)
    _check_claims(checked, workloads, where)
    _check_packages(checked.packages, where)
    return Matrix(
        source=source,
        path=path,
        seed=checked.seed,
        backends=checked.backends,
        gates=checked.gates,
        decisions=checked.decisions,
        versions=checked.versions,
        workloads=workloads,
        suites={
            name: Measuring(**suite.model_dump(exclude=set(vars(Planning())))) for name, suite in checked.suite.items()
        },
        planning={
            name: Planning(suite.confirm, suite.aa_share, suite.max_budget_s) for name, suite in checked.suite.items()
        },
        tiers=tuple(Tier(**tier.model_dump()) for tier in checked.tier),
        caveats=tuple(f"{topic.replace('_', ' ')}: {text}" for topic, text in checked.caveats.items()),
        stages=tuple(Stage(**stage.model_dump()) for stage in checked.stage),
        waivers=tuple(
            Waiver(**waiver.model_dump() | {"expires": waiver.expires.isoformat()}) for waiver in checked.waiver
        ),
        claims=tuple(Claim(**claim.model_dump()) for claim in checked.claim),
        packages=checked.packages,
    )


def _check_packages(packages: Sequence[str], where: str) -> None:
    """Refuse what is no requirement, and what moves with torch: that is what is compared."""
    for text in packages:
        try:
            name = Requirement(text).name
        except InvalidRequirement as error:
            raise UsageError(f"{where}, packages: '{text}' is no requirement: {str(error).splitlines()[0]}") from None
        if is_torch_family(name):
            raise UsageError(f"{where}, packages: '{name}' moves with torch; name packages that are equal in both arms")


def _check_stages(checked: _File, workloads: Sequence[str], where: str) -> None:
    """Refuse stages that name what is not there, or that leave a gate on a backend to none of them."""
    _refuse_twice([stage.name for stage in checked.stage], f"{where}, stage")
    tiers = {tier.name for tier in checked.tier}
    for stage in checked.stage:
        here = f"{where}, stage[{stage.name}]"
        if stage.name in (*workloads, "aa", "rollback", "elsewhere"):
            # Cells are named by either.
            raise UsageError(f"{here}: '{stage.name}' names something else already; give the stage a name of its own")
        for name in stage.in_service:
            if name not in tiers:
                raise UsageError(f"{here}.in_service: unknown tier '{name}'; {_list(sorted(tiers))}")
        if stage.share is not None and not stage.in_service:
            raise UsageError(f"{here}.share: a share of what? in_service names the tiers that run the candidate")
        if Gate.ROLLBACK in stage.gates and "rehearsal" not in stage.kinds:
            raise UsageError(f"{here}.gates: rollback is judged by rehearsals; add 'rehearsal' to kinds")
    asking = [stage for stage in checked.stage if not stage.in_service]
    for gate, backend in product(checked.gates, checked.backends) if checked.stage else ():
        kind = "rehearsal" if gate is Gate.ROLLBACK else "measure"
        if not any(
            kind in stage.kinds and backend in (stage.backends or (backend,)) and gate in (stage.gates or (gate,))
            for stage in asking
        ):
            raise UsageError(f"{where}, stage: no stage asks {gate} on {backend}; add it to the gates of one")


def _check_claims(checked: _File, workloads: Sequence[MatrixWorkload], where: str) -> None:
    """Refuse a claim that no cell could ever show: it would be read as one that nobody happened to test."""
    known = {workload.spec.name: workload for workload in workloads}
    _refuse_twice([claim.name for claim in checked.claim], f"{where}, claim")
    for claim in checked.claim:
        here = f"{where}, claim[{claim.name}]"
        if claim.workload not in known:
            raise UsageError(f"{here}.workload: no workload '{claim.workload}' in this matrix; {_list(known)}")
        workload = known[claim.workload]
        cases = [case.name for case in workload.cases]
        if not any(fnmatchcase(case, claim.case) for case in cases):
            raise UsageError(f"{here}.case: '{claim.case}' is no case of {claim.workload}; {_list(cases)}")
        if claim.path and claim.path not in workload.features:
            raise UsageError(
                f"{here}.path: '{claim.path}' is no feature of {claim.workload}, so no cell runs it; "
                f"{_list(workload.features)}"
            )


def _check_waivers(checked: _File, workloads: Sequence[MatrixWorkload], where: str) -> None:
    """Refuse a waiver that could never be needed: it would be read as one that is in force."""
    tiers = {tier.name: tier for tier in checked.tier}
    known = {workload.spec.name: workload for workload in workloads}
    subjects = []
    for number, waiver in enumerate(checked.waiver):
        here = f"{where}, waiver[{number}]"
        if waiver.tier not in tiers:
            raise UsageError(f"{here}.tier: unknown tier '{waiver.tier}'; {_list(tiers)}")
        tier = tiers[waiver.tier]
        if waiver.workload not in (tier.workloads or known):
            raise UsageError(
                f"{here}.workload: tier {tier.name} runs no workload '{waiver.workload}'; "
                f"{_list(tier.workloads or known)}"
            )
        workload = known[waiver.workload]
        cases = [case.name for case in workload.cases]
        if not any(fnmatchcase(case, waiver.case) for case in cases):
            raise UsageError(f"{here}.case: '{waiver.case}' is no case of {waiver.workload}; {_list(cases)}")
        backends = [backend for backend in tier.backends if backend in (workload.backends or (backend,))]
        if waiver.backend not in backends:
            raise UsageError(
                f"{here}.backend: tier {tier.name} asks nothing of {waiver.workload} on '{waiver.backend}'; "
                f"{_list(backends)}"
            )
        feature = waiver.question == "feature"
        if feature and not workload.features:
            raise UsageError(f"{here}.question: {waiver.workload} has no features, so nobody asks about its gain")
        # A feature is always asked for its gain (farm.decision.required_gates).
        required = (*tier.required, *([Gate.LATENCY] if feature else []))
        if waiver.gate not in required:
            raise UsageError(
                f"{here}.gate: tier {tier.name} does not require {waiver.gate}, so there is nothing to waive; "
                f"{_list(required)}"
            )
        subjects.append((waiver.tier, waiver.workload, waiver.case, waiver.backend, waiver.gate, waiver.question))
        if subjects.count(subjects[-1]) > 1:
            raise UsageError(f"{here}: it is there twice; keep the one that holds")


def _workload(entry: _Workload, known: Mapping[str, WorkloadSpec], where: str, path: Path | None) -> MatrixWorkload:
    here = f"{where}, workload[{entry.name}]"
    if entry.file is not None:
        folder = path.parent if path else Path.cwd()
        if not (folder / entry.file).is_file():
            raise UsageError(f"{here}.file: there is no file '{folder / entry.file}'")
        spec = read_workload(folder / entry.file, entry.name)
    elif entry.name in known:
        spec = known[entry.name]
    else:
        raise UsageError(f"{here}: unknown workload; {_list(known)}, or give a file")
    paths = [p.name for p in spec.paths]
    for feature in entry.features:
        if feature not in paths[1:]:
            raise UsageError(f"{here}.features: no new path '{feature}'; {_list(paths[1:])}")
    if entry.candidate_path is not None and entry.candidate_path not in paths:
        raise UsageError(f"{here}.candidate_path: no path '{entry.candidate_path}'; {_list(paths)}")
    if entry.candidate_path is not None and entry.features:
        raise UsageError(f"{here}: features are held against the old path on the candidate; leave out candidate_path")
    if entry.maintains and not entry.owner.strip():
        raise UsageError(f"{here}.maintains: who maintains its kernels? add an owner")
    _refuse_twice([case.name for case in entry.case], f"{here}.case")
    cases = {case.name: case for case in spec.cases}
    for extra in entry.case:
        parameters = spec.case_parameters(extra.parameters, f"{here}, case[{extra.name}]")
        if extra.packages and not spec.exports:
            raise UsageError(f"{here}, case[{extra.name}]: {NO_PACKAGE}")
        cases[extra.name] = CaseSpec(extra.name, extra.suites, parameters, extra.production_shape, extra.packages)
    if entry.cases is not None:
        for name in entry.cases:
            if name not in cases:
                raise UsageError(f"{here}.cases: unknown case '{name}'; {_list(cases)}")
        cases = {name: cases[name] for name in entry.cases}
    return MatrixWorkload(
        spec,
        entry.features,
        tuple(cases.values()),
        entry.backends,
        not spec.shipped,
        entry.candidate_path,
        entry.owner.strip(),
        entry.maintains,
        entry.caveats,
    )


def _refuse_twice(names: Sequence[str], where: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{where}: '{name}' is there twice; give each a name of its own")


def _list(names: Any) -> str:
    return f"allowed are {', '.join(names) or 'none'}"
