"""The gates, a registry: each is a pure function from what was seen to a verdict for one tier."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from farm.gates import correctness, determinism, memory, programs, rollback, timing
from farm.gates.question import GateQuestion, blocked
from farm.model import Gate, Question, Status, Verdict

__all__ = ["GATES", "GateQuestion", "judge_gate"]

GATES: Mapping[Gate, Callable[[GateQuestion], Verdict]] = {
    Gate.CORRECTNESS: correctness.judge,
    Gate.LATENCY: timing.latency,
    Gate.THROUGHPUT: timing.throughput,
    Gate.PEAK_MEMORY: memory.judge,
    Gate.DETERMINISM: determinism.judge,
    Gate.COMPILE_EXPORT: programs.judge,
    Gate.ROLLBACK: rollback.judge,
}

#: Gates that hold the challenger against the reference alone: they mean nothing where the reference did not run.
RELATIVE = (Gate.LATENCY, Gate.THROUGHPUT, Gate.PEAK_MEMORY, Gate.COMPILE_EXPORT)


def judge_gate(gate: Gate, asked: GateQuestion) -> Verdict:
    """Return the verdict of ``gate``; what ended an arm or broke the cell comes before any figure."""
    if gate is Gate.ROLLBACK:
        return rollback.judge(asked)
    if gate not in asked.cell.gates:
        if gate is not Gate.COMPILE_EXPORT:
            return Verdict(gate=gate, status=Status.UNTESTED, reason="the matrix does not ask it of this cell")
        reason = "the workload has no program to compile or export"
        return Verdict(gate=gate, status=Status.NOT_APPLICABLE, reason=reason)
    if gate is Gate.COMPILE_EXPORT and asked.question is Question.FEATURE:
        return Verdict(gate=gate, status=Status.NOT_APPLICABLE, reason="asked of the old path alone")
    stopped = blocked(gate, asked, relative=gate in RELATIVE)
    if stopped is None:
        return GATES[gate](asked)
    if stopped.status is Status.NOT_APPLICABLE and gate is Gate.PEAK_MEMORY:
        # A budget in bytes is no comparison: it holds although the reference did not run.
        return memory.over_budget(asked) or stopped
    return stopped
