"""What would change a decision: the one verdict that it hangs on, how far that is from turning, what would turn it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from farm.model import CellVerdicts, Figure, Gate, Status, Verdict
from farm.units import number

__all__ = ["beyond", "nearest", "would_change"]

#: Beyond this many times the restarts of the run it is no longer a matter of restarts: the estimate lies at its limit.
FAR = 10
#: Yes or no: there is no distance to a limit of one distinct result.
WITHOUT_DISTANCE = (Gate.DETERMINISM,)
#: Gates that more restarts can settle.
TIMED = (Gate.LATENCY, Gate.THROUGHPUT)


def nearest(cells: Iterable[CellVerdicts], required: Sequence[Gate]) -> tuple[CellVerdicts, Verdict, Figure] | None:
    """Return the required verdict that passes with the least to spare, and its figure; None where none has one.

    Figures with an interval come first: they are what the next measurement may turn. To spare is what is left of the
    allowance, as a share of it: of a ratio's distance from 1, else of the limit. So 2.9 % of an allowed 3 % is nearer
    than 20 s of an allowed 120. Of an interval the bound counts that was judged.
    """
    found: list[tuple[bool, float, tuple[CellVerdicts, Verdict, Figure]]] = []
    for cell in cells:
        for verdict in cell.verdicts:
            if verdict.status is Status.PASS and verdict.gate in required and verdict.gate not in WITHOUT_DISTANCE:
                for figure in (verdict.figure, *verdict.others):
                    if figure is not None and figure.limit and math.isfinite(_spare(figure)):
                        found.append((figure.low is None, _spare(figure), (cell, verdict, figure)))
    return min(found, key=lambda entry: entry[:2])[2] if found else None


def would_change(cell: CellVerdicts, verdict: Verdict, figure: Figure | None = None) -> str:
    """Return what would turn ``verdict`` and with it the decision; ``figure`` is the one that it hangs on."""
    figure = figure or verdict.figure
    subject = f"{verdict.gate} of {cell.cell_id}"
    if verdict.status is Status.UNTESTED:
        return f"{subject} measured"
    if verdict.status is Status.INCONCLUSIVE:
        return _settled(subject, verdict, figure)
    if verdict.status is Status.PASS:
        return beyond(cell, verdict, figure)
    # A gate may fail for another reason than the figure that it shows.
    if figure is None or figure.limit is None or not _spare(figure) < 0:
        return f"{subject} passing"
    return f"{subject} within its limit ({_limit_words(figure)}): it is {_value_words(figure)}"


def beyond(cell: CellVerdicts, verdict: Verdict, figure: Figure | None = None) -> str:
    """Return in words that ``verdict``, which is in nobody's way, would have to lie beyond its limit."""
    figure = figure or verdict.figure
    subject = f"{verdict.gate} of {cell.cell_id}"
    if figure is None or figure.limit is None:
        return f"{subject} failing"
    return f"{subject} beyond its limit ({_limit_words(figure)}): it is {_value_words(figure)}"


def _settled(subject: str, verdict: Verdict, figure: Figure | None) -> str:
    """Return how many restarts would settle an interval that holds its limit: its width falls with their root."""
    if verdict.gate not in TIMED or figure is None:
        return f"{subject} settled"
    low, high, limit = figure.low, figure.high, figure.limit
    if low is None or high is None or limit is None or not low <= limit <= high:
        # No interval yet, or an answer beyond the limit that did not stand: the verdict's reason says which.
        return f"{subject} settled, by more restarts or a quieter machine"
    told = f"{subject} against its limit ({_limit_words(figure)}): it is {_value_words(figure)}"
    distance = abs(math.log(limit / figure.value))
    width = abs(math.log((high if limit > figure.value else low) / figure.value))
    if figure.restarts is None or not distance or (width / distance) ** 2 > FAR:
        return f"another limit, or a quieter machine: the estimate lies too near for restarts; {told}"
    wanted = math.ceil(round(figure.restarts * (width / distance) ** 2, 6))
    return f"more restarts, about {max(wanted, figure.restarts + 1)} in place of {figure.restarts}; {told}"


def _limit_words(figure: Figure) -> str:
    """Return the limit, "+3.0 %" of a ratio."""
    return _words(figure, figure.limit)


def _value_words(figure: Figure) -> str:
    """Return the figure with its interval, "+4.1 % [+3.6 %, +4.7 %]"."""
    if figure.low is None or figure.high is None:
        return _words(figure, figure.value)
    return f"{_words(figure, figure.value)} [{_words(figure, figure.low)}, {_words(figure, figure.high)}]"


def _words(figure: Figure, value: float | None) -> str:
    if value is None:
        return "none"
    if _is_ratio(figure):
        return f"{(value - 1) * 100:+.1f} %"
    return number(value, figure.unit, whole=True)


def _is_ratio(figure: Figure) -> bool:
    return figure.name.endswith("ratio")


def _more_is_better(figure: Figure) -> bool:
    return figure.name.startswith("throughput")


def _spare(figure: Figure) -> float:
    """Return what is left of the allowance as a share of it, at the figure's judged bound; negative: beyond.

    A limit that allows nothing has infinitely much to spare or to miss.
    """
    limit = figure.limit
    if limit is None:
        return math.inf
    bound = figure.low if _more_is_better(figure) else figure.high
    bound = figure.value if bound is None else bound
    left = bound - limit if _more_is_better(figure) else limit - bound
    allowed = abs(limit - 1) if _is_ratio(figure) else abs(limit)
    return left / allowed if allowed else math.copysign(math.inf, left) if left else 0.0
