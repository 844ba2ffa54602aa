"""A runner in memory: it answers as the real one does, with step times that a test draws."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from farm.model import Outcome
from workers.duet import Life
from workers.session import ArmEnded

#: Nanoseconds of a step.
Draw = Callable[[Life, np.random.Generator], float]


class FakeSession:
    """One process: its steps are ``level`` ns with 1 % of noise; ``dies_in`` is the window that it ends in."""

    def __init__(self, level: float, seed: int, *, dies_in: int | None = None) -> None:
        self.level = level
        self.generator = np.random.default_rng(seed)
        self.windows = 0
        self.dies_in = dies_in
        self.before_death: Callable[[], None] = lambda: None
        self.closed = False

    def hello(self, timeout_s: float) -> dict[str, Any]:
        return {"import_ns": 2_000_000_000}

    def request(self, op: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        if op == "setup":
            return {"setup_ns": 10**7, "first_step_ns": round(3 * self.level), "output_digest": "aa"}
        assert op == "window"
        self.windows += 1
        if self.windows == self.dies_in:
            self.before_death()
            raise ArmEnded(Outcome.CRASHED, "SIGSEGV in 'window'")
        steps = np.round(self.level * self.generator.normal(1.0, 0.01, fields["steps"])).astype("<u8")
        wall = int(steps.sum())
        return {"steps_ns": steps.tobytes(), "wall_ns": wall, "cpu_ns": wall, "minor_faults": 0, "sync_ns": 7}

    def close(self) -> None:
        self.closed = True


class Fleet:
    """Starts fake sessions and remembers whom; ``levels`` are ns a step by arm, each process ``sd`` apart."""

    def __init__(self, levels: dict[str, float], *, sd: float = 0.003, seed: int = 7) -> None:
        self.levels = levels
        self.sd = sd
        self.lives: list[Life] = []
        self.sessions: list[FakeSession] = []
        self.dies: dict[tuple[str, int], int] = {}
        self.before_death: Callable[[], None] = lambda: None
        self._random = random.Random(seed)

    def start(self, life: Life) -> Any:
        self.lives.append(life)
        level = self.levels[life.arm] * (1 + self._random.gauss(0, self.sd))
        session = FakeSession(level, self._random.randrange(2**32), dies_in=self.dies.get((life.arm, life.restart)))
        session.before_death = self.before_death
        self.sessions.append(session)
        return session
