"""One comparison of a cell: a challenger beside its reference, with every gate's verdict and two charts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from farm.model import (
    Cell,
    CellResult,
    CellVerdicts,
    Figure,
    Gate,
    Judgement,
    Question,
    Restart,
    Tier,
    Verdict,
    Window,
    unpack_ns,
)
from farm.report.charts import DistributionChart, RatioChart, Ratios, Samples, distribution_chart, ratio_chart
from farm.report.text import figure_text, named_figure
from farm.statistics import Quantity, counted, pooled_samples, restart_log_ratios

__all__ = ["PairView", "VerdictView", "arm_samples", "pair_views"]

#: The lanes of a ratio chart: the figure's name, what it is computed from, and which way is good.
LANES: tuple[tuple[str, Quantity, str], ...] = (
    ("p50 ratio", "p50", "less is better"),
    ("p95 ratio", "p95", "less is better"),
    ("throughput ratio", "mean", "more is better"),
)


@dataclass(frozen=True)
class VerdictView:
    """A gate's verdict, for all the tiers that it is the same for."""

    gate: str
    status: str
    tiers: str
    required_by: str
    figures: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class PairView:
    question: str
    arm: str
    reference: str
    title: str
    verdicts: tuple[VerdictView, ...]
    ratios: RatioChart | None
    distribution: DistributionChart | None


def pair_views(
    judgement: Judgement, cell: Cell, result: CellResult | None, tiers: Sequence[Tier]
) -> tuple[PairView, ...]:
    """Return every comparison that was judged in a cell: baseline and candidate, then old path and new path."""
    pairs: dict[tuple[Question, str, str], list[CellVerdicts]] = {}
    for found in judgement.cells:
        if found.cell_id == cell.id:
            pairs.setdefault((found.question, found.arm, found.reference), []).append(found)
    required = {tier.name: tier.required for tier in tiers}
    views = []
    for (question, arm, reference), verdicts in pairs.items():
        measured = result is not None and bool(result.restarts)
        views.append(
            PairView(
                question=question.value,
                arm=arm,
                reference=reference,
                title=_title(question, arm, reference, cell),
                verdicts=_verdict_views(verdicts, required),
                ratios=ratio_chart(_ratios(result, verdicts, arm, reference), arm, reference)
                if result is not None and measured
                else None,
                distribution=distribution_chart(arm_samples(result, reference), arm_samples(result, arm))
                if result is not None and measured
                else None,
            )
        )
    return tuple(views)


def arm_samples(result: CellResult, arm: str) -> Samples:
    """Return every counted step of an arm over all restarts: to be looked at, never a unit of inference."""
    timings = [restart.arms[arm] for restart in _readable(result, arm) if arm in restart.arms]
    parts = [pooled_samples(timing) for timing in timings]
    steps = np.concatenate(parts) / 1e6 if parts else np.empty(0)
    return Samples(arm=arm, steps_ms=steps, restarts=len(timings))


def _readable(result: CellResult, *arms: str) -> list[Restart]:
    """Return the restarts that count, without those whose samples of ``arms`` are damaged: the page is shown."""

    def intact(window: Window) -> bool:
        try:
            unpack_ns(window.steps_ns)
        except ValueError:
            return False
        return True

    return [
        restart
        for restart in counted(result.restarts)
        if all(intact(window) for arm in arms if arm in restart.arms for window in restart.arms[arm].windows)
    ]


def _title(question: Question, arm: str, reference: str, cell: Cell) -> str:
    if cell.kind == "aa":
        return "A/A: the baseline against itself, so that whatever is found is noise; it decides nothing"
    if question is Question.VERSION:
        paths = list(dict.fromkeys(one.path for one in cell.arms if one.name in (arm, reference)))
        what = "the old path on both releases" if len(paths) == 1 else f"path {paths[1]} against path {paths[0]}"
        return f"Version question: {arm} against {reference}, {what}"
    return f"Feature question: {arm} against {reference}, new path and old path on the candidate"


def _verdict_views(cells: Sequence[CellVerdicts], required: dict[str, tuple[Gate, ...]]) -> tuple[VerdictView, ...]:
    groups: dict[tuple[object, ...], list[tuple[str, Verdict]]] = {}
    for cell in cells:
        for verdict in cell.verdicts:
            shown = tuple((f.name, f.value, f.low, f.high) for f in _figures(verdict))
            groups.setdefault((verdict.gate, verdict.status, verdict.reason, shown), []).append((cell.tier, verdict))
    order = list(Gate)
    ranked = sorted(groups.values(), key=lambda group: order.index(group[0][1].gate))
    return tuple(_verdict_view(group, required) for group in ranked)


def _verdict_view(group: Sequence[tuple[str, Verdict]], required: dict[str, tuple[Gate, ...]]) -> VerdictView:
    verdict = group[0][1]
    figures = [
        named_figure(figure, [(_figures(other)[place].limit, tier) for tier, other in group])
        for place, figure in enumerate(_figures(verdict))
    ]
    return VerdictView(
        gate=verdict.gate.value,
        status=verdict.status.value,
        tiers=", ".join(tier for tier, _ in group),
        required_by=", ".join(tier for tier, _ in group if verdict.gate in required.get(tier, ())),
        figures=tuple(figures),
        reason=verdict.reason,
    )


def _figures(verdict: Verdict) -> tuple[Figure, ...]:
    return (verdict.figure, *verdict.others) if verdict.figure else verdict.others


def _ratios(result: CellResult, cells: Sequence[CellVerdicts], arm: str, reference: str) -> list[Ratios]:
    lanes = []
    for name, quantity, better in LANES:
        logs = restart_log_ratios(_readable(result, arm, reference), arm, reference, quantity)
        dots = [math.exp(log) for log in logs]
        if name == "throughput ratio":
            items = _items(result, arm, reference)
            dots = [items / dot for dot in dots]
        found = list(_named(cells, name))
        figure = found[0][1] if found else None
        lanes.append(
            Ratios(
                title=_lane_title(name, figure, len(dots), better),
                restarts=tuple(dots),
                value=figure.value if figure else None,
                low=figure.low if figure else None,
                high=figure.high if figure else None,
                limits=_limits(found),
            )
        )
    return lanes


def _named(cells: Sequence[CellVerdicts], name: str) -> Iterable[tuple[str, Figure]]:
    for cell in cells:
        for verdict in cell.verdicts:
            yield from ((cell.tier, figure) for figure in _figures(verdict) if figure.name == name)


def _limits(found: Sequence[tuple[str, Figure]]) -> tuple[tuple[float, str], ...]:
    by_limit: dict[float, list[str]] = {}
    for tier, figure in found:
        if figure.limit is not None:
            by_limit.setdefault(figure.limit, []).append(tier)
    return tuple((limit, ", ".join(dict.fromkeys(tiers))) for limit, tiers in sorted(by_limit.items()))


def _lane_title(name: str, figure: Figure | None, restarts: int, better: str) -> str:
    if figure is None:
        return f"{name}: no figure was judged, {restarts} restarts ({better})"
    bounded = "" if figure.low is not None else ", no interval"
    return f"{name} {figure_text(figure, [])}{bounded}, {restarts} restarts ({better})"


def _items(result: CellResult, arm: str, reference: str) -> float:
    """Return how many items a step of ``arm`` has for each of the reference's; 1 where nobody can have counted so."""
    above, below = (result.arms[name].examination if name in result.arms else None for name in (arm, reference))
    ratio = above.items_per_step / below.items_per_step if above and below and below.items_per_step else 1.0
    return ratio if ratio > 0 and math.isfinite(ratio) else 1.0
