"""Which lock an environment goes back to: that of a run here which compared what is installed, or the index's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version
from pydantic import ValidationError

from farm.errors import UsageError
from farm.model import Environment, Plan, Rehearsal, RollbackJournal, Side, TorchIdentity
from farm.releases import is_torch_family, one_build, parse_request
from farm.settings import Home
from workers.rollback_plan import Wanted
from workers.user_environment import UserEnvironment, canonical

__all__ = ["find_wanted"]


def find_wanted(
    environment: UserEnvironment, to: str | None, home: Home, journal: RollbackJournal | None = None
) -> Wanted:
    """Return what ``environment`` goes back to.

    Without ``to`` it is the baseline of the newest run in ``home`` whose candidate is installed, or else what the last
    rollback here went to (``journal``): a torch that was swapped goes back to it again. With ``to`` it is what the last
    rollback went to, or what the newest run locked, of that release in the build that is installed or named
    ("2.12.1+cu130"), for the same Python and platform; else an index is asked.

    Raises UsageError where no run says, or no index has it; InfrastructureFailed where none can be reached.
    """
    installed = environment.torch()
    if to is None:
        if installed is None:
            raise UsageError(
                f"no torch is installed in '{environment.root}', or its metadata are lost: say where it goes back to, "
                "--to 2.12.1"
            )
        return _baseline_of(environment, installed, home, journal)
    wheel = to.endswith(".whl")
    public, _, named = (to, "", "") if wheel else to.partition("+")
    request = parse_request(public)
    if journal is not None and not wheel and _is(journal.to.version, public) and named in ("", journal.to.variant):
        return Wanted(journal.lock, journal.source)
    variant = named or (installed.variant if installed is not None else None)
    for run_id, plan, raw in _runs(home):
        for side, lock in _locks(plan, environment):
            if wheel:
                fits = lock.release.requirement == request.requirement
            else:
                fits = variant in (None, lock.release.variant) and _is(lock.release.version, public)
            if fits:
                return Wanted(lock, f"the {side} of run {run_id}", _rehearsed_s(raw, side, environment))
    lock = one_build(
        public,
        None if wheel else variant,
        platform=environment.platform,
        python=environment.version,
        beside=_pins(environment),
    )
    return Wanted(lock, "the index")


def _baseline_of(
    environment: UserEnvironment, installed: TorchIdentity, home: Home, journal: RollbackJournal | None
) -> Wanted:
    compared: dict[str, None] = {}
    for run_id, plan, raw in _runs(home):
        locks = dict(_locks(plan, environment))
        candidate, baseline = locks.get(Side.CANDIDATE), locks.get(Side.BASELINE)
        if candidate is not None:
            compared[candidate.release.identity] = None
        if candidate is None or baseline is None or candidate.key == baseline.key:
            continue
        if candidate.release.identity == installed.identity:
            seconds = _rehearsed_s(raw, Side.BASELINE, environment)
            return Wanted(baseline, f"the baseline of run {run_id}", seconds)
    if journal is not None:
        return Wanted(journal.lock, journal.source)
    known = f"the runs here compared {', '.join(compared)} with something" if compared else "no run here says"
    raise UsageError(
        f"'{environment.root}' holds torch {installed.identity} for Python {environment.version}, and {known}: say "
        "where it goes back to, --to 2.12.1"
    )


def _runs(home: Home) -> Iterator[tuple[str, Plan, dict[str, Any]]]:
    """Return the runs whose evidence is in ``home``, the newest first; what cannot be read is passed over."""
    files = sorted(home.runs.glob("*/evidence.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in files:
        found = _read(path)
        if found is not None:
            yield path.parent.name, *found


def _read(path: Path) -> tuple[Plan, dict[str, Any]] | None:
    try:
        raw = json.loads(path.read_bytes())
        return Plan.model_validate(raw["plan"]), raw
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return None


def _locks(plan: Plan, environment: UserEnvironment) -> Iterator[tuple[Side, Environment]]:
    """Return the plan's locks for the Python and platform of ``environment``, the baseline's first."""
    found: dict[Side, str] = {}
    for cell in plan.cells:
        for arm in cell.arms:
            key = arm.environments.get(f"{environment.platform}, Python {environment.version}")
            # A/A cells have the baseline on both sides.
            if key is not None and cell.kind != "aa":
                found.setdefault(arm.side, key)
    for side in (Side.BASELINE, Side.CANDIDATE):
        lock = plan.environments.get(found.get(side, ""))
        if lock is not None:
            yield side, lock


def _rehearsed_s(raw: dict[str, Any], side: Side, environment: UserEnvironment) -> float | None:
    """Return how long the run's rehearsal took on this kind of machine, where it passed."""
    if side is not Side.BASELINE:
        return None
    for result in raw.get("results", ()):
        try:
            rehearsal = Rehearsal.model_validate(result.get("rehearsal"))
        except ValidationError:
            continue
        if rehearsal.outcome == "ok" and result["host"]["platform"] == environment.platform:
            return rehearsal.duration_ns / 1e9
    return None


def _is(version: str, asked: str) -> bool:
    """Return whether ``version`` is what "2.12.1", "2.12" or "2.12.1+cpu" asks for."""
    try:
        found, wanted = Version(version), Version(asked)
    except InvalidVersion:
        return False
    parts = len(wanted.release)
    return found.public == wanted.public or (
        parts == 2 and found.release[:2] == wanted.release and not found.is_devrelease
    )


def _pins(environment: UserEnvironment) -> tuple[str, ...]:
    """Return pins of what the installed torch needs outside its family: the lock should leave it as it is."""
    found: dict[str, str] = {}
    queue = ["torch"]
    while queue:
        distribution = environment.packages.get(queue.pop())
        for requirement in environment.needs(distribution) if distribution else ():
            name = canonical(requirement.name)
            there = environment.packages.get(name)
            if there is not None and name not in found and not is_torch_family(name):
                found[name] = there.version
                queue.append(name)
    return tuple(f"{name}=={version}" for name, version in sorted(found.items()))
