"""Where the marks of two charts lie: ratios beside their limits, and distributions of step times.

Pure geometry in the units of an SVG viewBox; the page's template draws it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = [
    "WIDTH",
    "Curve",
    "DistributionChart",
    "Lane",
    "Mark",
    "RatioChart",
    "Ratios",
    "Samples",
    "distribution_chart",
    "ratio_chart",
]

#: Of both charts, viewBox units.
WIDTH = 720.0
LEFT, RIGHT = 14.0, WIDTH - 14.0
#: Width of a character of a label (11 px font), on the safe side: labels that would touch go to another row.
CHARACTER = 6.4
LABEL_ROW = 14.0
LEGEND_ROW = 18.0
#: Of an axis, at most and about: more would touch.
TICKS = 9
#: The axis of a distribution ends here: a single stall would squeeze all that matters into one bar.
CLIP_QUANTILE = 0.995
BINS = 64

_Place = Callable[[float], float]


@dataclass(frozen=True)
class Mark:
    """A labelled place on the axis."""

    x: float
    label: str
    label_x: float
    label_y: float


@dataclass(frozen=True)
class Ratios:
    """One quantity of a pair: what is drawn in one lane."""

    title: str
    restarts: tuple[float, ...]
    value: float | None
    low: float | None
    high: float | None
    limits: tuple[tuple[float, str], ...]
    """(limit, tiers that set it)."""


@dataclass(frozen=True)
class Lane:
    title: str
    title_y: float
    top: float
    y: float
    bottom: float
    dots: tuple[float, ...]
    value: float | None
    low: float | None
    high: float | None
    limits: tuple[Mark, ...]


@dataclass(frozen=True)
class RatioChart:
    label: str
    """What the picture shows, for those who do not see it."""
    height: float
    axis_y: float
    axis_title: str
    one: float
    ticks: tuple[Mark, ...]
    lanes: tuple[Lane, ...]


@dataclass(frozen=True)
class Samples:
    """Steps of one arm, milliseconds."""

    arm: str
    steps_ms: np.ndarray
    restarts: int


@dataclass(frozen=True)
class Curve:
    arm: str
    role: str
    """"reference" or "challenger"."""
    path: str
    legend: str
    legend_y: float
    median: float
    p95: float


@dataclass(frozen=True)
class DistributionChart:
    label: str
    height: float
    top: float
    axis_y: float
    axis_title: str
    ticks: tuple[Mark, ...]
    curves: tuple[Curve, ...]


def ratio_chart(ratios: Sequence[Ratios], arm: str, reference: str) -> RatioChart | None:
    """Return where everything lies on one logarithmic axis; None where there is no ratio to show."""
    shown = [r for r in ratios if r.restarts or r.value is not None]
    if not shown:
        return None
    values = [1.0]
    for r in shown:
        values += [*r.restarts, *(limit for limit, _ in r.limits)]
        values += [x for x in (r.value, r.low, r.high) if x is not None]
    logs = [math.log(x) for x in values if x > 0 and math.isfinite(x)]
    pad = max(0.06 * (max(logs) - min(logs)), 0.01)
    start, end = min(logs) - pad, max(logs) + pad

    def at(value: float) -> float:
        return round(LEFT + (math.log(value) - start) / (end - start) * (RIGHT - LEFT), 2)

    lanes, y = [], 6.0
    for r in shown:
        lane = _lane(r, y, at)
        lanes.append(lane)
        y = lane.bottom + 12
    ticks = [(at(value), text) for value, text in _ratio_ticks(math.exp(start), math.exp(end))]
    return RatioChart(
        label=f"Ratios {arm} over {reference}: " + "; ".join(_spoken(r) for r in shown),
        height=y + 40,
        axis_y=y,
        axis_title=f"{arm} / {reference}, logarithmic; one dot a restart, bar: interval",
        one=at(1.0),
        ticks=tuple(Mark(x, text, x, y + 17) for x, text in ticks),
        lanes=tuple(lanes),
    )


def _lane(ratios: Ratios, y: float, at: _Place) -> Lane:
    places = [(at(limit), f"limit {limit:g} {tiers}".strip()) for limit, tiers in ratios.limits]
    marks, rows = _without_overlap(places, y + 16)
    top = y + 16 + rows * LABEL_ROW

    def place(value: float | None) -> float | None:
        return at(value) if value is not None and value > 0 and math.isfinite(value) else None

    return Lane(
        title=ratios.title,
        title_y=y + 10,
        top=top,
        y=top + 14,
        bottom=top + 28,
        dots=tuple(at(x) for x in ratios.restarts),
        value=place(ratios.value),
        low=place(ratios.low),
        high=place(ratios.high),
        limits=tuple(marks),
    )


def _without_overlap(places: Sequence[tuple[float, str]], top: float) -> tuple[list[Mark], int]:
    """Return marks whose labels do not touch, and how many rows of labels that took."""
    ends: list[float] = []
    marks = []
    for x, label in sorted(places):
        width = CHARACTER * len(label)
        middle = min(max(x, LEFT + width / 2), RIGHT - width / 2)
        row = next((i for i, end in enumerate(ends) if end < middle - width / 2), len(ends))
        ends[row : row + 1] = [middle + width / 2 + CHARACTER]
        marks.append(Mark(x, label, round(middle, 2), top + (row + 1) * LABEL_ROW - 3))
    return marks, len(ends)


def _spoken(ratios: Ratios) -> str:
    limits = ", ".join(f"limit {limit:g} {tiers}".strip() for limit, tiers in ratios.limits)
    return f"{ratios.title}{', ' + limits if limits else ''}"


def _ratio_ticks(low: float, high: float) -> list[tuple[float, str]]:
    if high / low > 4:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        every = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        ticks = [(value, f"{value:.3g}") for value in every if low <= value <= high]
        return ticks if len(ticks) <= TICKS else [tick for tick in ticks if math.log10(tick[0]).is_integer()]
    return _linear_ticks(low, high)


def _linear_ticks(low: float, high: float) -> list[tuple[float, str]]:
    raw = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= raw)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step), math.floor(high / step)
    return [(i * step, f"{i * step:.{decimals}f}") for i in range(first, last + 1)]


def distribution_chart(reference: Samples, challenger: Samples) -> DistributionChart | None:
    """Return the histograms of both arms on one axis, each a share of its own steps; None without samples."""
    pair = [("reference", reference), ("challenger", challenger)]
    shown = [(role, samples) for role, samples in pair if len(samples.steps_ms)]
    if not shown:
        return None
    low = min(float(s.steps_ms.min()) for _, s in shown)
    high = max(float(np.quantile(s.steps_ms, CLIP_QUANTILE)) for _, s in shown)
    margin = max(0.03 * (high - low), 1e-3 * high)
    low, high = max(0.0, low - margin), high + margin
    top = 12 + LEGEND_ROW * len(shown)
    axis_y = top + 120
    edges = np.linspace(low, high, BINS + 1)
    shares = [np.histogram(s.steps_ms, edges)[0] / len(s.steps_ms) for _, s in shown]
    tallest = max(float(share.max()) for share in shares) or 1.0

    def at(value: float) -> float:
        return round(LEFT + (value - low) / (high - low) * (RIGHT - LEFT), 2)

    curves = []
    for place, ((role, samples), share) in enumerate(zip(shown, shares, strict=True)):
        median, p95 = (float(np.quantile(samples.steps_ms, q)) for q in (0.5, 0.95))
        beyond = int((samples.steps_ms > high).sum())
        legend = f"{samples.arm}: median {median:.3f} ms, p95 {p95:.3f} ms, {len(samples.steps_ms):,} steps"
        legend += f" in {samples.restarts} restarts" + (f", {beyond} beyond the axis" if beyond else "")
        curves.append(
            Curve(
                arm=samples.arm,
                role=role,
                path=_steps(share / tallest, edges, axis_y, axis_y - top, at),
                legend=legend,
                legend_y=14 + place * LEGEND_ROW,
                median=at(median),
                p95=at(p95),
            )
        )
    ticks = [(at(value), text) for value, text in _linear_ticks(low, high)]
    return DistributionChart(
        label="Distribution of step times. " + ". ".join(curve.legend for curve in curves),
        height=axis_y + 40,
        top=top,
        axis_y=axis_y,
        axis_title="step, ms; solid line: median, dashed line: p95; share of each arm's own steps",
        ticks=tuple(Mark(x, text, x, axis_y + 17) for x, text in ticks),
        curves=tuple(curves),
    )


def _steps(shares: np.ndarray, edges: np.ndarray, axis_y: float, height: float, at: _Place) -> str:
    """Return the outline of a histogram as an SVG path that starts and ends on the axis."""
    parts = [f"M{at(float(edges[0]))} {axis_y}"]
    for share, right in zip(shares, edges[1:], strict=True):
        parts.append(f"V{axis_y - float(share) * height:.1f}H{at(float(right))}")
    return "".join([*parts, f"V{axis_y}Z"])
