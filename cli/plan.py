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
from farm.model import Backend, Cell, Host, Plan
from farm.plan import served_capabilities
from farm.report.stages import checklist, stage_title
from farm.stages import total_days

__all__ = ["command", "describe"]

KINDS = {"measure": "measure", "aa": "A/A", "rehearsal": "rehearsal"}


@click.command(
    "plan",
    epilog="\b\nExamples:\n  farm plan --candidate 2.13\n  farm plan --candidate 2.13.0 --baseline 2.12.1 --json\n"
    "  farm plan --candidate 2.13 --stages          the whole window, stage after stage",
)
@release_options
@click.option("--json", "as_json", is_flag=True, help="Print the whole frozen plan.")
def command(
    candidate: str,
    baseline: str | None,
    suite: str | None,
    backends: tuple[Backend, ...],
    workloads: tuple[str, ...],
    matrix_path: Path | None,
    stages: bool,
    as_json: bool,
) -> None:
    """Show the frozen plan: releases, cells, time, what can be resolved, and their digests. Nothing is measured."""
    asked = understand(candidate, baseline, suite, backends, workloads, matrix_path, stages=stages)
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
    if plan.stages:
        lines += _stages(plan, hosts)
    else:
        lines.append(_cells(plan.cells) if plan.cells else "no cells")
    for capability, machines in sorted(served_capabilities(hosts).items()):
        lines += _estimate(plan, capability, machines)
    lines += ["", *(f"{backend}: untested, {why}" for backend, why in plan.unserved_backends.items())]
    lines += [f"waiver: {w.subject}; {w.owner} until {w.expires}: {w.reason}" for w in plan.waivers]
    lines += ["", f"run it: {shlex.join(plan.command)}"]
    return "\n".join(lines)


def _cells(cells: Sequence[Cell]) -> str:
    rows = [
        [cell.id, KINDS[cell.kind], ", ".join(arm.name for arm in cell.arms), ", ".join(cell.gates)] for cell in cells
    ]
    return tabulate(rows, headers=["cell", "kind", "arms", "gates"])


def _stages(plan: Plan, hosts: Sequence[Host]) -> list[str]:
    """Return each stage with its cells and how long they take one after the other; the first with its checklist."""
    days = total_days(plan.stages)
    lines = [f"{len(plan.stages)} stages" + (f", {days} days planned" if days else "")]
    known = {
        capability: calibrations_for(backend_of(capability), machines)
        for capability, machines in served_capabilities(hosts).items()
    }
    for number, stage in enumerate(plan.stages):
        cells = [cell for cell in plan.cells if cell.stage == stage.name]
        why = f" ({stage.reason})" if stage.reason else ""
        lines += ["", f"{stage_title(plan, number)}: {stage.description}{why}"]
        if stage.in_service:
            share = f"{stage.share * 100:g} % of " if stage.share else ""
            lines.append(f"in service: {share}{', '.join(stage.in_service)}")
        lines += [f"  {check.line}" for check in checklist(plan)] if number == 0 else []
        if cells:
            seconds = sum(
                max(cell_s(cell, found) for found in (known.get(cell.capability, {}).values() or [None]))
                for cell in cells
            )
            asked = f"{stage.days} days planned, " if stage.days else ""
            lines += [f"{asked}{len(cells)} cells, about {minutes(seconds)} one after the other", _cells(cells)]
        else:
            lines.append("no cells")
    return lines


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
