"""`farm bisect`: the first nightly with which a cell fails."""

from __future__ import annotations

from collections.abc import Callable

import click
from tabulate import tabulate

from cli.again import asked_again, question_options, telling
from cli.beside import Kept
from cli.evidence import find_evidence
from farm.model import Bisection
from farm.settings import Home, load_settings

__all__ = ["command", "describe"]


@click.command(
    "bisect",
    epilog="\b\nExamples:\n  farm bisect RUN                                   the cell that fails\n"
    "  farm bisect RUN flex_attention/causal --gate latency\n"
    "  farm bisect RUN transformer_block --good 2.13.0.dev20260601 --bad 2.13.0.dev20260801 --json",
)
@click.argument("run")
@click.argument("cell", required=False)
@click.option("--good", metavar="RELEASE", help="The older end, which is good; by default the run's baseline.")
@click.option("--bad", metavar="RELEASE", help="The newer end, which is bad; by default the run's candidate.")
@question_options
@click.option("--json", "as_json", is_flag=True, help="Print the bisection with its evidence as JSON.")
def command(
    run: str,
    cell: str | None,
    good: str | None,
    bad: str | None,
    gates: tuple[str, ...],
    tier: str | None,
    budget: float | None,
    as_json: bool,
) -> None:
    """Find the first nightly with which a failing CELL of RUN fails, by wheels alone.

    CELL is a cell's id or a part of it that only one has; by default the cell that fails. Every nightly that the
    configured index serves between the two ends can be measured: beside the good end, on this machine, with the run's
    own frozen work and one tier's limits. Both ends are measured first: where the bad one is not bad here, or the good
    one is not good beside itself, it says so and walks nowhere. What cannot be installed or told is skipped for a
    neighbour. At the end the first bad nightly is measured beside the last good one.

    Every step is kept beside the run, and `farm report` shows where the walk ended. One that was interrupted goes on
    where it was when the same is asked again.
    """
    from workers.bisecting import bisect

    home = Home.default().prepare()
    inquiry = asked_again(find_evidence(home, load_settings(), run), cell, gates, tier, budget)
    click.echo(f"{inquiry.cell.id}: {', '.join(inquiry.gates)} by the limits of {inquiry.tier.name}", err=True)

    def work(keep: Callable[[Bisection], None], begun: Bisection | None) -> Bisection:
        with telling(inquiry.cell) as told:
            return bisect(inquiry, good, bad, home, told, keep, begun)

    bisection = Kept(home, inquiry.evidence.run_id, Bisection).go_on(inquiry.key(good or "", bad or ""), work)
    click.echo(bisection.model_dump_json(indent=2) if as_json else describe(bisection))


def describe(bisection: Bisection) -> str:
    """Return a bisection as text."""
    parts = [
        f"{bisection.cell_id}, run {bisection.run_id}, {', '.join(bisection.gates)} by the limits of {bisection.tier}",
        f"{len(bisection.nights)} nightlies between {bisection.good} and {bisection.bad}",
    ]
    if bisection.absent:
        parts[-1] += f"; none for {', '.join(bisection.absent)}"
    rows = [[step.version, step.purpose, step.beside, step.answer, step.reason] for step in bisection.steps]
    parts.append(
        tabulate(
            rows,
            headers=["torch", "as", "measured beside", "answer", "why"],
            disable_numparse=True,
            maxcolwidths=[None, None, None, 12, 50],
        )
    )
    parts.append(bisection.conclusion)
    return "\n\n".join(parts)
