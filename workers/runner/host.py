"""What the runner says of itself, and that it does not outlive the one who started it."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
from pathlib import Path
from typing import Any

__all__ = ["describe", "die_with_parent"]

#: prctl's option, linux/prctl.h.
PR_SET_PDEATHSIG = 1

#: Libraries whose place matters: a host's own copy can shadow the wheel's (CASES.md V9).
WATCHED = (
    "libtorch",
    "libc10",
    "libcudart",
    "libcublas",
    "libcudnn",
    "libnccl",
    "libmkl",
    "libgomp",
    "libiomp",
    "libomp",
)


def die_with_parent(parent: int) -> None:
    """Be killed when the parent ends (Linux); elsewhere the closed request pipe is what ends the runner."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            # The parent ended before the kernel was told.
            os._exit(1)


def describe(import_ns: int) -> dict[str, Any]:
    """Return the facts of this environment as torch itself sees them."""
    import torch

    version = torch.__version__
    local = version.partition("+")[2]
    return {
        "op": "hello",
        "pid": os.getpid(),
        "import_ns": import_ns,
        "python": platform.python_version(),
        "torch": version,
        "variant": local or ("cpu" if torch.version.cuda is None and torch.version.hip is None else "unknown"),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "git": torch.version.git_version,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "aslr": _aslr(),
        **_libraries(),
    }


def _aslr() -> str:
    try:
        return {"0": "off", "1": "partial", "2": "full"}[
            Path("/proc/sys/kernel/randomize_va_space").read_text().strip()
        ]
    except (OSError, KeyError):
        return "unknown"


def _libraries() -> dict[str, list[str]]:
    """Return the watched libraries that are loaded, those outside this environment apart as strangers."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return {"libraries": [], "stranger_libraries": []}
    paths = {line.split(maxsplit=5)[5] for line in lines if line.count("/") and len(line.split(maxsplit=5)) == 6}
    watched = sorted(path for path in paths if Path(path).name.startswith(WATCHED))
    # The system tells real paths, and a home may lie behind a link.
    inside = str(Path(sys.prefix).resolve())
    return {
        "libraries": [path.removeprefix(inside + "/") for path in watched if path.startswith(inside)],
        "stranger_libraries": [path for path in watched if not path.startswith(inside)],
    }
