"""Two noisy neighbours: processes that work for a second, rest for a second, and so on, both lengths by chance.

One computes, one moves memory. `python -m benchmarks.neighbours KIND SEED` is one of them.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

__all__ = ["CONDITIONS", "neighbours"]

#: What else runs while recording.
CONDITIONS = {"quiet": (), "noisy": ("computing", "memory")}
#: Mean length of a burst and of a rest, seconds (exponential): each neighbour takes half a core on average.
MEAN_S = 1.0
#: Bytes that the one that moves memory copies at a time.
COPIED_BYTES = 64 * 2**20


@contextmanager
def neighbours(condition: str) -> Iterator[None]:
    """Let the neighbours of ``condition`` work for as long as the block runs."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([sys.executable, "-m", "benchmarks.neighbours", kind, str(seed)], env=environment)
        for seed, kind in enumerate(CONDITIONS[condition])
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _compute(until: float) -> None:
    value = 1
    while time.monotonic() < until:
        for _ in range(10_000):
            value = value * 1_103_515_245 + 12_345 & 0x7FFFFFFF


def _move(until: float, source: np.ndarray, target: np.ndarray) -> None:
    while time.monotonic() < until:
        np.copyto(target, source)


def main(kind: str, seed: int) -> None:
    """Work and rest until whoever started it is gone."""
    parent = os.getppid()
    chance = random.Random(seed)
    source = np.ones(COPIED_BYTES // 8 if kind == "memory" else 1)
    target = np.empty_like(source)
    while os.getppid() == parent:
        until = time.monotonic() + chance.expovariate(1 / MEAN_S)
        if kind == "memory":
            _move(until, source, target)
        else:
            _compute(until)
        time.sleep(chance.expovariate(1 / MEAN_S))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
