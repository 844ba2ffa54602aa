"""`farm up`: a coordinator in the foreground."""

from __future__ import annotations

import time

import click

from farm.local import LocalFarm
from farm.settings import Home

__all__ = ["command"]


@click.command(
    "up",
    epilog="\b\nExample:\n  farm up --port 6390      then, in other terminals, with the FARM_URL that it prints:\n"
    "  farm worker\n  farm submit --candidate 2.13",
)
@click.option("--port", type=click.IntRange(1, 65535), help="Listen here; by default on a free port.")
def command(port: int | None) -> None:
    """Run a server and an aggregator until Ctrl-C. Runs and evidence stay in the home."""
    home = Home.default().prepare()
    with LocalFarm(home, worker=False, port=port) as farm:
        click.echo(f"export FARM_URL={farm.url}")
        click.echo(f"evidence in {home.root}; Ctrl-C ends it", err=True)
        try:
            while True:
                farm.check()
                time.sleep(1.0)
        except KeyboardInterrupt:
            click.echo("stopping", err=True)
