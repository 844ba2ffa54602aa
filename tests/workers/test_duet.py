"""When a cell has its answer: looks, the repeat of what fails, and restarts that do not count."""

from __future__ import annotations

import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from farm.model import Measuring, Outcome, Restart
from tests.workers.fake_runner import Fleet
from workers.duet import Duet, Life, Pair, Standing, Timing
from workers.surroundings import Surroundings

MEASURING = Measuring(
    looks=(6, 8, 10, 12), alpha=0.016, restart_s=0.4, warmup_s=0.5, window_ms=40.0, budget_s=600.0, confirming=6
)


def run(
    fleet: Fleet,
    measuring: Measuring = MEASURING,
    *,
    limits: tuple[float, ...] = (1.03,),
    pairs: tuple[Pair, ...] | None = None,
    as_it_comes: bool = False,
    **more: Any,
) -> tuple[Timing, list[Standing]]:
    standings: list[Standing] = []
    duet = Duet(
        list(fleet.levels),
        pairs or (Pair("candidate", "baseline", limits),),
        measuring,
        fleet.start,
        {arm: {} for arm in fleet.levels},
        seed=11,
        progress=standings.append,
        cancelled=more.pop("cancelled", lambda: False),
        **more,
    )
    timing = duet.run(as_it_comes=as_it_comes)
    assert all(session.closed for session in fleet.sessions)
    return timing, standings


def purposes(timing: Timing) -> Counter[str]:
    return Counter(restart.purpose for restart in timing.restarts)


def fleet(ratio: float = 1.0, **more: Any) -> Fleet:
    return Fleet({"baseline": 7e6, "candidate": 7e6 * ratio}, **more)


def test_what_is_clearly_fine_ends_at_the_first_look() -> None:
    timing, standings = run(fleet())
    assert purposes(timing) == {"judging": 6}
    assert timing.stopped_because == "settled"
    assert [standing.done for standing in standings] == [1, 2, 3, 4, 5, 6]


def test_what_fails_is_measured_again_in_fresh_processes() -> None:
    made = fleet(1.10)
    timing, standings = run(made)
    assert purposes(timing) == {"judging": 6, "confirming": 6}
    assert timing.stopped_because == "settled"
    assert [restart.index for restart in timing.restarts] == list(range(12))
    assert {standing.purpose for standing in standings} == {"judging", "confirming"}
    assert len(made.sessions) == 24


def test_without_a_repeat_asked_for_none_is_made() -> None:
    timing, _ = run(fleet(1.10), MEASURING.model_copy(update={"confirming": 0}))
    assert purposes(timing) == {"judging": 6}


def test_a_gain_that_is_not_there_accuses_nobody() -> None:
    timing, _ = run(fleet(1.10), pairs=(Pair("candidate", "baseline", (0.9,), accuses=False),))
    assert purposes(timing) == {"judging": 6}


def test_what_lies_at_the_limit_goes_on_to_the_last_look() -> None:
    timing, _ = run(fleet(1.03, seed=8))
    assert purposes(timing)["judging"] == 12
    assert timing.stopped_because == "restarts used up"


def test_a_tail_that_the_last_look_cannot_settle_either_is_not_waited_for() -> None:
    at_its_limit = Pair("candidate", "baseline", (1.05,), p95_limits=(1.0,))
    timing, _ = run(fleet(sd=0.01), pairs=(at_its_limit,))
    assert timing.stopped_because == "settled"
    median_at_its_limit = Pair("candidate", "baseline", (1.0,))
    timing, _ = run(fleet(sd=0.01), pairs=(median_at_its_limit,))
    assert timing.stopped_because == "restarts used up", "only the tail is given up early"


def test_the_unsettled_allocator_is_a_stretch_of_its_own() -> None:
    measuring = MEASURING.model_copy(update={"as_it_comes": 3})
    made = fleet()
    timing, _ = run(made, measuring, as_it_comes=True)
    assert purposes(timing) == {"judging": 6, "as it comes": 3}
    assert [life.purpose for life in made.lives[-6:]] == ["as it comes"] * 6
    assert purposes(run(fleet(), measuring)[0]) == {"judging": 6}


class Disturbed(Surroundings):
    """Something happens in the restarts of these numbers; runners go to the processor of the restart's parity."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers
        self.marked = 0

    def mark(self) -> None:
        self.marked += 1

    def against(self, restart: Restart) -> str:
        return "machine suspended for 60 s" if restart.index in self.numbers else ""

    def cores(self, index: int) -> tuple[int, ...]:
        return (index % 2,)


def test_a_disturbed_restart_is_kept_repeated_and_not_counted() -> None:
    made = fleet()
    timing, _ = run(made, surroundings=Disturbed(1, 4))
    assert [restart.invalid for restart in timing.restarts if restart.invalid] == ["machine suspended for 60 s"] * 2
    assert len(timing.restarts) == 8
    assert timing.stopped_because == "settled"
    assert [life.cores for life in made.lives[:4]] == [(0,), (0,), (1,), (1,)]
    assert timing.restarts[3].cores == (1,)


def test_a_machine_that_is_always_disturbed_ends_the_cell_with_the_reason() -> None:
    surroundings = Disturbed(*range(100))
    timing, _ = run(fleet(), surroundings=surroundings)
    assert timing.stopped_because == "disturbed in 24 of 24 restarts: machine suspended for 60 s"
    assert surroundings.marked == 24


def test_a_restart_that_compiled_is_repeated_with_its_programs_at_hand() -> None:
    """CASES.md M1."""
    made = fleet()
    timing, _ = run(made, has_programs=lambda arm: len(made.lives) > 0 and arm == "candidate")
    first, *others = timing.restarts
    assert first.invalid == "the compile cache of candidate was cold"
    assert {restart.arms["candidate"].cache for restart in others} == {"warm"}
    assert {restart.arms["baseline"].cache for restart in others} == {"none"}
    assert len(others) == 6


def test_an_arm_that_ends_in_a_window_leaves_the_others_to_go_on() -> None:
    made = Fleet({"baseline": 7e6, "candidate": 7e6, "candidate+new": 7e6})
    made.dies["candidate+new", 2] = 9
    pairs = (Pair("candidate", "baseline", (1.03,)), Pair("candidate+new", "candidate", (0.9,), accuses=False))
    timing, _ = run(made, pairs=pairs)
    assert timing.ended["candidate+new"].outcome is Outcome.CRASHED
    assert timing.ended["candidate+new"].reason == "SIGSEGV in 'window' (restart 3)"
    assert purposes(timing) == {"judging": 6}


def test_a_cell_whose_only_pair_ends_has_no_more_to_say() -> None:
    made = fleet()
    made.dies["baseline", 1] = 5
    timing, _ = run(made, MEASURING.model_copy(update={"as_it_comes": 3}), as_it_comes=True)
    assert timing.stopped_because == "an arm ended"
    assert len(timing.restarts) == 1


@pytest.mark.parametrize("after", [0, 3])
def test_a_cancelled_run_ends_between_restarts(after: int) -> None:
    made = fleet()
    timing, _ = run(made, cancelled=lambda: len(made.lives) >= 2 * after)
    assert timing.stopped_because == "cancelled"
    assert len(timing.restarts) == after


def test_a_budget_that_is_over_ends_the_stretch() -> None:
    timing, _ = run(fleet(1.03), MEASURING.model_copy(update={"budget_s": 1e-6}))
    assert timing.stopped_because == "budget ended"
    assert purposes(timing) == {"judging": 1}


def test_the_order_of_starting_is_drawn_anew_for_each_restart() -> None:
    made = fleet()
    run(made)
    firsts = [life.arm for life in made.lives[::2]]
    assert set(firsts) == {"baseline", "candidate"}


def test_runners_get_what_the_life_says() -> None:
    made = fleet()
    run(made)
    assert made.lives[0] in (Life("baseline", 0, "judging"), Life("candidate", 0, "judging"))


def test_an_arm_that_ends_while_the_machine_is_disturbed_gets_one_more_restart() -> None:
    made = fleet()
    made.dies["candidate", 2] = 5
    timing, _ = run(made, surroundings=Disturbed(2))
    assert timing.ended == {}
    assert purposes(timing)["judging"] == 7
    assert timing.restarts[2].invalid == "machine suspended for 60 s; candidate crashed"
    assert timing.restarts[2].arms == {}
    made.dies["candidate", 3] = 5
    again = fleet()
    again.dies |= {("candidate", 2): 5, ("candidate", 3): 5}
    timing, _ = run(again, surroundings=Disturbed(2, 3))
    assert list(timing.ended) == ["candidate"], "once, not for ever"


def test_a_new_path_that_takes_all_the_time_to_die_takes_none_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hang of 300 s in a cell whose budget is 240 s: the clock is the test's, and only the hang moves it."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now, monotonic_ns=time.monotonic_ns)
    monkeypatch.setattr("workers.duet.time", clock)
    made = Fleet({"baseline": 7e6, "candidate": 7e6, "candidate+new": 7e6})
    made.dies["candidate+new", 0] = 9

    def hang() -> None:
        clock.now += 300.0

    made.before_death = hang
    pairs = (Pair("candidate", "baseline", (1.03,)), Pair("candidate+new", "candidate", (0.9,), accuses=False))
    timing, _ = run(made, MEASURING.model_copy(update={"budget_s": 240.0}), pairs=pairs)
    assert timing.stopped_because == "settled"
    assert purposes(timing) == {"judging": 6}


def test_a_step_of_no_time_ends_no_cell() -> None:
    timing, _ = run(Fleet({"baseline": 7e6, "candidate": 0.0}))
    assert timing.restarts


def test_the_budget_buys_restarts_before_blocks() -> None:
    made = Fleet({"baseline": 9e8, "candidate": 9e8})
    # 0.9 s a step by the test's own clock: a restart of 8 s would have three blocks of four steps.
    timing, _ = run(made, MEASURING.model_copy(update={"restart_s": 8.0, "budget_s": 1e-3}))
    assert len({window.block for window in timing.restarts[0].arms["baseline"].windows}) == 1
