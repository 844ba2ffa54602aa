"""The machine: what a comparison must know of it, how noisy it is, and what could be better."""

from __future__ import annotations

from typing import Literal

from farm.model.words import Model


class HostCheck(Model):
    """One fact of the machine that noise depends on, and what could be better."""

    name: str
    """"governor", "turbo", "pinning", "address layout", "other load"."""
    state: Literal["good", "poor", "unknown"]
    found: str
    """What was seen, or why it could not be seen."""
    advice: str = ""
    """What to do where it is poor."""
    worth: str = ""
    """What that is worth, with its source."""


class Calibration(Model):
    """What an A/A comparison of one release with itself gave on this machine."""

    measured: str
    """UTC, ISO 8601."""
    release: str
    """`Release.identity`."""
    workload: str
    """"transformer_block/infer-fp32"."""
    restarts: int
    restart_s: float
    """Wall time of one restart, start and warm-up included."""
    window_s: float
    """Of it inside windows, both arms together."""
    sd: float
    """Standard deviation of ln ratio from restart to restart."""
    ratio: float
    low: float
    high: float
    """A/A ratio of medians with its interval; it should hold 1."""


class Host(Model):
    """The machine, as far as a comparison must know it."""

    name: str
    platform: str
    os: str
    cpu: str
    cores: int
    memory_bytes: int
    capabilities: tuple[str, ...]
    python: str
    calibration: Calibration | None = None
    """The newest; None where the machine was never calibrated."""

    @property
    def target(self) -> str:
        """What environments are resolved for: "x86_64-unknown-linux-gnu, Python 3.11"."""
        return f"{self.platform}, Python {self.python}"
