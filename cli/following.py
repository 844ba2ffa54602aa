"""A run as it goes: one live display on a terminal, plain lines elsewhere, always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from farm.broker.client import CellState, FarmClient
from farm.model import Progress, RunState
from farm.stages import standing_words

__all__ = ["Display", "display", "follow"]

POLL_S = 0.5
#: Without a terminal a line is written when something changes, and at least this often.
QUIET_S = 15.0
OVER = ("done", "failed", "skipped")


class Display(Protocol):
    """Shows where the cells of a run stand."""

    def show(self, cells: Sequence[CellState], progress: Sequence[Progress], standing: str = "") -> None: ...


def follow(
    client: FarmClient, run_id: str, check: Callable[[], None], deadline_s: float | None = None
) -> RunState | None:
    """Show the run until it is over and return its state, or None where ``deadline_s`` came first.

    ``check`` raises where a part of the farm that we started has died.
    """
    began = time.monotonic()
    with display(began) as shown:
        while True:
            check()
            row = client.run(run_id)
            state = row.state if row else None
            standing = standing_words(row.standing, row.created) if row and row.standing else ""
            shown.show(client.cells(run_id), client.progress(run_id), standing)
            if state in (RunState.COMPLETE, RunState.INCOMPLETE):
                return state
            if deadline_s is not None and time.monotonic() - began > deadline_s:
                return None
            time.sleep(POLL_S)


@contextmanager
def display(began: float) -> Iterator[Display]:
    """Show on the terminal what is told of cells since ``began`` (monotonic), or write lines where there is none."""
    if not sys.stderr.isatty():
        yield _Lines(began)
        return
    console = Console(stderr=True)
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        yield _Screen(began, live)


class _Screen:
    def __init__(self, began: float, live: Live) -> None:
        self.began, self.live = began, live

    def show(self, cells: Sequence[CellState], progress: Sequence[Progress], standing: str = "") -> None:
        now = {entry.cell_id: entry for entry in progress}
        title = "; ".join(filter(None, (standing, _head(cells, now, self.began))))
        table = Table(title=title, title_justify="left")
        for column in ("cell", "state", "restart", "p50 ratio (interval)", "limit", "left"):
            named = column in ("cell", "state")
            table.add_column(column, justify="left" if named else "right", overflow="fold" if named else "ellipsis")
        for cell in cells:
            entry = now.get(cell.cell_id)
            if entry is None:
                table.add_row(cell.cell_id, f"{cell.state} {cell.reason}".strip(), "", "", "", "", style="dim")
            else:
                table.add_row(cell.cell_id, *_columns(entry))
        self.live.update(table)


class _Lines:
    def __init__(self, began: float) -> None:
        self.began = began
        self.phases: dict[str, str] = {}
        self.over: set[str] = set()
        self.said = began
        self.stage = ""

    def show(self, cells: Sequence[CellState], progress: Sequence[Progress], standing: str = "") -> None:
        now = {entry.cell_id: entry for entry in progress}
        quiet = time.monotonic() - self.said > QUIET_S
        if standing.partition(":")[0] != self.stage:
            self.stage = standing.partition(":")[0]
            click.echo(standing, err=True)
        for cell in cells:
            if cell.state in OVER and cell.cell_id not in self.over:
                self.over.add(cell.cell_id)
                self._say(cells, now, cell.cell_id, f"{cell.state} {cell.reason}".strip())
        for entry in progress:
            # One line a phase and one every so often: a log is read afterwards.
            if entry.cell_id not in self.over and (self.phases.get(entry.cell_id) != entry.phase or quiet):
                self.phases[entry.cell_id] = entry.phase
                state, restart, ratio, limit, left = _columns(entry)
                parts = [state]
                parts += [f"restart {restart}"] if restart else []
                parts += [f"p50 ratio {ratio}"] if ratio else []
                parts += [f"limit {limit}"] if limit else []
                parts += [f"about {left} left"] if left else []
                self._say(cells, now, entry.cell_id, ", ".join(parts))

    def _say(self, cells: Sequence[CellState], now: Mapping[str, Progress], cell_id: str, words: str) -> None:
        click.echo(f"[{_head(cells, now, self.began)}] {cell_id}: {words}", err=True)
        self.said = time.monotonic()


def _columns(entry: Progress) -> tuple[str, str, str, str, str]:
    ratio = f"{entry.ratio:.3f}" if entry.ratio is not None else ""
    if entry.interval:
        ratio += f" ({entry.interval[0]:.3f} – {entry.interval[1]:.3f})"
    return (
        f"{entry.phase} {entry.arm}".strip(),
        f"{entry.restart} of {entry.restarts}" if entry.restarts else "",
        ratio,
        f"{entry.limit:.3f}" if entry.limit and ratio else "",
        _duration(entry.remaining_s) if entry.remaining_s is not None else "",
    )


def _head(cells: Sequence[CellState], now: Mapping[str, Progress], began: float) -> str:
    elapsed = time.monotonic() - began
    done = sum(cell.state in OVER for cell in cells)
    head = f"{done} of {len(cells)} cells, {_duration(elapsed)}"
    if 0 < done < len(cells):
        # Cells of a suite are alike in length: what is done tells of what is left.
        spent = elapsed - sum(entry.elapsed_s for entry in now.values())
        head += f", about {_duration(max(0.0, spent / done * len(cells) - elapsed))} left"
    return head


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
