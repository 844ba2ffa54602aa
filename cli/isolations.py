"""What was isolated of a run's cells, kept beside the run: files are added and never changed."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from farm.errors import InfrastructureFailed
from farm.model import Isolation
from farm.settings import Home

__all__ = ["FOLDER", "isolations_of", "keep_isolation"]

FOLDER = "isolations"


def keep_isolation(home: Home, isolation: Isolation) -> Path:
    """Write ``isolation`` beside its run, named by time and content, and return the file.

    Raises InfrastructureFailed for a full disk.
    """
    when = isolation.created.replace(":", "").replace("-", "").partition("+")[0]
    path = home.runs / isolation.run_id / FOLDER / f"{when}-{isolation.digest()[:12]}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        making = path.with_name(f".{path.name}")
        making.write_text(isolation.model_dump_json(indent=2), encoding="utf-8")
        making.replace(path)
    except OSError as error:
        raise InfrastructureFailed(f"the isolation cannot be kept in {path.parent}: {error}") from error
    return path


def isolations_of(home: Home, run_id: str) -> list[Isolation]:
    """Return the isolations of a run, the oldest first. Raises InfrastructureFailed for a damaged one."""
    found = []
    for path in sorted((home.runs / run_id / FOLDER).glob("*.json")):
        try:
            found.append(Isolation.model_validate_json(path.read_bytes()))
        except (OSError, ValidationError) as error:
            raise InfrastructureFailed(f"the isolation '{path}' is damaged or of another version: {error}") from error
    return found
