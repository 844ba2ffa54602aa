"""What one profiled step of each arm did, side by side: attention is read in traces, not in one throughput number."""

from __future__ import annotations

from dataclasses import dataclass

from farm.model import Cell, CellResult, Operator, Trace
from farm.report.text import plural, seconds
from farm.units import mebibytes

__all__ = ["OperatorsView", "operators_view", "trace_words"]

#: Operators that are shown side by side: in a transformer block's training step the ninth takes 1.4 % of the time.
SHOWN = 8


@dataclass(frozen=True)
class OperatorsView:
    """The operators that took longest in one profiled step."""

    arms: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    """(operator, "1.1 ms (4 calls)" of each arm); "–" where an arm does not tell it among its longest."""


def operators_view(cell: Cell, result: CellResult) -> OperatorsView | None:
    """Return the operators that took longest in any arm, the longest first; None where no arm was traced."""
    traced: dict[str, dict[str, Operator]] = {}
    for arm in cell.arms:
        ended = result.arms.get(arm.name)
        if ended is not None and ended.examination is not None and ended.examination.trace is not None:
            traced[arm.name] = {operator.name: operator for operator in ended.examination.trace.operators}
    longest: dict[str, int] = {}
    for operators in traced.values():
        for name, operator in operators.items():
            longest[name] = max(longest.get(name, 0), operator.self_ns + operator.device_ns)
    names = sorted(longest, key=lambda name: (-longest[name], name))[:SHOWN]
    if not names:
        return None
    rows = tuple((name, tuple(_told(operators.get(name)) for operators in traced.values())) for name in names)
    return OperatorsView(tuple(traced), rows)


def trace_words(trace: Trace) -> str:
    """Return the trace's size and digest, and where it is."""
    where = "farm report --traces writes it" if trace.packed else "too large to travel, kept on its worker"
    return f"{mebibytes(trace.size_bytes)}, SHA-256 {trace.sha256}; {where}"


def _told(operator: Operator | None) -> str:
    if operator is None:
        return "–"
    times = [seconds(operator.self_ns)] if operator.self_ns or not operator.device_ns else []
    times += [f"{seconds(operator.device_ns)} on the device"] if operator.device_ns else []
    return f"{', '.join(times)} ({plural(operator.calls, 'call')})"
