"""What this machine's noise is known to be, kept in the home: A/A ratios by case, and calibrations.

Every file is one JSON document under a lock, so that two workers of one home may write at once. One that cannot be
read is set aside with a word: a history begins again, and a measurement never ends for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from farm.model import Calibration, Cell
from farm.settings import Home

__all__ = ["Calibrations", "NoiseHistory"]

Entry = TypeVar("Entry")

#: Past ratios that are kept of a case: a fence needs eight, and a machine of last year is another one.
MOST_RATIOS = 50
#: Calibrations that are kept: enough to see whether the machine has become another.
MOST_CALIBRATIONS = 10
SCHEMA_VERSION = 1


class NoiseHistory:
    """The A/A ratios of every case that was measured against itself on this machine."""

    def __init__(self, home: Home) -> None:
        self.folder = home.root / "noise"

    def add(self, cell: Cell, variant: str, ratio: float) -> None:
        """Write down one more A/A ratio (p50, candidate / baseline) of ``cell`` with build ``variant``, "cpu".

        A ratio that no clock can have given is left out. Raises nothing: a full disk costs the entry alone.
        """
        if not (math.isfinite(ratio) and ratio > 0):
            return
        key = _key(cell, variant)

        def grown(ratios: list[float]) -> dict[str, Any]:
            return key | {"ratios": [*ratios, ratio][-MOST_RATIOS:]}

        _rewrite(self._path(key), _ratios, grown)

    def of(self, cell: Cell, variant: str) -> tuple[float, ...]:
        """Return what is known of ``cell``, the newest last; nothing where nothing is."""
        return tuple(_read(self._path(_key(cell, variant)), _ratios))

    def _path(self, key: dict[str, str]) -> Path:
        return self.folder / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:20]}.json"


class Calibrations:
    """What `farm calibrate` found on this machine."""

    def __init__(self, home: Home) -> None:
        self.path = home.root / "calibration.json"

    def add(self, calibration: Calibration) -> None:
        """Write down ``calibration`` as the newest."""

        def grown(known: list[Calibration]) -> dict[str, Any]:
            kept = [*known, calibration][-MOST_CALIBRATIONS:]
            return {"calibrations": [entry.model_dump(mode="json") for entry in kept]}

        _rewrite(self.path, _calibrations, grown)

    def all(self) -> tuple[Calibration, ...]:
        """Return the calibrations, the newest last."""
        return tuple(_read(self.path, _calibrations))

    def newest(self) -> Calibration | None:
        found = self.all()
        return found[-1] if found else None


def _key(cell: Cell, variant: str) -> dict[str, str]:
    """Return what has to be alike for two ratios to tell of one noise; the release is not part of it.

    A smoke run's few short restarts are noisier than a standard run's: how a case is measured is part of it.
    """
    parameters = json.dumps(cell.parameters, sort_keys=True)
    measuring = cell.measuring
    return {
        "workload": cell.workload,
        "case": cell.case,
        "parameters": hashlib.sha256(parameters.encode()).hexdigest()[:16],
        "capability": cell.capability,
        "variant": variant,
        "measured": f"{max(measuring.looks)} x {measuring.restart_s:g} s, {measuring.threads} threads",
    }


# -- documents -----------------------------------------------------------------------------------------------------


def _ratios(document: dict[str, Any]) -> list[float]:
    """Return the ratios of a document. Raises ValueError for anything else."""
    ratios = document.get("ratios")
    if not isinstance(ratios, list) or not all(isinstance(r, int | float) and 0 < r < math.inf for r in ratios):
        raise ValueError("its ratios are none")
    return [float(ratio) for ratio in ratios]


def _calibrations(document: dict[str, Any]) -> list[Calibration]:
    """Return the calibrations of a document. Raises ValueError for anything else."""
    entries = document.get("calibrations")
    if not isinstance(entries, list):
        raise ValueError("it holds no calibrations")
    try:
        return [Calibration.model_validate(entry) for entry in entries]
    except ValidationError as error:
        raise ValueError(str(error.errors()[0]["msg"])) from error


def _load(path: Path, understand: Callable[[dict[str, Any]], list[Entry]]) -> list[Entry]:
    """Return what ``path`` holds, nothing where it is not. Raises ValueError for one that is damaged."""
    try:
        # Undecodable bytes and broken JSON are ValueErrors.
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    if not isinstance(found, dict) or found.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"it is no document of version {SCHEMA_VERSION}")
    return understand(found)


def _load_or_set_aside(path: Path, understand: Callable[[dict[str, Any]], list[Entry]]) -> list[Entry]:
    """The same under the lock, where a damaged document is set aside."""
    try:
        return _load(path, understand)
    except ValueError as error:
        aside = path.with_suffix(".damaged")
        path.replace(aside)
        _say(f"'{path}' is damaged ({error}); it was set aside as '{aside.name}', and what it knew is not used")
        return []


def _read(path: Path, understand: Callable[[dict[str, Any]], list[Entry]]) -> list[Entry]:
    try:
        try:
            return _load(path, understand)
        except ValueError:
            with _locked(path):
                return _load_or_set_aside(path, understand)
    except OSError as error:
        _say(f"'{path}' cannot be read: {error.strerror}")
        return []


def _rewrite(
    path: Path,
    understand: Callable[[dict[str, Any]], list[Entry]],
    grown: Callable[[list[Entry]], dict[str, Any]],
) -> None:
    """Replace the document at ``path`` by what ``grown`` makes of its entries, as one step."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            document = {"schema_version": SCHEMA_VERSION} | grown(_load_or_set_aside(path, understand))
            making = path.with_suffix(".making")
            making.write_text(json.dumps(document, indent=1), encoding="utf-8")
            making.replace(path)
    except OSError as error:
        _say(f"'{path}' cannot be written: {error.strerror}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(line: str) -> None:
    sys.stderr.write(f"farm: {line}\n")
