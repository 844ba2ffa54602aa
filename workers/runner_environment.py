"""The environment variables of a runner: an allow-list, the control's own, and folders of the cell's."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from pathlib import Path

__all__ = ["ALLOWED", "padding", "runner_environment"]

#: What a runner inherits. Nothing of the host's library paths: a measured torch loads its own (CASES.md V9).
ALLOWED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")

#: How large the padding of a runner's environment grows: more than a page, so that the stack really moves.
PADDING_BYTES = 4096


def runner_environment(
    control: Mapping[str, str], caches: Path, *, settled_allocator: bool, padding: str = ""
) -> dict[str, str]:
    """Return the variables for one runner.

    ``caches`` is this arm's own folder for compiled code: torch's default is shared by every version.
    ``settled_allocator`` keeps the control's ``MALLOC_*`` settings, which timing needs and peak memory must not
    have (STATISTICS.md, What was measured, 3).
    """
    temporary = caches / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    variables = {name: os.environ[name] for name in ALLOWED if name in os.environ}
    variables |= {name: value for name, value in control.items() if settled_allocator or not name.startswith("MALLOC_")}
    variables |= {
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        # Inductor keeps precompiled headers in the temporary folder, whatever its cache folder is: a cold first call
        # would find those of another run.
        "TMPDIR": str(temporary),
    }
    if padding:
        variables["FARM_PADDING"] = padding
    return variables


def padding(seed: int, restart: int, arm: str) -> str:
    """Return a string of random length: the environment's size moves the stack (Mytkowicz et al., ASPLOS 2009)."""
    return "x" * random.Random(f"{seed}/{restart}/{arm}").randrange(1, PADDING_BYTES)
