"""What is asked again of a cell of a kept run: the run's own work, control and limits, with arms of one's choosing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from farm.catalogue import catalogue, workload_digest
from farm.errors import UsageError
from farm.model import Arm, Cell, Environment, Evidence, Gate, Judgement, Plan, Progress, Question, Side, Status, Tier

__all__ = [
    "BY_DEFAULT",
    "GATES",
    "Inquiry",
    "Told",
    "again_cell",
    "check_work",
    "environments_here",
    "failing",
    "longest_s",
]

#: Gates that another package or another night can change by itself; the way back is none of them.
GATES = tuple(gate for gate in Gate if gate is not Gate.ROLLBACK)
#: Gates that are asked about unless others are named: what they say is one figure of a step.
BY_DEFAULT = (Gate.CORRECTNESS, Gate.LATENCY, Gate.THROUGHPUT, Gate.PEAK_MEMORY)


@dataclass(frozen=True)
class Inquiry:
    """Which gates of which cell, by whose limits, in what time."""

    evidence: Evidence
    cell: Cell
    tier: Tier
    gates: tuple[Gate, ...]
    budget_s: float | None = None
    """Time for measuring of one measurement; None: the cell's own, by the number of arms."""

    def key(self, *more: str) -> str:
        """Return a digest of the question: what was begun is gone on with where it is asked again."""
        asked = [self.evidence.run_id, self.cell.id, self.tier.name, *self.gates, str(self.budget_s), *more]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Told:
    """What is told while it goes on."""

    progress: Callable[[Progress], None]
    said: Callable[[str], None]
    """One line: what comes next, or what a measurement gave."""


def failing(
    judgement: Judgement, plan: Plan, gates: Sequence[Gate] = BY_DEFAULT
) -> dict[str, dict[str, tuple[Gate, ...]]]:
    """Return the gates that a cell's version question fails, by cell and tier, in the order of the judgement."""
    found: dict[str, dict[str, tuple[Gate, ...]]] = {}
    measured = {cell.id for cell in plan.cells if cell.kind == "measure"}
    for cell in judgement.cells:
        failed = tuple(v.gate for v in cell.verdicts if v.status is Status.FAIL and v.gate in gates)
        if failed and cell.question is Question.VERSION and cell.cell_id in measured:
            found.setdefault(cell.cell_id, {})[cell.tier] = failed
    return found


def environments_here(evidence: Evidence, cell: Cell, target: str) -> dict[Side, Environment]:
    """Return the environments that the run froze for ``cell`` on a machine of ``target``.

    Raises UsageError where it froze none, and where both arms are one wheel: there is no change to look into.
    """
    found: dict[Side, Environment] = {}
    for arm in cell.arms:
        if arm.name not in (Side.BASELINE, Side.CANDIDATE):
            continue
        environment = evidence.plan.environments.get(arm.environments.get(target, ""))
        if environment is None:
            known = ", ".join(sorted(arm.environments)) or "nothing"
            raise UsageError(
                f"cell '{cell.id}' has no environment of the {arm.name} for {target} (it has one for {known}); "
                "ask on the machine that measured it"
            )
        found[arm.side] = environment
    if found[Side.BASELINE].key == found[Side.CANDIDATE].key:
        raise UsageError(f"both arms of cell '{cell.id}' are one environment: an A/A run has no change to look into")
    return found


def check_work(evidence: Evidence, cell: Cell) -> None:
    """Raise UsageError where ``cell``'s workload is not here any more as the run measured it."""
    shipped = catalogue().get(cell.workload)
    source = evidence.plan.sources.get(cell.workload, shipped.source if shipped else None)
    frozen = cell.control.workload_digest
    if source is None:
        raise UsageError(f"cell '{cell.id}': there is no workload '{cell.workload}' here; install its package again")
    if frozen and workload_digest(source) != frozen:
        raise UsageError(
            f"cell '{cell.id}': workload '{cell.workload}' or the contract that it stands on is another one than run "
            f"'{evidence.run_id}' measured; use the farm that measured it, or submit the releases again"
        )


def again_cell(inquiry: Inquiry, arms: Mapping[str, str], target: str) -> Cell:
    """Return the cell that measures ``arms`` (name to key of an environment): the same work, one tier's limits.

    Arms beside the baseline are measured as the candidate is.
    """
    cell, tier = inquiry.cell, inquiry.tier
    sides = {arm.name: arm for arm in cell.arms}

    def made(name: str, key: str) -> Arm:
        like = sides[Side.BASELINE if name == Side.BASELINE else Side.CANDIDATE]
        return like.model_copy(update={"name": name, "environments": {target: key}})

    asked = set(inquiry.gates)
    share = len(arms) / 2
    measuring = cell.measuring.model_copy(
        update={
            # Every arm gets the time inside windows that it had beside one other.
            "restart_s": cell.measuring.restart_s * share,
            "budget_s": inquiry.budget_s or cell.measuring.budget_s * share,
            "as_it_comes": 0,
            "p50_limits": (tier.p50_ratio,) if Gate.LATENCY in asked else (),
            "p95_limits": (tier.p95_ratio,) if Gate.LATENCY in asked and tier.p95_ratio is not None else (),
            "throughput_limits": (tier.throughput_ratio,) if Gate.THROUGHPUT in asked else (),
            "feature_limits": (),
        }
    )
    if not asked & {Gate.LATENCY, Gate.THROUGHPUT, Gate.DETERMINISM}:
        measuring = measuring.model_copy(update={"confirming": 0})
    return cell.model_copy(
        update={
            "arms": tuple(made(name, key) for name, key in arms.items()),
            "gates": tuple(gate for gate in GATES if gate in asked),
            "measuring": measuring,
            "broken_control": None,
        }
    )


def longest_s(inquiry: Inquiry, arms: int) -> float:
    """Return the longest that measuring so many arms takes, in seconds: the budget, twice where it is confirmed."""
    measuring = inquiry.cell.measuring
    return (inquiry.budget_s or measuring.budget_s * arms / 2) * (2 if measuring.confirming else 1)
