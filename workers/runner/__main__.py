"""Answer requests until `quit` or until the driver is gone."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
import traceback
from typing import Any

PARENT = os.getppid()


def main() -> None:
    """Import torch, say hello, and answer."""
    from .framing import Channel
    from .host import describe, die_with_parent

    die_with_parent(PARENT)
    faulthandler.enable()
    channel = Channel.inherited()
    began = time.perf_counter_ns()
    import torch  # noqa: F401

    channel.send(describe(time.perf_counter_ns() - began))
    serve(channel)


def serve(channel: Any) -> None:
    """Answer every request: `ok` with fields, or an outcome with a reason and the traceback."""
    from . import leaving
    from .examine import examine
    from .memory import process_peak
    from .programs import compile_program, recompile_program
    from .tensors import digest_all
    from .work import Work

    work: Any = None

    def setup(request: dict[str, Any]) -> dict[str, Any]:
        nonlocal work
        work = None  # so that a failing set-up is not told with the steps of the last one
        began = time.perf_counter_ns()
        work = Work(request)
        work.synchronise()
        ready = time.perf_counter_ns()
        if not request.get("step", True):
            # A step may compile: what is to be compiled cold must not have been compiled by it.
            return {"setup_ns": ready - began}
        outputs = work.step()
        work.synchronise()
        stepped = time.perf_counter_ns()
        return {
            "setup_ns": ready - began,
            "first_step_ns": stepped - ready,
            "items": float(work.workload.items()),
            "item": work.kind.item,
            "output_digest": digest_all(outputs),
        }

    answers = {
        "window": lambda request: work.window(int(request["steps"])),
        "examine": lambda request: examine(work, request),
        "process_peak": lambda request: process_peak(work),
        "compile": lambda request: compile_program(work, request),
        "recompile": lambda request: recompile_program(work, request),
        "export": lambda request: leaving.export_program(work, request),
        # These need no workload.
        "package": leaving.make_package,
        "onnx": leaving.make_onnx,
        "load": leaving.load_program,
        "wrong_input": leaving.try_wrong_input,
    }
    while (request := channel.receive()) is not None and request["op"] != "quit":
        try:
            answer = setup if request["op"] == "setup" else answers[request["op"]]
            reply = {"ok": True, **answer(request)}
        except Exception as error:  # every failure is an outcome of this arm; what it means is said below
            reply = failure(error, work)
        channel.send(reply)
    sys.stdout.flush()
    # Teardown of some backends aborts after right results (TORCH.md 0.4); everything was handed over already.
    os._exit(0)


def failure(error: Exception, work: Any) -> dict[str, Any]:
    """Return the outcome that ``error`` means, its reason in one line, and its traceback."""
    import torch

    from workloads.contract import FellBack, Unsupported

    from .work import BackendUnreachable, WorkFailed

    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        outcome = "out of memory"
    elif isinstance(error, Unsupported):
        outcome = "unsupported"
    elif isinstance(error, FellBack):
        outcome = "fell back"
    elif isinstance(error, BackendUnreachable):
        outcome = "backend unreachable"
    else:
        outcome = "failed"
    words = (str(error).strip() or type(error).__name__).splitlines()[0]
    named = words if type(error).__module__.startswith(("workloads", "runner")) else f"{type(error).__name__}: {words}"
    own = isinstance(error, WorkFailed)
    step = f" (step {work.steps})" if work is not None and outcome == "failed" and not own else ""
    return {"ok": False, "outcome": outcome, "reason": named + step, "traceback": traceback.format_exc()}


main()
