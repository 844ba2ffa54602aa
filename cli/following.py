"""A run as it goes: one live display on a terminal, plain lines elsewhere, always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from farm.broker.client import FarmClient
from farm.model import Cell, Plan, Progress, RunState

__all__ = ["follow"]

POLL_S = 0.5
#: Without a terminal a line is written when something changes, and at least this often.
QUIET_S = 15.0


class _Display(Protocol):
    def show(self, counts: dict[str, int], progress: Sequence[Progress]) -> None: ...


def follow(
    client: FarmClient, run_id: str, plan: Plan, check: Callable[[], None], deadline_s: float | None = None
) -> RunState | None:
    """Show the run until it is over and return its state, or None where ``deadline_s`` came first.

    ``check`` raises where a part of the farm that we started has died.
    """
    began = time.monotonic()
    with _display(plan.cells, began) as display:
        while True:
            check()
            state = client.state(run_id)
            display.show(client.counts(run_id), client.progress(run_id))
            if state in (RunState.COMPLETE, RunState.INCOMPLETE):
                return state
            if deadline_s is not None and time.monotonic() - began > deadline_s:
                return None
            time.sleep(POLL_S)


@contextmanager
def _display(cells: Sequence[Cell], began: float) -> Iterator[_Display]:
    if not sys.stderr.isatty():
        yield _Lines(cells, began)
        return
    console = Console(stderr=True)
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        yield _Screen(cells, began, live)


class _Screen:
    def __init__(self, cells: Sequence[Cell], began: float, live: Live) -> None:
        self.cells, self.began, self.live = cells, began, live
        self.seen: dict[str, Progress] = {}

    def show(self, counts: dict[str, int], progress: Sequence[Progress]) -> None:
        now = {entry.cell_id: entry for entry in progress}
        self.seen |= now
        table = Table(title=_head(counts, len(self.cells), self.began, self.seen, now), title_justify="left")
        for column in ("cell", "state", "restart", "p50 ratio (interval)", "limit", "left"):
            table.add_column(column, justify="left" if column in ("cell", "state") else "right")
        for cell in self.cells:
            entry = now.get(cell.id)
            if entry is None:
                state = "done" if cell.id in self.seen else "waiting"
                table.add_row(cell.id, state, "", "", "", "", style="dim")
            else:
                table.add_row(cell.id, *_columns(entry))
        self.live.update(table)


class _Lines:
    def __init__(self, cells: Sequence[Cell], began: float) -> None:
        self.cells, self.began = cells, began
        self.seen: dict[str, Progress] = {}
        self.last: dict[str, tuple[str, int]] = {}
        self.said = 0.0

    def show(self, counts: dict[str, int], progress: Sequence[Progress]) -> None:
        now = {entry.cell_id: entry for entry in progress}
        self.seen |= now
        quiet = time.monotonic() - self.said > QUIET_S
        for entry in progress:
            # One line a phase and one every so often: a log is read afterwards.
            if self.last.get(entry.cell_id, ("", 0))[0] != entry.phase or quiet:
                self.last[entry.cell_id] = (entry.phase, entry.restart)
                state, restart, ratio, limit, left = _columns(entry)
                parts = [state]
                parts += [f"restart {restart}"] if restart else []
                parts += [f"p50 ratio {ratio}, limit {limit}"] if ratio else []
                parts += [f"about {left} left"] if left else []
                head = _head(counts, len(self.cells), self.began, self.seen, now)
                click.echo(f"[{head}] {entry.cell_id}: {', '.join(parts)}", err=True)
                self.said = time.monotonic()


def _columns(entry: Progress) -> tuple[str, str, str, str, str]:
    ratio = f"{entry.ratio:.3f}" if entry.ratio is not None else ""
    if entry.interval:
        ratio += f" ({entry.interval[0]:.3f} – {entry.interval[1]:.3f})"
    return (
        f"{entry.phase} {entry.arm}".strip(),
        f"{entry.restart} of {entry.restarts}" if entry.phase == "measure" else "",
        ratio,
        f"{entry.limit:.3f}" if entry.limit and ratio else "",
        _duration(entry.remaining_s) if entry.remaining_s is not None else "",
    )


def _head(counts: dict[str, int], total: int, began: float, seen: dict[str, Progress], now: dict[str, Progress]) -> str:
    elapsed = time.monotonic() - began
    done = counts.get("done", 0) + counts.get("failed", 0)
    head = f"{done} of {total} cells, {_duration(elapsed)}"
    if 0 < done < total:
        # Cells of a suite are alike in length: what is done tells of what is left.
        spent = elapsed - sum(entry.elapsed_s for entry in now.values())
        head += f", about {_duration(max(0.0, spent / done * total - elapsed))} left"
    return head


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
