"""Numbers and names as words: the same figure reads the same in the table, in Markdown and on the page."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from farm.model import Figure
from farm.units import number

__all__ = [
    "anchor",
    "fact",
    "figure_text",
    "named_figure",
    "percent",
    "plural",
    "printable",
    "seconds",
]


def figure_text(
    figure: Figure | None, limits: Sequence[tuple[float | None, str]] | None = None, *, short: bool = False
) -> str:
    """Return "1.004 [0.991, 1.012] limit 1.030", without what is not known; "" for no figure.

    ``limits`` are (limit, tier) where several tiers share the figure; limits that differ are told by tier, or when
    ``short`` from the least to the greatest.
    """
    if figure is None:
        return ""
    whole = not figure.name.endswith("ratio")
    text = number(figure.value, figure.unit, whole=whole)
    if figure.low is not None and figure.high is not None:
        text += f" [{number(figure.low, figure.unit)}, {number(figure.high, figure.unit)}]"
    known = [(x, tier) for x, tier in (limits if limits is not None else [(figure.limit, "")]) if x is not None]
    if not known:
        return text
    every = limits is None or len(known) == len(limits)
    if every and len({limit for limit, _ in known}) == 1:
        return f"{text} limit {number(known[0][0], figure.unit, whole=whole)}"
    if short:
        least, greatest = (number(pick(x for x, _ in known), figure.unit, whole=whole) for pick in (min, max))
        return f"{text} limit {least}" + (f" to {greatest}" if greatest != least else "")
    by_limit: dict[float, list[str]] = {}
    for limit, tier in known:
        by_limit.setdefault(limit, []).append(tier)
    told = (f"{number(limit, figure.unit, whole=whole)} {' and '.join(by_limit[limit])}" for limit in sorted(by_limit))
    return f"{text} limit {', '.join(told)}"


def named_figure(figure: Figure | None, limits: Sequence[tuple[float | None, str]] | None = None) -> str:
    """Return `figure_text` after the figure's name."""
    return f"{figure.name} {figure_text(figure, limits)}" if figure else ""


def seconds(ns: int | None) -> str:
    """Return nanoseconds in a unit that leaves few digits; "" for None."""
    if ns is None:
        return ""
    if ns >= 10**9:
        return f"{ns / 1e9:.1f} s"
    return f"{ns / 1e6:.1f} ms" if ns >= 10**5 else f"{ns / 1e3:.1f} µs"


def percent(part: float, whole: float) -> str:
    """Return ``part`` of ``whole``, "62.0 %"; "" where there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else ""


def plural(count: int, noun: str) -> str:
    """Return "1 cell", "2 cells"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def printable(text: str) -> str:
    """Return ``text`` on one line without control characters: a log's colours must not reach a terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def fact(value: Any) -> str:
    """Return a fact that a runner told as one line of text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def anchor(prefix: str, name: str) -> str:
    """Return an id for ``name``: letters and digits of it, distinct for the names of one plan."""
    # Every other character becomes its code, so that "a/b" and "a-b" stay two.
    return f"{prefix}-" + re.sub(r"[^A-Za-z0-9-]", lambda found: f"_{ord(found[0]):x}_", name)
