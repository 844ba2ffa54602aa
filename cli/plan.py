"""`farm plan`: what a submission would measure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import click
from tabulate import tabulate

from cli.asking import plan_for, release_options, understand
from cli.fleet import hosts_of
from farm.budget import CALIBRATED, calibrations_for, cell_s, minutes, percent_apart, resolved
from farm.capability import backend_of
from farm.model import Backend, Host, Plan
from farm.plan import served_capabilities

__all__ = ["command", "describe"]

KINDS = {"measure": "measure", "aa": "A/A", "rehearsal": "rehearsal"}


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
    """Show the frozen plan: releases, cells, time, what can be resolved, and their digests. Nothing is measured."""
    asked = understand(candidate, baseline, suite, backends, matrix_path)
    hosts = hosts_of(asked.settings)
    plan = plan_for(asked, hosts)
    if as_json:
        click.echo(json.dumps({"plan_digest": plan.plan_digest, **plan.model_dump(mode="json")}, indent=2))
        return
    click.echo(describe(plan, hosts))


def describe(plan: Plan, hosts: Sequence[Host] = ()) -> str:
    """Return the plan for ``hosts`` as text: what is compared, the cells, time, resolution, what is not covered."""
    lines = [f"plan {plan.plan_digest[:16]}, matrix {plan.matrix_digest[:16]} ({plan.matrix_source})", ""]
    for name, release in sorted(plan.releases.items()):
        lines.append(f"{name}: torch {release.version} ({release.variant}), {release.wheel}")
    lines += [*plan.resolution_notes, *(f"{r.side}: {r.reason}" for r in plan.refused), ""]
    rows = [
        [cell.id, KINDS[cell.kind], ", ".join(arm.name for arm in cell.arms), ", ".join(cell.gates)]
        for cell in plan.cells
    ]
    lines.append(tabulate(rows, headers=["cell", "kind", "arms", "gates"]) if rows else "no cells")
    for capability, machines in sorted(served_capabilities(hosts).items()):
        lines += _estimate(plan, capability, machines)
    lines += ["", *(f"{backend}: untested, {why}" for backend, why in plan.unserved_backends.items())]
    lines += ["", f"run it: {shlex.join(plan.command)}"]
    return "\n".join(lines)


def _estimate(plan: Plan, capability: str, machines: Sequence[Host]) -> list[str]:
    """Return how long the cells of ``capability`` take, from what that is known, and what each machine resolves."""
    cells = [cell for cell in plan.cells if cell.capability == capability]
    measured = [cell for cell in cells if cell.kind == "measure"]
    if not measured:
        return []
    known = calibrations_for(backend_of(capability), machines)
    # The slowest machine that is known speaks for all: cells go to whoever is free.
    seconds = max(sum(cell_s(cell, found) for cell in cells) for found in (known.values() or [None]))
    names = sorted({machine.name for machine in machines})
    source = f"the calibration of {' and '.join(known)}" if known else "the suite's restarts"
    where = f" on each of {len(names)} machines, or less where they share it" if len(names) > 1 else ""
    lines = ["", f"{capability}: {len(cells)} cells, about {minutes(seconds)}{where} (estimated from {source}; "]
    lines[-1] += "compiling paths and the first installation take longer)"
    for name in names:
        if name in known:
            found = known[name]
            least = percent_apart(resolved(found, measured[0].measuring))
            noise = f"noise {found.sd * 100:.2f} % from restart to restart, calibrated {found.measured[:10]}"
            lines.append(f"  {name} resolves {least} with 95 % ({noise})")
        elif backend_of(capability) == CALIBRATED:
            lines.append(f"  {name}: not calibrated: farm calibrate")
        else:
            lines.append(f"  {name}: what it resolves is not known; farm calibrate measures the processor")
    return lines
