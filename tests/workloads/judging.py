"""The correctness gate's own answer to what two runs of a workload computed."""

from __future__ import annotations

from typing import Any

from farm.gates import judge_gate
from farm.model import Gate, Verdict
from tests.evidence import ask, ok
from workers.comparison import compare_outputs

__all__ = ["judged"]


def judged(new: dict[str, Any], old: dict[str, Any]) -> Verdict:
    """Return what the gate says of ``new`` beside ``old``, both against the oracle of ``old``."""
    arms = {
        "candidate": ok(outputs=compare_outputs(new["outputs"], old["oracle"], old["outputs"])),
        "baseline": ok(outputs=compare_outputs(old["outputs"], old["oracle"], None)),
    }
    return judge_gate(Gate.CORRECTNESS, ask(arms))
