"""Traces of a run as files that a viewer opens."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from farm.errors import InfrastructureFailed
from farm.model import Evidence, Trace, decompress

__all__ = ["HOW_TO_OPEN", "write_traces"]

#: No honest trace of one step is larger: those of our workloads have 3 to 76 KB.
MAX_TRACE_BYTES = 256 * 1024 * 1024

HOW_TO_OPEN = "open them in any viewer of Chrome's trace format, such as Perfetto or chrome://tracing"


def write_traces(evidence: Evidence, folder: Path, kept: Path) -> tuple[list[Path], list[str]]:
    """Write "<cell>-<arm>.json" of every traced arm into ``folder``; return the files, and why others are missing.

    ``kept`` holds the traces that were too large to travel, where this machine was the worker.
    Raises InfrastructureFailed where ``folder`` cannot be written.
    """
    written: list[Path] = []
    missing: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for cell_id, worker, arm, trace in _traces(evidence):
            try:
                content = _content(trace, kept)
            except FileNotFoundError:
                missing.append(
                    f"{cell_id} {arm}: {trace.size_bytes} bytes, too large to travel; on '{worker}' it is "
                    f"traces/{trace.sha256}.json.zst in the home"
                )
                continue
            except ValueError as error:
                missing.append(f"{cell_id} {arm}: {error}")
                continue
            # Two cells whose ids differ in a character that a file's name cannot hold stay two files.
            path = folder / f"{_fitting(f'{cell_id}-{arm}')}.json"
            while path in written:
                path = path.with_stem(f"{path.stem}_")
            path.write_bytes(content)
            written.append(path)
    except OSError as error:
        raise InfrastructureFailed(f"traces cannot be written into '{folder}': {error.strerror}") from error
    return written, missing


def _traces(evidence: Evidence) -> Iterator[tuple[str, str, str, Trace]]:
    for result in evidence.results:
        for arm, ended in result.arms.items():
            if ended.examination is not None and ended.examination.trace is not None:
                yield result.cell_id, result.worker, arm, ended.examination.trace


def _content(trace: Trace, kept: Path) -> bytes:
    """Return the JSON. Raises FileNotFoundError where it is not here, ValueError where it is not what was traced."""
    packed = trace.packed or (kept / f"{trace.sha256}.json.zst").read_bytes()
    content = decompress(packed, min(trace.size_bytes, MAX_TRACE_BYTES))
    if hashlib.sha256(content).hexdigest() != trace.sha256:
        raise ValueError(f"the trace is damaged: it is not the one with SHA-256 {trace.sha256}")
    return content


def _fitting(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9@+._-]", "-", name)
