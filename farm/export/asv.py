"""asv: a results folder with one file for each machine and release, which `asv compare`, `show` and `publish` read.

The layout is asv's own (results files of version 2, benchmarks.json of version 2, machine.json of version 1). A release
stands where asv has a commit: by the commit that torch says it was built from, else by its wheel's SHA-256.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from farm.export.measures import VALID, Measure, environment_of, measures
from farm.model import Cell, CellResult, Environment, Evidence, Host, Outcome
from farm.statistics import signed_rank_interval

__all__ = ["merged", "to_asv"]

RESULTS_VERSION = 2
BENCHMARKS_VERSION = 2
MACHINE_VERSION = 1
#: The list of all benchmarks of a results folder.
BENCHMARKS = PurePosixPath("benchmarks.json")
COLUMNS = (
    "result",
    "params",
    "version",
    "started_at",
    "duration",
    "stats_ci_99_a",
    "stats_ci_99_b",
    "stats_q_25",
    "stats_q_75",
    "stats_number",
    "stats_repeat",
    "samples",
)
#: What asv shows: its name, kind and unit, from which metric, and what one is of asv's unit.
SHOWN = {
    "step_p50_ns": ("time_step_p50", "time", "seconds", 1e-9),
    "step_p95_ns": ("time_step_p95", "time", "seconds", 1e-9),
    "first_step_ns": ("time_first_step", "time", "seconds", 1e-9),
    "peak_step_bytes": ("peakmem_step", "peakmemory", "bytes", 1.0),
}
#: asv's own interval is of 99 %.
CI = 0.005
#: A commit of Git has as many digits.
COMMIT_DIGITS = 40


def to_asv(evidence: Evidence) -> tuple[dict[PurePosixPath, str], list[str]]:
    """Return the files of a results folder by their place in it, and a line for what is left out of them.

    An arm that failed is null, which asv shows as failed; what is invalid or was not run is not there at all.
    """
    groups: dict[tuple[str, str, str], list[Measure]] = {}
    left_out: dict[str, None] = {}
    for found in measures(evidence):
        if found.cell.kind == "measure" and found.metric in SHOWN and found.purpose in ("", "judging"):
            groups.setdefault((found.cell.id, found.arm.name, found.metric), []).append(found)
    files: dict[PurePosixPath, dict[str, Any]] = {}
    benchmarks: dict[str, Any] = {}
    for group in groups.values():
        first = group[0]
        failed = all(found.value is None and found.validity == VALID and found.outcome != Outcome.OK for found in group)
        environment = environment_of(evidence.plan, first.arm, first.result)
        if first.result is None or (not failed and all(found.value is None for found in group)):
            left_out[f"{first.cell.id}, {first.arm.name}: {first.why_none}"] = None
            continue
        commit = _commit(environment, first)
        if not commit or environment is None:
            left_out[f"{first.cell.id}, {first.arm.name}: neither its commit nor its wheel's hash is known"] = None
            continue
        name, entry = _benchmark(first)
        benchmarks[name] = entry
        env_name = _fitting(f"torch{environment.release.identity}-py{environment.python}")
        machine = _fitting(first.result.host.name)
        file = files.setdefault(
            PurePosixPath(machine, f"{commit[:8]}-{env_name}.json"),
            _file(first.result, environment, commit, env_name, machine),
        )
        file["results"][name] = _row(group, first.cell, first.result)
        files[PurePosixPath(machine, "machine.json")] = _machine(first.result.host, machine)
    files[BENCHMARKS] = {**benchmarks, "version": BENCHMARKS_VERSION}
    return {path: json.dumps(content, indent=1) for path, content in files.items()}, list(left_out)


def merged(old: str, new: str) -> str:
    """Return a file of asv's with what ``new`` says, and with what only ``old`` has. Raises ValueError for another's.

    As asv does it itself: benchmarks of other runs stay in the list, and other benchmarks of a release in its results.
    """
    before, after = json.loads(old), json.loads(new)
    if not isinstance(before, dict) or before.get("version") != after["version"]:
        raise ValueError(f"its version is not {after['version']}")
    if "results" in after:
        if before.get("result_columns") != after["result_columns"] or not isinstance(before.get("results"), dict):
            raise ValueError("its results have other columns")
        after["results"] = before["results"] | after["results"]
    return json.dumps(before | after, indent=1)


def _benchmark(found: Measure) -> tuple[str, dict[str, Any]]:
    """Return the name, which both releases share, and what asv knows of the benchmark."""
    short, kind, unit, _ = SHOWN[found.metric]
    cell = found.cell
    name = ".".join(map(_dotless, (cell.workload, cell.case, cell.capability, found.arm.path, short)))
    return name, {
        "name": name,
        "code": f"{cell.id}, path {found.arm.path}, {found.metric}",
        "type": kind,
        "unit": unit,
        "version": _version(cell),
        "param_names": [],
        "params": [],
        "timeout": cell.measuring.step_timeout_s,
    }


def _row(group: Sequence[Measure], cell: Cell, result: CellResult) -> list[Any]:
    factor = SHOWN[group[0].metric][3]
    values = [found.value * factor for found in group if found.value is not None]
    ends: list[Any] = [_started_ms(result), None]
    if not values:
        # asv's word for a benchmark that did not end well.
        return [[None], [], _version(cell), *ends]
    bounds = signed_rank_interval(values, CI) if len(values) > 1 else None
    low, high = bounds if bounds else (None, None)
    quartiles = [float(quantile) for quantile in np.quantile(values, [0.25, 0.75])]
    row: list[Any] = [[float(np.median(values))], [], _version(cell), *ends]
    return [*row, [low], [high], [quartiles[0]], [quartiles[1]], [1], [len(values)], [values]]


def _file(result: CellResult, environment: Environment, commit: str, env_name: str, machine: str) -> dict[str, Any]:
    packages = {package.name: package.version for package in environment.packages}
    return {
        "commit_hash": commit,
        "env_name": env_name,
        "date": _started_ms(result),
        "params": {**_described(result.host, machine), "python": environment.python, **packages},
        "python": environment.python,
        "requirements": packages,
        "env_vars": {},
        "result_columns": list(COLUMNS),
        "results": {},
        "durations": {},
        "version": RESULTS_VERSION,
    }


def _machine(host: Host, machine: str) -> dict[str, Any]:
    return {**_described(host, machine), "version": MACHINE_VERSION}


def _described(host: Host, machine: str) -> dict[str, str]:
    return {
        "machine": machine,
        "os": host.os,
        "arch": host.platform.partition("-")[0],
        "cpu": host.cpu,
        "num_cpu": str(host.cores),
        "ram": str(host.memory_bytes),
    }


def _commit(environment: Environment | None, found: Measure) -> str:
    """Return the commit that torch says it was built from, else the beginning of its wheel's hash, else ""."""
    assert found.result is not None
    ended = found.result.arms.get(found.arm.name)
    git = ended.facts.get("git") if ended else None
    known = git if isinstance(git, str) and re.fullmatch(r"[0-9a-f]{8,40}", git) else None
    return known or (environment.release.sha256[:COMMIT_DIGITS] if environment else "")


def _version(cell: Cell) -> str:
    return cell.control.workload_digest or "unknown"


def _started_ms(result: CellResult) -> int | None:
    """Return when the cell began, as JavaScript counts."""
    try:
        return int(datetime.fromisoformat(result.started).timestamp() * 1000)
    except ValueError:
        return None


def _dotless(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_+-]", "_", name)


def _fitting(name: str) -> str:
    """Return ``name`` as a file may be called; never one that leads out of its folder."""
    return re.sub(r"[^A-Za-z0-9+._-]", "-", name).lstrip(".") or "unknown"
