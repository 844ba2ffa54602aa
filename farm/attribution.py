"""Whose change it is: if all cells of a machine moved together it is the machine, if one moved on all it is torch.

Only what several machines answered tells them apart: cells of several capabilities, and answers from elsewhere that
confirm a failing gate. A run on one machine attributes nothing; there the A/A cells and the asymmetry alarm stand.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from farm.model import Cell, CellResult
from farm.statistics import Interval

__all__ = ["ALARM_CHANCE", "Moved", "asymmetric", "attribute", "suspects"]

#: By a sign test over the cells that changed: of eight, all the same way. The same bar stands for a machine: by chance
#: all changes fall on its cells, and on every one of them, once in so many runs.
ALARM_CHANCE = 1 / 128


@dataclass(frozen=True)
class Moved:
    """What the median of one case did on one machine: the candidate beside the baseline."""

    machine: str
    processor: str
    workload: str
    case: str
    capability: str
    interval: Interval

    @property
    def way(self) -> int:
        """1: slower, -1: faster, 0: the interval holds 1."""
        return (self.interval.low > 1.0) - (self.interval.high < 1.0)

    @property
    def subject(self) -> str:
        return f"{self.workload}/{self.case}"

    @property
    def class_(self) -> str:
        """What machines have alike whose answers can be held against each other."""
        return f"{self.capability} on {self.processor}"

    @property
    def words(self) -> str:
        low, value, high = (
            f"{(x - 1) * 100:+.1f} %" for x in (self.interval.low, self.interval.value, self.interval.high)
        )
        return f"{self.machine} {value} [{low}, {high}]"

    @classmethod
    def of(cls, cell: Cell, result: CellResult, interval: Interval) -> Moved:
        host = result.host
        return cls(host.name, host.cpu, cell.workload, cell.case, cell.capability, interval)


def asymmetric(moved: Iterable[Moved]) -> list[str]:
    """Return the asymmetry alarm: many cells changed and all the same way points at the set-up, not the release."""
    ways = [one.way for one in moved]
    slower, faster = ways.count(1), ways.count(-1)
    many, few = max(slower, faster), min(slower, faster)
    by_chance = 2 * sum(math.comb(many + few, k) for k in range(few + 1)) / 2 ** (many + few)
    if by_chance > ALARM_CHANCE:
        return []
    return [
        f"asymmetry: {many} cells are {_word(slower - faster)} and {few or 'none'} the other way; run A/A before you "
        "believe it, no rollback is decided from it"
    ]


def suspects(moved: Iterable[Moved]) -> list[str]:
    """Return a line for every machine all of whose cells moved the same way while others of its class stood still.

    That it is chance has the probability that all changes fall on its cells (hypergeometric); a machine that cannot
    reach `ALARM_CHANCE` with so few cells is not named. Another class (capability and processor) is no witness:
    torch may have changed there alone.
    """
    found = []
    for cells in _grouped(_once(moved), lambda one: one.class_).values():
        for machine, mine in _grouped(cells, lambda one: one.machine).items():
            ways = {one.way for one in mine}
            if len(ways) != 1 or 0 in ways:
                continue
            (way,) = ways
            others = [one for one in cells if one.machine != machine]
            alike = sum(one.way == way for one in others)
            still = sum(_still(one, mine) for one in others)
            # What cannot be told is no witness either way.
            chance = math.comb(alike + still, alike) / math.comb(len(mine) + alike + still, len(mine) + alike)
            if chance <= ALARM_CHANCE and alike < still:
                found.append(
                    f"machine {machine}: all {len(mine)} of its cells are {_word(way)}, and {alike or 'none'} of "
                    f"{len(others)} on others of its class; it is the machine, no rollback is decided from it"
                )
    return found


def attribute(moved: Iterable[Moved]) -> list[str]:
    """Return a line for every case that moved, of those that several machines measured: whose change it is.

    On all of them the same way, it is torch. On one and not on another of its class, it is the machine or what only
    that one has. Classes that differ may differ in what torch does there. An interval that holds both 1 and what the
    others saw tells nothing.
    """
    found = []
    for subject, ones in _grouped(_once(moved), lambda one: one.subject).items():
        changed = [one for one in ones if one.way]
        if len({one.machine for one in ones}) < 2 or not changed:
            continue
        told = ", ".join(one.words for one in ones)
        if len({one.way for one in ones}) == 1:
            machines = len({one.machine for one in ones})
            found.append(
                f"{subject} is {_word(ones[0].way)} on all {machines} machines that measured it: torch ({told})"
            )
        elif any(_against(one, other) and one.class_ == other.class_ for one in changed for other in ones):
            found.append(f"{subject} moved on one machine and not on another of its class: the machine ({told})")
        elif any(_against(one, other) for one in changed for other in ones):
            found.append(f"{subject} moved on one class of machine and not on another: torch there ({told})")
        else:
            found.append(f"{subject} moved on one machine, and of another it cannot be told ({told})")
    return found


def _against(one: Moved, other: Moved) -> bool:
    """Return whether ``other`` says that ``one`` did not see the release: it moved the other way, or stood still."""
    return one.machine != other.machine and (other.way == -one.way or _still(other, [one]))


def _still(one: Moved, moved: Sequence[Moved]) -> bool:
    """Return whether ``one`` stood still where ``moved`` did not: its interval holds 1 and none of what they saw."""
    seen = [other.interval.value for other in moved]
    return not one.way and all(not one.interval.low <= value <= one.interval.high for value in seen)


def _once(moved: Iterable[Moved]) -> list[Moved]:
    """Return one entry for each case on each machine: what is measured again in a later stage is no further witness."""
    found: dict[tuple[str, ...], Moved] = {}
    for one in moved:
        found.setdefault((one.machine, one.workload, one.case, one.capability), one)
    return list(found.values())


def _grouped(ones: Sequence[Moved], by: Callable[[Moved], str]) -> dict[str, list[Moved]]:
    groups: defaultdict[str, list[Moved]] = defaultdict(list)
    for one in ones:
        groups[by(one)].append(one)
    return dict(groups)


def _word(way: int) -> str:
    return "slower" if way > 0 else "faster"
