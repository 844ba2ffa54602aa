"""`python -m benchmarks [NAME…]`: run benchmarks and print their figures; `--json` for a program.

`record`, `replay` and `live` compare the method with its peers and have options of their own.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from typing import Any

import click
import psutil
from tabulate import tabulate

from benchmarks import agreement, overhead, spread, start_up
from benchmarks.live import live_command
from benchmarks.record import record_command
from benchmarks.replay import replay_command
from workers.probe import probe_host

BENCHMARKS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "start_up": start_up.run,
    "spread": spread.run,
    "overhead": overhead.run,
    "windows": overhead.run_windows,
    "agreement": agreement.run,
}


class _Door(click.Group):
    """A name that is no command is a benchmark's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["figures", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Door)
def main() -> None:
    """Measure the farm itself, each figure beside what it stands in for.

    Without a command, `figures` runs.
    """


@main.command(epilog="\b\nBenchmarks: " + ", ".join(BENCHMARKS))
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS)))
@click.option("--quick", is_flag=True, help="Few repeats: whether it runs, not what it shows.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def figures(names: tuple[str, ...], quick: bool, as_json: bool) -> None:
    """Run benchmarks by name, or all, and print their figures."""
    host = probe_host()
    found: dict[str, Any] = {
        "machine": f"{host.cpu}, {host.cores} cores, {platform.system()}, Python {host.python}",
        "load_before": round(os.getloadavg()[0], 2),
        "memory_free_gib": round(psutil.virtual_memory().available / 2**30, 1),
    }
    for name in names or BENCHMARKS:
        click.echo(f"{name} …", err=True)
        found[name] = BENCHMARKS[name](quick)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        if isinstance(value, dict):
            click.echo(f"\n{name}: {value['claim']}\n")
            click.echo(tabulate(value["rows"], headers=value["headers"], floatfmt=".3f"))
            click.echo(f"\nratio: {value['ratio']:.2f}")
        else:
            click.echo(f"{name}: {value}")


main.add_command(record_command)
main.add_command(replay_command)
main.add_command(live_command)

if __name__ == "__main__":
    main()
