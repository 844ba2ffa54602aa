"""The first bad nightly between a good and a bad release: what is measured next, and what the answers mean.

A probe is measured beside the good end, the cell's own work by one tier's limits. It is bad where a gate fails that the
bad end fails too and it ended as that did; good where all of those pass; anything else is neither, and a neighbour is
measured in its place. Like every bisection it finds *a* change from good to bad: of several it finds one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from itertools import pairwise

from packaging.version import Version

from farm.again import Inquiry, again_cell
from farm.gates import GateQuestion, judge_gate
from farm.model import (
    Bisection,
    BisectionAnswer,
    BisectionStep,
    Cell,
    CellResult,
    Outcome,
    Question,
    Side,
    Status,
    Tier,
    Verdict,
)

__all__ = [
    "absent_days",
    "answer_of",
    "concluded",
    "next_probe",
    "standing",
    "step_cell",
    "steps_left",
    "verdicts_of",
]


def absent_days(versions: Iterable[str]) -> tuple[str, ...]:
    """Return the days between the first and the last nightly for which there is none, consecutive ones as a range."""
    days = sorted(day for version in versions if (day := _day(version)) is not None)
    found = []
    for before, after in pairwise(days):
        first, last = before + timedelta(days=1), after - timedelta(days=1)
        if first == last:
            found.append(f"{first:%Y%m%d}")
        elif first < last:
            found.append(f"{first:%Y%m%d} to {last:%Y%m%d}")
    return tuple(found)


def step_cell(inquiry: Inquiry, reference: str, probe: str, target: str) -> Cell:
    """Return the cell that measures environment ``probe`` beside ``reference`` (keys), as candidate and baseline."""
    arms = {Side.BASELINE.value: reference, Side.CANDIDATE.value: probe}
    return again_cell(inquiry, arms, target).model_copy(update={"kind": "bisection"})


def verdicts_of(cell: Cell, result: CellResult, tier: Tier) -> tuple[Verdict, ...]:
    """Return what each gate of a step says of its release."""
    asked = GateQuestion(
        cell=cell,
        result=result,
        question=Question.VERSION,
        arm=Side.CANDIDATE.value,
        reference=Side.BASELINE.value,
        tier=tier,
    )
    return tuple(judge_gate(gate, asked) for gate in cell.gates)


def answer_of(
    result: CellResult, verdicts: Sequence[Verdict], bad_end: BisectionStep | None, tier: Tier
) -> tuple[BisectionAnswer, str]:
    """Return good, bad or neither, with the reason. ``bad_end`` is None for the bad end itself.

    The gates that count are those that the bad end fails, and what ended in another way than the bad end did has
    another fault.
    """
    ended = result.arms[Side.CANDIDATE]
    if ended.outcome is Outcome.NO_ENVIRONMENT:
        return "cannot be installed", _words([ended.reason, *ended.log_tail.strip().splitlines()[-1:]])
    failed = [verdict.gate for verdict in verdicts if verdict.status is Status.FAIL]
    as_there: Outcome = ended.outcome
    if bad_end is not None:
        assert bad_end.cell is not None
        assert bad_end.result is not None
        there = verdicts_of(bad_end.cell, bad_end.result, tier)
        failed = [verdict.gate for verdict in there if verdict.status is Status.FAIL]
        as_there = bad_end.result.arms[Side.CANDIDATE].outcome
    counted = [verdict for verdict in verdicts if verdict.gate in failed or not failed]
    said = "; ".join(f"{verdict.gate} {verdict.status}: {verdict.reason}" for verdict in counted)
    if any(verdict.status is Status.FAIL for verdict in counted):
        if ended.outcome is not as_there:
            return "cannot be told", f"another fault than at the bad end, which is {as_there}: {said}"
        return "bad", said
    if counted and all(verdict.status is Status.PASS for verdict in counted):
        return "good", said
    return "cannot be told", said


def standing(nights: Sequence[str], steps: Iterable[BisectionStep]) -> tuple[int, int, frozenset[int]]:
    """Return the places of the last good and the first bad one, and of those between that are neither.

    The good end is at -1, the bad end at the number of nights.
    """
    answers = {step.version: step.answer for step in steps if step.purpose == "probe"}
    places = {version: place for place, version in enumerate(nights)}
    bad = min((places[version] for version, answer in answers.items() if answer == "bad"), default=len(nights))
    good = max(
        (places[version] for version, answer in answers.items() if answer == "good" and places[version] < bad),
        default=-1,
    )
    between = range(good + 1, bad)
    return good, bad, frozenset(place for place in between if nights[place] in answers)


def next_probe(nights: Sequence[str], steps: Iterable[BisectionStep]) -> str | None:
    """Return the nightly in the middle of what is open, or its nearest neighbour that was not tried; None: no more."""
    good, bad, skipped = standing(nights, steps)
    open_ = [place for place in range(good + 1, bad) if place not in skipped]
    middle = (good + bad) / 2
    return nights[min(open_, key=lambda place: (abs(place - middle), place))] if open_ else None


def steps_left(nights: Sequence[str], steps: Sequence[BisectionStep]) -> int:
    """Return how many measurements are to come if each gives an answer, both ends and the confirmation with them."""
    good, bad, skipped = standing(nights, steps)
    open_ = bad - good - 1 - len(skipped)
    done = {step.purpose for step in steps}
    return open_.bit_length() + 3 - len(done & {"bad end", "good end", "confirmation"})


def concluded(bisection: Bisection) -> Bisection:
    """Return ``bisection`` with what its steps say: last good, first bad, what is open between, one sentence."""
    ends = {step.purpose: step for step in bisection.steps}
    bad_end, good_end = ends.get("bad end"), ends.get("good end")
    if bad_end is not None and bad_end.answer != "bad":
        return bisection.model_copy(update={"conclusion": _no_bad_end(bisection, bad_end)})
    if good_end is not None and good_end.answer != "good":
        said = (
            f"cannot be bisected: {bisection.good} beside itself is not good here, so nothing that differs from it "
            f"says anything ({good_end.answer}: {good_end.reason})"
        )
        return bisection.model_copy(update={"conclusion": said})
    if bad_end is None or good_end is None:
        return bisection
    good, bad, skipped = standing(bisection.nights, bisection.steps)
    names: Mapping[int, str] = dict(enumerate(bisection.nights)) | {
        -1: bisection.good,
        len(bisection.nights): bisection.bad,
    }
    found = bisection.model_copy(
        update={
            "last_good": names[good],
            "first_bad": names[bad],
            "skipped": tuple(names[place] for place in sorted(skipped)),
        }
    )
    if next_probe(bisection.nights, bisection.steps) is not None:
        return found.model_copy(update={"conclusion": f"not finished: between {names[good]} and {names[bad]}"})
    return found.model_copy(update={"conclusion": _found(found, ends.get("confirmation"))})


def _no_bad_end(bisection: Bisection, step: BisectionStep) -> str:
    if step.answer == "good":
        return (
            f"cannot be bisected: the ends do not differ here, {bisection.bad} is no worse than {bisection.good} "
            f"({step.reason})"
        )
    return f"cannot be bisected: the bad end, {_neither(step)}: {step.reason}"


def _found(found: Bisection, confirmation: BisectionStep | None) -> str:
    if found.skipped:
        steps = {step.version: step for step in found.steps if step.purpose == "probe"}
        said = (
            f"the first bad one is {' or '.join([*found.skipped, found.first_bad or ''])}: {found.last_good} is good, "
            f"{found.first_bad} is bad, and between them {', '.join(_neither(steps[one]) for one in found.skipped)}"
        )
    else:
        said = f"{found.first_bad} is the first bad one, {found.last_good} the last good one"
    if revisions := _revisions(found):
        said += f" (torch {revisions})"
    if confirmation is None:
        return f"{said}; not confirmed yet"
    if confirmation.answer == "bad":
        return f"{said}; confirmed beside each other: {confirmation.reason}"
    if confirmation.answer == "good":
        return (
            f"{said}; not confirmed: beside each other {found.first_bad} is no worse ({confirmation.reason}), so the "
            "change came in more than one step, or comes and goes"
        )
    return f"{said}; not confirmed: measured again beside each other {_neither(confirmation)}: {confirmation.reason}"


def _neither(step: BisectionStep) -> str:
    return f"{step.version} {step.answer}"


def _revisions(found: Bisection) -> str:
    revisions = {step.version: step.revision for step in found.steps if step.purpose != "confirmation"}
    pair = [revisions.get(version or "", "") for version in (found.last_good, found.first_bad)]
    return "..".join(revision[:12] for revision in pair) if all(pair) else ""


def _day(version: str) -> date | None:
    number = Version(version).dev
    try:
        return date.fromisoformat(str(number)) if number is not None and number > 10**7 else None
    except ValueError:
        return None


def _words(parts: Sequence[str]) -> str:
    return ": ".join(part for part in parts if part)
