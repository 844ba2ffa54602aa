"""A recording: every window of many restarts with its place on the clock, in one compressed file without pickle.

Three arms are alive at once in each life (a restart of fresh processes): the base, the base again, and one that does
a known share of extra work. Steps are kept in tens of nanoseconds, since a uint32 of nanoseconds ends at 4.3 s.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from farm.model import ArmTiming, Restart, Window, pack_ns

__all__ = ["AGAIN", "ARMS", "BASE", "SLOW", "WARM_UP", "Life", "Recorded", "Recording"]

BASE, AGAIN, SLOW = "base", "again", "slow"
ARMS = (BASE, AGAIN, SLOW)
#: Block number of warm-up windows.
WARM_UP = -1
#: Unit of the steps that are kept, nanoseconds.
STEP_NS = 10
VERSION = 1

#: Columns of the tables: one row a window, one row a life and arm, one row a life.
WINDOW = {
    "life": "<u2",
    "arm": "<u1",
    "block": "<i2",
    "position": "<u1",
    "start_ns": "<i8",
    "wall_ns": "<i8",
    "cpu_ns": "<i8",
    "faults": "<i4",
    "steps": "<u4",
    "waited_ns": "<i8",
    "foreign_ns": "<i8",
    "stolen_ns": "<i8",
}
PROCESS = {
    "order": "<u1",
    "hello_ns": "<i8",
    "import_ns": "<i8",
    "setup_wall_ns": "<i8",
    "setup_ns": "<i8",
    "first_step_ns": "<i8",
    "steady": "?",
}
LIFE = {"share": "<f8", "start_ns": "<i8", "ready_ns": "<i8", "end_ns": "<i8"}


@dataclass(frozen=True)
class Recorded:
    """One window: as the runner answered, with its start on the driver's monotonic clock."""

    arm: str
    block: int
    position: int
    start_ns: int
    steps_ns: np.ndarray
    wall_ns: int
    cpu_ns: int
    faults: int
    waited_ns: int = -1
    """Like the two below -1 where the runner did not say."""
    foreign_ns: int = -1
    stolen_ns: int = -1


@dataclass
class Life:
    """One restart of all arms. Times are nanoseconds since the recording began."""

    share: float
    """Extra work of the slowed arm."""
    start_ns: int
    ready_ns: int = 0
    """Every runner had said hello."""
    end_ns: int = 0
    processes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By arm: the columns of `PROCESS`. ``hello_ns`` is from the start of the process until it had imported torch."""
    windows: list[Recorded] = field(default_factory=list)

    def restart(self, index: int, drop_first_from: int) -> Restart:
        """Return this life as the farm's engine keeps one; windows of ``drop_first_from`` steps drop the first."""
        arms = {}
        for arm in ARMS:
            facts = self.processes[arm]
            mine = [window for window in self.windows if window.arm == arm]
            arms[arm] = ArmTiming(
                import_ns=facts["import_ns"],
                setup_ns=facts["setup_ns"],
                first_step_ns=facts["first_step_ns"],
                warmup_ns=sum(window.wall_ns for window in mine if window.block == WARM_UP),
                steady=facts["steady"],
                output_digest="",
                windows=tuple(_window(window, drop_first_from) for window in mine if window.block != WARM_UP),
            )
        order = sorted(ARMS, key=lambda arm: int(self.processes[arm]["order"]))
        return Restart(index=index, order=tuple(order), arms=arms)


def _window(window: Recorded, drop_first_from: int) -> Window:
    kept = window.steps_ns[1:] if len(window.steps_ns) >= drop_first_from else window.steps_ns
    return Window(
        block=window.block,
        position=window.position,
        steps_ns=pack_ns(kept),
        wall_ns=window.wall_ns,
        cpu_ns=window.cpu_ns,
        minor_faults=window.faults,
    )


@dataclass
class Recording:
    """All lives of one work under one condition, and what must be known of them."""

    facts: dict[str, Any]
    """Work, condition, release, machine, parameters, when it began (UTC)."""
    lives: list[Life] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.facts['work']}, {self.facts['condition']}"

    @property
    def length_ns(self) -> int:
        return self.lives[-1].end_ns if self.lives else 0

    def save(self, path: Path) -> None:
        """Write the whole recording beside ``path`` and put it in its place: a reader never sees half of one."""
        rows = [(number, window) for number, life in enumerate(self.lives) for window in life.windows]
        windows = np.zeros(len(rows), dtype=list(WINDOW.items()))
        for row, (number, window) in zip(windows, rows, strict=True):
            row["life"], row["arm"], row["steps"] = number, ARMS.index(window.arm), len(window.steps_ns)
            for name in WINDOW.keys() - {"life", "arm", "steps"}:
                row[name] = getattr(window, name)
        processes = np.zeros((len(self.lives), len(ARMS)), dtype=list(PROCESS.items()))
        lives = np.zeros(len(self.lives), dtype=list(LIFE.items()))
        for number, life in enumerate(self.lives):
            lives[number] = tuple(getattr(life, name) for name in LIFE)
            for place, arm in enumerate(ARMS):
                processes[number, place] = tuple(life.processes[arm][name] for name in PROCESS)
        steps = [np.asarray(window.steps_ns) // STEP_NS for _, window in rows]
        making = path.with_name(f".{path.name}.making")
        with making.open("wb") as file:
            np.savez_compressed(
                file,
                version=np.array(VERSION),
                facts=np.array(json.dumps(self.facts)),
                lives=lives,
                processes=processes,
                windows=windows,
                steps=np.concatenate(steps).astype("<u4") if steps else np.zeros(0, dtype="<u4"),
            )
        making.replace(path)

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Return the recording at ``path``. Raises ValueError for a file of another version."""
        with np.load(path, allow_pickle=False) as stored:
            if int(stored["version"]) != VERSION:
                raise ValueError(f"'{path}' is a recording of version {stored['version']}, not {VERSION}; record again")
            facts = json.loads(str(stored["facts"]))
            lives, processes, windows = stored["lives"], stored["processes"], stored["windows"]
            steps = stored["steps"].astype(np.int64) * STEP_NS
        found = [
            Life(
                **{name: row[name].item() for name in LIFE},
                processes={
                    arm: {name: processes[number, place][name].item() for name in PROCESS}
                    for place, arm in enumerate(ARMS)
                },
            )
            for number, row in enumerate(lives)
        ]
        ends = np.cumsum(windows["steps"].astype(np.int64))
        plain = [name for name in WINDOW if name not in {"life", "arm", "steps"}]
        for row, end in zip(windows, ends, strict=True):
            kept = steps[end - int(row["steps"]) : end]
            values = {name: row[name].item() for name in plain}
            found[int(row["life"])].windows.append(Recorded(arm=ARMS[int(row["arm"])], steps_ns=kept, **values))
        return cls(facts, found)
