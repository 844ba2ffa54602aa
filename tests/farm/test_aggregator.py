"""The aggregator outlives a server that goes at any moment, and a submission that makes no sense."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import redis
from kombu.exceptions import OperationalError

from farm import aggregator as module
from farm.aggregator import Aggregator
from farm.broker import keys
from farm.envelope import pack
from farm.settings import Home
from tests.evidence import cell, plan, tier


@pytest.mark.parametrize(
    "away", [OperationalError("refused"), redis.ConnectionError("reset"), OSError("broken pipe")], ids=lambda e: type(e)
)
def test_a_server_that_goes_while_an_order_is_sent_is_waited_for(
    away: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, farm_server: str
) -> None:
    ticks = []

    def tick(_: Aggregator) -> None:
        ticks.append(1)
        if len(ticks) == 1:
            raise away
        os.kill(os.getpid(), signal.SIGTERM)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr(Aggregator, "tick", tick)
    monkeypatch.setenv("FARM_URL", farm_server)
    monkeypatch.setenv("FARM_HOME", str(tmp_path / "home"))
    try:
        assert module.main() == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert len(ticks) == 2


def test_a_plan_that_names_a_cell_twice_is_refused_and_the_next_is_taken(
    server: Any, farm_server: str, tmp_path: Path
) -> None:
    taker = Aggregator(Home(tmp_path / "home").prepare(), farm_server, "coordinator")
    twice = plan([cell(), cell()], [tier()])
    server.xadd(keys.SUBMIT, {"token": "aaaaaaaa", "plan": pack(twice)})
    server.xadd(keys.SUBMIT, {"token": "bbbbbbbb", "plan": pack(plan([cell()], [tier()]))})
    taker.tick()
    assert server.get(keys.created("aaaaaaaa")) is None
    assert server.get(keys.created("bbbbbbbb")) is not None
    assert server.xlen(keys.SUBMIT) == 0


def test_a_submission_that_comes_twice_is_one_run(server: Any, farm_server: str, tmp_path: Path) -> None:
    taker = Aggregator(Home(tmp_path / "home").prepare(), farm_server, "coordinator")
    for _ in range(2):
        server.xadd(keys.SUBMIT, {"token": "cccccccc", "plan": pack(plan([cell()], [tier()]))})
        taker.tick()
    assert len(taker.store.runs()) == 1
    assert server.xlen(keys.SUBMIT) == 0
