"""Which cell of a kept run is asked about again, by whose limits; and what is told meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import click

from cli.following import display
from farm.again import BY_DEFAULT, GATES, Inquiry, Told, failing
from farm.broker.client import CellState
from farm.errors import UsageError
from farm.judge import judge
from farm.model import Cell, Evidence, Gate, Judgement, Progress, Question, Tier

__all__ = ["asked_again", "inquiry_of", "question_options", "telling"]


def question_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` the options that say which gates are asked about, by whose limits, in what time."""
    options = (
        click.option(
            "--gate",
            "gates",
            multiple=True,
            type=click.Choice([gate.value for gate in GATES]),
            help="Ask about this gate; may be repeated. By default those of timing, memory and correctness that fail.",
        ),
        click.option("--tier", metavar="NAME", help="Whose limits judge; by default the first whose gates fail."),
        click.option(
            "--budget",
            type=click.FloatRange(min=5),
            metavar="SECONDS",
            help="Time for measuring of each measurement; by default the cell's own, by the number of arms.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def asked_again(
    evidence: Evidence, cell: str | None, gates: Sequence[str], tier: str | None, budget_s: float | None
) -> Inquiry:
    """Return what the arguments of a command ask. Raises UsageError naming what could be meant."""
    judgement = judge(evidence)
    asked = tuple(Gate(gate) for gate in gates)
    chosen = _chosen(evidence, judgement, cell, asked or BY_DEFAULT)
    return inquiry_of(evidence, judgement, chosen, asked, tier, budget_s)


def inquiry_of(
    evidence: Evidence,
    judgement: Judgement,
    cell: Cell,
    gates: tuple[Gate, ...] = (),
    tier: str | None = None,
    budget_s: float | None = None,
) -> Inquiry:
    """Return what is asked of ``cell``: by default what it fails, by the limits of the tier that fails most."""
    limits, concerned = _limits(evidence, judgement, cell, gates, tier)
    return Inquiry(evidence, cell, limits, concerned, budget_s)


@contextmanager
def telling(cell: Cell) -> Iterator[Told]:
    """Show on stderr how ``cell`` is measured, and what is said meanwhile."""
    last = ""

    def say(line: str) -> None:
        # A machine that is waited for is told once, not at every poll.
        nonlocal last
        if line != last:
            click.echo(line, err=True)
        last = line

    with display(time.monotonic()) as shown:

        def progress(entry: Progress) -> None:
            shown.show([CellState(cell.id, "running", "")], [entry])

        yield Told(progress, say)


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
