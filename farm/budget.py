"""What a cell is given, from how noisy its machines are: restarts, seconds, repeats; and what will not suffice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from farm.accusations import FALSE_SHARE
from farm.model import Backend, Calibration, Cell, Gate, Host, Measuring
from farm.power import FOUND, MOST_RESTARTS, expected_restarts, resolvable, restarts_needed, stretched
from farm.statistics import least_restarts

__all__ = [
    "CALIBRATED",
    "Need",
    "calibrations_for",
    "cell_s",
    "confirming_restarts",
    "fitted",
    "minutes",
    "need_words",
    "needed",
    "percent_apart",
    "resolved",
    "restart_s",
    "sd_at",
    "tightest",
]

#: What a machine is calibrated on: its noise says nothing of a device's.
CALIBRATED: Backend = "cpu"
#: Noise between processes, which longer windows do not lessen, and within one at so many seconds of windows, which
#: falls with their root (STATISTICS.md, The procedure, 4); in percent, of which the proportions matter here.
BETWEEN, WITHIN, WITHIN_S = 0.32, 0.27, 8.0
#: An unsteady restart is measured half as long again, and some are.
SLACK = 1.2
#: A restart beside its windows, with two arms, where no calibration says it: 2.0 to 2.4 s on two shared cores.
START_S = 2.3
#: An arm's examination, and its compilations and exports where they are asked for (2 and 25 s on two shared cores).
EXAMINATION_S, PROGRAMS_S = 2.0, 25.0
#: The way back, walked (5 to 15 s on two shared cores).
REHEARSAL_S = 15.0


@dataclass(frozen=True)
class Need:
    """What a machine needs to settle a limit in a cell, where the cell is given less."""

    host: str
    limit: float
    seconds: float
    """Infinite where no number of restarts suffices."""
    given_s: float


def calibrations_for(backend: Backend, hosts: Iterable[Host]) -> dict[str, Calibration]:
    """Return the calibrations that say something of cells on ``backend``, by the host's name."""
    found = {}
    for host in hosts:
        known = host.calibration
        if known is None or backend != CALIBRATED:
            continue
        # It was told by a worker: what no measurement can give plans nothing.
        if 0 < known.sd < 1 and 0 < known.window_s <= known.restart_s < math.inf:
            found[host.name] = known
    return dict(sorted(found.items()))


def tightest(limits: Iterable[float]) -> float | None:
    """Return the limit that is nearest to 1, or None without any."""
    return min(limits, key=lambda limit: abs(math.log(limit)), default=None)


def sd_at(calibration: Calibration, measuring: Measuring, arms: int = 2) -> float:
    """Return the noise between restarts that have the windows of ``measuring``, shared by ``arms``."""

    def shape(seconds: float) -> float:
        return math.sqrt(BETWEEN**2 + WITHIN**2 * WITHIN_S / seconds)

    return calibration.sd * shape(measuring.restart_s * 2 / arms) / shape(calibration.window_s)


def restart_s(measuring: Measuring, arms: int = 2, calibration: Calibration | None = None) -> float:
    """Return the wall time of a restart of ``arms``: what starts and warms up beside the windows, and these."""
    beside = START_S if calibration is None else calibration.restart_s - calibration.window_s
    return beside * arms / 2 + measuring.restart_s


def needed(
    limit: float, measuring: Measuring, calibration: Calibration, arms: int = 2
) -> tuple[int, float] | tuple[None, float]:
    """Return the restarts and the seconds in which a clean cell has passed ``limit``; None and infinity for never."""
    restarts = restarts_needed(limit, sd_at(calibration, measuring, arms), measuring.looks, measuring.alpha)
    if restarts is None:
        return None, math.inf
    return restarts, restarts * SLACK * restart_s(measuring, arms, calibration)


def resolved(calibration: Calibration, measuring: Measuring, chance: float = FOUND) -> float:
    """Return the smallest ratio that a cell of two arms resolves on that machine, 1.012: see `power.resolvable`."""
    return resolvable(sd_at(calibration, measuring), measuring.looks, measuring.alpha, chance)


# -- what a cell is given ------------------------------------------------------------------------------------------


def fitted(
    measuring: Measuring, arms: int, ceiling_s: float | None, machines: Mapping[str, Calibration]
) -> tuple[Measuring, list[Need]]:
    """Return ``measuring`` with the restarts and the seconds that its tightest limit needs, and what is not met.

    A cell may run on any of ``machines`` (calibrations by host), so that the noisiest decides. Looks grow to at most
    `MOST_RESTARTS`, and only where ``ceiling_s`` lets the budget grow.
    """
    limit = tightest(measuring.p50_limits)
    if limit is None or not machines:
        return measuring, []
    each_s = {name: SLACK * restart_s(measuring, arms, found) for name, found in machines.items()}
    wanted = {name: needed(limit, measuring, found, arms) for name, found in machines.items()}
    if ceiling_s is not None and ceiling_s > measuring.budget_s:
        measuring = _grown(measuring, ceiling_s, max(each_s.values()), [n for n, _ in wanted.values() if n])
    last, budget_s = max(measuring.looks), measuring.budget_s
    unmet = []
    for name, (count, seconds) in wanted.items():
        if count is None or count > last or seconds > budget_s:
            unmet.append(Need(name, limit, seconds, min(budget_s, last * each_s[name])))
    return measuring, unmet


def _grown(measuring: Measuring, ceiling_s: float, each_s: float, needed: Sequence[int]) -> Measuring:
    """Return ``measuring`` with as many of the ``needed`` restarts (each of ``each_s``) as ``ceiling_s`` holds."""
    last = max(measuring.looks)
    wanted = max(needed, default=0)
    affordable = 2 * int(ceiling_s / each_s / 2)
    grown = max(last, min(wanted, affordable, MOST_RESTARTS))
    looks = stretched(measuring.looks, grown) if grown > last else measuring.looks
    budget_s = min(ceiling_s, max(measuring.budget_s, math.ceil(min(grown, wanted) * each_s)))
    return measuring.model_copy(update={"looks": looks, "budget_s": float(budget_s)})


def need_words(needs: Iterable[Need]) -> list[str]:
    """Return a line for every machine and limit: "bench-1: 2 % needs 9 min a cell, the suite gives 4 min: …"."""
    worst: dict[tuple[str, float], Need] = {}
    for need in needs:
        key = (need.host, need.limit)
        if key not in worst or need.seconds > worst[key].seconds:
            worst[key] = need
    return [
        f"{need.host}: {percent_apart(need.limit)} "
        + (f"needs {minutes(need.seconds)} a cell" if math.isfinite(need.seconds) else "cannot be settled at all")
        + f", the suite gives {minutes(need.given_s)}: expect 'inconclusive' there"
        for need in worst.values()
    ]


def confirming_restarts(cells: int, looks: Sequence[int], alpha: float) -> int:
    """Return the restarts of the repeat after a failing look, in a run of ``cells``.

    Look and repeat together must be able to reject one clear case among all cells by Benjamini and Hochberg: the exact
    test of n restarts reaches 2**-n, which has to be as small as q / cells. At least as many as the first look has, and
    as an interval needs.
    """
    together = math.ceil(math.log2(max(cells, 1) / FALSE_SHARE))
    return max(least_restarts(alpha), min(looks), together - min(looks))


# -- how long it takes ---------------------------------------------------------------------------------------------


def cell_s(cell: Cell, calibration: Calibration | None = None) -> float:
    """Return the seconds that ``cell`` is expected to take, its environments built, without repeats."""
    if cell.kind == "rehearsal":
        return REHEARSAL_S
    measuring, arms = cell.measuring, len(cell.arms)
    untimed = arms * (EXAMINATION_S + (PROGRAMS_S if Gate.COMPILE_EXPORT in cell.gates else 0.0))
    restarts = float(max(measuring.looks))
    limit = tightest(measuring.p50_limits)
    # A limit of the tail is seldom settled early: it needs 12 to 24 restarts (STATISTICS.md).
    if calibration is not None and limit is not None and not measuring.p95_limits:
        restarts = expected_restarts(limit, sd_at(calibration, measuring, arms), measuring.looks, measuring.alpha)
    return untimed + min(measuring.budget_s, restarts * restart_s(measuring, arms, calibration))


def minutes(seconds: float) -> str:
    """Return "9 min", "1.5 min", "40 s"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds >= 600 else f"{seconds / 60:.1f} min".replace(".0 ", " ")


def percent_apart(ratio: float) -> str:
    """Return how far ``ratio`` is from 1: "3 %", "1.25 %"."""
    return f"{abs(ratio - 1) * 100:.3g} %"
