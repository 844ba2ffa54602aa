"""A user's own environment taken back to another release: what is planned, what is proven, and the journal of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from farm.model.plan import Environment, LockedPackage
from farm.model.words import SCHEMA_VERSION, Model

Phase = Literal["taking out", "putting in", "unproven", "proven", "giving back", "restoring"]


class TorchIdentity(Model):
    """Which torch an environment holds, read from its files."""

    version: str
    """Public version, "2.13.0"."""
    variant: str
    """Build variant, "cpu", "cu130"."""
    installer: str = ""
    """Who put it there, in its own words: "pip", "uv"; "" where it does not say."""

    @property
    def identity(self) -> str:
        return f"{self.version}+{self.variant}"


class PackageMove(Model):
    """One package that changes."""

    name: str
    before: str | None
    """Version that is installed; None: not there."""
    after: str | None
    """Version that comes; None: it goes, and nothing comes."""
    why: str
    wheel: LockedPackage | None = None
    """What is installed; None where nothing comes."""
    held: bool = False
    """The wheelhouse has it, with the right hash."""
    unpacked_bytes: int | None = None
    """None where the wheel is not here yet."""


class Dependent(Model):
    """A package that stays and was made for the torch that goes."""

    name: str
    version: str
    needs: str
    """Its own requirement, "torch==2.13.0"."""
    breaks: bool
    """Its requirement excludes what comes; False: it was compiled against a torch, and does not say which."""


class RollbackPlan(Model):
    """What would be done to an environment; made again, from the same environment and wheels, it is the same."""

    schema_version: int = SCHEMA_VERSION
    environment: str
    python: str
    platform: str
    installed: TorchIdentity | None
    """None: torch is not there, or its metadata are lost."""
    to: TorchIdentity
    source: str
    """Where the lock comes from: "the baseline of run X", "the index"."""
    rehearsed_s: float | None = None
    """How long the way back took when that run rehearsed it."""
    moves: tuple[PackageMove, ...]
    dependents: tuple[Dependent, ...] = ()
    untouched: int
    """Packages that stay as they are."""
    strays: tuple[str, ...] = ()
    """Files among those that go which no package owns; they are kept aside."""
    in_use: tuple[str, ...] = ()
    """Processes that run from the environment."""
    notes: tuple[str, ...] = ()
    needed_bytes: int
    """Unpacked size of what comes, as far as it is known."""
    free_bytes: int

    @property
    def lacking(self) -> tuple[LockedPackage, ...]:
        """Wheels that must be fetched before anything is touched."""
        return tuple(move.wheel for move in self.moves if move.wheel is not None and not move.held)

    @property
    def breaking(self) -> tuple[Dependent, ...]:
        return tuple(one for one in self.dependents if one.breaks)


class PlacedPackage(Model):
    """A package as the rollback left it."""

    name: str
    version: str
    sha256: str
    """Of its wheel."""
    files_digest: str
    """Over path and hash of every file in its RECORD: another build of the same version has another."""


class RollbackJournal(Model):
    """What is being done to an environment, kept inside it: enough to go on or to undo after a kill at any step."""

    schema_version: int = SCHEMA_VERSION
    phase: Phase
    created: str
    """UTC, ISO 8601."""
    completed: float | None = None
    """Seconds since the epoch at which the last file was in its place."""
    before: TorchIdentity | None
    to: TorchIdentity
    lock: Environment
    """What it goes to; a torch that is swapped later goes back to it again."""
    source: str
    moves: tuple[PackageMove, ...]
    placed: tuple[PlacedPackage, ...]
    stage: str
    """Folder beside this journal that holds what was unpacked ("new") and what was taken out ("old")."""
    out: tuple[str, ...]
    """What is taken out, relative to the environment."""
    into: tuple[str, ...]
    """What is put in."""
    strays: tuple[str, ...] = ()
    kept: bool = False
    """What was taken out is kept after the proof, too."""
    left_broken: tuple[str, ...] = ()
    """Packages that were left although what they need is gone."""


class RollbackProof(Model):
    """What was held against what, and came out how."""

    wrong: tuple[str, ...]
    """Empty is right."""
    unproven: tuple[str, ...] = ()
    """What could not be looked at, and why."""
    checked: tuple[str, ...] = ()
    """What was looked at, in words."""
    torch_says: dict[str, str | None] = Field(default_factory=dict)
    """Of itself, imported in a process of its own."""
    blamed: tuple[str, ...] = ()
    """Who may have done what is wrong: packages that were installed since, and what they ask for."""
    wall_ns: int = 0
