"""A failing cell measured again with one moved package at a time held at the baseline's version."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from farm.model.finding import Finding
from farm.model.plan import Cell, Environment
from farm.model.result import CellResult
from farm.model.words import Gate, Model

__all__ = ["Held", "HeldAnswer", "HeldVerdict", "Isolation", "IsolationRound", "MovedPackage"]

HeldAnswer = Literal["carries the change", "carries a part", "does not", "cannot be told", "cannot be held"]


class MovedPackage(Model):
    """A package beside torch whose version differs between the arms' locks; None where a side has none."""

    name: str
    baseline: str | None
    candidate: str | None

    @property
    def words(self) -> str:
        return f"{self.name} {self.baseline or 'none'} -> {self.candidate or 'none'}"


class Held(Model):
    """What one arm of an isolation holds at the baseline's version: one package, or a group that belongs together."""

    name: str
    """"triton", "vendor libraries"."""
    packages: tuple[MovedPackage, ...]

    @property
    def arm(self) -> str:
        """Name of the arm: the candidate, with this held."""
        return f"held-{self.name.replace(' ', '-')}"

    @property
    def words(self) -> str:
        return ", ".join(package.words for package in self.packages)


class IsolationRound(Model):
    """One interleaved measurement: baseline, candidate, and the candidate with something held, a few at a time."""

    cell: Cell
    held: tuple[Held, ...]
    result: CellResult


class HeldVerdict(Model):
    """What holding something did to one gate."""

    held: Held
    gate: Gate
    answer: HeldAnswer
    reason: str


class Isolation(Finding):
    """One isolation of one cell, with its evidence."""

    moved: tuple[MovedPackage, ...]
    environments: dict[str, Environment]
    rounds: tuple[IsolationRound, ...]
    again: dict[Gate, str] = Field(default_factory=dict)
    """What the candidate as it is said this time, by gate: "fail: p50 +8.1 %: beyond the limit"."""
    verdicts: tuple[HeldVerdict, ...] = ()
    conclusions: dict[Gate, str] = Field(default_factory=dict)
    """In one sentence each."""
    carriers: dict[Gate, tuple[str, ...]] = Field(default_factory=dict)
    """Packages that carry the change, by gate: what could be kept at the baseline's version."""

    @property
    def measured(self) -> int:
        """How many rounds are kept."""
        return len(self.rounds)

    @property
    def heads(self) -> tuple[str, ...]:
        return tuple(f"isolated: {gate} for {self.tier}: {said}" for gate, said in self.conclusions.items())

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(
            f"{verdict.gate}, {verdict.held.name} held: {verdict.answer} ({verdict.reason})"
            for verdict in self.verdicts
        )
