"""`farm watch`: follow a run."""

from __future__ import annotations

import click

from cli.following import follow
from farm.broker.client import FarmClient
from farm.errors import EXIT_COMPLETE, EXIT_INCOMPLETE, UsageError
from farm.model import RunState
from farm.settings import Home, load_settings
from farm.store import Store

__all__ = ["command"]


@click.command(
    "watch",
    epilog="\b\nExamples:\n  farm watch 20261201-1a2b3c\n"
    "  farm watch 20261201-1a2b3c --cancel     end it; what was measured is kept",
)
@click.argument("run")
@click.option("--cancel", is_flag=True, help="End the run first: what waits is not measured any more.")
@click.pass_context
def command(ctx: click.Context, run: str, cancel: bool) -> None:
    """Follow RUN until it is complete. Ctrl-C stops watching; the run goes on."""
    home, settings = Home.default(), load_settings()
    if settings.url is None:
        state = Store.open(home).evidence(run).state
        click.echo(f"run {run}: {state}; a run without a coordinator is followed by the command that started it")
        ctx.exit(EXIT_COMPLETE if state is RunState.COMPLETE else EXIT_INCOMPLETE)
    client = FarmClient(settings.url)
    if client.state(run) is None:
        raise UsageError(f"the farm knows no run '{run}'; see: farm status")
    if cancel:
        client.cancel(run, "cancelled")
    found = follow(client, run, lambda: None)
    click.echo(f"run {run}: {found}; farm report {run}")
    ctx.exit(EXIT_COMPLETE if found is RunState.COMPLETE else EXIT_INCOMPLETE)
