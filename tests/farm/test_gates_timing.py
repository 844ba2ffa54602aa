"""Latency and throughput pass by the whole interval, and never by a number that no clock can have said."""

from __future__ import annotations

import math
from typing import Any

import pytest

from farm.gates import judge_gate
from farm.model import Gate, Status, Verdict
from tests.evidence import Times, ask, life, memory, ok, restarts, tier, window

TIMING = (Gate.LATENCY, Gate.THROUGHPUT)


def verdict(gate: Gate, times: Times, path: str = "", **more: Any) -> Verdict:
    limits = {name: more.pop(name) for name in list(more) if name in tier().model_fields_set}
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
    assert [other.name for other in shown.others] == ["p95 ratio"]


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
