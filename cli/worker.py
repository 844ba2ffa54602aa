"""`farm worker`: this machine measures for a coordinator."""

from __future__ import annotations

import click

from farm.errors import UsageError
from farm.settings import Home, load_settings

__all__ = ["command"]


@click.command("worker", epilog="\b\nExample:\n  FARM_URL=redis://… farm worker --name blue-laptop")
@click.option("--name", help="What the fleet calls this machine; by default its host name.")
@click.pass_context
def command(ctx: click.Context, name: str | None) -> None:
    """Take cells that this machine can run, one at a time, until Ctrl-C."""
    settings = load_settings()
    if settings.url is None:
        raise UsageError("a worker needs a coordinator; set FARM_URL to what 'farm up' prints there")
    from workers.agent import main

    ctx.exit(main(settings.url, Home.default().prepare(), name))
