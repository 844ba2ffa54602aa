"""A walk over nightlies, from one that is good to one that is bad, to the first bad one."""

from __future__ import annotations

from typing import Literal

from farm.model.finding import Finding
from farm.model.plan import Cell, Environment
from farm.model.result import CellResult
from farm.model.words import Model

__all__ = ["Bisection", "BisectionAnswer", "BisectionStep"]

BisectionAnswer = Literal["good", "bad", "cannot be told", "cannot be installed"]


class BisectionStep(Model):
    """One measurement of a walk: a release beside the good end; the last one beside the last good."""

    purpose: Literal["bad end", "good end", "probe", "confirmation"]
    version: str
    beside: str
    """What it was measured beside."""
    answer: BisectionAnswer
    reason: str
    revision: str = ""
    """Revision of torch's sources that the release itself names."""
    cell: Cell | None = None
    """None where it could not be installed."""
    result: CellResult | None = None
    disturbed: tuple[CellResult, ...] = ()
    """Measurements of the same that were invalid, and were repeated for that."""


class Bisection(Finding):
    """One walk for one cell, with its evidence."""

    good: str
    """The end that counts as good; every probe is measured beside it."""
    bad: str
    nights: tuple[str, ...]
    """Nightlies between the ends that could be had when the walk began, the oldest first."""
    absent: tuple[str, ...] = ()
    """Days between the first and the last of them for which there is none: "20260604", "20260611 to 20260613"."""
    environments: dict[str, Environment]
    steps: tuple[BisectionStep, ...] = ()
    last_good: str | None = None
    first_bad: str | None = None
    skipped: tuple[str, ...] = ()
    """Between the two, and neither good nor bad: the first bad one may be among them."""
    conclusion: str = ""
    """In one sentence."""

    @property
    def measured(self) -> int:
        """How many steps are kept."""
        return len(self.steps)

    @property
    def heads(self) -> tuple[str, ...]:
        return (f"bisected: {', '.join(self.gates)} for {self.tier}: {self.conclusion}",)

    @property
    def lines(self) -> tuple[str, ...]:
        absent = (f"no nightly for {', '.join(self.absent)}",) if self.absent else ()
        return absent + tuple(
            f"{step.purpose} {step.version} beside {step.beside}: {step.answer} ({step.reason})" for step in self.steps
        )
