"""Latency and throughput pass by the whole interval, and never by a number that no clock can have said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from farm.gates import judge_gate
from farm.model import ArmResult, ArmTiming, Gate, Measuring, Outcome, Restart, Status, Tier, Verdict
from tests.evidence import Times, ask, cell, life, memory, ok, restarts, tier, window

TIMING = (Gate.LATENCY, Gate.THROUGHPUT)


def verdict(gate: Gate, times: Times, path: str = "", **more: Any) -> Verdict:
    limits = {name: more.pop(name) for name in list(more) if name in Tier.model_fields}
    return judge_gate(gate, ask(more.pop("arms", None), times, limits=tier(**limits), path=path, **more))


@pytest.mark.parametrize("gate", TIMING)
@pytest.mark.parametrize(
    ("candidate", "status"),
    [
        (9.0, Status.PASS),
        (10.2, Status.PASS),
        (11.0, Status.FAIL),
        ([10.1, 10.2, 10.6, 10.4, 10.3, 10.5], Status.INCONCLUSIVE),
        ([11.0] * 5, Status.INCONCLUSIVE),
        ([9.0] * 5, Status.INCONCLUSIVE),
    ],
)
def test_the_interval_decides(gate: Gate, candidate: float | list[float], status: Status) -> None:
    assert verdict(gate, {"candidate": candidate}).status is status


def test_too_few_restarts_say_how_many_are_needed() -> None:
    found = verdict(Gate.LATENCY, {"candidate": [9.0] * 5})
    assert found.reason == "p50 -10.0 % after 5 restarts (restarts used up); an interval needs 6"


# -- drift ---------------------------------------------------------------------------------------------------------

WARMING = [10.0, 10.1, 10.3, 10.6, 10.8, 11.0]


@pytest.mark.parametrize("gate", TIMING)
def test_no_time_is_judged_where_the_control_arm_drifted_further_than_the_tier_allows(gate: Gate) -> None:
    both = {"baseline": WARMING, "candidate": WARMING}
    found = verdict(gate, both, drift_ratio=1.05)
    assert found.status is Status.UNTESTED
    assert found.reason == "invalid: baseline, the control arm, drifted by +8.5 % over the cell: beyond the limit"
    assert found.figure is not None
    assert (found.figure.name, found.figure.limit) == ("drift ratio", 1.05)
    # A machine that cools down has moved as far.
    cooling = {name: times[::-1] for name, times in both.items()}
    assert verdict(gate, cooling, drift_ratio=1.05).reason.startswith(
        "invalid: baseline, the control arm, drifted by -"
    )
    assert verdict(gate, both, drift_ratio=1.10).status is Status.PASS
    assert verdict(gate, both).status is Status.PASS


def test_it_is_the_control_arm_that_should_not_have_moved() -> None:
    # A candidate that becomes slower by itself is what is judged.
    assert verdict(Gate.LATENCY, {"candidate": WARMING}, drift_ratio=1.05).status is not Status.UNTESTED
    # Of the feature question it is the old path on the candidate.
    times = {"candidate": WARMING, "candidate+new": [t * 0.8 for t in WARMING]}
    found = verdict(Gate.LATENCY, times, path="new", drift_ratio=1.05)
    assert found.reason.startswith("invalid: candidate, the control arm, drifted")


def test_scatter_is_no_drift_and_a_few_restarts_show_none() -> None:
    scattered = [10.0, 11.0, 10.1, 10.9, 11.1, 10.2]
    assert (
        verdict(Gate.LATENCY, {"baseline": scattered, "candidate": scattered}, drift_ratio=1.01).status is Status.PASS
    )
    few = {"baseline": WARMING[:5], "candidate": WARMING[:5]}
    assert verdict(Gate.LATENCY, few, drift_ratio=1.01).status is Status.INCONCLUSIVE


def test_the_tail_is_judged_beside_the_median() -> None:
    steady, tailed = [10**7] * 20, [10**7] * 18 + [2 * 10**7] * 2
    made = restarts({"baseline": 10.0, "candidate": 10.0})
    made = tuple(
        restart.model_copy(
            update={
                "arms": {
                    "baseline": life(10.0).model_copy(update={"windows": (window(0, steady),)}),
                    "candidate": life(10.0).model_copy(update={"windows": (window(0, tailed),)}),
                }
            }
        )
        for restart in made
    )
    found = verdict(Gate.LATENCY, {}, restarts=made)
    assert found.status is Status.FAIL
    assert found.figure is not None
    assert found.figure.name == "p95 ratio"
    shown = verdict(Gate.LATENCY, {}, restarts=made, p95_ratio=None)
    assert shown.status is Status.PASS
    assert [other.name for other in shown.others] == ["p95 ratio", "cpu ratio", "first step ratio", "import ratio"]


@pytest.mark.parametrize("gate", TIMING)
def test_without_restarts_nothing_is_passed(gate: Gate) -> None:
    assert verdict(gate, {}, restarts=()).status is Status.UNTESTED
    assert verdict(gate, {"candidate": []}).status is Status.UNTESTED
    bare = life(10.0).model_copy(update={"windows": ()})
    made = tuple(
        r.model_copy(update={"arms": {"baseline": bare, "candidate": bare}}) for r in restarts({"baseline": 1})
    )
    assert verdict(gate, {}, restarts=made).status is Status.UNTESTED


@pytest.mark.parametrize("gate", TIMING)
@pytest.mark.parametrize("arm", ["baseline", "candidate"])
@pytest.mark.parametrize("step", [0, 2**64 - 5000])
def test_a_step_of_no_time_or_less_is_invalid(gate: Gate, arm: str, step: int) -> None:
    made = restarts({"baseline": 10.0, "candidate": 10.0})
    broken = life(10.0).model_copy(update={"windows": (window(0, [10**7] * 5 + [step]),)})
    made = (*made[:5], made[5].model_copy(update={"arms": made[5].arms | {arm: broken}}))
    found = verdict(gate, {}, restarts=made)
    assert found.status is Status.UNTESTED
    assert f"a step of {arm} took {0 if step == 0 else -5000} ns" in found.reason


@pytest.mark.parametrize("gate", TIMING)
def test_an_empty_window_or_damaged_samples_are_a_verdict_and_no_traceback(gate: Gate) -> None:
    made = restarts({"baseline": 10.0, "candidate": 10.0})
    empty = life(10.0).model_copy(update={"windows": (window(0, []),)})
    damaged = life(10.0).model_copy(update={"windows": (window(0, [1]).model_copy(update={"steps_ns": b"damaged"}),)})
    for broken, words in ((empty, "holds no steps"), (damaged, "cannot be decompressed")):
        lives = (made[0].model_copy(update={"arms": made[0].arms | {"candidate": broken}}), *made[1:])
        found = verdict(gate, {}, restarts=lives)
        assert found.status is Status.UNTESTED
        assert words in found.reason


@pytest.mark.parametrize("gate", TIMING)
def test_limits_that_are_no_numbers_pass_nothing(gate: Gate) -> None:
    nan = math.nan
    assert verdict(gate, {}, p50_ratio=nan, throughput_ratio=nan).status is Status.INCONCLUSIVE


@pytest.mark.parametrize("items", [0.0, -1.0, math.nan, math.inf])
def test_a_step_of_no_items_has_no_throughput(items: float) -> None:
    for arm in ("baseline", "candidate"):
        found = verdict(Gate.THROUGHPUT, {}, arms={arm: ok(items_per_step=items)})
        assert found.status is Status.UNTESTED


def test_throughput_counts_items_and_not_steps() -> None:
    found = verdict(Gate.THROUGHPUT, {"candidate": 20.0}, arms={"candidate": ok(items_per_step=256.0)})
    assert found.status is Status.PASS


# -- features ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("new", "status"), [(8.5, Status.PASS), (9.5, Status.FAIL), (10.0, Status.FAIL), (11.0, Status.FAIL)]
)
def test_a_feature_must_bring_its_gain(new: float, status: Status) -> None:
    assert verdict(Gate.LATENCY, {"candidate+new": new}, path="new").status is status


@pytest.mark.parametrize(("new", "status"), [(8.5, Status.PASS), (9.5, Status.FAIL), (10.0, Status.FAIL)])
def test_throughput_asks_for_the_gain_where_latency_is_not_required(new: float, status: Status) -> None:
    required = (Gate.CORRECTNESS, Gate.THROUGHPUT)
    assert verdict(Gate.THROUGHPUT, {"candidate+new": new}, path="new", required=required).status is status


def test_a_gain_in_memory_may_stand_for_a_gain_in_time() -> None:
    def found(step: int, new: float) -> Status:
        arms = {"candidate+new": ok(memory=memory(step))}
        limits = {"feature_memory_gain": 0.8, "p95_ratio": None}
        made = ask(arms, {"candidate+new": new}, limits=tier(**limits), path="new")
        return judge_gate(Gate.LATENCY, made).status

    assert found(2**23, 10.0) is Status.PASS
    assert found(2**23, 11.0) is Status.FAIL
    assert found(2**24, 10.0) is Status.FAIL
    assert found(-(2**24), 10.0) is Status.FAIL
    assert found(0, 10.0) is Status.FAIL


def test_a_feature_is_compared_with_the_old_path_on_the_candidate() -> None:
    times = {"baseline": 5.0, "candidate": 10.0, "candidate+new": 8.0}
    assert verdict(Gate.LATENCY, times, path="new").status is Status.PASS


# -- before anything is accused ------------------------------------------------------------------------------------


def repeated(first: Times, repeat: Times | None, count: int = 6) -> tuple[Restart, ...]:
    """Return a first answer and its repeat in fresh processes."""
    again = restarts(repeat, count) if repeat is not None else ()
    return (*restarts(first), *(restart.model_copy(update={"purpose": "confirming"}) for restart in again))


def confirmed(first: Times, repeat: Times | None, count: int = 6, gate: Gate = Gate.LATENCY, **more: Any) -> Verdict:
    path = more.pop("path", "")
    of = cell(features=(path,) if path else (), measuring=Measuring(confirming=6))
    return verdict(gate, {}, path, of=of, restarts=repeated(first, repeat, count), **more)


SLOW, FINE = {"baseline": 10.0, "candidate": 11.0}, {"baseline": 10.0, "candidate": 10.0}


@pytest.mark.parametrize("gate", TIMING)
def test_what_fails_twice_is_accused_with_both_figures(gate: Gate) -> None:
    found = confirmed(SLOW, SLOW, gate=gate)
    assert found.status is Status.FAIL
    assert "confirmed: the repeat in 6 fresh processes says +10.0 % time" in found.reason
    assert any(figure.name.endswith("ratio, repeat") for figure in found.others)


@pytest.mark.parametrize("gate", TIMING)
def test_what_fails_once_is_not_accused(gate: Gate) -> None:
    found = confirmed(SLOW, FINE, gate=gate)
    assert found.status is Status.INCONCLUSIVE
    assert found.reason.endswith("not confirmed: the repeat in 6 fresh processes says +0.0 % time")


@pytest.mark.parametrize(("repeat", "count", "seen"), [(None, 0, 0), (SLOW, 3, 3)])
def test_a_repeat_that_did_not_end_confirms_nothing(repeat: Times | None, count: int, seen: int) -> None:
    found = confirmed(SLOW, repeat, count)
    assert found.status is Status.INCONCLUSIVE
    assert found.reason == f"p50 +10.0 %: not confirmed: the repeat has {seen} of the 6 restarts that it needs"


def test_what_passes_needs_no_repeat_and_none_can_make_it_fail() -> None:
    assert confirmed(FINE, None).status is Status.PASS
    assert confirmed(FINE, SLOW).status is Status.PASS


def test_a_gain_that_is_not_there_needs_no_repeat() -> None:
    found = confirmed({"baseline": 10.0, "candidate": 10.0, "candidate+new": 10.0}, None, path="new")
    assert found.status is Status.FAIL


def test_a_change_within_the_cells_own_noise_is_none() -> None:
    """CASES.md M10: 0.19809 s -> 0.21859 s where the cell's own A/A noise is above 10 %."""
    slower = {"baseline": 198.09, "candidate": 218.59}
    noise = (1.02, 0.93, 1.11, 1.05, 0.9, 0.98, 1.08, 1.12, 0.95, 1.01)
    found = confirmed(slower, slower, noise=noise)
    assert found.status is Status.INCONCLUSIVE
    assert found.reason.startswith("p50 +10.3 %: within this cell's own noise")
    quiet = confirmed(slower, slower, noise=(1.001, 0.999, 1.0, 1.002, 0.998, 1.001, 1.0, 0.999))
    assert quiet.status is Status.FAIL


# -- what does not count -------------------------------------------------------------------------------------------


def test_disturbed_restarts_and_those_of_another_purpose_do_not_count() -> None:
    disturbed = [restart.model_copy(update={"invalid": "machine suspended"}) for restart in restarts(SLOW)]
    unsettled = [restart.model_copy(update={"purpose": "as it comes"}) for restart in restarts(SLOW)]
    found = verdict(Gate.LATENCY, {}, restarts=(*disturbed, *restarts(FINE), *unsettled))
    assert found.status is Status.PASS
    assert found.figure is not None
    assert found.figure.value == 1.0
    named = {figure.name: figure.value for figure in found.others}
    assert named["p50 ratio, allocator as it comes"] == pytest.approx(1.1)


def test_one_arm_that_flips_from_process_to_process_has_two_modes() -> None:
    """CASES.md M3."""
    flips = [2.9, 3.4, 2.95, 3.41, 3.0, 3.4, 2.95, 3.39]
    found = verdict(Gate.LATENCY, {"baseline": [2.9] * 8, "candidate": flips})
    assert found.status is Status.UNTESTED
    assert found.reason.startswith("two modes from process to process")


def test_two_arms_that_flip_apart_from_each_other_have_two_modes() -> None:
    one = [2.9, 3.4, 2.91, 3.41, 3.4, 2.9, 2.91, 3.4]
    other = [2.9, 2.91, 3.4, 3.41, 2.9, 3.4, 2.9, 3.41]
    found = verdict(Gate.LATENCY, {"baseline": one, "candidate": other})
    assert found.status is Status.UNTESTED
    assert "two modes" in found.reason


def test_a_machine_that_changes_its_speed_for_both_is_no_mode_of_either() -> None:
    shared = [2.9, 3.4, 2.91, 3.41, 3.4, 2.9, 2.91, 3.4]
    assert verdict(Gate.LATENCY, {"baseline": shared, "candidate": shared}).status is Status.PASS


def with_cache(made: Sequence[Restart], arm: str, cache: Sequence[str]) -> tuple[Restart, ...]:
    return tuple(
        restart.model_copy(update={"arms": restart.arms | {arm: restart.arms[arm].model_copy(update={"cache": state})}})
        for restart, state in zip(made, cache, strict=True)
    )


def test_a_cold_cache_is_not_compared_with_a_warm_one() -> None:
    """CASES.md M1."""
    made = with_cache(restarts({"baseline": 3.17, "candidate": 3.72}), "baseline", ["cold"] * 6)
    found = verdict(Gate.LATENCY, {}, restarts=with_cache(made, "candidate", ["warm"] * 6))
    assert found.status is Status.UNTESTED
    assert found.reason == "invalid: the compile cache was cold in one arm and not in the other: these are not compared"


def test_a_mix_of_cold_and_warm_is_not_averaged() -> None:
    """CASES.md M1."""
    made = with_cache(restarts(FINE), "candidate", ["cold", "warm", "warm", "cold", "warm", "warm"])
    found = verdict(Gate.LATENCY, {}, restarts=made)
    assert found.status is Status.UNTESTED
    assert "two modes" in found.reason


def test_a_path_that_compiles_is_compared_with_one_that_does_not() -> None:
    made = with_cache(restarts(FINE), "candidate", ["warm"] * 6)
    assert verdict(Gate.LATENCY, {}, restarts=made).status is Status.PASS


def test_a_stall_in_one_step_of_many_is_in_the_throughput() -> None:
    """One step of two hundred takes thirty times as long: no median sees it, and 15 % of the time is gone."""

    def lives(stall: bool) -> ArmTiming:
        windows = []
        for block in range(16):
            steps = [10**7] * 32
            if stall and block % 6 == 0:
                steps[7] *= 30
            windows.append(window(block, steps))
        return life(10.0).model_copy(update={"windows": tuple(windows)})

    made = tuple(
        restart.model_copy(update={"arms": {"baseline": lives(False), "candidate": lives(True)}})
        for restart in restarts(FINE)
    )
    assert verdict(Gate.LATENCY, {}, restarts=made).status is Status.PASS
    found = verdict(Gate.THROUGHPUT, {}, restarts=made)
    assert found.status is Status.FAIL
    assert found.figure is not None
    assert found.figure.value == pytest.approx(1 / (1 + 3 * 29 / 512), rel=1e-6)


# -- arms that ended in a timed restart ----------------------------------------------------------------------------


def late(name: str, outcome: Outcome) -> dict[str, ArmResult]:
    """Return an arm that was examined well and ended while it was timed."""
    return {name: ok().model_copy(update={"outcome": outcome, "reason": "restart 7", "ended_while_timed": True})}


@pytest.mark.parametrize("gate", TIMING)
def test_a_baseline_that_ends_while_it_is_timed_was_not_fixed_by_the_candidate(gate: Gate) -> None:
    found = judge_gate(gate, ask(late("baseline", Outcome.CRASHED)))
    assert found.status is Status.UNTESTED
    assert found.reason == "the reference ended while it was timed: baseline crashed: restart 7"


def test_what_was_examined_stands_where_the_baseline_ended_later() -> None:
    for gate in (Gate.CORRECTNESS, Gate.PEAK_MEMORY, Gate.COMPILE_EXPORT):
        assert judge_gate(gate, ask(late("baseline", Outcome.CRASHED))).status is Status.PASS


def test_memory_that_did_not_suffice_for_all_arms_at_once_is_no_fault_of_one() -> None:
    asked = ask(late("candidate", Outcome.OUT_OF_MEMORY))
    assert judge_gate(Gate.LATENCY, asked).status is Status.UNTESTED
    assert judge_gate(Gate.CORRECTNESS, asked).status is Status.PASS


def test_a_candidate_that_crashes_while_it_is_timed_fails() -> None:
    assert judge_gate(Gate.LATENCY, ask(late("candidate", Outcome.CRASHED))).status is Status.FAIL
