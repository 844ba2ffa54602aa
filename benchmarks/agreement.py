"""Whether our median of a step is the one that `torch.utils.benchmark` gives of the same step in the same run.

Both time one set-up in one process, in turn: two processes of one program differ by more than is asked here (on the
memory-bound step by 5 %), and that is no question of how a step is timed.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from typing import Any

import numpy as np

from benchmarks.measured import WORKS, Bench
from benchmarks.record import steps_per_window
from farm.model import Window, pack_ns
from farm.statistics import block_medians
from workers.windows import DROP_FIRST_FROM

#: Turns of one process, and seconds of each method in one: two steps or more of the slow step.
TURNS = {"transformer": 10, "memory": 10, "slow": 8}
TURN_S = 1.0
PROCESSES = 3

#: Run in the measured environment, where the stage has our runner: its window, then PyTorch's timer, or the other
#: way round; a line of JSON a turn. Its own first two steps say how many steps a window has.
TIMED = """
import json, struct, sys, time
from torch.utils.benchmark import Timer
from runner.work import Work
asked = json.loads(sys.argv[1])
work = Work(asked)
def window(steps):
    taken = work.window(steps)["steps_ns"]
    return list(struct.unpack("<%dQ" % (len(taken) // 8), taken))
timer = Timer("step()", globals={"step": work.workload.step})
print(json.dumps(window(2)), flush=True)
steps = int(sys.stdin.readline())
for _ in range(5):
    window(steps)
def ours():
    until, windows = time.perf_counter() + asked["turn_s"], []
    while time.perf_counter() < until:
        windows.append(window(steps))
    return windows
def theirs():
    return timer.blocked_autorange(min_run_time=asked["turn_s"]).median * 1e9
for turn in range(asked["turns"]):
    found = {}
    for name, ask in sorted({"ours": ours, "theirs": theirs}.items(), reverse=bool(turn % 2)):
        found[name] = ask()
    print(json.dumps(found), flush=True)
"""


def run(quick: bool) -> dict[str, Any]:
    """Return both medians of every work, and the ratio that is farthest from 1."""
    rows, ratios = [], []
    for work in WORKS:
        bench = Bench.of(work)
        found = [_process(bench, 3 if quick else TURNS[work], number) for number in range(1 if quick else PROCESSES)]
        ours, theirs, ratio = (statistics.median(values) for values in zip(*found, strict=True))
        rows.append([work, ours / 1e6, theirs / 1e6, (ratio - 1) * 100])
        ratios.append(ratio)
    return {
        "claim": "our median of a step is torch.utils.benchmark's, measured in turn in one process",
        "headers": ["work", "farm, ms", "torch.utils.benchmark, ms", "apart, %"],
        "rows": rows,
        "ratio": max(ratios, key=lambda ratio: abs(ratio - 1)),
    }


def _process(bench: Bench, turns: int, number: int) -> tuple[float, float, float]:
    """Return our median step of one process (ns), the timer's, and the median ratio of a turn."""
    asked = json.dumps(bench.setup_fields({}) | {"turns": turns, "turn_s": TURN_S})
    environment = bench.variables("agreement", number) | {"PYTHONPATH": str(bench.stage)}
    windows: list[Window] = []
    theirs: list[float] = []
    with subprocess.Popen(
        [str(bench.python), "-c", TIMED, asked],
        env=environment,
        cwd=bench.stage,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        steps = steps_per_window(float(json.loads(process.stdout.readline())[-1]))
        process.stdin.write(f"{steps}\n")
        process.stdin.close()
        for turn, line in enumerate(process.stdout):
            found = json.loads(line)
            theirs.append(found["theirs"])
            windows += [_window(turn, position, taken) for position, taken in enumerate(found["ours"])]
    ours = list(block_medians(windows).values())
    ratios = [our / their for our, their in zip(ours, theirs, strict=True)]
    return statistics.median(ours), statistics.median(theirs), statistics.median(ratios)


def _window(turn: int, position: int, taken: list[int]) -> Window:
    kept = taken[1:] if len(taken) >= DROP_FIRST_FROM else taken
    packed = pack_ns(np.array(kept))
    return Window(block=turn, position=position, steps_ns=packed, wall_ns=sum(taken), cpu_ns=0, minor_faults=0)
