"""The machine around a restart, as far as its measuring asks: what happens to it, and where runners go."""

from __future__ import annotations

from typing import Any

from farm.model import Restart
from workers.pinning import pin_to
from workers.sensors import Processors
from workers.validity import against_restart
from workers.watch import MachineWatch, Watch

__all__ = ["Surroundings", "ThisMachine"]


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


class ThisMachine(Surroundings):
    """The machine as it is; ``cell`` watches the clocks over the whole cell."""

    def __init__(self, backend: str, threads: int, cell: Watch) -> None:
        self._watch = MachineWatch(backend, cell=cell)
        self._processors = Processors()
        self._threads = threads

    def mark(self) -> None:
        self._watch.mark()

    def against(self, restart: Restart) -> str:
        said = [*self._watch.reasons(), against_restart(restart)]
        return "; ".join(dict.fromkeys(filter(None, said)))

    def cores(self, index: int) -> tuple[int, ...]:
        return pin_to(index, self._threads)

    def reading(self) -> Any:
        return self._processors.reading()

    def between(self, before: Any, after: Any, own_cpu_ns: int) -> tuple[int | None, int | None]:
        return self._processors.between(before, after, own_cpu_ns)
