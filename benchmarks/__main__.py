"""`python -m benchmarks [NAME…]`: run benchmarks and print their figures; `--json` for a program."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from typing import Any

import click
import psutil
from tabulate import tabulate

from benchmarks import overhead, spread, start_up
from workers.probe import probe_host

BENCHMARKS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "start_up": start_up.run,
    "spread": spread.run,
    "overhead": overhead.run,
}


@click.command(epilog="\b\nBenchmarks: " + ", ".join(BENCHMARKS))
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS)))
@click.option("--quick", is_flag=True, help="Few repeats: whether it runs, not what it shows.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(names: tuple[str, ...], quick: bool, as_json: bool) -> None:
    """Measure the farm itself, each figure beside what it stands in for."""
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


if __name__ == "__main__":
    main()
