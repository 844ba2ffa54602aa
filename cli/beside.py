"""What was looked into after a run, kept beside it: one file each, added and never changed.

One that is not finished has a file of its own, named by its question: the same question goes on with it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ValidationError

from farm.errors import InfrastructureFailed, UsageError
from farm.model import Isolation
from farm.settings import Home

__all__ = ["Kept", "isolations_of"]


Record = TypeVar("Record", bound=Isolation)


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


def isolations_of(home: Home, run_id: str) -> list[Isolation]:
    """Return the finished isolations of a run, the oldest first."""
    return Kept(home, run_id, Isolation).finished()
