"""Spot checks: our engine and the real peers on this machine, now, against the rates that replay gave.

Each method gets the same machine time for an A/A comparison and for one with 5 % of extra work, a few times in
random order. A handful of runs proves no rate; it shows whether replay tells the truth of these procedures.
"""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from tabulate import tabulate

from benchmarks import peers
from benchmarks.measured import WORKS, Bench, duet_of
from benchmarks.neighbours import CONDITIONS, neighbours
from benchmarks.record import LIFE_S, calibrate
from benchmarks.recording import Recording
from benchmarks.replay import LIMIT, OURS, Lives, our_rates, peer_rates
from farm.model import Measuring
from farm.statistics import counted, ratio_interval
from workers.lease import machine_lease

__all__ = ["live_command"]

CHILD = Path(__file__).parent / "live_process.py"
SLOWED = 0.05
ARMS = ("base", "candidate")
METHODS = (OURS, *(peer.name for peer in peers.PEERS))


@dataclass(frozen=True)
class Finding:
    """One comparison."""

    accused: bool
    ratio: float
    wall_s: float


class Live:
    """Runs methods on one work, each for ``seconds`` of machine time."""

    def __init__(self, bench: Bench, parameters: Mapping[str, Any], seconds: float, lease_fd: int | None) -> None:
        self.bench = bench
        self.parameters = dict(parameters)
        self.seconds = seconds
        self.lease_fd = lease_fd
        ways = (self._farm, self._sequential, self._pyperf, self._asv, self._whole)
        self.methods: dict[str, Callable[[float, int], tuple[bool, float]]] = dict(zip(METHODS, ways, strict=True))
        self._start_s = self._timed("whole", 0.0, steps=1)
        self._step_s = max(1e-4, (self._timed("whole", 0.0, steps=self._few()) - self._start_s) / (self._few() - 1))

    def compare(self, method: str, extra: float, number: int) -> Finding:
        """Return what ``method`` says of the work beside itself with ``extra`` work."""
        began = time.monotonic()
        accused, ratio = self.methods[method](extra, number)
        return Finding(accused, ratio, time.monotonic() - began)

    def _few(self) -> int:
        return 4 if self.bench.work == "slow" else 200

    def _fields(self, extra: float, **more: Any) -> dict[str, Any]:
        return self.bench.setup_fields(self.parameters | {"extra": extra}) | more

    def _run(self, arguments: list[str], environment: Mapping[str, str] | None = None) -> str:
        """Return what a process of the measured environment printed."""
        variables = self.bench.variables() | {"PYTHONPATH": f"{self.bench.stage}:{_packages(self.bench.folder)}"}
        command = [str(self.bench.python), str(CHILD), *arguments]
        ended = subprocess.run(
            command, env=variables | dict(environment or {}), cwd=self.bench.stage, capture_output=True, text=True
        )
        if ended.returncode:
            raise click.ClickException(
                f"{' '.join(arguments[:1])} ended with {ended.returncode}: {ended.stderr[-400:]}"
            )
        return ended.stdout

    def _timed(self, kind: str, extra: float, **more: Any) -> float:
        began = time.monotonic()
        self._run([kind, json.dumps(self._fields(extra, **more))])
        return time.monotonic() - began

    # -- methods ------------------------------------------------------------------------------------------------

    def _farm(self, extra: float, number: int) -> tuple[bool, float]:
        measuring = Measuring(restart_s=LIFE_S[self.bench.work] * 2 / 3, budget_s=self.seconds)
        arms = {arm: self._fields(share) for arm, share in zip(ARMS, (0.0, extra), strict=True)}
        duet = duet_of(
            arms,
            measuring,
            lambda arm, restart: self.bench.start(arm, restart, self.lease_fd),
            seed=number,
            limits=(LIMIT,),
        )
        restarts = counted(duet.run().restarts)
        interval = ratio_interval(restarts, ARMS[1], ARMS[0], "p50", measuring.alpha)
        return (False, 1.0) if interval is None else (interval.low > LIMIT, interval.value)

    def _sequential(self, extra: float, number: int) -> tuple[bool, float]:
        stretch = max(self._step_s * 2, self.seconds / 2 - self._start_s)
        first, second = (
            json.loads(self._run(["sequential", json.dumps(self._fields(share, seconds=stretch))]))
            for share in (0.0, extra)
        )
        return peers.sequential_accuses(first, second, LIMIT), second[0] / first[0]

    def _pyperf(self, extra: float, number: int) -> tuple[bool, float]:
        import pyperf

        value_s = max(peers.PYPERF_VALUE_S, self._step_s) * 1.5  # its loops are powers of two
        processes = max(2, int(self.seconds / 2 / (self._start_s + (1 + peers.PYPERF_VALUES) * value_s)))
        values = []
        for share in (0.0, extra):
            output = self.bench.folder / f"pyperf-{share}.json"
            output.unlink(missing_ok=True)
            asked = ["--fields", json.dumps(self._fields(share)), "-p", str(processes), "-o", str(output), "--copy-env"]
            self._run([*asked, "--quiet"])
            values.append(list(pyperf.Benchmark.load(str(output)).get_values()))
        return peers.pyperf_accuses(*values, LIMIT), float(np.mean(values[1]) / np.mean(values[0]))

    def _asv(self, extra: float, number: int) -> tuple[bool, float]:
        process_s = self._start_s + peers.ASV_WARMUP_S + peers.ASV_SAMPLES * max(peers.ASV_SAMPLE_S, self._step_s)
        samples: tuple[list[float], list[float]] = ([], [])
        for turn in range(max(peers.ASV_ROUNDS, int(self.seconds / 2 / process_s))):
            for version in (0, 1) if turn % 2 == 0 else (1, 0):
                asked = json.dumps(self._fields(extra if version else 0.0))
                samples[version].extend(json.loads(self._run(["asv", asked])))
        return peers.asv_accuses(*samples, LIMIT), float(np.median(samples[1]) / np.median(samples[0]))

    def _whole(self, extra: float, number: int) -> tuple[bool, float]:
        steps = max(1, round(peers.WHOLE_S / self._step_s))
        runs = max(2, int(self.seconds / 2 / (self._start_s + steps * self._step_s)))
        walls = [[self._timed("whole", share, steps=steps) for _ in range(runs)] for share in (0.0, extra)]
        return peers.hyperfine_accuses(*walls, LIMIT), float(np.mean(walls[1]) / np.mean(walls[0]))


def _packages(folder: Path) -> Path:
    """Return a folder with the peers' own packages and nothing else, to lie on a measured environment's path."""
    found = folder / "peers"
    found.mkdir(exist_ok=True)
    for name in ("pyperf", "asv_runner"):
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise click.ClickException(peers.INSTALL)
        link = found / name
        link.unlink(missing_ok=True)
        link.symlink_to(next(iter(spec.submodule_search_locations)), target_is_directory=True)
    return found


# -- beside what replay said ---------------------------------------------------------------------------------------


def replayed(folder: Path | None, work: str, condition: str, seconds: float) -> dict[str, dict[float, float]]:
    """Return the replayed share of accusations by method and extra work; empty without such a recording."""
    path = folder / f"{work}-{condition}.npz" if folder else None
    if path is None or not path.is_file():
        return {}
    recording = Recording.load(path)
    series = peers.Clocked(recording)
    rates = [our_rates(Lives.of(recording), LIMIT, Measuring(), 2000, at=(seconds,)).rates]
    rates += [peer_rates(series, peer, LIMIT, 300, at=(seconds,)) for peer in peers.PEERS]
    return {found.method: dict(found.accused[seconds]) for found in rates if seconds in found.accused}


@click.command("live")
@click.option("--work", type=click.Choice(list(WORKS)), default="transformer", show_default=True)
@click.option("--condition", type=click.Choice(list(CONDITIONS)), default="quiet", show_default=True)
@click.option("--runs", default=3, show_default=True, help="Comparisons of each method, A/A and slowed each.")
@click.option("--seconds", default=60.0, show_default=True, help="Machine time of one comparison.")
@click.option("--method", "wanted", multiple=True, type=click.Choice(METHODS), help="Only this one; may be repeated.")
@click.option("--replayed", "folder", type=click.Path(path_type=Path, exists=True), help="Recordings to compare with.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def live_command(
    work: str,
    condition: str,
    runs: int,
    seconds: float,
    wanted: tuple[str, ...],
    folder: Path | None,
    as_json: bool,
) -> None:
    """Run every method for real a few times: A/A, and with 5 % of extra work."""
    bench = Bench.of(work)
    _packages(bench.folder)
    with machine_lease(lambda: None, lambda: False) as lease:
        parameters = calibrate(bench, lambda arm, number: bench.start(arm, number, lease))
        with neighbours(condition):
            live = Live(bench, parameters, seconds, lease)
            methods = wanted or METHODS
            asked = [(method, extra) for method in methods for extra in (0.0, SLOWED)] * runs
            random.Random(0).shuffle(asked)
            found: dict[str, dict[float, list[Finding]]] = {m: {0.0: [], SLOWED: []} for m in methods}
            for number, (method, extra) in enumerate(asked):
                finding = live.compare(method, extra, number)
                found[method][extra].append(finding)
                said = "accused" if finding.accused else "not accused"
                words = f"{method}, {extra:.0%}: {said} at {finding.ratio - 1:+.2%} in {finding.wall_s:.0f} s"
                click.echo(f"{number + 1}/{len(asked)} {words}", err=True)
    before = replayed(folder, work, condition, seconds)
    if as_json:
        plain = {m: {e: [vars(f) for f in findings] for e, findings in by.items()} for m, by in found.items()}
        click.echo(json.dumps({"live": plain, "replayed": before}, indent=2))
        return
    rows = []
    for method, by in found.items():
        for extra, findings in by.items():
            rate = before.get(method, {}).get(extra)
            rows.append(
                [
                    method,
                    "A/A" if extra == 0.0 else f"{extra:.0%} slower",
                    f"{sum(finding.accused for finding in findings)} of {len(findings)}",
                    "-" if rate is None else f"{rate:.1%}",
                    ", ".join(f"{finding.ratio - 1:+.2%}" for finding in findings),
                    float(np.mean([finding.wall_s for finding in findings])),
                ]
            )
    headers = ["method", "compared", "accused", "replayed", "ratios", "wall, s"]
    click.echo(f"{work}, {condition}, a limit of {LIMIT - 1:.0%}:\n")
    click.echo(tabulate(rows, headers=headers, floatfmt=".0f"))
