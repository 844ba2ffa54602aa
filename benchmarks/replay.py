"""Rates by replay: our procedure and its peers' on the same recorded noise, at the same machine time.

Ours is replayed from restarts: a life gives one ratio by `farm.statistics`, and a cell draws its restarts from those
of the recording, with either base first by coin, so that an A/A ratio is exactly 1 by construction. The slowed arm's
ratios are brought to the exact share by their own overall ratio, the noise of the really slower process kept. A
restart costs what its two arms took in that life: the start (beside a third arm), set-up, warm-up and windows. What
an unsteady restart would measure longer was not recorded and is missing here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from tabulate import tabulate

from benchmarks.peers import PEERS, Clocked, Peer
from benchmarks.recording import AGAIN, BASE, SLOW, Life, Recording
from farm.model import Measuring
from farm.statistics import hodges_lehmann, repeat_agrees, restart_log_ratios, signed_rank_interval
from workers.windows import DROP_FIRST_FROM

__all__ = ["Answer", "Lives", "Rates", "cell", "coverage", "peer_rates", "replay_command"]

SHARES = (0.0, 0.02, 0.03, 0.05)
LIMIT = 1.02
#: Machine times at which every method is looked at, seconds: a cell's budget is 120.
SECONDS = (20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 240.0, 360.0)
CELL_S = 120.0
#: STATISTICS.md, Numbers to beat: share of A/A accused at most, of 3 % and of 5 % found at least.
TARGET = {0.0: 0.01, 0.03: 0.80, 0.05: 0.95}
OURS = "farm"
CONFIRMED = "farm, with the confirming repeat"
#: Restarts of the confirming repeat.
CONFIRMING = 6
#: A peer's time may take up this much of a recording: else too few places to begin are left.
LONGEST = 0.6


@dataclass(frozen=True)
class Lives:
    """Restarts that were recorded, as our procedure sees them: ln ratios and what they cost."""

    same: np.ndarray
    """ln(again / base)."""
    slowed: np.ndarray
    """ln(slow / base), its overall ratio taken out: the noise of a slowed arm."""
    measured: Mapping[float, float]
    """Overall ratio that each share of extra work really gave."""
    machine_ns: np.ndarray

    @classmethod
    def of(cls, recording: Recording) -> Lives:
        """Return the lives of ``recording``. Raises ValueError where too few were recorded to draw from."""
        looks = Measuring().looks
        if len(recording.lives) < min(looks):
            raise ValueError(
                f"{recording.name}: {len(recording.lives)} lives are recorded, and a cell needs {min(looks)}"
            )
        restarts = [life.restart(number, DROP_FIRST_FROM) for number, life in enumerate(recording.lives)]
        same = np.array(restart_log_ratios(restarts, AGAIN, BASE, "p50"))
        slow = np.array(restart_log_ratios(restarts, SLOW, BASE, "p50"))
        shares = np.array([life.share for life in recording.lives])
        overall = {share: hodges_lehmann(slow[shares == share].tolist()) for share in sorted(set(shares.tolist()))}
        noise = slow - np.array([overall[share] for share in shares])
        costs = np.array([_machine_ns(life) for life in recording.lives], dtype=float)
        return cls(same, noise, {share: math.exp(level) for share, level in overall.items()}, costs)

    def ratios(self, share: float, drawn: np.ndarray, signs: np.ndarray) -> list[float]:
        """Return the ln ratios of a cell whose restarts are ``drawn``."""
        if share == 0.0:
            return (self.same[drawn] * signs).tolist()
        return (self.slowed[drawn] + math.log1p(share)).tolist()


def _machine_ns(life: Life) -> int:
    arms = (BASE, AGAIN)
    windows = sum(window.wall_ns for window in life.windows if window.arm in arms)
    return life.ready_ns - life.start_ns + sum(life.processes[arm]["setup_wall_ns"] for arm in arms) + windows


@dataclass(frozen=True)
class Answer:
    """How one cell ended."""

    status: str
    """"pass", "fail", "inconclusive"."""
    restarts: int


def cell(ratios: Sequence[float], limit: float, measuring: Measuring) -> Answer:
    """Return how a cell ends whose restarts give ``ratios`` (ln) in turn: the sequential rule of the engine."""
    bound = math.log(limit)
    for look in measuring.looks:
        if look > len(ratios):
            break
        interval = signed_rank_interval(ratios[:look], measuring.alpha)
        if interval is None:
            continue
        if interval[1] < bound:
            return Answer("pass", look)
        if interval[0] > bound:
            return Answer("fail", look)
    return Answer("inconclusive", min(len(ratios), max(measuring.looks)))


# -- rates ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rates:
    """Share of cells that a method accuses: by machine time (s), then by extra work."""

    method: str
    accused: Mapping[float, Mapping[float, float]]

    def time_needed(self) -> float | None:
        """Return the least machine time from which on the target's rates hold, or None within the recording."""
        needed = None
        for seconds, rates in sorted(self.accused.items(), reverse=True):
            found = all(rates[share] >= least for share, least in TARGET.items() if share)
            if not found or rates[0.0] > TARGET[0.0]:
                break
            needed = seconds
        return needed


@dataclass(frozen=True)
class Ours:
    """What replaying our procedure gave."""

    rates: Rates
    confirmed: Rates
    wrong_pass: Mapping[float, float]
    """Share of really slower cells that pass, by extra work."""
    undecided: Mapping[float, float]
    restarts: Mapping[float, float]
    """Mean number of restarts until a cell ended."""
    saved: Mapping[float, float]
    """Machine time of all restarts over the median until a cell ended."""


def our_rates(
    lives: Lives,
    limit: float,
    measuring: Measuring,
    replays: int,
    *,
    at: Sequence[float] = SECONDS,
    shares: Sequence[float] = SHARES,
    seed: int = 0,
) -> Ours:
    """Return the rates of our procedure over ``replays`` cells of every share."""
    chance = np.random.default_rng(seed)
    last = max(measuring.looks)
    accused: dict[float, dict[float, float]] = {seconds: {} for seconds in at}
    confirmed: dict[float, dict[float, float]] = {seconds: {} for seconds in at}
    wrong, undecided, restarts, saved = {}, {}, {}, {}
    for share in shares:
        drawn = chance.integers(len(lives.same), size=(replays, last + CONFIRMING))
        signs = chance.choice([-1.0, 1.0], size=drawn.shape)
        costs = np.cumsum(lives.machine_ns[drawn], axis=1) / 1e9
        failed, confirmed_at, ended, statuses, numbers = [], [], [], [], []
        for row in range(replays):
            ratios = lives.ratios(share, drawn[row], signs[row])
            answer = cell(ratios[:last], limit, measuring)
            spent = float(costs[row, answer.restarts - 1])
            again = ratios[last:]
            fails = answer.status == "fail"
            failed.append(spent if fails else math.inf)
            repeat = float(costs[row, -1] - costs[row, last - 1])
            confirmed_at.append(
                spent + repeat
                if fails and repeat_agrees(ratios[: answer.restarts], again, limit, measuring.alpha)
                else math.inf
            )
            ended.append(spent)
            statuses.append(answer.status)
            numbers.append(answer.restarts)
        for seconds in at:
            accused[seconds][share] = float(np.mean(np.array(failed) <= seconds))
            confirmed[seconds][share] = float(np.mean(np.array(confirmed_at) <= seconds))
        wrong[share] = statuses.count("pass") / replays
        undecided[share] = statuses.count("inconclusive") / replays
        restarts[share] = float(np.mean(numbers))
        saved[share] = float(np.median(costs[:, last - 1]) / np.median(ended))
    return Ours(Rates(OURS, accused), Rates(CONFIRMED, confirmed), wrong, undecided, restarts, saved)


def in_order(lives: Lives, limit: float, measuring: Measuring) -> dict[float, str]:
    """Return how often cells fail whose restarts are those of the recording in their order, by extra work."""
    last = min(max(measuring.looks), len(lives.same))
    found = {}
    for share in SHARES:
        starts = range(len(lives.same) - last + 1)
        cells = [lives.ratios(share, np.arange(at, at + last), np.ones(last)) for at in starts]
        fails = sum(cell(ratios, limit, measuring).status == "fail" for ratios in cells)
        found[share] = f"{fails} of {len(cells)}"
    return found


def peer_rates(
    series: Clocked, peer: Peer, limit: float, replays: int, *, at: Sequence[float] = SECONDS, seed: int = 0
) -> Rates:
    """Return a peer's rates, each replay beginning anywhere in the recording that leaves it its machine time."""
    chance = np.random.default_rng(seed)
    accused: dict[float, dict[float, float]] = {}
    for seconds in at:
        machine_ns = seconds * 1e9
        if machine_ns > LONGEST * series.length_ns:
            break
        begins = chance.uniform(0.0, series.length_ns - machine_ns, size=replays)
        accused[seconds] = {
            share: float(np.mean([peer.decide(series, begin, machine_ns, 1 + share, limit) for begin in begins]))
            for share in SHARES
        }
    return Rates(peer.name, accused)


@dataclass(frozen=True)
class Errors:
    """The interval and the sequential rule where the truth is known."""

    covered: Mapping[int, float]
    """Share of intervals that hold the true ratio, by number of restarts."""
    promised: float
    fails_at_limit: float
    """Share of cells that fail whose true ratio is exactly the limit."""
    passes_at_limit: float
    bound: float
    """What either may be at most: alpha at every look."""


def coverage(lives: Lives, limit: float, measuring: Measuring, replays: int, seed: int = 0) -> Errors:
    """Return the errors over ``replays`` cells of A/A noise, where the truth is 1, and shifted to the limit."""
    chance = np.random.default_rng(seed)
    looks, alpha = measuring.looks, measuring.alpha
    drawn = chance.integers(len(lives.same), size=(replays, max(looks)))
    cells = lives.same[drawn] * chance.choice([-1.0, 1.0], size=drawn.shape)
    covered = {}
    for look in looks:
        intervals = [signed_rank_interval(ratios[:look].tolist(), alpha) for ratios in cells]
        covered[look] = sum(found is not None and found[0] <= 0.0 <= found[1] for found in intervals) / replays
    at_limit = [cell((ratios + math.log(limit)).tolist(), limit, measuring).status for ratios in cells]
    shares = {status: at_limit.count(status) / replays for status in ("fail", "pass")}
    return Errors(covered, 1 - 2 * alpha, shares["fail"], shares["pass"], alpha * len(looks))


# -- the command ---------------------------------------------------------------------------------------------------


def replay(recording: Recording, limit: float, replays: int, peer_replays: int) -> dict[str, Any]:
    """Return all figures of one recording."""
    lives, series, measuring = Lives.of(recording), Clocked(recording), Measuring()
    ours = our_rates(lives, limit, measuring, replays)
    methods = [ours.rates, ours.confirmed, *(peer_rates(series, peer, limit, peer_replays) for peer in PEERS)]
    errors = coverage(lives, limit, measuring, replays)
    needed = {rates.method: rates.time_needed() for rates in methods}
    spread = float(np.std(lives.same, ddof=1))
    return {
        "name": recording.name,
        "facts": recording.facts,
        "lives": len(recording.lives),
        "minutes": recording.length_ns / 60e9,
        "step_ms": series.step_ns / 1e6,
        "spread": spread,
        "restart_s": float(np.median(lives.machine_ns)) / 1e9,
        "measured_shares": dict(lives.measured),
        "accused": {rates.method: rates.accused for rates in methods},
        "needed_s": needed,
        "in_order": in_order(lives, limit, measuring),
        "wrong_pass": ours.wrong_pass,
        "undecided": ours.undecided,
        "restarts": ours.restarts,
        "saved": ours.saved,
        "covered": errors.covered,
        "promised": errors.promised,
        "fails_at_limit": errors.fails_at_limit,
        "passes_at_limit": errors.passes_at_limit,
        "bound": errors.bound,
    }


def text(found: Mapping[str, Any], limit: float) -> str:
    """Return the figures of one recording as tables."""
    rows = []
    ours = found["needed_s"][OURS]
    for method, accused in found["accused"].items():
        at = accused.get(CELL_S)
        shown = [f"{at[share]:.1%}" for share in SHARES] if at else ["-"] * len(SHARES)
        rows.append([method, *shown, _needed(found, method), _factor(found, method, ours)])
    headers = ["method", "A/A accused", *(f"{share:.0%} found" for share in SHARES[1:]), "time needed", "factor"]
    shares = ", ".join(f"{share:.0%} is {ratio - 1:.2%}" for share, ratio in found["measured_shares"].items())
    clear = [["same", 0.0], ["5 % slower", 0.05]]
    fate = [
        [name, found["restarts"][share], f"{found['saved'][share]:.2f}", f"{found['undecided'][share]:.1%}"]
        for name, share in clear
    ]
    lines = [
        f"{found['name']}: {found['lives']} lives in {found['minutes']:.1f} min, a step of {found['step_ms']:.2f} ms, "
        f"restarts scatter by {found['spread']:.2%} and take {found['restart_s']:.1f} s; extra work: {shares}",
        "",
        f"Accused at a limit of {limit - 1:.0%} within {CELL_S:.0f} s of machine time; time needed for "
        "at most 1 % of A/A, at least 80 % of 3 % and 95 % of 5 %",
        tabulate(rows, headers=headers),
        "",
        "Failing when its restarts are the recording's in their order: "
        + ", ".join(f"{share:.0%} {fails}" for share, fails in found["in_order"].items()),
        "",
        tabulate(fate, headers=["cell", "restarts, mean", "times less than all restarts", "inconclusive"]),
        "",
        f"Interval holds the truth (promised {found['promised']:.1%}): "
        + ", ".join(f"{share:.2%} at {look}" for look, share in found["covered"].items()),
        f"At a true ratio of the limit (at most {found['bound']:.1%} each): fails {found['fails_at_limit']:.2%}, "
        f"passes {found['passes_at_limit']:.2%}; 3 % slower passes {found['wrong_pass'][0.03]:.2%}",
    ]
    return "\n".join(lines)


def _needed(found: Mapping[str, Any], method: str) -> str:
    needed = found["needed_s"][method]
    if needed is not None:
        return f"{needed:.0f} s"
    longest = max(found["accused"][method], default=0.0)
    return f"not in {longest:.0f} s" if longest else "recording too short"


def _factor(found: Mapping[str, Any], method: str, ours: float | None) -> str:
    needed = found["needed_s"][method]
    if ours is None:
        return "-"
    if needed is not None:
        return f"{needed / ours:.1f}"
    longest = max(found["accused"][method], default=0.0)
    return f"> {longest / ours:.1f}" if longest else "-"


@click.command("replay")
@click.argument("recordings", nargs=-1, type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--limit", default=LIMIT, show_default=True, help="Ratio that is no worse.")
@click.option("--replays", default=10_000, show_default=True, help="Of our procedure, each share of extra work.")
@click.option("--peer-replays", default=1000, show_default=True, help="Of each peer, each share and machine time.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay_command(recordings: tuple[Path, ...], limit: float, replays: int, peer_replays: int, as_json: bool) -> None:
    """Get rates from RECORDINGS (files, or folders of them): false alarms, slow-downs found, machine time."""
    files = [file for path in recordings for file in (sorted(path.glob("*.npz")) if path.is_dir() else [path])]
    found = []
    for file in files:
        click.echo(f"{file.name} …", err=True)
        try:
            found.append(replay(Recording.load(file), limit, replays, peer_replays))
        except ValueError as error:
            raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for peer in PEERS:
        click.echo(f"{peer.name}: {peer.how}")
    for figures in found:
        click.echo("\n" + text(figures, limit))
