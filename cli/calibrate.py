"""`farm calibrate`: how noisy this machine is, and what it can therefore resolve."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any

import click
from tabulate import tabulate

from cli.following import display
from farm.broker.client import CellState
from farm.budget import minutes, needed, percent_apart, resolved, restart_s
from farm.errors import UsageError
from farm.matrix import Matrix, load_matrix
from farm.model import Calibration, Progress
from farm.power import noise_floor, sd_bounds
from farm.releases import parse_request
from farm.settings import Home, load_settings

__all__ = ["command", "describe", "warnings_of"]

#: An interval wider than this, or one without 1, is no machine to measure on (STATISTICS.md: admission by a canary).
WIDEST = 1.02
#: Limits that people ask for.
LIMITS = (1.01, 1.02, 1.03, 1.05)
CELL = "aa/transformer_block-infer-fp32@cpu"


@click.command(
    "calibrate",
    epilog="\b\nExamples:\n  farm calibrate\n  farm calibrate --release 2.13.0 --budget 60 --json",
)
@click.option("--release", metavar="RELEASE", help="What is measured against itself; by default the baseline.")
@click.option(
    "--budget",
    type=click.FloatRange(min=30, max=3600),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for measuring.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(release: str | None, budget: float, as_json: bool) -> None:
    """Measure one release against itself on this machine: its noise, and what it can resolve.

    The result is kept in the home and goes with every answer of this machine: the planner gives noisy machines more
    time, and says beforehand what they cannot resolve. A worker that is up tells its coordinator from its next start.
    """
    from workers.calibration import calibrate
    from workers.noise import Calibrations

    settings, home = load_settings(), Home.default().prepare()
    matrix = load_matrix(settings.matrix)
    asked = release or settings.baseline or matrix.versions.get("current_baseline")
    if asked is None:
        raise UsageError("no release to measure; name one: farm calibrate --release 2.12")
    wanted = matrix.release(asked)
    parse_request(wanted)
    began = time.monotonic()
    with display(began) as shown:
        found = calibrate(wanted, home, matrix, budget, _follower(shown.show, began))
    known = Calibrations(home)
    before = known.newest()
    known.add(found)
    if as_json:
        click.echo(json.dumps(_as_json(found, matrix), indent=2))
    else:
        click.echo(describe(found, matrix, before))
    for warning in warnings_of(found):
        click.echo(f"farm: {warning}", err=True)


def _follower(show: Callable[..., None], began: float) -> Callable[[Any], None]:
    def follow(seen: Any) -> None:
        interval = seen.interval
        entry = Progress(
            run_id="calibration",
            cell_id=CELL,
            attempt=1,
            worker="this machine",
            phase=seen.phase,
            restart=seen.restart,
            restarts=seen.restarts,
            ratio=interval.value if interval else None,
            interval=(interval.low, interval.high) if interval and interval.bounded else None,
            elapsed_s=time.monotonic() - began,
            remaining_s=seen.left_s,
        )
        show([CellState(CELL, "running", "")], [entry])

    return follow


def describe(found: Calibration, matrix: Matrix, before: Calibration | None = None) -> str:
    """Return what a calibration means, as text."""
    low, high = sd_bounds(found.sd, found.restarts)
    floor = noise_floor(found.sd, found.restarts)
    facts = [
        ("A/A ratio of medians", f"{found.ratio:.4f} [{found.low:.4f}, {found.high:.4f}]"),
        ("noise", f"{found.sd:.2%} from restart to restart (between {low:.2%} and {high:.2%})".replace("%", " %")),
        ("noise floor", f"{percent_apart(floor)}: 97.5 % of A/A cells of {found.restarts} restarts stay within it"),
    ]
    if before is not None:
        facts.append(("before", f"noise {before.sd * 100:.2f} % on {before.measured[:10]}, {before.release}"))
    return "\n".join(
        [
            f"torch {found.release} against itself, {found.workload}: {found.restarts} restarts of "
            f"{found.restart_s:.1f} s, {found.window_s:.1f} s of each inside windows",
            "",
            tabulate(facts, tablefmt="plain"),
            "",
            tabulate(
                _suite_rows(found, matrix),
                headers=["suite", "restarts", "at most", "resolves with 80 %", "with 95 %"],
                disable_numparse=True,
            ),
            "",
            *(_limit_words(limit, found, matrix) for limit in LIMITS),
        ]
    )


def _suite_rows(found: Calibration, matrix: Matrix) -> list[list[str]]:
    return [
        [
            name,
            " or ".join(map(str, dict.fromkeys((measuring.looks[0], measuring.looks[-1])))).replace(" or ", " to "),
            minutes(measuring.looks[-1] * restart_s(measuring, 2, found)),
            percent_apart(resolved(found, measuring, 0.80)),
            percent_apart(resolved(found, measuring)),
        ]
        for name, measuring in matrix.suites.items()
    ]


def _limit_words(limit: float, found: Calibration, matrix: Matrix) -> str:
    restarts, seconds = needed(limit, matrix.deciding, found)
    return f"{percent_apart(limit)} on this machine needs {minutes(seconds)} a cell ({restarts} restarts)"


def warnings_of(found: Calibration) -> list[str]:
    """Return why figures of this machine should not be believed yet."""
    again = "see what else runs here, and calibrate again"
    said = []
    if not found.low <= 1.0 <= found.high:
        shown = f"[{found.low:.4f}, {found.high:.4f}]"
        said.append(f"the A/A interval {shown} does not hold 1: one release differs from itself here; {again}")
    if found.high / found.low > WIDEST:
        wide = percent_apart(found.high / found.low)
        said.append(f"the A/A interval is {wide} wide, and a machine is fit to measure up to 2 %; {again}")
    return said


def _as_json(found: Calibration, matrix: Matrix) -> dict[str, Any]:
    suites = {
        name: {
            "restarts": measuring.looks[-1],
            "seconds": measuring.looks[-1] * restart_s(measuring, 2, found),
            "resolves_80": resolved(found, measuring, 0.80),
            "resolves_95": resolved(found, measuring),
        }
        for name, measuring in matrix.suites.items()
    }
    limits = [(limit, *needed(limit, matrix.deciding, found)) for limit in LIMITS]
    return {
        "calibration": found.model_dump(mode="json"),
        "noise_floor": noise_floor(found.sd, found.restarts),
        "suites": suites,
        "limits": [
            {"limit": limit, "restarts": restarts, "seconds": seconds if math.isfinite(seconds) else None}
            for limit, restarts, seconds in limits
        ],
        "warnings": warnings_of(found),
    }
