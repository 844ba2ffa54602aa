"""Run in the measured environment by `benchmarks.live`: one process of a peer, and its figures as JSON on stdout.

`python live_process.py KIND FIELDS …` where FIELDS are a runner's set-up request as JSON. It stands on torch, the
stage and the peer's own package alone.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from workloads.contract import Workload


def made(fields: dict[str, Any]) -> Callable[[], Any]:
    """Return the step of the work that ``fields`` ask for, set up as a runner does."""
    module = importlib.import_module(fields["workload"])
    kinds = [kind for _, kind in inspect.getmembers(module, inspect.isclass) if kind.__module__ == module.__name__]
    (kind,) = [kind for kind in kinds if issubclass(kind, Workload)]
    parameters = {name: entry["default"] for name, entry in kind.parameters.items()} | fields["parameters"]
    torch.set_num_threads(fields["threads"])
    torch.manual_seed(fields["seed"])
    work = kind()
    work.setup(SimpleNamespace(**parameters), fields["path"], torch.device(fields["device"]))
    return work.step


def whole(fields: dict[str, Any]) -> None:
    """Step as often as asked: what hyperfine would be given."""
    step = made(fields)
    for _ in range(fields["steps"]):
        step()


def sequential(fields: dict[str, Any]) -> None:
    """Print the median step, seconds, of `torch.utils.benchmark`."""
    from torch.utils.benchmark import Timer

    found = Timer("step()", globals={"step": made(fields)}).blocked_autorange(min_run_time=fields["seconds"])
    print(json.dumps([found.median]))


def asv_round(fields: dict[str, Any]) -> None:
    """Print the samples, seconds, of one round of asv's own timing."""
    from asv_runner.benchmarks.time import TimeBenchmark

    found = TimeBenchmark("time_step", made(fields), []).run()
    print(json.dumps(found["samples"]))


def pyperf_bench() -> None:
    """Be pyperf's own runner: it starts its processes itself and writes the file that `-o` names."""
    import pyperf

    # Its workers are this file again: the fields travel as an argument.
    runner = pyperf.Runner(add_cmdline_args=lambda command, args: command.extend(["--fields", args.fields]))
    runner.argparser.add_argument("--fields")
    arguments = runner.parse_args()
    step = made(json.loads(arguments.fields)) if arguments.worker else None
    runner.bench_func("step", step)


if __name__ == "__main__":
    KINDS = {"whole": whole, "sequential": sequential, "asv": asv_round}
    if "--fields" in sys.argv:
        pyperf_bench()
    else:
        KINDS[sys.argv[1]](json.loads(sys.argv[2]))
