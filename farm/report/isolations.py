"""What holding packages one at a time gave for a cell, as lines."""

from __future__ import annotations

from collections.abc import Iterable

from farm.model import Isolation

__all__ = ["isolation_lines"]


def isolation_lines(isolations: Iterable[Isolation], cell_id: str) -> tuple[str, ...]:
    """Return a line for every gate of every isolation of a cell and one for everything held, the oldest first."""
    found = []
    for isolation in isolations:
        if isolation.cell_id != cell_id:
            continue
        for gate, conclusion in isolation.conclusions.items():
            found.append(f"{gate} for {isolation.tier} ({isolation.created[:10]}): {conclusion}")
            found += [
                f"{gate}, {verdict.held.name} held: {verdict.answer} ({verdict.reason})"
                for verdict in isolation.verdicts
                if verdict.gate is gate
            ]
    return tuple(found)
