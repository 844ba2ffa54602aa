"""`farm status`: what runs, what waits, who works."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import click
from tabulate import tabulate

from farm.broker.client import FarmClient, Presence
from farm.capability import queue_of
from farm.local import end_orphaned_runs
from farm.model import RunRow, RunState
from farm.settings import Home, load_settings
from farm.stages import standing_words, window_of
from farm.store import OPEN, Store

__all__ = ["command"]

#: Runs in the list; --json gives all.
SHOWN = 20


@click.command("status", epilog="\b\nExamples:\n  farm status\n  farm status --json | jq .runs[0]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """List the runs of this home, or with FARM_URL set those of that farm, its workers, its queues and what waits."""
    home, settings = Home.default(), load_settings()
    if settings.url is None:
        end_orphaned_runs(home)
        runs = _stored(Store.open(home)) if home.database.is_file() else []
        if as_json:
            _print_json(runs)
        else:
            click.echo(_runs(runs))
            _windows(runs)
        return
    client = FarmClient(settings.url)
    runs, workers = client.runs(), client.presences()
    lengths = client.queue_lengths(sorted({queue for worker in workers for queue in worker.queues}))
    waiting = _waiting(client, runs, workers)
    if as_json:
        _print_json(
            runs, workers=[worker.model_dump(mode="json") for worker in workers], queues=lengths, waiting=waiting
        )
        return
    click.echo(_runs(runs))
    _windows(runs)
    for run_id, words in waiting.items():
        click.echo(f"{run_id}: {words}")
    click.echo("\n" + _workers(workers))
    if lengths:
        click.echo("\n" + tabulate(lengths.items(), headers=["queue", "waiting on the server"]))


def _stored(store: Store) -> list[RunRow]:
    """Return the runs of a store; those that go on in another terminal with where they stand."""

    def standing(run: RunRow) -> RunRow:
        if run.state is not RunState.RUNNING:
            return run
        over = {cell.cell_id: cell.state not in OPEN for cell in store.cells(run.run_id)}
        return run.model_copy(update={"standing": window_of(store.plan(run.run_id)).standing(over)})

    return [standing(run) for run in store.runs()]


def _windows(runs: Sequence[RunRow]) -> None:
    """Say where the window of each run in stages stands that goes on."""
    for run in runs:
        if run.state is RunState.RUNNING and run.standing is not None:
            click.echo(f"{run.run_id}: {standing_words(run.standing, run.created)}")


def _print_json(runs: Sequence[RunRow], **more: object) -> None:
    click.echo(json.dumps({"runs": [run.model_dump(mode="json") for run in runs], **more}, indent=2))


def _runs(runs: Sequence[RunRow]) -> str:
    if not runs:
        return "no runs yet; start one: farm submit --candidate 2.13"
    rows = [[r.run_id, r.state, r.created, r.candidate, r.baseline, f"{r.done} of {r.total}"] for r in runs[:SHOWN]]
    return tabulate(rows, headers=["run", "state", "created", "candidate", "baseline", "cells"])


def _workers(workers: Sequence[Presence]) -> str:
    if not workers:
        return "no workers; start one on a machine of yours: FARM_URL=… farm worker"
    rows = [
        [w.worker, w.host.cpu, ", ".join(w.queues), w.busy_cell or "idle", f"{(time.time() - w.since) / 60:.0f} min"]
        for w in workers
    ]
    return tabulate(rows, headers=["worker", "cpu", "queues", "busy with", "up"])


def _waiting(client: FarmClient, runs: Sequence[RunRow], workers: Sequence[Presence]) -> dict[str, str]:
    """Return, for every open run, its first cell that nobody has taken, and why (a queue that stands still says so)."""
    found = {}
    for run in runs:
        if run.state is not RunState.RUNNING:
            continue
        first = next((cell for cell in client.cells(run.run_id) if cell.state in ("pending", "queued")), None)
        if first is None:
            continue
        queue = queue_of(first.cell_id.rpartition("@")[2])
        able = [worker for worker in workers if queue in worker.queues]
        busy = sum(bool(worker.busy_cell) for worker in able)
        why = (
            f"{busy} of {len(able)} workers of its queue are busy" if able else f"no live worker takes queue '{queue}'"
        )
        found[run.run_id] = f"{first.cell_id} waits: {why}"
    return found
