"""The machine around a restart, as far as its measuring asks: what happens to it, and where runners go."""

from __future__ import annotations

from typing import Any

from farm.model import Restart

__all__ = ["Surroundings"]


class Surroundings:
    """Nothing is watched and nobody is pinned: for a stretch that is measured by hand."""

    def mark(self) -> None:
        """Note how the machine is: what `against` says happens from here on."""

    def against(self, restart: Restart) -> str:
        """Return why ``restart`` is not to be judged, from what happened since `mark` and from its own windows."""
        return ""

    def cores(self, index: int) -> tuple[int, ...]:
        """Return the processors that the runners of restart ``index`` are pinned to; empty is all."""
        return ()

    def reading(self) -> Any:
        """Return the machine's processor times, read around every window."""
        return None

    def between(self, before: Any, after: Any, own_cpu_ns: int) -> tuple[int | None, int | None]:
        """Return the processor time (ns) of all others, and what the hypervisor took; None where it is hidden."""
        return None, None
