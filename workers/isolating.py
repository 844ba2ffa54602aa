"""A failing cell measured again on this machine, with one moved package at a time held at the baseline's version."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

from farm.again import Inquiry, Told, check_work, environments_here, longest_s
from farm.isolation import (
    again_of,
    carriers_of,
    conclude,
    groups,
    held_environment,
    isolation_cell,
    moved_packages,
    rounds_of,
    split,
    verdicts_of,
)
from farm.model import Held, HeldVerdict, Isolation, IsolationRound, Side, Verdict
from farm.settings import Home
from workers.again import measure
from workers.environments import discard
from workers.probe import probe_host

__all__ = ["isolate"]

#: A group with one of these answers is taken apart: who of it carries the change, or can be held by itself.
TAKEN_APART = ("carries the change", "carries a part", "cannot be held")


def isolate(
    inquiry: Inquiry,
    home: Home,
    told: Told,
    keep: Callable[[Isolation], None],
    begun: Isolation | None = None,
    deadline: float | None = None,
) -> Isolation:
    """Return what holding each moved package does to the gates that are asked about.

    ``keep`` is called after each round with what is known by then; ``begun`` is what an earlier call kept of the same
    question, whose rounds are not measured again. Past ``deadline`` (monotonic) no group is taken apart. The
    environments that hold something are removed afterwards. Raises UsageError for a cell that cannot be measured here.
    """
    work = _Isolating(inquiry, home, told, keep, begun)
    try:
        return work.run(deadline)
    finally:
        work.discard()


class _Isolating:
    def __init__(
        self,
        inquiry: Inquiry,
        home: Home,
        told: Told,
        keep: Callable[[Isolation], None],
        begun: Isolation | None,
    ) -> None:
        self.inquiry, self.home, self.told, self._keep = inquiry, home, told, keep
        self.target = probe_host().target
        self.sides = environments_here(inquiry.evidence, inquiry.cell, self.target)
        check_work(inquiry.evidence, inquiry.cell)
        self.moved = moved_packages(self.sides[Side.BASELINE], self.sides[Side.CANDIDATE])
        self.keys = {side: environment.key for side, environment in self.sides.items()}
        self.environments = {environment.key: environment for environment in self.sides.values()}
        self.rounds: list[IsolationRound] = []
        self.verdicts: list[HeldVerdict] = []
        if begun is not None:
            self.environments |= begun.environments
            self.rounds += begun.rounds
            self.verdicts += begun.verdicts

    def run(self, deadline: float | None) -> Isolation:
        first = groups(self.moved)
        for round_ in self._rounds_left(first):
            self._measure(round_)
        apart = [part for one in first if self._is_taken_apart(one) for part in split(one)]
        for round_ in self._rounds_left(apart):
            needed_s = longest_s(self.inquiry, len(round_) + len(self.sides))
            if deadline is not None and time.monotonic() + needed_s > deadline:
                left = ", ".join(held.name for later in self._rounds_left(apart) for held in later)
                self.told.said(f"not held one by one, for want of time: {left}")
                break
            self._measure(round_)
        return self._so_far(complete=True)

    def discard(self) -> None:
        for key in self.environments.keys() - set(self.keys.values()):
            discard(self.environments[key], self.home)

    def _rounds_left(self, held: Sequence[Held]) -> list[tuple[Held, ...]]:
        done = {one for round_ in self.rounds for one in round_.held}
        return rounds_of([one for one in held if one not in done])

    def _is_taken_apart(self, held: Held) -> bool:
        return any(verdict.held == held and verdict.answer in TAKEN_APART for verdict in self.verdicts)

    def _measure(self, round_: Sequence[Held]) -> None:
        made = {one: held_environment(self.sides[Side.BASELINE], self.sides[Side.CANDIDATE], one) for one in round_}
        self.environments |= {environment.key: environment for environment in made.values()}
        self.told.said(f"holding {' and '.join(one.name for one in round_)} at the baseline's version")
        held = {one: environment.key for one, environment in made.items()}
        cell = isolation_cell(self.inquiry, self.keys, held, self.target)
        result = measure(self.inquiry, cell, self.environments, self.home, self.told, len(self.rounds) + 1)
        self.rounds.append(IsolationRound(cell=cell, held=tuple(round_), result=result))
        found = verdicts_of(self.rounds[-1], self.inquiry.tier)
        self.verdicts += found
        self._keep(self._so_far(complete=False))
        for verdict in found:
            self.told.said(f"{verdict.gate}: {verdict.held.name} {verdict.answer}: {verdict.reason}")

    def _so_far(self, *, complete: bool) -> Isolation:
        gates, rounds, verdicts = self.inquiry.gates, self.rounds, self.verdicts
        again = [again_of(round_, self.inquiry.tier) for round_ in rounds]
        return Isolation(
            run_id=self.inquiry.evidence.run_id,
            cell_id=self.inquiry.cell.id,
            tier=self.inquiry.tier.name,
            gates=gates,
            budget_s=self.inquiry.budget_s,
            complete=complete,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            moved=self.moved,
            environments=self.environments,
            rounds=tuple(rounds),
            again={gate: "; ".join(_said(found[gate] for found in again)) for gate in gates if again},
            verdicts=tuple(verdicts),
            conclusions={
                gate: conclude(gate, self.moved, verdicts, [found[gate] for found in again if gate in found])
                for gate in gates
            },
            carriers={gate: carriers for gate in gates if (carriers := carriers_of(verdicts, gate))},
        )


def _said(verdicts: Iterable[Verdict]) -> list[str]:
    return list(dict.fromkeys(f"{verdict.status}: {verdict.reason}" for verdict in verdicts))
