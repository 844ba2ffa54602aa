"""Names of everything that the farm keeps on the server; all of it may be lost without losing work (docs/decisions)."""

from __future__ import annotations

__all__ = [
    "KEY",
    "PREFIX",
    "RESULTS",
    "SUBMIT",
    "attempt",
    "back",
    "cancel",
    "cells",
    "created",
    "done",
    "evidence",
    "presence",
    "progress",
    "run",
]

PREFIX = "farm:"
SUBMIT = "farm:submit"
"""Stream of plans that wait for the aggregator."""
RESULTS = "farm:results"
"""Stream of results that wait to be committed."""
KEY = "farm:key"
"""The coordinator's public key, base64."""


def created(token: str) -> str:
    return f"farm:created.{token}"


def run(run: str) -> str:
    """A run in a list, JSON (`farm.store.RunRow`)."""
    return f"farm:run.{run}"


def cells(run: str) -> str:
    """[[cell, state, reason], …] in the plan's order, JSON."""
    return f"farm:cells.{run}"


def progress(run: str) -> str:
    return f"farm:progress.{run}"


def evidence(run: str) -> str:
    return f"farm:evidence.{run}"


def cancel(run: str) -> str:
    return f"farm:cancel.{run}"


def attempt(run: str, cell: str) -> str:
    """The fencing token: the attempt that counts now."""
    return f"farm:attempt.{run}.{cell}"


def back(run: str, cell: str) -> str:
    """A worker that leaves puts the attempt here that it gives back."""
    return f"farm:back.{run}.{cell}"


def done(digest: str) -> str:
    """Set once a result is committed: its file may leave the outbox."""
    return f"farm:done.{digest}"


def presence(worker: str) -> str:
    return f"farm:up.{worker}"
