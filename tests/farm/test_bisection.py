"""What a walk over nightlies measures next and what it concludes, from answers and figures alone."""

from __future__ import annotations

from typing import Any

import pytest

from farm.again import Inquiry
from farm.bisection import (
    absent_days,
    answer_of,
    concluded,
    next_probe,
    standing,
    step_cell,
    steps_left,
    verdicts_of,
)
from farm.model import Bisection, BisectionStep, CellResult, Gate, Outcome
from tests import evidence as made

NIGHTS = tuple(f"2.13.0.dev202606{day:02d}" for day in range(1, 10))


def probe(day: int, answer: Any, purpose: Any = "probe", revision: str = "") -> BisectionStep:
    return BisectionStep(
        purpose=purpose,
        version=NIGHTS[day - 1],
        beside="2.12.1",
        answer=answer,
        reason=f"as seen on {day}",
        revision=revision,
    )


def end(purpose: Any, version: str, answer: Any, revision: str = "") -> BisectionStep:
    return BisectionStep(
        purpose=purpose, version=version, beside="2.12.1", answer=answer, reason="as seen", revision=revision
    )


ENDS = (end("bad end", "2.13.0", "bad"), end("good end", "2.12.1", "good"))


def walk(*steps: BisectionStep, nights: tuple[str, ...] = NIGHTS) -> Bisection:
    return concluded(
        Bisection(
            run_id="r-1",
            cell_id="block/infer@cpu",
            tier="serving",
            gates=(Gate.LATENCY,),
            complete=False,
            created="2026-07-01T10:00:00+00:00",
            good="2.12.1",
            bad="2.13.0",
            nights=nights,
            environments={},
            steps=steps,
        )
    )


def walked(truth: dict[int, Any], default: Any) -> list[int]:
    """Return the days that are measured, in order, where each gives what ``truth`` says of it."""
    steps: list[BisectionStep] = []
    while (version := next_probe(NIGHTS, steps)) is not None:
        day = NIGHTS.index(version) + 1
        steps.append(probe(day, truth.get(day, default(day))))
    return [NIGHTS.index(step.version) + 1 for step in steps]


@pytest.mark.parametrize("culprit", range(1, 11))
def test_every_culprit_is_found_in_at_most_four_measurements_of_nine(culprit: int) -> None:
    """A culprit of 10 is the bad end itself."""
    days = walked({}, lambda day: "bad" if day >= culprit else "good")
    assert len(days) <= 4
    steps = [probe(day, "bad" if day >= culprit else "good") for day in days]
    assert standing(NIGHTS, steps) == (culprit - 2, culprit - 1, frozenset())


def test_the_middle_comes_first_and_a_neighbour_of_what_cannot_be_told_or_installed_next() -> None:
    truth = {5: "cannot be told", 4: "cannot be installed", 6: "cannot be told"}
    assert walked(truth, lambda day: "bad" if day >= 8 else "good") == [5, 4, 6, 3, 7, 8]


def test_what_is_open_between_good_and_bad_ends_the_walk_and_is_named() -> None:
    steps = (*ENDS, probe(5, "cannot be told"), probe(4, "good"), probe(7, "bad"), probe(6, "cannot be installed"))
    found = walk(*steps)
    assert next_probe(NIGHTS, steps) is None
    assert (found.last_good, found.first_bad, found.skipped) == (NIGHTS[3], NIGHTS[6], (NIGHTS[4], NIGHTS[5]))
    assert found.conclusion == (
        f"the first bad one is {NIGHTS[4]} or {NIGHTS[5]} or {NIGHTS[6]}: {NIGHTS[3]} is good, {NIGHTS[6]} is bad, and "
        f"between them {NIGHTS[4]} cannot be told, {NIGHTS[5]} cannot be installed; not confirmed yet"
    )


def test_a_walk_tells_how_much_is_left_of_it() -> None:
    assert steps_left(NIGHTS, ()) == 4 + 3
    assert steps_left(NIGHTS, (*ENDS, probe(5, "good"))) == 3 + 1
    assert steps_left(("one",), ENDS) == 1 + 1


FOUND = (*ENDS, probe(5, "good"), probe(7, "bad", revision="b" * 40), probe(6, "good", revision="a" * 40))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("bad", "; confirmed beside each other: as seen on 7"),
        (
            "good",
            "; not confirmed: beside each other 2.13.0.dev20260607 is no worse (as seen on 7), so the change came ",
        ),
        ("cannot be told", "; not confirmed: measured again beside each other 2.13.0.dev20260607 cannot be told: as s"),
    ],
)
def test_the_first_bad_one_is_named_with_its_revisions_and_what_the_confirmation_says(answer: str, said: str) -> None:
    found = walk(*FOUND, probe(7, answer, "confirmation", revision="b" * 40))
    head = f"{NIGHTS[6]} is the first bad one, {NIGHTS[5]} the last good one (torch {'a' * 12}..{'b' * 12})"
    assert found.conclusion.startswith(head + said)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (
            (end("bad end", "2.13.0", "good"),),
            "cannot be bisected: the ends do not differ here, 2.13.0 is no worse than 2.12.1 (as seen)",
        ),
        (
            (end("bad end", "2.13.0", "cannot be installed"),),
            "cannot be bisected: the bad end, 2.13.0 cannot be installed: as seen",
        ),
        (
            (ENDS[0], end("good end", "2.12.1", "bad")),
            "cannot be bisected: 2.12.1 beside itself is not good here, so nothing that differs from it says anything "
            "(bad: as seen)",
        ),
        ((*ENDS, probe(5, "good")), f"not finished: between {NIGHTS[4]} and 2.13.0"),
        (ENDS[:1], ""),
    ],
)
def test_ends_that_are_not_what_they_should_be_are_said(steps: tuple[BisectionStep, ...], said: str) -> None:
    assert walk(*steps).conclusion == said


def test_days_without_a_nightly_are_named_whatever_their_release_is_called() -> None:
    versions = [
        "2.12.1",
        "2.13.0.dev20260530",
        "2.13.0.dev20260601",
        "2.14.0.dev20260605",
        "2.14.0.dev20260606",
        "2.14",
    ]
    assert absent_days(versions) == ("20260531", "20260602 to 20260604")
    assert absent_days(["2.13.0.dev1", "2.13.0.dev99999999"]) == ()


GATES = (Gate.CORRECTNESS, Gate.LATENCY)


def told(bad_end: BisectionStep | None = None, **seen: Any) -> tuple[str, str]:
    cell, result = measured(**seen)
    return answer_of(result, verdicts_of(cell, result, made.tier()), bad_end, made.tier())


def measured(**seen: Any) -> tuple[Any, CellResult]:
    of = made.cell()
    keys = [environment.key for environment in made.ENVIRONMENTS.values()]
    cell = step_cell(Inquiry(made.run_of(of), of, made.tier(), GATES), keys[0], keys[1], made.HOST.target)
    return cell, made.result(cell, **seen)


def bad_end(**seen: Any) -> BisectionStep:
    cell, result = measured(**seen)
    return end("bad end", "2.13.0", "bad").model_copy(update={"cell": cell, "result": result})


WRONG = {"candidate": made.ok(outputs={"y": made.output(rms_error=1e-2, max_error=5e-2)})}


def test_a_step_is_the_runs_work_by_one_tiers_limits_and_in_no_plan() -> None:
    cell, _ = measured()
    assert [arm.name for arm in cell.arms] == ["baseline", "candidate"]
    assert (cell.kind, cell.gates, cell.measuring.p50_limits) == ("bisection", GATES, (1.03,))
    assert (cell.measuring.budget_s, cell.measuring.restart_s) == (120.0, 8.0)


@pytest.mark.parametrize(
    ("at_the_bad_end", "seen", "answer"),
    [
        (None, {"times": {"candidate": 11.0}}, "bad"),
        (None, {}, "good"),
        ({"times": {"candidate": 11.0}}, {"times": {"candidate": 12.0}}, "bad"),
        ({"times": {"candidate": 11.0}}, {}, "good"),
        (
            {"times": {"candidate": 11.0}},
            {"times": {"candidate": [10.0, 11.0, 10.0, 11.0, 10.2, 10.8]}},
            "cannot be told",
        ),
        # Slow, and only the results are asked about: what fails there is not what the bad end fails.
        ({"arms": WRONG}, {"times": {"candidate": 12.0}}, "good"),
        # It crashes, and the bad end runs: another fault.
        ({"times": {"candidate": 11.0}}, {"arms": {"candidate": made.ended()}}, "cannot be told"),
        ({"arms": {"candidate": made.ended()}}, {"arms": {"candidate": made.ended()}}, "bad"),
        ({"arms": {"candidate": made.ended()}}, {"times": {"candidate": 12.0}}, "cannot be told"),
        (None, {"arms": {"candidate": made.ended(Outcome.NO_ENVIRONMENT)}}, "cannot be installed"),
    ],
)
def test_a_probe_is_bad_as_the_bad_end_is_good_where_that_passes_and_else_neither(
    at_the_bad_end: dict[str, Any] | None, seen: dict[str, Any], answer: str
) -> None:
    found, reason = told(bad_end(**at_the_bad_end) if at_the_bad_end else None, **seen)
    assert found == answer, reason
