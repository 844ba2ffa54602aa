"""`farm status`: runs, queues, workers."""

from __future__ import annotations

import json
import time

import click
from tabulate import tabulate

from farm.broker.client import FarmClient
from farm.local import end_orphaned_runs
from farm.settings import Home, load_settings
from farm.store import Store

__all__ = ["command"]


@click.command("status", epilog="\b\nExamples:\n  farm status\n  farm status --json | jq .runs[0]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """List the runs of this home and, with FARM_URL set, the fleet's workers and queues."""
    home, settings = Home.default(), load_settings()
    end_orphaned_runs(home)
    runs = list(Store.open(home).runs()) if home.database.is_file() else []
    workers = FarmClient(settings.url).presences() if settings.url else []
    lengths = (
        FarmClient(settings.url).queue_lengths(sorted({queue for worker in workers for queue in worker.queues}))
        if settings.url
        else {}
    )
    if as_json:
        content = {
            "runs": [vars(run) for run in runs],
            "workers": [worker.model_dump(mode="json") for worker in workers],
            "queues": lengths,
        }
        click.echo(json.dumps(content, indent=2))
        return
    if runs:
        rows = [[r.run_id, r.state, r.created, r.candidate, r.baseline, f"{r.done} of {r.total}"] for r in runs[:20]]
        click.echo(tabulate(rows, headers=["run", "state", "created", "candidate", "baseline", "cells"]))
    else:
        click.echo("no runs yet; start one: farm submit --candidate 2.13")
    if settings.url is None:
        return
    click.echo("")
    if not workers:
        click.echo("no workers; start one on a machine of yours: FARM_URL=… farm worker")
        return
    found = [
        [w.worker, w.host.cpu, ", ".join(w.queues), w.busy_cell or "idle", f"{(time.time() - w.since) / 60:.0f} min"]
        for w in workers
    ]
    click.echo(tabulate(found, headers=["worker", "cpu", "queues", "busy with", "up"]))
    click.echo("\n" + tabulate(lengths.items(), headers=["queue", "waiting on the server"]))
