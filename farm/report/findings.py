"""What was looked into after a run, as lines."""

from __future__ import annotations

from collections.abc import Iterable

from farm.model import Finding

__all__ = ["finding_lines"]


def finding_lines(findings: Iterable[Finding], cell_id: str) -> tuple[str, ...]:
    """Return what came of everything that was looked into of a cell, each with its measurements; the oldest first."""
    found: list[str] = []
    for finding in findings:
        if finding.cell_id == cell_id:
            when = finding.created[:16].replace("T", " ")
            found += [f"{head} ({when} UTC)" for head in finding.heads]
            found += finding.lines
    return tuple(found)
