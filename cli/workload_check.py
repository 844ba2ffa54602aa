"""`farm workload check`: whether a workload's figures would mean something."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from tabulate import tabulate

from cli.following import Display, display
from farm.broker.client import CellState
from farm.catalogue import CaseSpec, WorkloadSpec, catalogue, read_workload
from farm.errors import EXIT_COMPLETE, EXIT_FALLS_SHORT, UsageError
from farm.matrix import load_matrix
from farm.model import Cell, CellResult, Gate, Progress
from farm.releases import parse_request
from farm.settings import Home, load_settings
from farm.soundness import Finding, step_ns

if TYPE_CHECKING:
    from workers.checking import Checked

__all__ = ["command", "named_workload"]


@click.command(
    "check",
    epilog="\b\nExamples:\n  farm workload check mine.py\n  farm workload check mine.py --release 2.13 --case fp32",
)
@click.argument("name")
@click.option("--release", metavar="RELEASE", help="What it runs on; by default the baseline.")
@click.option(
    "--case", "wanted", multiple=True, metavar="CASE", help="A case; may be repeated. By default those of smoke."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(name: str, release: str | None, wanted: Sequence[str], as_json: bool) -> int:
    """Run workload or file NAME on the CPU, one release against itself, and say what it lacks.

    Every case in smoke size, every path, through every gate but the rollback's: no oracle, no seed, outputs that do not
    repeat, steps that change their work or are too short to time. Exits with 1 where there is a problem.
    """
    spec = named_workload(name)
    cases = _cases(spec, wanted)
    settings, home = load_settings(), Home.default().prepare()
    matrix = load_matrix()
    asked = release or settings.baseline or matrix.versions["current_baseline"]
    request = matrix.release(asked)
    parse_request(request)
    from workers.checking import check

    began = time.monotonic()
    with display(began) as shown:
        follower = _Follower(shown)
        found = check(spec, cases, request, home, matrix, follower, follower.waiting)
    if as_json:
        click.echo(json.dumps(_plain(spec, found), indent=2))
    else:
        click.echo(_text(spec, found))
    return EXIT_FALLS_SHORT if _problems(found) else EXIT_COMPLETE


def named_workload(name: str) -> WorkloadSpec:
    """Return the workload ``name`` of the catalogue, or what the file ``name`` declares. Raises UsageError."""
    if name.endswith(".py"):
        return read_workload(Path(name))
    known = catalogue()
    if name not in known:
        raise UsageError(f"no workload '{name}'; there are {', '.join(known)}, or name a file that ends in .py")
    return known[name]


def _cases(spec: WorkloadSpec, wanted: Sequence[str]) -> list[CaseSpec]:
    known = {case.name: case for case in spec.cases}
    for name in wanted:
        if name not in known:
            raise UsageError(f"workload '{spec.name}' has no case '{name}'; it has {', '.join(known)}")
    cases = [case for case in spec.cases if (case.name in wanted if wanted else "smoke" in case.suites)]
    if not cases:
        raise UsageError(f"workload '{spec.name}' has no case in suite smoke; add one, or name one with --case")
    return cases


class _Follower:
    def __init__(self, shown: Display) -> None:
        self.shown = shown
        self.told = False

    def waiting(self) -> None:
        """Say once that another measurement has the machine."""
        if not self.told:
            click.echo("waiting: another measurement has this machine", err=True)
            self.told = True

    def __call__(self, cells: Sequence[Cell], results: Sequence[CellResult], told: Progress | None) -> None:
        over = {result.cell_id for result in results}
        states = [
            CellState(
                cell.id, "done" if cell.id in over else "running" if told and told.cell_id == cell.id else "waiting", ""
            )
            for cell in cells
        ]
        self.shown.show(states, [told] if told is not None else [])


def _problems(found: Checked) -> list[Finding]:
    return [one for one in found.findings if one.severity == "problem"]


def _text(spec: WorkloadSpec, found: Checked) -> str:
    lines = [
        f"{spec.name} on torch {found.release} against itself, on this machine's CPU; limits of tier {found.tier}",
        "",
    ]
    rows = []
    for judged in found.verdicts:
        case, path = _where(judged.cell_id, judged.arm, found)
        rows += [[case, path, v.gate, v.status, v.reason] for v in judged.verdicts if v.gate is not Gate.ROLLBACK]
    if rows:
        # A case and its path are told once.
        said: tuple[str, str] | None = None
        for row in rows:
            case_path = (row[0], row[1])
            if case_path == said:
                row[0] = row[1] = ""
            said = case_path
        lines += [
            tabulate(rows, headers=["case", "path", "gate", "", "why"], maxcolwidths=[None, None, None, None, 60]),
            "",
        ]
    steps = [
        f"{cell.case}, path {arm.path}: a step takes {median / 1e6:.3g} ms"
        for cell, result in zip(found.cells, found.results, strict=True)
        for arm in cell.arms
        if arm.name != "candidate" and (median := step_ns(result, arm.name)) is not None
    ]
    lines += [*steps, ""] if steps else []
    problems = _problems(found)
    for one in found.findings:
        where = f"{one.where}: " if one.where else ""
        lines.append(f"{one.severity}: {where}{one.what}\n    {one.do}")
    count = "no problem" if not problems else f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    notes = len(found.findings) - len(problems)
    lines.append(f"{count}, {notes} note{'' if notes == 1 else 's'}")
    if not problems:
        lines.append(f"It can be measured: name it in a matrix, then farm submit --matrix … ({spec.file.name})")
    return "\n".join(lines)


def _where(cell_id: str, arm: str, found: Checked) -> tuple[str, str]:
    cell = next(cell for cell in found.cells if cell.id == cell_id)
    path = next(one.path for one in cell.arms if one.name == arm)
    return cell.case, path


def _plain(spec: WorkloadSpec, found: Checked) -> dict[str, object]:
    return {
        "workload": spec.name,
        "digest": spec.digest,
        "release": found.release,
        "tier": found.tier,
        "sound": not _problems(found),
        "findings": [vars(one) for one in found.findings],
        "verdicts": [
            {
                "case": _where(judged.cell_id, judged.arm, found)[0],
                "path": _where(judged.cell_id, judged.arm, found)[1],
                "gates": {
                    v.gate: {"status": v.status, "reason": v.reason}
                    for v in judged.verdicts
                    if v.gate is not Gate.ROLLBACK
                },
            }
            for judged in found.verdicts
        ],
        "step_ns": {
            f"{cell.case}/{arm.path}": step_ns(result, arm.name)
            for cell, result in zip(found.cells, found.results, strict=True)
            for arm in cell.arms
            if arm.name != "candidate"
        },
    }
