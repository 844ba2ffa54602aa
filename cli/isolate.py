"""`farm isolate`: which package beside torch carries the change of a failing cell."""

from __future__ import annotations

import time
from collections.abc import Callable

import click
from tabulate import tabulate

from cli.again import asked_again, inquiry_of, question_options, telling
from cli.beside import Kept
from cli.evidence import evidence_folder, find_evidence, keep_judgement
from farm.again import Inquiry, failing, longest_s
from farm.errors import FarmError, Incomplete
from farm.isolation import companions_of, groups, moved_packages, rounds_of
from farm.judge import judge
from farm.model import Evidence, Isolation, Judgement, Side
from farm.rejudging import flips
from farm.report.flips import flips_table
from farm.settings import Home, load_settings

__all__ = ["command", "describe", "estimated_s", "isolate_cell", "isolate_failing", "judged_with"]


@click.command(
    "isolate",
    epilog="\b\nExamples:\n  farm isolate RUN                                  the cell that fails\n"
    "  farm isolate RUN flex_attention/causal --budget 300\n"
    "  farm isolate RUN transformer_block --gate latency --json",
)
@click.argument("run")
@click.argument("cell", required=False)
@question_options
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
    is faster than the candidate beyond chance. The isolation is kept beside the run, and `farm report` shows it. One
    that was interrupted goes on where it was when the same is asked again.
    """
    home = Home.default().prepare()
    evidence = find_evidence(home, load_settings(), run)
    isolation = isolate_cell(asked_again(evidence, cell, gates, tier, budget), home)
    click.echo(isolation.model_dump_json(indent=2) if as_json else describe(isolation))
    if changed := judged_with(evidence, home):
        click.echo(changed, err=as_json)


def judged_with(evidence: Evidence, home: Home) -> str:
    """Judge the run with what its isolations proved, keep that beside the registered judgement; return what it changes.

    "" where it changes nothing.
    """
    companions = companions_of(Kept(home, evidence.run_id, Isolation).finished())
    registered, found = judge(evidence), judge(evidence, companions)
    changes = flips(registered, found)
    if not changes:
        return ""
    folder = evidence_folder(home, evidence.run_id)
    if folder is not None:
        click.echo(f"kept in {keep_judgement(folder, found)}", err=True)
    apart = {row.tier: row.kept_apart for row in found.tiers if row.kept_apart}
    told = [f"{tier}: kept apart: {', '.join(names)}" for tier, names in apart.items()]
    return "\n".join(["", "With that held, beside what was registered:", "", flips_table(changes), "", *told])


def isolate_cell(inquiry: Inquiry, home: Home, deadline: float | None = None) -> Isolation:
    """Isolate one cell with a display on stderr, and keep it. Raises Incomplete where it is interrupted."""
    from workers.isolating import isolate

    cell = inquiry.cell
    click.echo(f"{cell.id}: {', '.join(inquiry.gates)} by the limits of {inquiry.tier.name}", err=True)

    def work(keep: Callable[[Isolation], None], begun: Isolation | None) -> Isolation:
        with telling(cell) as told:
            return isolate(inquiry, home, told, keep, begun, deadline)

    return Kept(home, inquiry.evidence.run_id, Isolation).go_on(inquiry.key(), work)


def isolate_failing(evidence: Evidence, judgement: Judgement, home: Home, left_s: float) -> list[Isolation]:
    """Isolate every failing cell whose measuring fits into what is left of ``left_s``; return what was found.

    What does not fit is said on stderr, with the command that does it later; an interruption ends it.
    """
    deadline = time.monotonic() + left_s
    cells = {cell.id: cell for cell in evidence.plan.cells}
    found = []
    for cell_id in failing(judgement, evidence.plan):
        later = f"later: farm isolate {evidence.run_id} {cell_id}"
        inquiry = inquiry_of(evidence, judgement, cells[cell_id])
        needed_s, left = estimated_s(inquiry), deadline - time.monotonic()
        if needed_s > left:
            said = f"needs up to {needed_s:.0f} s and {max(0.0, left):.0f} s are left"
            click.echo(f"farm: not isolated: {cell_id} {said}; {later}", err=True)
            continue
        try:
            found.append(isolate_cell(inquiry, home, deadline))
        except Incomplete as error:
            # The run itself is complete, and its decisions are yet to be printed.
            click.echo(f"farm: not isolated: {cell_id}: {error}; {later}", err=True)
            break
        except FarmError as error:
            click.echo(f"farm: not isolated: {cell_id}: {error}; {later}", err=True)
    return found


def estimated_s(inquiry: Inquiry) -> float:
    """Return the longest that measuring the first rounds of a cell takes, in seconds."""
    arms = {arm.name: arm for arm in inquiry.cell.arms}
    environments = inquiry.evidence.plan.environments
    longest = 0.0
    for target in arms[Side.CANDIDATE].environments.keys() & arms[Side.BASELINE].environments.keys():
        old, new = (environments.get(arms[side].environments[target]) for side in (Side.BASELINE, Side.CANDIDATE))
        if old is not None and new is not None:
            rounds = rounds_of(groups(moved_packages(old, new)))
            longest = max(longest, sum(longest_s(inquiry, 2 + len(round_)) for round_ in rounds))
    return longest


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
