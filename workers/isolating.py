"""A failing cell measured again on this machine, with one moved package at a time held at the baseline's version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from farm.errors import UsageError
from farm.isolation import (
    again_of,
    carriers_of,
    conclude,
    groups,
    held_environment,
    isolation_cell,
    moved_packages,
    rounds_of,
    split,
    verdicts_of,
)
from farm.model import (
    Cell,
    CellOrder,
    Environment,
    Evidence,
    Gate,
    Held,
    HeldVerdict,
    Isolation,
    IsolationRound,
    Progress,
    Side,
    Tier,
    Verdict,
)
from farm.settings import Home
from workers.cell import run_cell
from workers.environments import discard
from workers.lease import machine_lease
from workers.probe import probe_host

__all__ = ["Waiting", "isolate"]

#: A group with one of these answers is taken apart: who of it carries the change, or can be held by itself.
TAKEN_APART = ("carries the change", "carries a part", "cannot be held")

Report = Callable[[Progress], None]


@dataclass(frozen=True)
class Waiting:
    """What is told while an isolation goes on."""

    progress: Report
    said: Callable[[str], None]
    """One line: what is held next, or what a round gave."""


def isolate(
    evidence: Evidence,
    cell: Cell,
    tier: Tier,
    gates: Sequence[Gate],
    home: Home,
    budget_s: float | None,
    told: Waiting,
) -> Isolation:
    """Return what holding each moved package does to ``gates`` of ``cell``, judged by the limits of ``tier``.

    ``budget_s`` is the time for measuring of one round; None: the cell's own, by the number of arms. The environments
    that hold something are removed afterwards. Raises UsageError for a cell without an environment for this machine.
    """
    host = probe_host()
    sides = _sides(evidence, cell, host.target)
    moved = moved_packages(sides[Side.BASELINE], sides[Side.CANDIDATE])
    environments = {environment.key: environment for environment in sides.values()}
    rounds: list[IsolationRound] = []
    verdicts: list[HeldVerdict] = []

    def measure(round_: Sequence[Held]) -> None:
        made = {one: held_environment(sides[Side.BASELINE], sides[Side.CANDIDATE], one) for one in round_}
        environments.update({environment.key: environment for environment in made.values()})
        told.said(f"holding {' and '.join(one.name for one in round_)} at the baseline's version")
        keys = {one: environment.key for one, environment in made.items()}
        asked = isolation_cell(cell, tier, gates, keys, host.target, budget_s)
        order = CellOrder(
            run_id=evidence.run_id,
            attempt=len(rounds) + 1,
            cell=asked,
            environments=environments,
            source=evidence.plan.sources.get(cell.workload),
        )
        with machine_lease(lambda: told.said("waiting for the machine"), lambda: False) as lease:
            result = run_cell(order, home, told.progress, lease, lambda: False, worker=host.name)
        rounds.append(IsolationRound(cell=asked, held=tuple(round_), result=result))
        found = verdicts_of(rounds[-1], tier)
        verdicts.extend(found)
        for verdict in found:
            told.said(f"{verdict.gate}: {verdict.held.name} {verdict.answer}: {verdict.reason}")

    before = set(environments)
    try:
        first = groups(moved)
        for round_ in rounds_of(first):
            measure(round_)
        apart = [part for one in first if _taken_apart(one, verdicts) for part in split(one)]
        for round_ in rounds_of(apart):
            measure(round_)
    finally:
        for key in environments.keys() - before:
            discard(environments[key], home)
    again = [again_of(round_, tier) for round_ in rounds]
    return Isolation(
        run_id=evidence.run_id,
        cell_id=cell.id,
        tier=tier.name,
        gates=tuple(gates),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        moved=moved,
        environments=environments,
        rounds=tuple(rounds),
        again={gate: "; ".join(_said(found[gate] for found in again)) for gate in gates if again},
        verdicts=tuple(verdicts),
        conclusions={
            gate: conclude(gate, moved, verdicts, [found[gate] for found in again if gate in found]) for gate in gates
        },
        carriers={gate: carriers for gate in gates if (carriers := carriers_of(verdicts, gate))},
    )


def _sides(evidence: Evidence, cell: Cell, target: str) -> dict[Side, Environment]:
    found: dict[Side, Environment] = {}
    for arm in cell.arms:
        if arm.name in (Side.BASELINE, Side.CANDIDATE):
            environment = evidence.plan.environments.get(arm.environments.get(target, ""))
            if environment is None:
                known = ", ".join(sorted(arm.environments)) or "nothing"
                raise UsageError(
                    f"cell '{cell.id}' has no environment of the {arm.name} for {target} (it has one for {known}); "
                    "isolate it on the machine that measured it"
                )
            found[arm.side] = environment
    return found


def _taken_apart(held: Held, verdicts: Sequence[HeldVerdict]) -> bool:
    return any(verdict.held == held and verdict.answer in TAKEN_APART for verdict in verdicts)


def _said(verdicts: Iterable[Verdict]) -> list[str]:
    return list(dict.fromkeys(f"{verdict.status}: {verdict.reason}" for verdict in verdicts))
