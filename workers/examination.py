"""The untimed pass of a cell's arms: what they compute, whether it repeats, what they hold.

It has processes of its own, with the allocator as it comes. On the CPU arms go two at a time, since nothing is
timed against anything but its own limit; on a device one at a time, since it tells what is in use by all together, and
two arms that fit one by one need not fit at once (CASES.md M12).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import zstandard

from farm.model import (
    Arm,
    ArmResult,
    Cell,
    Drill,
    Examination,
    Memory,
    Operator,
    Outcome,
    Side,
    Trace,
)
from workers.comparison import compare_outputs
from workers.session import ArmEnded, RunnerSession

__all__ = ["DEVICES", "Examiner", "reference_of", "setup_fields"]

#: torch's device of a backend; ROCm's devices are named cuda (TORCH.md 11).
DEVICES = {"cpu": "cpu", "cuda": "cuda", "rocm": "cuda", "mps": "mps", "distributed": "cpu"}

#: A packed trace up to this size travels with the evidence: those of our workloads take 1 to 6 KiB.
MAX_PACKED_BYTES = 128 * 1024
#: A trace of 3 MB becomes 115 KB in 0.03 s at this level, and 84 KB in 2.1 s at 19.
PACKING_LEVEL = 10
#: Fresh processes that tell their peak, where a process cannot reset its own mark.
PEAK_PROCESSES = 3


def setup_fields(cell: Cell, arm: Arm, workload: str) -> dict[str, Any]:
    """Return the set-up request of ``arm``: the same for every runner of it."""
    return {
        "workload": workload,
        "parameters": dict(cell.parameters),
        "path": arm.path,
        "seed": cell.control.seed,
        "device": DEVICES[cell.backend],
        "threads": cell.measuring.threads,
    }


def reference_of(arm: Arm) -> str | None:
    """Return the name of the arm that ``arm`` is compared with: none for the baseline."""
    if arm.name == Side.BASELINE:
        return None
    # A new path stands beside the old one of its release; the candidate, and what holds a package, beside the baseline.
    return arm.side.value if "+" in arm.name else Side.BASELINE.value


class Examiner:
    """Examines the arms of one cell.

    ``start(arm, purpose, caches)`` starts a fresh runner; ``caches`` None means the arm's own folder. Traces that are
    too large to travel stay in ``keep_traces`` as "<sha256>.json.zst"; None means that they are not kept.
    """

    def __init__(
        self,
        cell: Cell,
        scratch: Path,
        workload: str,
        start: Callable[[str, str, Path | None], RunnerSession],
        start_timeout_s: float,
        keep_traces: Path | None = None,
    ) -> None:
        self.cell = cell
        self.scratch = scratch
        self.workload = workload
        self._start = start
        self._start_timeout_s = start_timeout_s
        self._timeout_s = cell.measuring.step_timeout_s
        self._keep_traces = keep_traces
        self._at_once = 2 if DEVICES[cell.backend] == "cpu" else 1

    def examine(self, arms: Sequence[Arm]) -> dict[str, ArmResult]:
        """Return every arm's result so far: its outcome, what it says of itself, and its examination.

        The oracle is computed once, by the first arm that can, on the old path and in float64.
        """
        with ThreadPoolExecutor(max_workers=self._at_once) as pool:
            found = dict(zip((arm.name for arm in arms), pool.map(self._examine_one, arms), strict=True))
        oracle = next((raw["oracle"] for result, raw in found.values() if raw.get("oracle")), None)
        outputs = {name: raw["outputs"] for name, (result, raw) in found.items() if raw}
        results = {}
        for arm in arms:
            result, raw = found[arm.name]
            if raw:
                against = outputs.get(reference_of(arm) or "")
                examined = self._examination(raw, compare_outputs(raw["outputs"], oracle, against))
                result = result.model_copy(update={"examination": examined})
            results[arm.name] = result
        return results

    # -- examination --------------------------------------------------------------------------------------------

    def _examine_one(self, arm: Arm) -> tuple[ArmResult, dict[str, Any]]:
        folder = self._folder(arm, "examine")
        facts: dict[str, Any] = {}
        session = None
        try:
            session = self._start(arm.name, "examine", None)
            facts = session.hello(self._start_timeout_s)
            ready = session.request("setup", self._timeout_s, **setup_fields(self.cell, arm, self.workload))
            raw = session.request(
                "examine",
                self._timeout_s,
                directory=str(folder),
                oracle="+" not in arm.name,
                repeats=self.cell.control.determinism_repeats,
                threads=self.cell.control.determinism_threads,
                memory=True,
                faults=True,
                trace=True,
                drill=self.cell.kind == "measure",
            )
            if not raw["memory"]["process_peak_bytes"]:
                raw["memory"]["process_peak_bytes"] = self._process_peaks(arm)
            if raw["trace"]:
                raw["trace"]["json"] = (folder / raw["trace"]["file"]).read_bytes()
            result = ArmResult(outcome=Outcome.OK, facts=facts, command=session.command, log_tail=session.log_tail())
            return result, raw | {"items": ready["items"], "item": ready["item"]}
        except ArmEnded as ended:
            command = session.command if session else ()
            return (
                ArmResult(
                    outcome=ended.outcome,
                    reason=ended.reason,
                    facts=facts,
                    command=command,
                    log_tail=ended.log_tail,
                ),
                {},
            )
        finally:
            if session is not None:
                session.close()

    def _examination(self, raw: Mapping[str, Any], outputs: dict[str, Any]) -> Examination:
        memory, trace = raw["memory"], raw["trace"]
        warnings = list(raw["warnings"])
        return Examination(
            outputs=outputs,
            repeat_digests=tuple(raw["repeat_digests"]),
            memory=Memory(**memory) if memory else None,
            items_per_step=raw["items"],
            item=raw["item"],
            path_ran=raw["path_ran"],
            faults_per_step=raw["faults_per_step"],
            trace=self._trace(trace["json"], trace["operators"], warnings) if trace else None,
            facts=raw["facts"],
            drill=Drill(**raw["drill"]) if raw["drill"] else None,
            warnings=tuple(warnings),
        )

    def _process_peaks(self, arm: Arm) -> list[int]:
        """Return the peaks of fresh processes that set up and step, and do nothing else."""
        found = []
        for index in range(PEAK_PROCESSES):
            with self._start(arm.name, f"peak-{index + 1}", None) as session:
                session.hello(self._start_timeout_s)
                session.request("setup", self._timeout_s, **setup_fields(self.cell, arm, self.workload))
                found.append(session.request("process_peak", self._timeout_s)["process_peak_bytes"])
        return found

    def _trace(self, content: bytes, operators: Sequence[Mapping[str, Any]], warnings: list[str]) -> Trace:
        """Return a trace with all that it holds if that may travel, and keep it here if not."""
        digest = hashlib.sha256(content).hexdigest()
        packed = zstandard.ZstdCompressor(level=PACKING_LEVEL).compress(content)
        travels = len(packed) <= MAX_PACKED_BYTES
        if not travels and self._keep_traces is not None:
            making = self._keep_traces / f".{digest}"
            try:
                self._keep_traces.mkdir(parents=True, exist_ok=True)
                making.write_bytes(packed)
                making.replace(self._keep_traces / f"{digest}.json.zst")
            except OSError as error:
                warnings.append(f"the trace of {len(packed)} bytes was not kept: {error}")
        return Trace(
            operators=tuple(Operator(**operator) for operator in operators),
            sha256=digest,
            size_bytes=len(content),
            packed=packed if travels else b"",
        )

    def _folder(self, arm: Arm, purpose: str) -> Path:
        folder = self.scratch / "outputs" / f"{arm.name}-{purpose}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder
