"""The untimed pass: outputs, faults, oracle, which path ran, memory, a trace, repeats, facts, the drill."""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from workloads.contract import FellBack, Workload

from .memory import faults_per_step, memory_of
from .steady import unsteadiness
from .tensors import digest_all, write_all
from .trace import trace_step
from .work import Work

__all__ = ["examine"]


def examine(work: Work, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return what one arm computes, whether it repeats, and what it holds."""
    folder = Path(request["directory"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.set_warn_always(True)
        work.workload = work.fresh()
        outputs = write_all(work.step(), folder, "output")
        torch.set_warn_always(False)
    reply: dict[str, Any] = {"outputs": outputs, "warnings": sorted({str(w.message)[:300] for w in caught})}
    reply["warnings"] += unsteadiness(work)
    # Before the oracle, whose large blocks change what glibc does for the life of the process.
    reply["faults_per_step"] = faults_per_step(work) if request.get("faults") else None
    if request["oracle"]:
        first = next(iter(work.kind.paths))
        oracle = work.step(work.fresh(first, oracle=True), "cpu")
        reply["warnings"] += _imprecise(oracle)
        reply["oracle"] = write_all(oracle, folder, "oracle")
    reply["path_ran"] = work.workload.path_ran()
    reply["memory"] = memory_of(work) if request["memory"] else None
    reply["trace"] = _trace(work, folder, reply["warnings"]) if request.get("trace") else None
    reply["repeat_digests"] = _repeats(work, int(request["repeats"]), int(request["threads"]))
    reply["facts"] = _plain(work.workload.facts())
    # Last: what is switched off stays off.
    reply["drill"] = _drill(work) if request.get("drill") else None
    return reply


def _plain(facts: Mapping[str, Any]) -> dict[str, str | float | bool]:
    """Return ``facts`` as what travels; a number of one element of a tensor is that number."""
    found: dict[str, str | float | bool] = {}
    for name, value in facts.items():
        plain = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
        number = isinstance(plain, bool | int | float) and math.isfinite(plain)
        found[str(name)] = plain if number else str(plain)[:300]
    return found


def _drill(work: Work) -> dict[str, Any] | None:
    """Return how the path was switched off, what ran then and how long that took; None where it has no switch."""
    if type(work.workload).switch_off is Workload.switch_off or work.path == next(iter(work.kind.paths)):
        return None
    began, how, result = time.perf_counter_ns(), "", "still on"
    try:
        how = work.workload.switch_off()
        work.step()
        work.synchronise()
        took_ns = time.perf_counter_ns() - began
        ran = work.workload.path_ran()
    except FellBack as fell:
        result, ran, took_ns = "switched off", str(fell)[:300], time.perf_counter_ns() - began
    except Exception as error:  # whatever it is, the path cannot be left this way
        result, ran = "failed", f"{type(error).__name__}: {str(error)[:300]}"
        took_ns = time.perf_counter_ns() - began
    return {"how": how, "result": result, "ran": ran, "took_ns": took_ns}


def _imprecise(oracle: Mapping[str, torch.Tensor]) -> list[str]:
    """Return which outputs of an oracle are not float64: a step that casts by itself judges itself."""
    names = sorted(name for name, value in oracle.items() if value.is_floating_point() and value.dtype != torch.float64)
    if not names:
        return []
    dtype = str(oracle[names[0]].dtype).removeprefix("torch.")
    return [f"the oracle is no more precise than the work: '{names[0]}' is {dtype} in it"]


def _trace(work: Work, folder: Path, said: list[str]) -> dict[str, Any] | None:
    """Return what `trace_step` does; a profiler that fails takes nothing from the arm but its trace, and is told."""
    try:
        return trace_step(work, folder)
    except (RuntimeError, OSError, ValueError) as error:
        said.append(f"no trace: {type(error).__name__}: {str(error)[:300]}")
        return None


def _repeats(work: Work, repeats: int, threads: int) -> list[str]:
    """Return one digest a repeat: the same set-up, the same step, at ``threads`` threads."""
    with _threads(threads):
        return [digest_all(work.step(work.fresh())) for _ in range(repeats)]


@contextmanager
def _threads(threads: int) -> Iterator[None]:
    """Set torch's threads; compiled code of another number is forgotten, in memory and in the cache folder.

    Inductor's CPU kernels hold buffers for the number that they were compiled at, and no key of its caches names it:
    compiled FlexAttention wrote past them and aborted when it went from one thread to two.
    """
    before, folder = torch.get_num_threads(), os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
    if threads == before:
        yield
        return
    _switch(threads, folder and f"{folder}-{threads}-threads")
    try:
        yield
    finally:
        _switch(before, folder)


def _switch(threads: int, folder: str) -> None:
    torch.set_num_threads(threads)
    if folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
