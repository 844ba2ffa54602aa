"""A plan tells how long it takes and what it can resolve before anything is measured."""

from __future__ import annotations

import re

from cli.plan import describe
from tests.farm.test_budget import noisy
from tests.farm.test_plan import build, host, planned


def said(*hosts: object, suite: str = "standard") -> str:
    machines = tuple(hosts)
    return describe(planned(hosts=machines, suite=suite, resolve=build), machines)  # type: ignore[arg-type]


def test_a_machine_that_was_never_calibrated_is_told_how() -> None:
    text = said(host("cpu"))
    (line,) = (line for line in text.splitlines() if line.startswith("cpu: "))
    assert re.match(r"cpu: \d+ cells, about ", line)
    assert "estimated from the suite's restarts" in line
    assert "  bench-1: not calibrated: farm calibrate" in text


def test_a_calibrated_machine_says_what_it_resolves_and_speaks_for_the_time() -> None:
    text = said(noisy(0.006))
    assert "estimated from the calibration of bench-1" in text
    (line,) = (line for line in text.splitlines() if line.startswith("  bench-1 resolves 0.7"))
    assert line.endswith(" % with 95 % (noise 0.60 % from restart to restart, calibrated 2026-07-01)")
    assert "expect 'inconclusive'" not in text


def test_a_noisy_machine_is_said_to_need_more_than_the_suite_gives() -> None:
    text = said(noisy(0.08), host("cpu").model_copy(update={"name": "other"}))
    assert "bench-1: 3 % needs " in text
    assert "expect 'inconclusive' there" in text
    assert "  other: not calibrated: farm calibrate" in text
    assert "on each of 2 machines" in text


def test_controls_are_shown_as_such_and_devices_are_not_judged_by_the_processors_noise() -> None:
    machine = noisy(0.006, "cpu", "cuda.sm90")
    text = said(machine)
    controls = sum(cell.kind == "aa" for cell in planned(hosts=(machine,), suite="standard", resolve=build).cells)
    assert controls >= 2
    assert sum(" A/A " in line for line in text.splitlines()) == controls
    assert "  bench-1: what it resolves is not known; farm calibrate measures the processor" in text
