"""How far two measurements of the *same* release lie apart: ours, and one process after the other.

What a user would do is `torch.utils.benchmark` in the one environment, then in the other. Both methods get the same
workload, environment variables and wall time, and each gives one ratio of medians that should be 1.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.measured import folder_of, plan_of
from farm.model import Measuring, Side
from farm.statistics import ratio_interval
from workers.duet import Duet, Life, Pair
from workers.environments import build
from workers.examination import setup_fields
from workers.runner_environment import runner_environment
from workers.session import RunnerSession
from workers.stage import make_stage, workload_reference

#: Seconds inside windows, both arms together.
SECONDS = 20.0
RESTARTS = 6
#: Seconds that the other method measures in both processes: both methods then took 38 s of wall time each.
SEQUENTIAL_SECONDS = 34.5

#: Run in the measured environment: one process, one figure.
SEQUENTIAL = """
import json, sys
from types import SimpleNamespace
import torch
from torch.utils.benchmark import Timer
from workloads.transformer_block import TransformerBlock
fields = json.loads(sys.argv[1])
torch.set_num_threads(fields["threads"])
torch.manual_seed(fields["seed"])
work = TransformerBlock()
parameters = {name: entry["default"] for name, entry in TransformerBlock.parameters.items()} | fields["parameters"]
work.setup(SimpleNamespace(**parameters), fields["path"], torch.device("cpu"))
found = Timer("step()", globals={"step": work.step}).blocked_autorange(min_run_time=fields["seconds"])
print(found.median)
"""


def run(quick: bool) -> dict[str, Any]:
    """Return the standard deviation of ln(ratio) of both methods over repeats in turn."""
    plan, home = plan_of("2.13.0", "2.13.0")
    cell = next(cell for cell in plan.cells if cell.workload == "transformer_block" and cell.kind == "measure")
    python = build(next(iter(plan.environments.values())), home).python
    stage = make_stage(home.stage, None)
    folder = folder_of(home, "spread")
    fields = setup_fields(cell, cell.arms[0], workload_reference(cell.workload, None))
    environment = runner_environment(cell.control.environment_variables, folder, settled_allocator=True)
    logs: dict[str, list[float]] = {"one after the other": [], "interleaved, over restarts": []}
    seconds = dict.fromkeys(logs, 0.0)
    for repeat in range(2 if quick else 8):
        order = list(logs) if repeat % 2 else list(reversed(logs))
        for method in order:
            began = time.monotonic()
            if method == "one after the other":
                times = [_sequential(python, stage, environment, fields, SEQUENTIAL_SECONDS / 2) for _ in range(2)]
                logs[method].append(math.log(times[1] / times[0]))
            else:
                logs[method].append(_interleaved(python, stage, environment, folder, fields, repeat))
            seconds[method] += time.monotonic() - began
    deviations = {method: statistics.stdev(found) * 100 for method, found in logs.items()}
    count = len(next(iter(logs.values())))
    return {
        "claim": "alternating in short windows over restarts scatters less than one version after the other",
        "headers": ["method", "repeats", "scatter of the A/A ratio, %", "farthest from 1, %", "wall time each, s"],
        "rows": [
            [method, count, deviations[method], max(map(abs, logs[method])) * 100, seconds[method] / count]
            for method in logs
        ],
        "ratio": deviations["one after the other"] / deviations["interleaved, over restarts"],
    }


def _sequential(
    python: Path, stage: Path, environment: dict[str, str], fields: dict[str, Any], seconds: float
) -> float:
    """Return the median step, seconds, that `torch.utils.benchmark` gives in a process of its own."""
    asked = json.dumps(fields | {"seconds": seconds})
    command = [str(python), "-c", SEQUENTIAL, asked]
    ended = subprocess.run(command, env=environment, cwd=stage, capture_output=True, text=True, check=True)
    return float(ended.stdout)


def _interleaved(
    python: Path, stage: Path, environment: dict[str, str], folder: Path, fields: dict[str, Any], seed: int
) -> float:
    """Return ln(ratio) as a cell would give it."""
    measuring = Measuring(
        looks=(RESTARTS,),
        alpha=0.016,
        window_ms=120.0,
        restart_s=SECONDS / RESTARTS,
        warmup_s=1.5,
        budget_s=600.0,
        step_timeout_s=60.0,
    )
    names = [Side.BASELINE.value, Side.CANDIDATE.value]

    def start(life: Life) -> RunnerSession:
        return RunnerSession(python, stage, environment, folder / f"{life.arm}-{life.restart}.log")

    duet = Duet(
        names,
        [Pair(names[1], names[0], (1.03,))],
        measuring,
        start,
        dict.fromkeys(names, fields),
        seed=seed,
        progress=lambda _: None,
        cancelled=lambda: False,
    )
    interval = ratio_interval(duet.run().restarts, names[1], names[0], "p50", measuring.alpha)
    assert interval is not None
    return math.log(interval.value)
