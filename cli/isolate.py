"""`farm isolate`: which package beside torch carries the change of a failing cell."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click
from tabulate import tabulate

from cli.evidence import find_evidence
from cli.following import display
from cli.isolations import keep_isolation
from farm.errors import FarmError, Incomplete, UsageError
from farm.isolation import BY_DEFAULT, GATES, failing, groups, moved_packages, rounds_of
from farm.judge import judge
from farm.model import Cell, Evidence, Gate, Isolation, Judgement, Progress, Question, Side, Tier
from farm.settings import Home, load_settings

if TYPE_CHECKING:
    from farm.model import Environment

__all__ = ["command", "describe", "estimated_s", "isolate_cell", "isolate_failing"]


@click.command(
    "isolate",
    epilog="\b\nExamples:\n  farm isolate RUN                                  the cell that fails\n"
    "  farm isolate RUN flex_attention/causal --budget 300\n"
    "  farm isolate RUN transformer_block --gate latency --json",
)
@click.argument("run")
@click.argument("cell", required=False)
@click.option(
    "--gate",
    "gates",
    multiple=True,
    type=click.Choice([gate.value for gate in GATES]),
    help="Ask about this gate; may be repeated. By default those of timing, memory and correctness that fail.",
)
@click.option("--tier", metavar="NAME", help="Whose limits judge; by default the first whose gates fail.")
@click.option(
    "--budget",
    type=click.FloatRange(min=5),
    metavar="SECONDS",
    help="Time for measuring of each round; by default the cell's own, by the number of arms.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the isolation with its evidence as JSON.")
def command(
    run: str, cell: str | None, gates: tuple[str, ...], tier: str | None, budget: float | None, as_json: bool
) -> None:
    """Measure a failing CELL of RUN again, with one moved package at a time held at the baseline's version.

    CELL is a cell's id or a part of it that only one has; by default the cell that fails. Baseline, candidate and the
    candidate with something held are measured on this machine in one interleaved go, two held packages at a time.
    Vendor libraries (nvidia-*, cuda-*, rocm*, amd-*) are released together and seldom load apart: they are held
    together first, and one by one where that says something. Wheels come from the baseline's lock, by hash and without
    a resolver, since torch pins its companions; where torch cannot be imported with one or the workload does not run,
    it `cannot be held`.

    A package `carries the change` where the candidate fails again and, with the package held, passes the same limit and
    is faster than the candidate beyond chance. The isolation is kept beside the run, and `farm report` shows it.
    """
    home = Home.default().prepare()
    evidence = find_evidence(home, load_settings(), run)
    judgement = judge(evidence)
    asked = tuple(Gate(gate) for gate in gates)
    chosen = _chosen(evidence, judgement, cell, asked or BY_DEFAULT)
    limits, concerned = _limits(evidence, judgement, chosen, asked, tier)
    isolation = isolate_cell(evidence, chosen, limits, concerned, home, budget)
    path = keep_isolation(home, isolation)
    click.echo(isolation.model_dump_json(indent=2) if as_json else describe(isolation))
    click.echo(f"kept: {path}", err=True)


def isolate_cell(
    evidence: Evidence, cell: Cell, tier: Tier, gates: Sequence[Gate], home: Home, budget_s: float | None
) -> Isolation:
    """Isolate one cell with a display on stderr. Raises Incomplete where it is interrupted."""
    from farm.broker.client import CellState
    from workers.isolating import Waiting, isolate

    click.echo(f"{cell.id}: {', '.join(gates)} by the limits of {tier.name}", err=True)
    try:
        with display(time.monotonic()) as shown:

            def progress(entry: Progress) -> None:
                shown.show([CellState(cell.id, "running", "")], [entry])

            return isolate(evidence, cell, tier, gates, home, budget_s, Waiting(progress, _say()))
    except KeyboardInterrupt as interrupt:
        raise Incomplete("interrupted; nothing of this isolation is kept, the run is as it was") from interrupt


def isolate_failing(evidence: Evidence, judgement: Judgement, home: Home, left_s: float) -> list[Isolation]:
    """Isolate every failing cell whose measuring fits into what is left of ``left_s``; keep and return what was found.

    What does not fit is said on stderr, with the command that does it later; an interruption ends it.
    """
    deadline = time.monotonic() + left_s
    cells = {cell.id: cell for cell in evidence.plan.cells}
    found = []
    for cell_id in failing(judgement, evidence.plan):
        cell = cells[cell_id]
        later = f"farm isolate {evidence.run_id} {cell_id}"
        tier, gates = _limits(evidence, judgement, cell, (), None)
        needed_s, left = estimated_s(evidence, cell), deadline - time.monotonic()
        if needed_s > left:
            said = f"needs up to {needed_s:.0f} s and {max(0.0, left):.0f} s are left"
            click.echo(f"farm: not isolated: {cell_id} {said}; later: {later}", err=True)
            continue
        try:
            isolation = isolate_cell(evidence, cell, tier, gates, home, None)
        except Incomplete as error:
            # The run itself is complete, and its decisions are yet to be printed.
            click.echo(f"farm: not isolated: {cell_id}: {error}; later: {later}", err=True)
            break
        except FarmError as error:
            click.echo(f"farm: not isolated: {cell_id}: {error}; later: {later}", err=True)
            continue
        keep_isolation(home, isolation)
        found.append(isolation)
    return found


def estimated_s(evidence: Evidence, cell: Cell) -> float:
    """Return the longest that measuring the first rounds of ``cell`` takes: its budget by arms, twice to confirm."""
    arms = {arm.name: arm for arm in cell.arms}
    environments = evidence.plan.environments
    longest = 0
    for target in arms[Side.CANDIDATE].environments.keys() & arms[Side.BASELINE].environments.keys():
        pair: list[Environment | None] = [
            environments.get(arms[side].environments[target]) for side in (Side.BASELINE, Side.CANDIDATE)
        ]
        if pair[0] is not None and pair[1] is not None:
            rounds = rounds_of(groups(moved_packages(pair[0], pair[1])))
            longest = max(longest, sum(2 + len(round_) for round_ in rounds))
    return cell.measuring.budget_s * longest / 2 * (2 if cell.measuring.confirming else 1)


def describe(isolation: Isolation) -> str:
    """Return an isolation as text."""
    parts = [f"{isolation.cell_id}, run {isolation.run_id}, limits of {isolation.tier}"]
    moved = ", ".join(package.words for package in isolation.moved) or "nothing but torch"
    parts.append(f"moved with torch: {moved}")
    rows = [[verdict.held.name, verdict.gate.value, verdict.answer, verdict.reason] for verdict in isolation.verdicts]
    if rows:
        parts.append(
            tabulate(
                rows,
                headers=["held at the baseline's version", "gate", "answer", "why"],
                disable_numparse=True,
                maxcolwidths=[22, None, None, 60],
            )
        )
    parts += [f"{gate}, candidate as it is: {said}" for gate, said in isolation.again.items()]
    parts += [f"{gate}: {said}" for gate, said in isolation.conclusions.items()]
    return "\n\n".join(parts)


def _chosen(evidence: Evidence, judgement: Judgement, named: str | None, gates: Sequence[Gate]) -> Cell:
    """Return the cell that was named, or the one that fails. Raises UsageError naming those that could be meant."""
    measured = {cell.id: cell for cell in evidence.plan.cells if cell.kind == "measure"}
    if named is not None:
        if named in measured:
            return measured[named]
        found = [cell_id for cell_id in measured if named in cell_id]
        if len(found) == 1:
            return measured[found[0]]
        if found:
            raise UsageError(f"'{named}' is a part of several cells; name one of them:\n{_listed(found)}")
        raise UsageError(f"run '{evidence.run_id}' has no cell '{named}'; it has:\n{_listed(measured)}")
    failed = failing(judgement, evidence.plan, gates)
    if not failed:
        raise UsageError(
            f"no cell of run '{evidence.run_id}' fails {' or '.join(gates)}; "
            "name a cell and a --gate to ask all the same"
        )
    if len(failed) > 1:
        said = [f"{cell_id}: {_failed_words(tiers)}" for cell_id, tiers in failed.items()]
        raise UsageError(f"several cells of run '{evidence.run_id}' fail; name one of them:\n{_listed(said)}")
    return measured[next(iter(failed))]


def _limits(
    evidence: Evidence, judgement: Judgement, cell: Cell, gates: tuple[Gate, ...], named: str | None
) -> tuple[Tier, tuple[Gate, ...]]:
    """Return the tier whose limits judge and the gates that are asked of ``cell``."""
    concerned = list(
        dict.fromkeys(c.tier for c in judgement.cells if c.cell_id == cell.id and c.question is Question.VERSION)
    )
    if named is not None and named not in concerned:
        raise UsageError(f"no tier '{named}' asks about cell '{cell.id}'; those that do: {', '.join(concerned)}")
    absent = [gate for gate in gates if gate not in cell.gates]
    if absent:
        raise UsageError(f"cell '{cell.id}' was not asked for {absent[0]}; it has {', '.join(cell.gates)}")
    failed = failing(judgement, evidence.plan, gates or BY_DEFAULT).get(cell.id, {})
    tiers = [named] if named else [*sorted(failed, key=lambda tier: -len(failed[tier])), *concerned]
    if not tiers:
        raise UsageError(f"no tier of run '{evidence.run_id}' asks about cell '{cell.id}'; its limits judge nothing")
    asked = gates or failed.get(tiers[0], ())
    if not asked:
        raise UsageError(f"cell '{cell.id}' fails no gate for {tiers[0]}; name one to ask all the same: --gate latency")
    return next(tier for tier in evidence.plan.tiers if tier.name == tiers[0]), asked


def _failed_words(tiers: Mapping[str, Sequence[Gate]]) -> str:
    return ", ".join(dict.fromkeys(gate.value for gates in tiers.values() for gate in gates))


def _listed(lines: Iterable[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)


def _say() -> Callable[[str], None]:
    last = ""

    def say(line: str) -> None:
        # A machine that is waited for is told once, not at every poll.
        nonlocal last
        if line != last:
            click.echo(line, err=True)
        last = line

    return say
