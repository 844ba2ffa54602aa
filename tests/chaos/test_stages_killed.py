"""A coordinator and a server that die between two stages: the run goes on in the stage where it was."""

from __future__ import annotations

import pytest

from farm.model import RunState
from tests.chaos.conftest import Fleet, until
from tests.farm.test_stages import in_stages

pytestmark = pytest.mark.chaos


def test_a_coordinator_that_is_killed_while_a_stage_ends_begins_the_next_one(fleet: Fleet) -> None:
    fleet.seconds.write_text("0.5")
    fleet.start_worker("blue")
    plan = in_stages()
    run = fleet.client.submit(plan)
    fleet.wait_for_start(2)
    fleet.kill("aggregator")
    # The first stage ends while nobody looks.
    until(lambda: len(fleet.lines("end")) >= 2, "the end of the first stage")
    fleet.start_aggregator()
    fleet.wait_for_start(4)
    fleet.kill("aggregator")
    # And in the second one the server forgets what was on its way.
    fleet.server.flushall()
    fleet.start_aggregator()
    # What the sleeping worker answers has no rehearsal in it, so that nobody goes into service.
    assert fleet.wait(run) is RunState.COMPLETE
    evidence = fleet.evidence(run)
    stages = {cell.id: cell.stage for cell in plan.cells}
    started = [stages[line["cell"]] for line in fleet.lines()]
    assert started == sorted(started, key=["single", "gates", "canary"].index)
    assert len(evidence.results) + len(evidence.skipped) == len(plan.cells)
