"""Other limits over stored evidence: what flips is listed, and the registered decision stays what it was."""

from __future__ import annotations

from farm.judge import judge
from farm.model import Evidence, Gate, PlannedWorkload
from farm.rejudging import rejudge
from tests.evidence import cell, evidence, result, tier

SLOWER = {"baseline": 10.0, "candidate": [10.38, 10.41, 10.4, 10.39, 10.42, 10.4]}


def slowed() -> Evidence:
    of = cell()
    return evidence([(of, result(of, times=SLOWER))], tier())


def test_the_plans_own_limits_flip_nothing_and_are_registered() -> None:
    found = rejudge(slowed(), (tier(),), "ab")
    assert found.judgement == judge(slowed())
    assert found.judgement.registered
    assert found.flips == ()


def test_wider_limits_are_a_second_opinion_with_every_flip_named() -> None:
    run = slowed()
    found = rejudge(run, (tier(p50_ratio=1.06, p95_ratio=1.06, throughput_ratio=0.94),), "ab")
    assert not found.judgement.registered
    assert (found.judgement.matrix_digest, found.judgement.plan_digest) == ("ab", run.plan.plan_digest)
    assert [(f.what, f.before, f.after) for f in found.flips if f.what != "verdict"] == [
        ("tier", "defer", "adopt"),
        ("row", "defer", "adopt"),
    ]
    flipped = {f.gate: f for f in found.flips if f.what == "verdict"}
    assert set(flipped) == {Gate.LATENCY, Gate.THROUGHPUT}
    latency = flipped[Gate.LATENCY]
    assert (latency.before, latency.after, latency.limit_before) == ("fail", "pass", 1.03)
    assert latency.figure is not None
    assert latency.figure.limit == 1.06


def test_what_the_other_limits_ask_and_nobody_measured_is_untested() -> None:
    of = cell(gates=(Gate.LATENCY,))
    run = evidence([(of, result(of))], tier(required=(Gate.LATENCY,)))
    found = rejudge(run, (tier(required=(Gate.LATENCY, Gate.DETERMINISM)),), "ab")
    (row,) = found.judgement.rows
    assert (row.decision, row.decided_by) == ("defer", Gate.DETERMINISM)
    assert row.reason.startswith("untested")


def test_a_workload_that_the_other_matrix_asks_and_nobody_measured_is_untested() -> None:
    of = cell(gates=(Gate.LATENCY,))
    limits = tier(required=(Gate.LATENCY,))
    run = evidence([(of, result(of))], limits)
    asked = {"block": PlannedWorkload(production_cases=("infer", "infer-8k")), "ranker": PlannedWorkload()}
    found = rejudge(run, (limits,), "ab", asked)
    reasons = {row.workload: row.reason for row in found.judgement.rows}
    assert reasons == {"block": "production shapes untested", "ranker": "untested: no case in suite standard"}
    assert not found.judgement.registered
    assert rejudge(run, (limits,), "ab", {}).judgement.registered


def test_a_tier_that_only_one_of_them_has_reads_not_asked() -> None:
    found = rejudge(slowed(), (tier("research", p50_ratio=1.15),), "ab")
    assert {(f.what, f.tier, f.before, f.after) for f in found.flips if f.what == "tier"} == {
        ("tier", "serving", "defer", "not asked"),
        ("tier", "research", "not asked", "defer"),
    }
