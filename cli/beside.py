"""What was looked into after a run, kept beside it: one file each, added and never changed.

One that is not finished has a file of its own, named by its question: the same question goes on with it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import click
from pydantic import ValidationError

from farm.errors import FarmError, Incomplete, InfrastructureFailed, UsageError
from farm.model import Bisection, Finding, Isolation
from farm.settings import Home

__all__ = ["Kept", "findings_of"]


Record = TypeVar("Record", bound=Finding)


class Kept(Generic[Record]):
    """The records of one kind beside one run."""

    def __init__(self, home: Home, run_id: str, kind: type[Record]) -> None:
        self._kind = kind
        self._word = kind.__name__.lower()
        self._folder = home.runs / run_id / f"{self._word}s"

    def finished(self) -> list[Record]:
        """Return the finished ones, the oldest first. Raises InfrastructureFailed for a damaged one."""
        return [self._read(path) for path in sorted(self._folder.glob("[0-9]*.json"))]

    def begun(self, question: str) -> Record | None:
        """Return what is kept of ``question`` (a digest) that was interrupted; None where nothing was."""
        path = self._unfinished(question)
        return self._read(path) if path.is_file() else None

    def keep(self, record: Record, question: str) -> Path:
        """Keep ``record``: a finished one by time and content, in place of what was begun; and return the file.

        Raises InfrastructureFailed for a full disk.
        """
        begun = self._unfinished(question)
        making = begun.with_name(f".{begun.name}")
        when = record.created.replace(":", "").replace("-", "").partition("+")[0]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            making.write_text(record.model_dump_json(indent=2), encoding="utf-8")
            making.replace(begun)
            if not record.complete:
                return begun
            # Renamed, so that a kill leaves one or the other.
            return begun.replace(self._folder / f"{when}-{record.digest()[:12]}.json")
        except OSError as error:
            raise InfrastructureFailed(f"the {self._word} cannot be kept in {self._folder}: {error}") from error

    def go_on(self, question: str, work: Callable[[Callable[[Record], None], Record | None], Record]) -> Record:
        """Return what ``work`` finishes of ``question``, kept; say on stderr what it goes on with and where it is kept.

        ``work`` is given what keeps its record as it stands, and the record that was kept of an interrupted one. Raises
        Incomplete where it is interrupted.
        """
        with self.alone():
            begun = self.begun(question)
            measured = begun.measured if begun else 0
            if begun is not None:
                click.echo(f"going on with what was begun {begun.created}; measurements kept: {measured}", err=True)

            def keep(record: Record) -> None:
                nonlocal measured
                self.keep(record, question)
                measured = record.measured

            try:
                record = work(keep, begun)
            except KeyboardInterrupt as interrupt:
                raise Incomplete(f"interrupted; measurements kept: {measured}; the same command goes on") from interrupt
            except FarmError:
                if measured:
                    click.echo(f"measurements kept: {measured}; the same command goes on", err=True)
                raise
            click.echo(f"kept: {self.keep(record, question)}", err=True)
        return record

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold this run's records. Raises UsageError where another command does: both would keep the same file."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._folder, os.O_RDONLY)
        except OSError as error:
            raise InfrastructureFailed(f"the {self._word} cannot be kept in {self._folder}: {error}") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(f"another {self._word} of this run is going on; wait for it, or end it") from error
            yield
        finally:
            os.close(descriptor)

    def _unfinished(self, question: str) -> Path:
        return self._folder / f"unfinished-{question}.json"

    def _read(self, path: Path) -> Record:
        try:
            return self._kind.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise InfrastructureFailed(
                f"the {self._word} '{path}' is damaged or of another version; move it away: {error}"
            ) from error


def findings_of(home: Home, run_id: str) -> list[Finding]:
    """Return what was isolated and bisected of a run's cells and is finished, the oldest first."""
    found: list[Finding] = [
        *Kept(home, run_id, Isolation).finished(),
        *Kept(home, run_id, Bisection).finished(),
    ]
    return sorted(found, key=lambda one: one.created)
