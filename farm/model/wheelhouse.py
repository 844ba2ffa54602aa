"""What a worker's wheelhouse holds, and for whom: the records beside its wheels, and what another worker reads."""

from __future__ import annotations

from typing import Literal

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from pydantic import Field, field_validator

from farm.model.plan import Environment
from farm.model.words import SCHEMA_VERSION, Model, Side

WheelCondition = Literal["whole", "damaged", "missing"]
Served = Literal["served", "no longer served", "served with another hash", "could not ask"]


class KeptWheel(Model):
    """One wheel that is kept, as its record says."""

    name: str
    """Normalised (PEP 503)."""
    version: str
    wheel: str
    """File name."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size_bytes: int = Field(ge=0)
    origin: str
    """Where it came from first, without credentials; "" where nobody knows."""
    kept: str
    """When it was kept here, ISO 8601."""
    pulled_from: str = ""
    """The other wheelhouse that it was copied from, without credentials; "" where it came from its origin."""

    @field_validator("wheel")
    @classmethod
    def _is_a_wheels_name(cls, value: str) -> str:
        # It becomes a path here, and may come from another machine.
        if "/" in value or "\\" in value or value.startswith("."):
            raise ValueError(f"'{value}' is not a file's name")
        try:
            parse_wheel_filename(value)
        except InvalidWheelFilename as error:
            raise ValueError(str(error)) from error
        return value

    @property
    def place(self) -> str:
        """Where it lies in a wheelhouse: two builds of one name have two folders."""
        return f"{self.sha256[:16]}/{self.wheel}"


class WheelUse(Model):
    """An environment that this worker built, and so what its wheels are kept for."""

    environment: Environment
    sides: tuple[Side, ...] = ()
    """On which sides of a comparison it stood."""
    used: str
    """When it was last built or found built, ISO 8601."""
    not_kept: dict[str, str] = Field(default_factory=dict)
    """Wheel to the reason why it could not be kept."""


class WheelhouseManifest(Model):
    """`wheelhouse.json`: all that another worker needs to know to pull from here."""

    schema_version: int = SCHEMA_VERSION
    wheels: tuple[KeptWheel, ...]
    environments: tuple[WheelUse, ...]


class WheelState(Model):
    """A wheel that is kept or should be."""

    name: str
    version: str
    wheel: str
    sha256: str
    condition: WheelCondition
    reason: str = ""
    size_bytes: int = 0
    origin: str = ""
    kept: str = ""
    needed_by: tuple[str, ...] = ()
    """"baseline 2.12.1+cu130 (41eef522748e)", one for every environment that needs it."""


class WatchedWheel(Model):
    """Whether upstream still serves a wheel that a baseline needs."""

    name: str
    version: str
    wheel: str
    sha256: str
    origin: str
    needed_by: tuple[str, ...]
    served: Served
    kept: bool
    words: str = ""
    """What that means and what to do; "" where it is served."""
