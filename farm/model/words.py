"""What every record is made of, and the closed vocabularies."""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 1
"""Of every record. A message with another version is refused with words, never guessed at."""


class Model(BaseModel):
    """A frozen record that refuses fields it does not know."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        # JSON holds neither bytes nor NaN, and evidence holds both: as null, a NaN could not be read back.
        ser_json_bytes="base64",
        val_json_bytes="base64",
        ser_json_inf_nan="strings",
    )

    def digest(self, exclude: set[str] | None = None) -> str:
        """Return the SHA-256 (hex) of the canonical JSON: sorted keys, no spaces, ``exclude`` left out."""
        data = self.model_dump(mode="json", exclude=exclude)
        text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()


class Side(StrEnum):
    BASELINE = "baseline"
    CANDIDATE = "candidate"


class Outcome(StrEnum):
    """How an arm ended in a cell."""

    OK = "ok"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    OUT_OF_MEMORY = "out of memory"
    UNSUPPORTED = "unsupported"
    FELL_BACK = "fell back"
    BACKEND_UNREACHABLE = "backend unreachable"
    NO_ENVIRONMENT = "no environment"
    """The arm's environment could not be built; the installer's last words are the reason."""
    FAILED = "failed"
    """The workload itself raised, or returned nothing; its own words are the reason."""


class Status(StrEnum):
    """A gate's answer."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    UNTESTED = "untested"
    NOT_APPLICABLE = "not applicable"


class Decision(StrEnum):
    ADOPT = "adopt"
    ISOLATE = "isolate"
    DEFER = "defer"
    ROLLBACK = "rollback"


class Gate(StrEnum):
    CORRECTNESS = "correctness"
    LATENCY = "latency"
    THROUGHPUT = "throughput"
    PEAK_MEMORY = "peak_memory"
    DETERMINISM = "determinism"
    COMPILE_EXPORT = "compile_export"
    ROLLBACK = "rollback"


class Question(StrEnum):
    VERSION = "version"
    """The old path on both releases: is the candidate no worse?"""
    FEATURE = "feature"
    """The new path beside the old one, both on the candidate: does it bring the gain set beforehand?"""


Backend = Literal["mps", "cuda", "rocm", "cpu", "distributed"]
Track = Literal["production", "prototype"]
StateKind = Literal[
    "checkpoint", "optimizer", "distributed checkpoint", "exported program", "compiled package", "compile cache"
]
"""What a release in service writes, and the one that it is rolled back to must open."""
