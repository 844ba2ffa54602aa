"""The PyTorch benchmark database's version 3: one record a cell, arm and metric, with a value for each process.

The fields are those of its table (pytorch/test-infra, clickhouse_db_schema/oss_ci_benchmark_v3/schema.sql); what names
a CI job there (repo, head_branch, head_sha, workflow_id, run_attempt, job_id) its uploader adds.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from farm.export.measures import Measure, environment_of, measures
from farm.model import Cell, CellResult, Environment, Evidence

__all__ = ["to_pytorch_v3"]

SCHEMA = "v3"
NAME = "pytorch-farm"
GIB = 2**30
#: Where the packages of torch's family come from, for those that nobody would guess wrongly.
REPOSITORIES = {"torch": "pytorch/pytorch", "triton": "triton-lang/triton", "torchvision": "pytorch/vision"}


def to_pytorch_v3(evidence: Evidence) -> tuple[str, list[str]]:
    """Return the records as a JSON array, and a line for everything that was left out because it is no number."""
    groups: dict[tuple[str, str, str], list[Measure]] = {}
    left_out: dict[str, None] = {}
    known = list(measures(evidence))
    timed = {(found.cell.id, found.arm.name) for found in known if found.restart and found.value is not None}
    for found in known:
        if found.value is None:
            # What is wrong with a whole arm is said once.
            apart = found.restart is not None and (found.cell.id, found.arm.name) in timed
            what = f", restart {found.restart}" if apart else ""
            left_out[f"{found.cell.id}, {found.arm.name}{what}: {found.why_none}"] = None
        elif found.purpose in ("", "judging"):
            groups.setdefault((found.cell.id, found.arm.name, found.metric), []).append(found)
    records = [_record(evidence, group) for group in groups.values()]
    return json.dumps(records, indent=2), list(left_out)


def _record(evidence: Evidence, group: list[Measure]) -> dict[str, Any]:
    first = group[0]
    cell, arm, result = first.cell, first.arm, first.result
    assert result is not None
    environment = environment_of(evidence.plan, arm, result)
    return {
        "schema_version": SCHEMA,
        **_timestamp(result),
        "name": NAME,
        "runners": [_runner(cell, result)],
        "benchmark": {
            "name": NAME,
            "mode": str(cell.parameters.get("mode", cell.case.partition("-")[0])),
            "dtype": str(cell.parameters.get("dtype", "")),
            "extra_info": _texts(
                {
                    "run_id": evidence.run_id,
                    "plan_digest": evidence.plan.plan_digest,
                    "cell": cell.id,
                    "kind": cell.kind,
                    "case": cell.case,
                    "arm": arm.name,
                    "device": cell.backend,
                    "arch": cell.capability,
                    "control_broken": cell.broken_control or "",
                    **{f"parameter_{name}": value for name, value in cell.parameters.items()},
                }
            ),
        },
        "model": {
            "name": cell.workload,
            "type": "workload",
            "backend": arm.path,
            "origins": [NAME],
            "extra_info": _texts({"workload_digest": cell.control.workload_digest, "track": cell.track}),
        },
        "dependencies": _dependencies(environment, result.arms[arm.name].facts),
        "metric": {
            "name": first.metric,
            "benchmark_values": [found.value for found in group],
            "extra_info": _texts({"unit": first.unit, "values_are": "one a process" if first.restart else "one"}),
        },
    }


def _timestamp(result: CellResult) -> dict[str, int]:
    """Return when the cell began, seconds since 1970; nothing where that is not known."""
    try:
        return {"timestamp": int(datetime.fromisoformat(result.started).timestamp())}
    except ValueError:
        return {}


def _runner(cell: Cell, result: CellResult) -> dict[str, Any]:
    host = result.host
    return {
        "name": cell.backend,
        "type": cell.capability,
        **({"cpu_info": host.cpu} if host.cpu else {}),
        **({"cpu_count": host.cores} if host.cores else {}),
        **({"avail_mem_in_gb": host.memory_bytes // GIB} if host.memory_bytes else {}),
        "extra_info": _texts({"hostname": host.name, "os": host.os, "platform": host.platform, "python": host.python}),
    }


def _dependencies(environment: Environment | None, facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return every package of an arm's lock; of torch also the commit that it says it was built from."""
    if environment is None:
        return {}
    git = str(facts.get("git") or "")
    return {
        package.name: {
            "repo": REPOSITORIES.get(package.name, ""),
            "branch": "",
            "sha": git if package.name == "torch" else "",
            "version": environment.release.identity if package.name == "torch" else package.version,
            "extra_info": _texts({"wheel": package.wheel, "wheel_sha256": package.sha256, "url": package.url}),
        }
        for package in environment.packages
    }


def _texts(values: dict[str, Any]) -> dict[str, str]:
    """Return ``values`` as the table's Map(String, String), without those that say nothing."""
    return {name: str(value) for name, value in values.items() if value not in ("", None)}
