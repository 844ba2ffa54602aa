"""What other limits answer otherwise, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

from farm.model import Flip, Question
from farm.report.text import figure_text, printable
from farm.units import number

__all__ = ["flips_markdown", "flips_table"]

HEADERS = ("flips", "tier", "of", "from", "to", "figure", "limit before")


def flips_table(flips: Sequence[Flip]) -> str:
    """Return the flips for a terminal."""
    return _table(flips, "simple")


def flips_markdown(flips: Sequence[Flip]) -> str:
    """Return the flips for a pull request."""
    return _table(flips, "github")


def _table(flips: Sequence[Flip], form: str) -> str:
    if not flips:
        return "Nothing flips."
    rows = [[printable(text) for text in _cells(flip)] for flip in flips]
    return tabulate(rows, headers=HEADERS, tablefmt=form, disable_numparse=True)


def _cells(flip: Flip) -> list[str]:
    what = "decision" if flip.what != "verdict" else str(flip.gate)
    subject = flip.subject or "all that it requires"
    if flip.question is Question.FEATURE:
        subject += " (feature)"
    limit = number(flip.limit_before) if flip.limit_before is not None else ""
    return [what, flip.tier, subject, flip.before, flip.after, figure_text(flip.figure), limit]
