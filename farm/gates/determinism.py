"""Determinism: the same work repeats bit by bit, in one process and across restarts, within one release.

That two releases differ from each other is no fault of either (CASES.md C2): correctness says so as a note.
"""

from __future__ import annotations

from farm.gates.question import GateQuestion
from farm.model import Figure, Gate, Question, Status, Verdict

__all__ = ["judge"]


def judge(asked: GateQuestion) -> Verdict:
    """Return the verdict: `bitwise` asks the challenger to repeat, `no worse` asks it only where the reference does."""
    kind = asked.tier.determinism
    if kind == "off":
        return _verdict(Status.NOT_APPLICABLE, "the tier does not ask for it")
    found = _repeats(asked, asked.arm)
    if found is None:
        return _verdict(Status.UNTESTED, "no repeats were made")
    differing, words, count = found
    threads = asked.cell.control.determinism_threads
    figure = Figure(name="distinct results", value=count, limit=1.0)
    if not differing:
        restarts = " and across restarts" if len(_lives(asked, asked.arm)) > 1 else ""
        return _verdict(Status.PASS, f"bitwise repeatable at {threads} threads{restarts}", figure)
    if kind == "no worse" and not asked.reference_ran:
        # Without a reference nothing can be worse than it; a gain is not earned that way.
        status = Status.UNTESTED if asked.question is Question.FEATURE else Status.NOT_APPLICABLE
        return _verdict(status, f"{words}, and {asked.reference} did not run", figure)
    reference = _repeats(asked, asked.reference) if asked.reference_ran else None
    if kind == "no worse" and reference is None:
        return _verdict(Status.UNTESTED, f"{words}, and no repeats of {asked.reference} were made", figure)
    reference_too = reference is not None and reference[0]
    if kind == "no worse" and reference_too:
        return _verdict(Status.PASS, f"{words}, and neither does {asked.reference}", figure)
    return _verdict(Status.FAIL, words + (f"; neither does {asked.reference}" if reference_too else ""), figure)


def _repeats(asked: GateQuestion, name: str) -> tuple[bool, str, float] | None:
    """Return whether repeats differ, in words, and how many distinct results there were."""
    assert asked.result is not None
    examination = asked.result.arms[name].examination
    if examination is None or len(examination.repeat_digests) < 2:
        return None
    digests = examination.repeat_digests
    threads = asked.cell.control.determinism_threads
    if len(set(digests)) > 1:
        words = f"{len(set(digests))} different results of {len(digests)} repeats at {threads} threads"
        return True, f"does not repeat: {words}", len(set(digests))
    lives = _lives(asked, name)
    if len(set(lives)) > 1:
        return True, f"does not repeat: {len(set(lives))} different results of {len(lives)} restarts", len(set(lives))
    return False, "", 1.0


def _lives(asked: GateQuestion, name: str) -> list[str]:
    """Return the digest of the first step of every restart of an arm."""
    assert asked.result is not None
    digests = [restart.arms[name].output_digest for restart in asked.result.restarts if name in restart.arms]
    # Evidence that was written by hand may know none, and nothing is alike in what is not known.
    return [digest for digest in digests if digest]


def _verdict(status: Status, reason: str, figure: Figure | None = None) -> Verdict:
    return Verdict(gate=Gate.DETERMINISM, status=status, reason=reason, figure=figure)
