"""What a machine can run, as a partial order, and the queues that follow from it.

"cuda.sm90" satisfies "cuda.sm90" and "cuda": a cell waits on the queue of the least capability that it needs, and a
worker listens to every queue that it satisfies, the most particular first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from farm.errors import UsageError
from farm.model import Backend

__all__ = ["backend_of", "closure", "queue_of", "queue_to"]

BACKENDS: tuple[Backend, ...] = get_args(Backend)
PREFIX = "bench."


def backend_of(capability: str) -> Backend:
    """Return the backend that ``capability`` begins with. Raises UsageError naming the backends there are."""
    for backend in BACKENDS:
        if capability == backend or capability.startswith(f"{backend}."):
            return backend
    raise UsageError(f"capability '{capability}' begins with no backend; allowed are {', '.join(BACKENDS)}")


def queue_of(capability: str) -> str:
    """Return the name of the queue that cells needing ``capability`` wait on."""
    return f"{PREFIX}{capability}"


def queue_to(worker: str) -> str:
    """Return the name of the queue that ``worker`` alone takes from."""
    return f"{PREFIX}to.{worker}"


def closure(capabilities: Iterable[str]) -> list[str]:
    """Return every capability that ``capabilities`` satisfy, the most particular first, then by name."""
    found = set()
    for capability in capabilities:
        parts = capability.split(".")
        found |= {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    return sorted(found, key=lambda name: (-name.count("."), name))
