"""Recordings made of numbers: what a replay must say of them is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.recording import ARMS, SLOW, WARM_UP, Life, Recorded, Recording

SHARES = (0.02, 0.03, 0.05)
STEP_NS = 20_000_000
STEPS = 6
START_NS = 1_000_000_000
SETUP_NS = 100_000_000


@pytest.fixture
def made() -> Callable[..., Recording]:
    """A maker of recordings: level over the clock, and scatter of processes and of steps (of ln)."""

    def make(
        lives: int = 60,
        *,
        level: Callable[[float], float] = lambda minutes: 1.0,
        processes: float = 0.0,
        steps: float = 0.0,
        seed: int = 1,
    ) -> Recording:
        chance = np.random.default_rng(seed)
        facts = {"work": "made", "condition": "quiet", "shares": list(SHARES), "machine": {"cpu": "none"}}
        recording = Recording(facts)
        now = 0
        for number in range(lives):
            share = SHARES[number % len(SHARES)]
            life = Life(share=share, start_ns=now)
            now += START_NS
            life.ready_ns = now
            now += len(ARMS) * SETUP_NS
            life.processes = {arm: process(place) for place, arm in enumerate(ARMS)}
            levels = {arm: np.exp(chance.normal(0, processes)) * (1 + share if arm == SLOW else 1) for arm in ARMS}
            for block in (WARM_UP, WARM_UP, *range(6)):
                order = [*ARMS] if block == WARM_UP else [*ARMS, *reversed(ARMS)]
                for position, arm in enumerate(order):
                    taken = STEP_NS * levels[arm] * level(now / 60e9) * np.exp(chance.normal(0, steps, STEPS))
                    kept = np.round(taken).astype(np.int64) // 10 * 10
                    wall = int(kept.sum())
                    life.windows.append(Recorded(arm, block, position, now, kept, wall, wall, 0))
                    now += wall
            life.end_ns = now
            recording.lives.append(life)
        return recording

    return make


def process(place: int) -> dict[str, int | bool]:
    return {
        "order": place,
        "hello_ns": START_NS,
        "import_ns": START_NS,
        "setup_wall_ns": SETUP_NS,
        "setup_ns": SETUP_NS // 2,
        "first_step_ns": SETUP_NS // 2,
        "steady": True,
    }
