"""What every record of a cell that is looked into after its run holds."""

from __future__ import annotations

from abc import abstractmethod

from farm.model.words import SCHEMA_VERSION, Gate, Model

__all__ = ["Finding"]


class Finding(Model):
    """What was found of one cell after its run; kept beside the run, and never changed once it is complete."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    cell_id: str
    tier: str
    """Whose limits judge."""
    gates: tuple[Gate, ...]
    budget_s: float | None = None
    """Time for measuring of each measurement that was asked for; None: the cell's own, by the number of arms."""
    complete: bool = True
    """False: it was interrupted, and the same command goes on with it."""
    created: str
    """UTC, ISO 8601."""

    @property
    @abstractmethod
    def measured(self) -> int:
        """How many measurements are kept."""

    @property
    @abstractmethod
    def heads(self) -> tuple[str, ...]:
        """What came of it, in a line or a few."""

    @property
    @abstractmethod
    def lines(self) -> tuple[str, ...]:
        """What each measurement said."""
