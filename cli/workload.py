"""`farm workload`: what can be measured."""

from __future__ import annotations

import json

import click
from tabulate import tabulate

from cli.workload_check import command as check
from cli.workload_check import named_workload
from cli.workload_new import command as new
from farm.catalogue import WorkloadSpec, catalogue

__all__ = ["command"]


@click.group("workload")
def command() -> None:
    """List and show workloads: their paths, parameters and cases; write and check one of your own."""


command.add_command(new)
command.add_command(check)


@command.command("list", epilog="\b\nExample:\n  farm workload list --json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_workloads(as_json: bool) -> None:
    """List the installed workloads."""
    found = catalogue()
    if as_json:
        click.echo(json.dumps([_plain(spec) for spec in found.values()], indent=2))
        return
    rows = [
        [name, ", ".join(path.name for path in spec.paths), len(spec.cases), spec.summary]
        for name, spec in found.items()
    ]
    click.echo(tabulate(rows, headers=["workload", "paths", "cases", "what it does"]))


@command.command("show", epilog="\b\nExamples:\n  farm workload show flex_attention\n  farm workload show mine.py")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(name: str, as_json: bool) -> None:
    """Show workload NAME, or the file NAME before you put it into a matrix."""
    spec = named_workload(name)
    if as_json:
        click.echo(json.dumps(_plain(spec), indent=2))
        return
    click.echo(f"{spec.name} ({spec.track}): {spec.summary}\n{spec.file}, sha256 {spec.digest[:16]}\n")
    paths = [[path.name, path.needs or "", path.doc] for path in spec.paths]
    click.echo(tabulate(paths, headers=["path", "from", "what it is"]) + "\n")
    parameters = [
        [key, entry["default"], ", ".join(map(str, entry.get("choices", ()))), entry["doc"]]
        for key, entry in spec.parameters.items()
    ]
    click.echo(tabulate(parameters, headers=["parameter", "default", "choices", "what it is"]) + "\n")
    cases = [
        [
            case.name,
            ", ".join(case.suites),
            "yes" if case.production_shape else "",
            ", ".join(f"{key}={value}" for key, value in case.parameters.items()),
        ]
        for case in spec.cases
    ]
    click.echo(tabulate(cases, headers=["case", "suites", "production shape", "parameters"]))


def _plain(spec: WorkloadSpec) -> dict[str, object]:
    return {
        "name": spec.name,
        "summary": spec.summary,
        "track": spec.track,
        "digest": spec.digest,
        "paths": {path.name: {"doc": path.doc, "needs": str(path.needs or "")} for path in spec.paths},
        "parameters": {name: dict(entry) for name, entry in spec.parameters.items()},
        "cases": {
            case.name: {
                "suites": list(case.suites),
                "parameters": dict(case.parameters),
                "production_shape": case.production_shape,
            }
            for case in spec.cases
        },
    }
