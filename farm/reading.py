"""Evidence as people bring it: a run's own file, or one that was written by hand in the same format.

What a hand left out is filled in only here, with what claims nothing: an arm that says nothing of its outputs has none,
so its correctness is untested. What travels from workers is never filled in.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ValidationError

from farm.errors import UsageError
from farm.matrix import load_matrix
from farm.model import SCHEMA_VERSION, Environment, Evidence, Gate, Host, LockedPackage, Release, Side, pack_ns

__all__ = ["BY_HAND", "read_evidence"]

UNKNOWN = "unknown"
HOST = Host(
    name=UNKNOWN,
    platform=UNKNOWN,
    os=UNKNOWN,
    cpu=UNKNOWN,
    cores=0,
    memory_bytes=0,
    capabilities=(),
    python=UNKNOWN,
)
BY_HAND = "written by hand"
NO_HASHES = "no wheel hashes are given: that the arms are two different wheels is taken on trust"
Document = dict[str, Any]
#: Of a tier: what is no limit where it is 0, negative or not finite.
LIMITS = (
    "p50_ratio",
    "p95_ratio",
    "throughput_ratio",
    "peak_memory_ratio",
    "peak_memory_bytes",
    "compile_ratio",
    "drift_ratio",
    "rollback_s",
    "feature_gain",
    "feature_memory_gain",
)


def read_evidence(text: str | bytes, name: str) -> Evidence:
    """Return the evidence in ``text``, which ``name`` says where it came from.

    Raises UsageError naming the place inside it, what is wrong there and what is expected.
    """
    where = f"evidence '{name}'"
    try:
        # Of Windows' editors: a mark before the first byte.
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        document = json.loads(text)
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: this is no text in UTF-8: {error.reason} at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise UsageError(f"{where}, line {error.lineno}: this is no JSON: {error.msg}") from error
    except RecursionError as error:
        raise UsageError(f"{where}: this is nested deeper than any evidence") from error
    if not isinstance(document, dict):
        raise UsageError(f"{where}: an object with plan and results belongs here; see farm schema evidence")
    for place, version in _versions(document):
        if version != SCHEMA_VERSION:
            raise UsageError(
                f"{where}, {place}: it is written in version {json.dumps(version)} of the format, and this farm reads "
                f"version {SCHEMA_VERSION}; judge it with the farm that wrote it, or write it again"
            )
    try:
        evidence = Evidence.model_validate_json(text)
    except ValidationError:
        # Something is left out or short: filled in, and what is still wrong then is really wrong.
        completed = _completed(document, name, where)
        try:
            evidence = Evidence.model_validate_json(json.dumps(completed))
        except ValidationError as error:
            raise UsageError(f"{where}, {_first(error)}; see farm schema evidence") from None
    _check_whole(evidence, where)
    return evidence


def _versions(document: Document) -> Iterator[tuple[str, Any]]:
    """Yield every version that the records in ``document`` say, with its place."""
    records = [("", document), ("plan.", document.get("plan"))]
    for name in ("results", "extras", "elsewhere"):
        found = document.get(name)
        records += [(f"{name}[{n}].", entry) for n, entry in enumerate(found if isinstance(found, list) else [])]
    for place, record in records:
        if isinstance(record, dict) and "schema_version" in record:
            yield f"{place}schema_version", record["schema_version"]


def _check_whole(evidence: Evidence, where: str) -> None:
    """Refuse what each record alone may say and all of them together cannot mean: it would be left out in silence."""
    arms: dict[str, list[str]] = {}
    for number, cell in enumerate(evidence.plan.cells):
        if cell.id in arms:
            raise UsageError(f"{where}, plan.cells[{number}].id: {json.dumps(cell.id)} is planned twice")
        arms[cell.id] = [arm.name for arm in cell.arms]
    answered: set[tuple[str, str]] = set()
    for number, result in enumerate(evidence.results):
        place = f"{where}, results[{number}]"
        if result.run_id != evidence.run_id:
            raise UsageError(
                f"{place}.run_id: {json.dumps(result.run_id)} is another run than {json.dumps(evidence.run_id)}, and "
                "would not count; it belongs under extras"
            )
        if result.cell_id not in arms:
            raise UsageError(f"{place}.cell_id: {_unplanned(result.cell_id, arms)}")
        named = [(f"arms.{arm}", arm) for arm in result.arms]
        named += [
            (f"restarts[{n}].arms.{arm}", arm) for n, restart in enumerate(result.restarts) for arm in restart.arms
        ]
        for inside, arm in named:
            if arm not in arms[result.cell_id]:
                raise UsageError(f"{place}.{inside}: {_no_arm(result.cell_id, arms)}")
        twice = {(result.cell_id, arm) for arm in result.arms} & answered
        if twice:
            raise UsageError(
                f"{place}: a second answer for the {min(arm for _, arm in twice)} of {result.cell_id}; one counts, "
                "others belong under extras"
            )
        answered |= {(result.cell_id, arm) for arm in result.arms}
    for number, result in enumerate(evidence.elsewhere):
        place = f"{where}, elsewhere[{number}]"
        if result.cell_id not in arms:
            raise UsageError(f"{place}.cell_id: {_unplanned(result.cell_id, arms)}")
        for arm in result.arms:
            if arm not in arms[result.cell_id]:
                raise UsageError(f"{place}.arms.{arm}: {_no_arm(result.cell_id, arms)}")
    for number, tier in enumerate(evidence.plan.tiers):
        for name, value in tier.model_dump(mode="json").items():
            if name in LIMITS and value is not None and not 0 < float(value) < math.inf:
                raise UsageError(f"{where}, plan.tiers[{number}].{name}: {value} is no limit; it is more than 0")


def _unplanned(cell_id: Any, arms: Mapping[str, Sequence[str]]) -> str:
    return f"no cell {json.dumps(cell_id)} is planned; there are {', '.join(arms) or 'none'}"


def _no_arm(cell_id: str, arms: Mapping[str, Sequence[str]]) -> str:
    return f"{cell_id} has no such arm; it has {', '.join(arms[cell_id])}"


def _first(error: ValidationError) -> str:
    found = error.errors(include_url=False)[0]
    place = ""
    for part in found["loc"]:
        place += f"[{part}]" if isinstance(part, int) else f"{'.' if place else ''}{part}"
    message = found["msg"].removeprefix("Value error, ")
    if found["type"] == "extra_forbidden":
        kind = _record_at(found["loc"][:-1])
        return f"{place}: no such key" + (f"; there are {', '.join(sorted(kind.model_fields))}" if kind else "")
    if found["type"] == "missing":
        return f"{place}: this is missing"
    given = json.dumps(found["input"], default=str)
    return f"{place}: {given if len(given) <= 60 else given[:57] + '...'}: {message[0].lower()}{message[1:]}"


def _record_at(place: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the kind of record that lies at ``place`` of evidence, None for what holds no records."""
    kind: type[BaseModel] | None = Evidence
    for part in place:
        # A number and the name of an arm lead into a collection, whose records are known already.
        if kind is not None and part in kind.model_fields:
            kind = _record_in(kind.model_fields[str(part)].annotation)
    return kind


def _record_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _record_in(inner))), None)


# -- what a hand may leave out -------------------------------------------------------------------------------------


def _completed(document: Document, name: str, where: str) -> Document:
    plan = _plan({"command": ["farm", "decide", name], **_object(document.get("plan"), where, "plan")}, where)
    run_id = document.get("run_id", "by-hand")
    arms = {cell["id"]: _names(cell["arms"]) for cell in plan["cells"] if isinstance(cell["id"], str)}
    results = [
        _result(_object(entry, where, f"results[{number}]"), run_id, arms, where, f"results[{number}]")
        for number, entry in enumerate(_list(document.get("results", []), where, "results"))
    ]
    return {"run_id": run_id, "state": "complete"} | document | {"plan": plan, "results": results}


def _names(arms: Any) -> list[str]:
    """Return the names of a cell's arms, as far as they are there."""
    found = [arm.get("name") for arm in (arms if isinstance(arms, list) else ()) if isinstance(arm, dict)]
    return [name for name in found if isinstance(name, str)]


def _plan(plan: Document, where: str) -> Document:
    given = _object(plan.get("releases", {}), where, "plan.releases")
    short = bool(given) and all(isinstance(value, str) for value in given.values())
    environments: dict[str, Environment] = {}
    if short:
        if set(given) != {side.value for side in Side}:
            raise UsageError(f"{where}, plan.releases: baseline and candidate belong here, each a version")
        environments = {side: _environment(text, where, f"plan.releases.{side}") for side, text in given.items()}
    one = len({made.key for made in environments.values()}) == 1
    variants = {made.release.variant for made in environments.values()}
    differ = f"build variants differ: {' and '.join(sorted(variants))}" if len(variants) > 1 else None
    cells = [
        _cell(_object(entry, where, f"plan.cells[{number}]"), environments, differ, where, f"plan.cells[{number}]")
        for number, entry in enumerate(_list(plan.get("cells", []), where, "plan.cells"))
    ]
    matrix = load_matrix()
    shipped = {tier.name: tier.model_dump(mode="json") for tier in matrix.tiers}
    tiers = [
        _tier(entry, shipped, where, f"plan.tiers[{number}]")
        for number, entry in enumerate(_list(plan.get("tiers", list(shipped)), where, "plan.tiers"))
    ]
    filled: Document = {
        "created": "",
        "suite": BY_HAND,
        "requested": {},
        "resolution_notes": [BY_HAND, NO_HASHES] if short else [BY_HAND],
        "aa": one,
        "environments": {made.key: made.model_dump(mode="json") for made in environments.values()},
        "requested_backends": sorted({str(cell["backend"]) for cell in cells}),
        "unserved_backends": {},
        "matrix_digest": "",
        "matrix_source": BY_HAND,
        "versions": {},
        "caveats": [],
        "seed": 0,
    }
    releases = {side: made.release.model_dump(mode="json") for side, made in environments.items()} if short else given
    return filled | plan | {"cells": cells, "tiers": tiers, "releases": releases}


def _environment(text: str, where: str, place: str) -> Environment:
    """Return what is known of a release that only its version is given of."""
    try:
        version = Version(text)
    except InvalidVersion:
        raise UsageError(f'{where}, {place}: "{text}" is no version; write "2.13.0" or "2.13.0+cu130"') from None
    release = Release(
        version=version.public,
        local=version.local,
        variant=version.local or UNKNOWN,
        platform=HOST.platform,
        wheel="",
        sha256="",
        origin=BY_HAND,
        requirement=f"torch=={text}",
    )
    torch = LockedPackage(name="torch", version=text, wheel="", sha256="", url="")
    return Environment(release=release, python=HOST.python, packages=(torch,))


def _cell(
    cell: Document, environments: Mapping[str, Environment], differ: str | None, where: str, place: str
) -> Document:
    capability = cell.get("capability", "cpu")
    for name in ("workload", "case"):
        if not isinstance(cell.get(name), str):
            raise UsageError(f"{where}, {place}.{name}: a text is missing")
    if not isinstance(capability, str):
        raise UsageError(f"{where}, {place}.capability: a text like cpu or cuda.sm90 belongs here")
    names = [side.value for side in Side] + [f"candidate+{path}" for path in cell.get("features", [])]
    arms = [
        {
            "name": name,
            "side": name.partition("+")[0],
            "path": name.partition("+")[2] or "old",
            "environments": {HOST.target: environments[side].key}
            if (side := name.partition("+")[0]) in environments
            else {},
        }
        for name in names
    ]
    filled: Document = {
        "id": f"{cell['workload']}/{cell['case']}@{capability}",
        "backend": capability.partition(".")[0],
        "capability": capability,
        "parameters": {},
        "arms": arms,
        "control": {"workload_digest": "", "seed": 0, "environment_variables": {}},
        "measuring": {},
        "gates": [gate.value for gate in Gate if gate is not Gate.ROLLBACK],
        "broken_control": differ,
    }
    return filled | {key: value for key, value in cell.items() if key != "features"}


def _tier(entry: Any, shipped: Mapping[str, Document], where: str, place: str) -> Any:
    if not isinstance(entry, str):
        return entry
    if entry not in shipped:
        raise UsageError(f"{where}, {place}: no tier '{entry}' ships; there are {', '.join(shipped)}, or write one out")
    return shipped[entry]


def _result(result: Document, run_id: Any, arms: Mapping[str, Sequence[str]], where: str, place: str) -> Document:
    cell_id = result.get("cell_id")
    if not isinstance(cell_id, str) or cell_id not in arms:
        raise UsageError(f"{where}, {place}.cell_id: {_unplanned(cell_id, arms)}")
    filled: Document = {
        "run_id": run_id,
        "attempt": 1,
        "worker": BY_HAND,
        "host": HOST.model_dump(mode="json"),
        "started": "",
        "validity": {"valid": True},
        "wall_ns": 0,
        "stopped_because": BY_HAND,
    }
    found = filled | {key: value for key, value in result.items() if key != "restarts_ms"}
    said = _object(result.get("arms", {}), where, f"{place}.arms")
    # An arm that others were timed beside, and that has no times of its own, was not answered for.
    lives = result.get("restarts_ms")
    timed = {arm for life in (lives if isinstance(lives, list) else ()) if isinstance(life, dict) for arm in life}
    found["arms"] = {arm: "ok" for arm in arms[cell_id] if arm in timed or not timed} | said
    found["arms"] = {name: {"outcome": arm} if isinstance(arm, str) else arm for name, arm in found["arms"].items()}
    if isinstance(found["validity"], str):
        found["validity"] = {"valid": False, "reasons": [found["validity"]]}
    if "restarts_ms" in result:
        if "restarts" in result:
            raise UsageError(f"{where}, {place}: restarts and restarts_ms are there; leave one of them out")
        found["restarts"] = [
            _restart(number, _object(entry, where, f"{place}.restarts_ms[{number}]"), cell_id, arms, where, place)
            for number, entry in enumerate(_list(result["restarts_ms"], where, f"{place}.restarts_ms"))
        ]
    return found


def _restart(
    number: int, steps: Document, cell_id: str, arms: Mapping[str, Sequence[str]], where: str, place: str
) -> Document:
    lives = {}
    for arm, given in steps.items():
        inside = f"{place}.restarts_ms[{number}].{arm}"
        if arm not in arms[cell_id]:
            raise UsageError(f"{where}, {inside}: {_no_arm(cell_id, arms)}")
        lives[arm] = _timing(given, where, inside)
    return {"index": number, "order": list(lives), "arms": lives}


def _timing(steps: Any, where: str, place: str) -> Document:
    """Return one window of the steps of one arm in one process, given in milliseconds."""
    values = steps if isinstance(steps, list) else [steps]
    if not values or not all(type(value) in (int, float) and 0 <= value < 1e9 for value in values):
        raise UsageError(f"{where}, {place}: step times in milliseconds belong here, [10.1, 10.3, ...]")
    taken = np.array([round(value * 1e6) for value in values], dtype=np.uint64)
    packed = base64.urlsafe_b64encode(pack_ns(taken)).decode()
    window = {
        "block": 0,
        "position": 0,
        "steps_ns": packed,
        "wall_ns": int(taken.sum()),
        "cpu_ns": 0,
        "minor_faults": 0,
    }
    lives = dict.fromkeys(("import_ns", "setup_ns", "first_step_ns", "warmup_ns"), 0)
    return {**lives, "steady": True, "output_digest": "", "windows": [window]}


def _object(value: Any, where: str, place: str) -> Document:
    if not isinstance(value, dict):
        raise UsageError(f"{where}, {place}: an object {{...}} belongs here")
    return value


def _list(value: Any, where: str, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise UsageError(f"{where}, {place}: a list [...] belongs here")
    return value
