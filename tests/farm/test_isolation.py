"""What holding a package means is read from figures alone."""

from __future__ import annotations

from typing import Any

import pytest

from farm.again import Inquiry, failing
from farm.isolation import (
    VENDOR_GROUP,
    again_of,
    carriers_of,
    companions_of,
    conclude,
    groups,
    held_environment,
    isolation_cell,
    moved_packages,
    rounds_of,
    split,
    verdicts_of,
)
from farm.judge import judge
from farm.model import (
    Cell,
    Environment,
    Gate,
    Held,
    HeldVerdict,
    Isolation,
    IsolationRound,
    LockedPackage,
    MovedPackage,
    Outcome,
    Status,
    Verdict,
)
from tests import evidence as made

TRITON = MovedPackage(name="triton", baseline="3.6.0", candidate="3.7.0")
CUDNN = MovedPackage(name="nvidia-cudnn", baseline="9.1", candidate="9.2")
CUBLAS = MovedPackage(name="nvidia-cublas", baseline="13.0", candidate="13.1")


def locked(version: str, **beside: str) -> Environment:
    """Return the lock of torch ``version`` and packages by version; a name's underscores are hyphens."""
    environment = made.environment(version)
    more = [
        LockedPackage(name=name.replace("_", "-"), version=found, wheel=f"{name}-{found}.whl", sha256=found, url="")
        for name, found in beside.items()
    ]
    packages = tuple(sorted([*environment.packages, *more], key=lambda package: package.name))
    return environment.model_copy(update={"packages": packages})


def holding(*packages: MovedPackage, name: str | None = None) -> Held:
    return Held(name=name or packages[0].name, packages=packages)


KEYS = {side: environment.key for side, environment in made.ENVIRONMENTS.items()}


def asking(gates: tuple[Gate, ...], of: Cell | None = None, budget_s: float | None = None) -> Inquiry:
    cell = of or made.cell()
    return Inquiry(made.run_of(cell), cell, made.tier(), gates, budget_s)


def round_of(
    times: dict[str, Any], *held: Held, gates: tuple[Gate, ...] = (Gate.LATENCY,), **more: Any
) -> IsolationRound:
    """Return a measurement of ``held`` with step times by arm, in ms."""
    cell = isolation_cell(asking(gates), KEYS, {one: one.name for one in held}, made.HOST.target)
    return IsolationRound(cell=cell, held=held, result=made.result(cell, times=times, **more))


def verdict(held: Held, answer: Any, gate: Gate = Gate.LATENCY) -> HeldVerdict:
    return HeldVerdict(held=held, gate=gate, answer=answer, reason="as seen")


FAILED = Verdict(gate=Gate.LATENCY, status=Status.FAIL, reason="p50 +10.0 %")


def test_what_moved_is_everything_but_torch_that_has_another_wheel_or_is_on_one_side_alone() -> None:
    old = locked("2.12.1", triton="3.6.0", numpy="2.4", sympy="1.14", nvidia_nvtx="13.0")
    new = locked("2.13.0", triton="3.7.0", numpy="2.4", sympy="1.14", nvidia_cusparselt="0.8")
    assert [package.words for package in moved_packages(old, new)] == [
        "nvidia-cusparselt none -> 0.8",
        "nvidia-nvtx 13.0 -> none",
        "triton 3.6.0 -> 3.7.0",
    ]


def test_vendor_libraries_are_held_together_and_split_afterwards() -> None:
    found = groups((CUBLAS, CUDNN, TRITON))
    assert [one.name for one in found] == ["triton", VENDOR_GROUP]
    assert split(found[0]) == ()
    assert [one.name for one in split(found[1])] == ["nvidia-cublas", "nvidia-cudnn"]
    assert [one.name for one in groups((CUDNN,))] == ["nvidia-cudnn"]


def test_a_round_holds_two_at_most() -> None:
    held = [holding(MovedPackage(name=name, baseline="1", candidate="2")) for name in "abcde"]
    assert [len(one) for one in rounds_of(held)] == [2, 2, 1]


def test_a_held_environment_is_the_candidates_with_the_baselines_wheel() -> None:
    old = locked("2.12.1", triton="3.6.0", nvidia_nvtx="13.0")
    new = locked("2.13.0", triton="3.7.0", nvidia_cusparselt="0.8")
    added, removed = moved_packages(old, new)[1], moved_packages(old, new)[0]
    versions = {p.name: p.version for p in held_environment(old, new, holding(TRITON, added, removed)).packages}
    assert versions == {"nvidia-nvtx": "13.0", "torch": "2.13.0", "triton": "3.6.0"}
    assert held_environment(old, new, holding(TRITON)).key not in {old.key, new.key}


def test_every_arm_gets_the_time_that_it_had_beside_one_other_and_one_tiers_limits() -> None:
    of = made.cell(features=["flex"], broken_control="numpy differs")
    held = {holding(TRITON): "k1", holding(CUDNN): "k2"}
    cell = isolation_cell(asking((Gate.LATENCY,), of), KEYS, held, made.HOST.target)
    assert [arm.name for arm in cell.arms] == ["baseline", "candidate", "held-triton", "held-nvidia-cudnn"]
    assert (cell.measuring.budget_s, cell.measuring.restart_s) == (240.0, 16.0)
    assert (cell.measuring.p50_limits, cell.measuring.throughput_limits) == ((1.03,), ())
    assert (cell.gates, cell.kind, cell.broken_control) == ((Gate.LATENCY,), "isolation", None)
    given = isolation_cell(asking((Gate.LATENCY,), of, 30.0), KEYS, held, made.HOST.target)
    assert given.measuring.budget_s == 30.0


@pytest.mark.parametrize(
    ("candidate", "held", "answer"),
    [
        (11.0, 10.0, "carries the change"),
        (11.0, 11.0, "does not"),
        (12.0, 11.0, "carries a part"),
        (12.0, 13.0, "does not"),
        (10.0, 10.0, "cannot be told"),
        (11.0, [10.0, 11.0, 10.0, 11.0, 10.2, 10.8], "cannot be told"),
    ],
)
def test_times_say_what_a_held_package_does(candidate: float, held: Any, answer: str) -> None:
    round_ = round_of({"candidate": candidate, "held-triton": held}, holding(TRITON))
    (found,) = verdicts_of(round_, made.tier())
    assert found.answer == answer, found.reason


def test_a_pass_that_is_no_faster_than_the_failing_candidate_tells_nothing() -> None:
    """Given a candidate that is a hair beyond the limit, I expect chance to be no carrier."""
    held = [10.29, 10.32, 10.28, 10.28, 10.27, 10.29]
    candidate = [10.31, 10.31, 10.31, 10.31, 10.31, 10.31]
    round_ = round_of({"candidate": candidate, "held-triton": held}, holding(TRITON))
    tier = made.tier(p50_ratio=1.0305, p95_ratio=None)
    limit_fits = made.tier(p50_ratio=1.0325, p95_ratio=None)
    assert again_of(round_, limit_fits)[Gate.LATENCY].status is not Status.FAIL
    assert again_of(round_, tier)[Gate.LATENCY].status is Status.FAIL
    (found,) = verdicts_of(round_, tier)
    assert found.answer == "cannot be told", found.reason


def test_memory_and_results_say_it_without_times() -> None:
    gates = (Gate.CORRECTNESS, Gate.PEAK_MEMORY)
    wrong = {"outputs": {"y": made.output(rms_error=1e-2, max_error=5e-2)}, "memory": made.memory(step=2**26)}
    arms = {"candidate": made.ok(**wrong), "held-triton": made.ok(memory=made.memory(step=2**26))}
    found = verdicts_of(round_of({}, holding(TRITON), gates=gates, arms=arms), made.tier())
    assert {one.gate: one.answer for one in found} == {
        Gate.CORRECTNESS: "carries the change",
        Gate.PEAK_MEMORY: "does not",
    }


@pytest.mark.parametrize(
    ("outcome", "candidate_too", "answer"),
    [
        (Outcome.NO_ENVIRONMENT, False, "cannot be held"),
        (Outcome.CRASHED, False, "cannot be held"),
        (Outcome.CRASHED, True, "does not"),
    ],
)
def test_what_does_not_run_with_it_cannot_be_held_unless_the_candidate_does_not_run_either(
    outcome: Outcome, candidate_too: bool, answer: str
) -> None:
    arms = {"held-triton": made.ended(outcome)}
    arms |= {"candidate": made.ended(outcome)} if candidate_too else {}
    (found,) = verdicts_of(round_of({"candidate": 11.0}, holding(TRITON), arms=arms), made.tier())
    assert found.answer == answer, found.reason


def test_a_candidate_that_crashes_is_mended_by_what_is_held() -> None:
    arms = {"candidate": made.ended()}
    (found,) = verdicts_of(round_of({}, holding(TRITON), arms=arms, gates=(Gate.CORRECTNESS,)), made.tier())
    assert found.answer == "carries the change", found.reason


GROUP = holding(CUBLAS, CUDNN, name=VENDOR_GROUP)


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ([verdict(holding(TRITON), "carries the change")], "triton 3.6.0 -> 3.7.0 carries the change"),
        (
            [
                verdict(GROUP, "carries the change"),
                verdict(holding(CUBLAS), "does not"),
                verdict(holding(CUDNN), "carries the change"),
            ],
            "nvidia-cudnn 9.1 -> 9.2 carries the change",
        ),
        (
            [
                verdict(GROUP, "carries the change"),
                verdict(holding(CUBLAS), "does not"),
                verdict(holding(CUDNN), "does not"),
            ],
            "nvidia-cublas 13.0 -> 13.1, nvidia-cudnn 9.1 -> 9.2 carry the change",
        ),
        (
            [verdict(holding(TRITON), "carries a part")],
            "triton carries a part of the change, and torch itself or another the rest",
        ),
        (
            [
                verdict(holding(TRITON), "does not"),
                verdict(GROUP, "cannot be held"),
                verdict(holding(CUBLAS), "does not"),
                verdict(holding(CUDNN), "cannot be held"),
            ],
            "torch itself, or what could not be ruled out: nvidia-cudnn cannot be held (as seen)",
        ),
        (
            [verdict(holding(TRITON), "does not"), verdict(GROUP, "does not")],
            "torch itself: it stays with each of the others held (triton, nvidia-cublas, nvidia-cudnn), "
            "as far as holding one at a time can tell",
        ),
    ],
)
def test_the_conclusion_names_a_carrier_or_torch_and_what_is_open(verdicts: list[HeldVerdict], said: str) -> None:
    assert conclude(Gate.LATENCY, (CUBLAS, CUDNN, TRITON), verdicts, [FAILED]) == said


def test_a_change_that_is_not_seen_again_is_nobodys() -> None:
    passed = Verdict(gate=Gate.LATENCY, status=Status.PASS, reason="p50 +0.1 %")
    verdicts = [verdict(holding(TRITON), "cannot be told")]
    said = conclude(Gate.LATENCY, (TRITON,), verdicts, [passed])
    assert said == "not seen again, so there is nothing to isolate (pass: p50 +0.1 %)"
    assert carriers_of(verdicts, Gate.LATENCY) == ()
    assert conclude(Gate.LATENCY, (), [], []) == "torch itself: nothing else moved"


def test_failing_cells_are_those_of_the_version_question_by_tier() -> None:
    slow, well = made.cell("slow", features=["flex"]), made.cell("well")
    times = {"candidate": 11.0, "candidate+flex": 20.0}
    evidence = made.evidence([(slow, made.result(slow, times=times)), (well, made.result(well))])
    found = failing(judge(evidence), evidence.plan)
    assert list(found) == [slow.id]
    (gates,) = found[slow.id].values()
    assert gates == (Gate.LATENCY, Gate.THROUGHPUT)
    assert failing(judge(evidence), evidence.plan, (Gate.PEAK_MEMORY,)) == {}


def isolated(created: str, carriers: dict[Gate, tuple[str, ...]], *, complete: bool = True) -> Isolation:
    return Isolation(
        run_id="r-1",
        cell_id="block/infer@cpu",
        tier="serving",
        gates=(Gate.LATENCY, Gate.THROUGHPUT),
        complete=complete,
        created=created,
        moved=(TRITON,),
        environments={},
        rounds=(),
        carriers=carriers,
    )


def test_what_carries_a_gate_is_named_with_the_version_that_it_is_held_at() -> None:
    found = companions_of([isolated("2026-12-01", {Gate.LATENCY: ("triton",)})])
    assert found == {("serving", "block/infer@cpu", Gate.LATENCY): f"companion triton {TRITON.baseline}"}


def test_a_later_isolation_takes_back_what_an_earlier_one_said_and_an_unfinished_one_says_nothing() -> None:
    first = isolated("2026-12-01", {Gate.LATENCY: ("triton",)})
    assert companions_of([isolated("2026-12-02", {}), first]) == {}
    assert len(companions_of([first, isolated("2026-12-02", {}, complete=False)])) == 1
