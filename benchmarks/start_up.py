"""How long `farm --help` takes, beside Python itself and beside importing what the farm stands on."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import Any

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "farm --help": [sys.executable, "-m", "cli.main", "--help"],
    "importing celery, redis, pydantic, sqlalchemy, numpy": [
        sys.executable,
        "-c",
        "import celery, kombu, redis, pydantic, sqlalchemy, numpy",
    ],
}


def run(quick: bool) -> dict[str, Any]:
    """Return the median of each, measured in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(3 if quick else 15):
        for name, command in COMMANDS.items():
            began = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    _, ours, eager = medians.values()
    return {
        "claim": "help answers in under 0.2 s, since commands are imported when they are called",
        "headers": ["command", "median, s"],
        "rows": [[name, value] for name, value in medians.items()],
        "ratio": eager / ours,
    }
