"""`farm plan`: what a submission would measure."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click
from tabulate import tabulate

from cli.asking import plan_for, release_options, understand
from cli.fleet import hosts_of
from farm.model import Backend, Plan

__all__ = ["command"]


@click.command(
    "plan",
    epilog="\b\nExamples:\n  farm plan --candidate 2.13\n  farm plan --candidate 2.13.0 --baseline 2.12.1 --json",
)
@release_options
@click.option("--json", "as_json", is_flag=True, help="Print the whole frozen plan.")
def command(
    candidate: str,
    baseline: str | None,
    suite: str,
    backends: tuple[Backend, ...],
    matrix_path: Path | None,
    as_json: bool,
) -> None:
    """Show the frozen plan: releases, cells, limits and their digests. Nothing is measured."""
    asked = understand(candidate, baseline, suite, backends, matrix_path)
    plan = plan_for(asked, hosts_of(asked.settings))
    if as_json:
        click.echo(json.dumps({"plan_digest": plan.plan_digest, **plan.model_dump(mode="json")}, indent=2))
        return
    click.echo(describe(plan))


def describe(plan: Plan) -> str:
    """Return the plan as text: what is compared, the cells, what is not covered."""
    lines = [f"plan {plan.plan_digest[:16]}, matrix {plan.matrix_digest[:16]} ({plan.matrix_source})", ""]
    for name, release in sorted(plan.releases.items()):
        lines.append(f"{name}: torch {release.version} ({release.variant}), {release.wheel}")
    lines += [*plan.resolution_notes, *(f"{r.side}: {r.reason}" for r in plan.refused), ""]
    rows = [
        [cell.id, cell.kind, ", ".join(arm.name for arm in cell.arms), ", ".join(cell.gates)] for cell in plan.cells
    ]
    lines.append(tabulate(rows, headers=["cell", "kind", "arms", "gates"]) if rows else "no cells")
    lines += ["", *(f"{backend}: untested, {why}" for backend, why in plan.unserved_backends.items())]
    lines += ["", f"run it: {shlex.join(plan.command)}"]
    return "\n".join(lines)
