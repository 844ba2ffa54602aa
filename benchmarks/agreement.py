"""Whether our median of a step is the one that `torch.utils.benchmark` gives of the same step in the same run.

A runner and a process with PyTorch's own timer are alive at once, on the same work, and measure in turn.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measured import WORKS, Bench
from benchmarks.record import STEP_TIMEOUT_S, recorded_window, steps_per_window
from farm.model import Window, pack_ns
from farm.statistics import block_medians
from workers.duet import START_TIMEOUT_S
from workers.session import RunnerSession
from workers.windows import DROP_FIRST_FROM

#: Turns, and seconds of `torch.utils.benchmark` in each; the runner has windows for as long.
TURNS = {"transformer": 10, "memory": 10, "slow": 4}
TURN_S = 1.0
#: Fresh pairs of processes: two processes of one program differ by more than their own medians' errors.
PAIRS = 5

#: Run in the measured environment: a median for every line on stdin.
TIMER = """
import json, sys
sys.path.insert(0, sys.argv[1])
from live_process import made
from torch.utils.benchmark import Timer
fields = json.loads(sys.argv[2])
timer = Timer("step()", globals={"step": made(fields)})
timer.timeit(2)
print("ready", flush=True)
for line in sys.stdin:
    print(timer.blocked_autorange(min_run_time=float(line)).median * 1e9, flush=True)
"""


def run(quick: bool) -> dict[str, Any]:
    """Return both medians of every work, and the ratio that is farthest from 1."""
    rows, ratios = [], []
    for work in WORKS:
        pairs = [_pair(Bench.of(work), TURNS[work], number) for number in range(2 if quick else PAIRS)]
        ours, theirs = (statistics.median(values) for values in zip(*pairs, strict=True))
        ratio = statistics.median(our / their for our, their in pairs)
        rows.append([work, ours / 1e6, theirs / 1e6, (ratio - 1) * 100])
        ratios.append(ratio)
    return {
        "claim": "our median of a step is torch.utils.benchmark's, measured in turn",
        "headers": ["work", "farm, ms", "torch.utils.benchmark, ms", "apart, %"],
        "rows": rows,
        "ratio": max(ratios, key=lambda ratio: abs(ratio - 1)),
    }


def _pair(bench: Bench, turns: int, number: int) -> tuple[float, float]:
    """Return the median step (ns) of a runner's windows, and the timer's, in one pair of processes."""
    asked = json.dumps(bench.setup_fields({}))
    command = [str(bench.python), "-c", TIMER, str(Path(__file__).parent), asked]
    environment = bench.variables("timer", number) | {"PYTHONPATH": str(bench.stage)}
    windows: list[Window] = []
    theirs = []
    with (
        subprocess.Popen(
            command, env=environment, cwd=bench.stage, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as timer,
        bench.start("runner", number) as session,
    ):
        assert timer.stdin is not None
        assert timer.stdout is not None
        session.hello(START_TIMEOUT_S)
        session.request("setup", STEP_TIMEOUT_S, **bench.setup_fields({}))
        timer.stdout.readline()
        steps = steps_per_window(float(_steps(session, 2)[-1]))
        for _ in range(5):
            _steps(session, steps)
        for turn in range(turns):
            first = turn % 2
            for who in (first, 1 - first):
                if who == 0:
                    windows += _turn(session, steps, turn)
                else:
                    timer.stdin.write(f"{TURN_S}\n")
                    timer.stdin.flush()
                    theirs.append(float(timer.stdout.readline()))
        timer.stdin.close()
    return statistics.median(block_medians(windows).values()), statistics.median(theirs)


def _steps(session: RunnerSession, steps: int) -> np.ndarray:
    return recorded_window(session, "", 0, 0, steps, lambda: 0).steps_ns


def _turn(session: RunnerSession, steps: int, turn: int) -> list[Window]:
    """Return windows that fill one turn."""
    found, spent = [], 0
    while spent < TURN_S * 1e9:
        taken = _steps(session, steps)
        spent += int(taken.sum())
        kept = taken[1:] if steps >= DROP_FIRST_FROM else taken
        found.append(
            Window(block=turn, position=len(found), steps_ns=pack_ns(kept), wall_ns=0, cpu_ns=0, minor_faults=0)
        )
    return found
