"""Which package beside torch carries a change: what moved, environments that hold it, and what the answers mean.

An arm of an isolation is the candidate with something held at the baseline's version. A held package *carries the
change* where the held arm passes the gate that the candidate fails in the same measurement and, for times, is faster
than the candidate beyond chance. Holding one at a time says nothing of packages that change a figure only together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from farm.again import Inquiry, again_cell
from farm.gates import GateQuestion, judge_gate
from farm.model import (
    Cell,
    CellResult,
    Environment,
    Gate,
    Held,
    HeldAnswer,
    HeldVerdict,
    Isolation,
    IsolationRound,
    MovedPackage,
    Outcome,
    Question,
    Side,
    Status,
    Tier,
    Verdict,
)
from farm.statistics import Quantity, counted, ratio_interval

__all__ = [
    "HELD_AT_ONCE",
    "again_of",
    "carriers_of",
    "companions_of",
    "conclude",
    "groups",
    "held_environment",
    "isolation_cell",
    "moved_packages",
    "rounds_of",
    "split",
    "verdicts_of",
]

#: Vendors release these together and torch pins them together: cuDNN of one CUDA beside cuBLAS of another seldom loads.
VENDOR = re.compile(r"^(nvidia-|cuda-|rocm|amd-)")
VENDOR_GROUP = "vendor libraries"
#: Held arms of one measurement: four runners are then alive at once, and a device holds them all.
HELD_AT_ONCE = 2
#: What is read of restarts to compare the held arm with the candidate.
QUANTITIES: Mapping[Gate, Quantity] = {Gate.LATENCY: "p50", Gate.THROUGHPUT: "mean"}


def moved_packages(baseline: Environment, candidate: Environment) -> tuple[MovedPackage, ...]:
    """Return every package but torch whose version or wheel differs between the locks."""
    old = {package.name: package for package in baseline.packages}
    new = {package.name: package for package in candidate.packages}
    found = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        same = before is not None and after is not None and before.sha256 == after.sha256
        if name != "torch" and not same:
            versions = (before.version if before else None, after.version if after else None)
            found.append(MovedPackage(name=name, baseline=versions[0], candidate=versions[1]))
    return tuple(found)


def groups(moved: Iterable[MovedPackage]) -> tuple[Held, ...]:
    """Return what is held first: the vendor's libraries together, every other package by itself."""
    vendor = tuple(package for package in moved if VENDOR.match(package.name))
    singles = [Held(name=p.name, packages=(p,)) for p in moved if not VENDOR.match(p.name)]
    if len(vendor) > 1:
        return (*singles, Held(name=VENDOR_GROUP, packages=vendor))
    return (*singles, *(Held(name=package.name, packages=(package,)) for package in vendor))


def split(held: Held) -> tuple[Held, ...]:
    """Return the packages of a group one by one; nothing for what is one package already."""
    if len(held.packages) < 2:
        return ()
    return tuple(Held(name=package.name, packages=(package,)) for package in held.packages)


def rounds_of(held: Sequence[Held]) -> list[tuple[Held, ...]]:
    """Return ``held`` in measurements of at most `HELD_AT_ONCE`."""
    return [tuple(held[start : start + HELD_AT_ONCE]) for start in range(0, len(held), HELD_AT_ONCE)]


def held_environment(baseline: Environment, candidate: Environment, held: Held) -> Environment:
    """Return the candidate's lock with ``held`` as the baseline's lock has it, wheel and hash; or without it."""
    names = {package.name for package in held.packages}
    kept = [package for package in candidate.packages if package.name not in names]
    kept += [package for package in baseline.packages if package.name in names]
    return candidate.model_copy(update={"packages": tuple(sorted(kept, key=lambda package: package.name))})


def isolation_cell(inquiry: Inquiry, keys: Mapping[Side, str], held: Mapping[Held, str], target: str) -> Cell:
    """Return the cell that measures both sides of a run, and beside them an arm for each of ``held``.

    ``keys`` and ``held`` give the key of each arm's environment for ``target``.
    """
    arms = {side.value: key for side, key in keys.items()} | {one.arm: key for one, key in held.items()}
    return again_cell(inquiry, arms, target).model_copy(update={"kind": "isolation"})


def verdicts_of(round_: IsolationRound, tier: Tier) -> tuple[HeldVerdict, ...]:
    """Return what holding each of a round's packages did to each of its gates."""
    found = []
    for gate in round_.cell.gates:
        candidate = _judged(round_, gate, Side.CANDIDATE.value, tier)
        for held in round_.held:
            answer, reason = _answer(round_, gate, held, candidate, tier)
            found.append(HeldVerdict(held=held, gate=gate, answer=answer, reason=reason))
    return tuple(found)


def again_of(round_: IsolationRound, tier: Tier) -> dict[Gate, Verdict]:
    """Return what the candidate as it is gets this time, by gate."""
    return {gate: _judged(round_, gate, Side.CANDIDATE.value, tier) for gate in round_.cell.gates}


def carriers_of(verdicts: Iterable[HeldVerdict], gate: Gate) -> tuple[str, ...]:
    """Return the packages that carry the change of ``gate``: the single ones where a group was split in vain too."""
    carrying = [v.held for v in verdicts if v.gate is gate and v.answer == "carries the change"]
    singles = [held for held in carrying if len(held.packages) == 1]
    inside = {package.name for held in singles for package in held.packages}
    alone = [held for held in carrying if len(held.packages) > 1 and not inside & {p.name for p in held.packages}]
    return tuple(dict.fromkeys(package.name for held in (*singles, *alone) for package in held.packages))


def companions_of(isolations: Iterable[Isolation]) -> dict[tuple[str, str, Gate], str]:
    """Return what carries a failing gate, in words, by tier, cell and gate; of two isolations of one the later."""
    found: dict[tuple[str, str, Gate], str] = {}
    for isolation in sorted((one for one in isolations if one.complete), key=lambda one: one.created):
        versions = {package.name: package.baseline or "none" for package in isolation.moved}
        for gate in isolation.gates:
            held = [f"{name} {versions.get(name, 'none')}" for name in isolation.carriers.get(gate, ())]
            key = (isolation.tier, isolation.cell_id, gate)
            found.pop(key, None)
            if held:
                found[key] = f"companion {', '.join(held)}"
    return found


def conclude(
    gate: Gate, moved: Sequence[MovedPackage], verdicts: Sequence[HeldVerdict], again: Sequence[Verdict]
) -> str:
    """Return in one sentence what carries the change of ``gate``.

    ``again`` is the candidate's verdict of each round. By elimination alone it is torch itself: proven only as far as
    everything that moved could be held.
    """
    if not moved:
        return "torch itself: nothing else moved"
    about = [verdict for verdict in verdicts if verdict.gate is gate]
    words = {package.name: package.words for package in moved}
    carriers = carriers_of(about, gate)
    parts = [v.held.name for v in about if v.answer == "carries a part"]
    if carriers:
        also = f"; {', '.join(parts)} a part of it" if (parts := [p for p in parts if p not in carriers]) else ""
        verb = "carries" if len(carriers) == 1 else "carry"
        return f"{', '.join(words[name] for name in carriers)} {verb} the change{also}"
    if not any(verdict.status is Status.FAIL for verdict in again):
        said = "; ".join(dict.fromkeys(f"{verdict.status}: {verdict.reason}" for verdict in again))
        return f"not seen again, so there is nothing to isolate ({said})"
    if parts:
        verb = "carries" if len(set(parts)) == 1 else "carry"
        return f"{', '.join(dict.fromkeys(parts))} {verb} a part of the change, and torch itself or another the rest"
    open_ = _open(about)
    if open_:
        return f"torch itself, or what could not be ruled out: {'; '.join(open_)}"
    ruled = ", ".join(dict.fromkeys(package.name for v in about for package in v.held.packages))
    return f"torch itself: it stays with each of the others held ({ruled}), as far as holding one at a time can tell"


def _open(about: Sequence[HeldVerdict]) -> list[str]:
    """Return what was neither found nor ruled out; a group that could not be held is answered by its packages."""
    settled = {package.name for v in about if v.answer == "does not" for package in v.held.packages}
    split_up = {v.held.name for v in about if len(v.held.packages) == 1}
    found = []
    for verdict in about:
        names = {package.name for package in verdict.held.packages}
        divided = len(names) > 1 and names <= split_up
        if verdict.answer in ("cannot be told", "cannot be held") and not names <= settled and not divided:
            found.append(f"{verdict.held.name} {verdict.answer} ({verdict.reason})")
    return found


def _judged(round_: IsolationRound, gate: Gate, arm: str, tier: Tier) -> Verdict:
    asked = GateQuestion(
        cell=round_.cell,
        result=round_.result,
        question=Question.VERSION,
        arm=arm,
        reference=Side.BASELINE.value,
        tier=tier,
    )
    return judge_gate(gate, asked)


def _answer(round_: IsolationRound, gate: Gate, held: Held, candidate: Verdict, tier: Tier) -> tuple[HeldAnswer, str]:
    ended = round_.result.arms.get(held.arm)
    if ended is not None and ended.outcome is Outcome.NO_ENVIRONMENT:
        last = ended.log_tail.strip().splitlines()[-1:]
        return "cannot be held", ": ".join([ended.reason, *last])
    as_it_is = round_.result.arms.get(Side.CANDIDATE)
    alike = as_it_is is not None and ended is not None and as_it_is.outcome is ended.outcome
    if ended is not None and ended.outcome is not Outcome.OK and not alike:
        return "cannot be held", f"with it the workload {ended.outcome}: {ended.reason}"
    if candidate.status is not Status.FAIL:
        return "cannot be told", f"the candidate as it is does not fail this time: {candidate.reason}"
    verdict = _judged(round_, gate, held.arm, tier)
    faster, words = _beside_candidate(round_.cell, round_.result, gate, held.arm)
    if verdict.status is Status.PASS and faster is not False:
        return "carries the change", f"held: {verdict.reason}{words}"
    if verdict.status is Status.PASS:
        return "cannot be told", f"held: {verdict.reason}, and yet no faster than the candidate{words}"
    if verdict.status is Status.FAIL and faster and words:
        return "carries a part", f"held: {verdict.reason}{words}"
    if verdict.status is Status.FAIL:
        return "does not", f"held: {verdict.reason}{words}"
    return "cannot be told", f"held: {verdict.status}: {verdict.reason}{words}"


def _beside_candidate(cell: Cell, result: CellResult, gate: Gate, arm: str) -> tuple[bool | None, str]:
    """Return whether the held arm is faster than the candidate beyond chance, and words; None for what is no time."""
    quantity = QUANTITIES.get(gate)
    both = all(one in result.arms and result.arms[one].outcome is Outcome.OK for one in (arm, Side.CANDIDATE))
    if quantity is None or not both:
        return None, ""
    restarts = counted(result.restarts)
    interval = ratio_interval(restarts, arm, Side.CANDIDATE, quantity, cell.measuring.alpha)
    if interval is None or not interval.bounded:
        return False, ""
    shown = f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
    return interval.high < 1.0, f"; held / candidate {shown}"
