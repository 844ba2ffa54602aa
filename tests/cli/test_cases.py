"""Every case of the public reports that touches judging comes out right, through `farm decide` as a user types it."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from cli.decide import command
from farm.model import Cell, Decision, Evidence, Gate, Judgement, Outcome, Rejudgement, Status, Validity, Verdict
from farm.report.markdown import to_markdown
from farm.statistics import two_modes
from tests.evidence import (
    HOST,
    cell,
    comparison,
    ended,
    environment,
    evidence,
    memory,
    ok,
    output,
    restarts,
    result,
    run_of,
    tier,
)

COLD, WARM = (3.161950, 3.177650, 3.166400), (3.739150, 3.657400, 3.773350)
TIMED = (Gate.CORRECTNESS, Gate.LATENCY)


def judge(evidence: Evidence) -> Judgement:
    """Return what `farm decide` prints of ``evidence`` that it is given as a file would be."""
    found = CliRunner().invoke(command, ["-", "--json"], input=evidence.model_dump_json(), catch_exceptions=False)
    return Rejudgement.model_validate_json(found.stdout).judgement


def printed(evidence: Evidence, kind: str = "markdown") -> str:
    """Return what `farm decide` prints of ``evidence`` for people."""
    asked = ["-", "--format", kind]
    return CliRunner().invoke(command, asked, input=evidence.model_dump_json(), catch_exceptions=False).stdout


def verdict(judgement: Judgement, gate: Gate, limits: str = "serving") -> Verdict:
    (only,) = [c for c in judgement.cells if c.tier == limits]
    return next(v for v in only.verdicts if v.gate is gate)


def one(of: Cell, **found: object) -> Judgement:
    return judge(evidence([(of, result(of, **found))], tier()))  # type: ignore[arg-type]


# -- measurements --------------------------------------------------------------------------------------------------


def test_m1_cold_and_warm_caches_in_one_arm_are_two_modes_and_no_mean() -> None:
    assert two_modes([*COLD, *WARM]) == pytest.approx((3.166400, 3.739150))
    judgement = one(cell(), times={"baseline": [3.17] * 6, "candidate": [*COLD, *WARM]})
    for gate in (Gate.LATENCY, Gate.THROUGHPUT):
        found = verdict(judgement, gate)
        assert (found.status, found.figure) == (Status.UNTESTED, None)
        assert found.reason.startswith("two modes from process to process")
    assert judgement.rows[0].decision is Decision.DEFER


def test_m2_machines_of_two_classes_are_never_compared_with_each_other() -> None:
    slow, fast = cell(capability="cuda.sm80"), cell(capability="cuda.sm90")
    pairs = [
        (of, result(of, times={"baseline": ms, "candidate": ms})) for of, ms in ((slow, 0.243455), (fast, 0.211497))
    ]
    judgement = judge(evidence(pairs, tier(backends=("cuda",))))
    for found in judgement.cells:
        figure = next(v.figure for v in found.verdicts if v.gate is Gate.LATENCY)
        assert figure is not None
        assert figure.value == 1.0
    assert judgement.tiers[0].decision is Decision.ADOPT


def test_m2_a_ratio_is_candidate_over_baseline() -> None:
    figure = verdict(one(cell(), times={"baseline": 0.211497, "candidate": 0.243455}), Gate.LATENCY).figure
    assert figure is not None
    assert figure.value == pytest.approx(0.243455 / 0.211497, rel=1e-5)


@pytest.mark.parametrize("flipping", ["baseline", "candidate"])
def test_m3_a_side_that_flips_between_processes_has_two_modes_and_no_verdict(flipping: str) -> None:
    times = {"baseline": [3.0] * 8, "candidate": [3.0] * 8} | {flipping: [2.9, 3.4, 3.0, 3.4, 2.95, 3.39, 2.93, 3.41]}
    judgement = one(cell(), times=times)
    assert verdict(judgement, Gate.LATENCY).status is Status.UNTESTED
    assert "two modes" in verdict(judgement, Gate.LATENCY).reason
    assert judgement.rows[0].decision is Decision.DEFER


@pytest.mark.parametrize(("run", "regressions"), list(enumerate((1, 29, 19, 12, 14, 1, 15, 12, 17))))
def test_m4_many_regressions_and_no_improvement_raise_an_alarm_and_no_rollback(run: int, regressions: int) -> None:
    cells = [cell(f"run-{run}-{number}") for number in range(30)]
    pairs = [
        (of, result(of, times={"candidate": 11.0 if number < regressions else 10.0})) for number, of in enumerate(cells)
    ]
    judgement = judge(evidence(pairs, tier(required=TIMED, in_service=True)))
    if regressions < 8:
        assert judgement.alarms == ()
        return
    assert judgement.alarms[0].startswith(f"asymmetry: {regressions} cells are slower")
    assert Decision.ROLLBACK not in {row.decision for row in judgement.rows}
    assert judgement.tiers[0].decision is Decision.DEFER


def test_v9_a_library_of_the_host_in_front_of_the_wheels_is_flagged() -> None:
    shadowed = ok().model_copy(update={"facts": {"stranger_libraries": ["/usr/lib/libcudart.so.12"]}})
    of = cell()
    found = evidence([(of, result(of, {"candidate": shadowed}))], tier())
    page = to_markdown(found, judge(found))
    assert "candidate: a library that is not the environment's was loaded: /usr/lib/libcudart.so.12" in page


def test_m4_changes_both_ways_are_no_alarm_and_invalid_cells_are_not_counted() -> None:
    cells = [cell(f"w{number}") for number in range(12)]
    both = [(of, result(of, times={"candidate": 11.0 if n % 3 else 9.0})) for n, of in enumerate(cells)]
    assert judge(evidence(both, tier())).alarms == ()
    never = Validity(valid=False, reasons=("never steady",))
    invalid = [(of, found.model_copy(update={"validity": never})) for of, found in both]
    assert judge(evidence([both[1], *invalid[2:]], tier())).alarms == ()


def test_m4_one_cell_the_other_way_does_not_silence_the_alarm() -> None:
    cells = [cell(f"w{number}") for number in range(30)]
    pairs = [(of, result(of, times={"candidate": 11.0 if n else 9.0})) for n, of in enumerate(cells)]
    judgement = judge(evidence(pairs, tier(required=TIMED, in_service=True)))
    assert judgement.alarms[0].startswith("asymmetry: 29 cells are slower and 1 the other way")
    assert judgement.tiers[0].decision is Decision.DEFER


def test_m5_one_slowdown_fails_a_tight_tier_and_passes_a_wide_one() -> None:
    of = cell()
    tight, wide = (tier(name, required=TIMED, p50_ratio=p50, p95_ratio=None) for name, p50 in (("s", 1.07), ("w", 1.1)))
    found = result(of, times={"baseline": 117.884, "candidate": 128.419})
    judgement = judge(evidence([(of, found)], tight, wide))
    decisions = {row.tier: row.decision for row in judgement.rows}
    assert decisions == {"s": Decision.DEFER, "w": Decision.ADOPT}
    for name in decisions:
        assert "+8.9 %" in verdict(judgement, Gate.LATENCY, name).reason


@pytest.mark.parametrize("arm", ["baseline", "candidate"])
def test_m11_a_memory_sensor_that_reads_zero_invalidates_its_gate_alone(arm: str) -> None:
    judgement = one(cell(), arms={arm: ok(memory=memory(0, process=(0, 0, 0), reserved=0))})
    found = verdict(judgement, Gate.PEAK_MEMORY)
    assert found.status is Status.UNTESTED
    assert found.reason.startswith("sensor implausible")
    others = {v.status for v in judgement.cells[0].verdicts if v.gate is not Gate.PEAK_MEMORY}
    assert others == {Status.PASS}
    assert judgement.rows[0].decision is Decision.DEFER


def test_m12_a_workspace_that_became_visible_is_kept_apart_from_what_lives() -> None:
    arms = {"baseline": ok(memory=memory(reserved=2**25)), "candidate": ok(memory=memory(reserved=2**27))}
    found = verdict(one(cell(), arms=arms), Gate.PEAK_MEMORY)
    assert found.status is Status.PASS
    assert {other.name: other.value for other in found.others}["reserved peak ratio"] == 4.0


def test_m12_what_no_longer_fits_is_a_change_of_status_and_no_number() -> None:
    judgement = one(cell(), arms={"candidate": ended(Outcome.OUT_OF_MEMORY, "27 GiB asked of 24 GiB")})
    found = verdict(judgement, Gate.PEAK_MEMORY)
    assert (found.status, found.figure) == (Status.FAIL, None)
    assert found.reason == "candidate out of memory: 27 GiB asked of 24 GiB"
    fixed = one(cell(), arms={"baseline": ended(Outcome.OUT_OF_MEMORY, "27 GiB asked of 24 GiB")})
    assert verdict(fixed, Gate.PEAK_MEMORY).status is Status.NOT_APPLICABLE
    assert "the way back has the fault" in fixed.rows[0].warnings[0]


NOISY = (1.12, 0.9, 1.11, 0.92, 1.1, 0.91, 1.09, 0.93)


def test_m2_arms_that_were_measured_on_different_machines_are_no_comparison() -> None:
    of = cell()
    parts = []
    for arm, cpu, ms in (("baseline", "EPYC 7763", 0.211497), ("candidate", "EPYC 9V74", 0.243455)):
        found = result(of, times={"baseline": ms, "candidate": ms}, host=HOST.model_copy(update={"cpu": cpu}))
        lives = tuple(r.model_copy(update={"arms": {arm: r.arms[arm]}}) for r in found.restarts)
        parts.append(found.model_copy(update={"arms": {arm: found.arms[arm]}, "restarts": lives}))
    apart = evidence([(of, None)], tier(in_service=True))
    judgement = judge(apart.model_copy(update={"results": (*parts, *apart.results)}))
    for gate in (Gate.LATENCY, Gate.THROUGHPUT):
        found_verdict = verdict(judgement, gate)
        assert (found_verdict.status, found_verdict.figure) == (Status.UNTESTED, None)
        assert "not comparable: arms were measured apart, baseline on EPYC 7763" in found_verdict.reason
    assert judgement.coverage.comparable == 0
    assert judgement.rows[0].decision is Decision.DEFER


def test_m10_a_change_within_the_cells_own_noise_accuses_nothing_and_the_cell_is_unstable() -> None:
    of = cell()
    found = result(of, times={"baseline": 198.09, "candidate": 218.59}, noise=NOISY)
    judgement = judge(evidence([(of, found)], tier(in_service=True)))
    latency = verdict(judgement, Gate.LATENCY)
    assert latency.status is Status.INCONCLUSIVE
    assert "within this cell's own noise" in latency.reason
    assert of.id in judgement.unstable
    assert judgement.rows[0].decision is Decision.DEFER
    quiet = judge(evidence([(of, found.model_copy(update={"noise": ()}))], tier(in_service=True)))
    assert verdict(quiet, Gate.LATENCY).status is Status.FAIL


# -- absence -------------------------------------------------------------------------------------------------------

NAN = float("nan")
NOT_FINITE = {"finite": False, "rms_error": NAN, "max_error": NAN, "reference_rms": NAN, "gain": NAN}


@pytest.mark.parametrize(
    ("arm", "status"), [("candidate", Status.FAIL), ("baseline", Status.UNTESTED)], ids=["candidate", "baseline"]
)
def test_a1_a_nan_in_one_arm_is_a_failure_or_invalid_and_never_silent(arm: str, status: Status) -> None:
    judgement = one(cell(), arms={arm: ok(outputs={"y": output(**NOT_FINITE)})})
    found = verdict(judgement, Gate.CORRECTNESS)
    assert found.status is status
    assert "'y' is not finite" in found.reason
    assert judgement.rows[0].decision is Decision.DEFER


@pytest.mark.parametrize("name", ["rms_error", "max_error", "gain", "reference_rms"])
def test_a1_a_nan_among_the_figures_alone_is_seen_too(name: str) -> None:
    judgement = one(cell(), arms={"candidate": ok(outputs={"y": output(**{name: NAN})})})
    assert verdict(judgement, Gate.CORRECTNESS).status in (Status.FAIL, Status.UNTESTED)


def test_a2_a_reference_that_is_nan_itself_is_invalid_and_passes_nothing() -> None:
    lost = ok(outputs={"y": output(**NOT_FINITE | {"finite": True, "reference_finite": False})})
    judgement = one(cell(), arms={"baseline": lost, "candidate": lost})
    found = verdict(judgement, Gate.CORRECTNESS)
    assert found.status is Status.UNTESTED
    assert found.reason.startswith("reference invalid")
    assert judgement.rows[0].decision is Decision.DEFER


def test_a3_seven_of_fifty_that_ran_defer_and_are_counted_first() -> None:
    cells = [cell(f"w{number}") for number in range(50)]
    pairs = [(of, result(of) if number < 7 else None) for number, of in enumerate(cells)]
    judgement = judge(evidence(pairs, tier()))
    assert (judgement.coverage.cells, judgement.coverage.comparable, judgement.coverage.not_run) == (50, 7, 43)
    assert judgement.tiers[0].decision is Decision.DEFER
    assert judgement.tiers[0].would is None
    assert judgement.tiers[0].kept_apart == ()


def test_a4_backends_that_nobody_asked_for_read_not_requested() -> None:
    limits = tier(backends=("cpu", "cuda", "rocm"))
    made = run_of(cell(), tiers=(limits,), unserved_backends={"cuda": "not requested", "rocm": "no worker"})
    judgement = judge(made)
    rows = {row.backend: row for row in judgement.rows}
    assert rows["cuda"].reason == "untested: not requested"
    assert rows["rocm"].reason == "untested: no worker"
    assert (rows["cuda"].decision, rows["cuda"].figure) == (Decision.DEFER, None)
    assert rows["cpu"].decision is Decision.ADOPT
    assert judgement.coverage.untested_backends == {"cuda": "not requested", "rocm": "no worker"}
    assert (judgement.coverage.missing_on_candidate, judgement.coverage.not_run) == (0, 0)


def test_a5_out_of_memory_is_an_outcome_and_never_a_time_of_zero() -> None:
    found = verdict(one(cell(), arms={"candidate": ended(Outcome.OUT_OF_MEMORY, "no room")}), Gate.LATENCY)
    assert (found.status, found.figure, found.reason) == (Status.FAIL, None, "candidate out of memory: no room")


@pytest.mark.parametrize("arm", ["baseline", "candidate"])
@pytest.mark.parametrize("step", [0.0, 2**64 / 1e6 - 5.0], ids=["zero", "negative"])
def test_a5_a_time_of_zero_or_less_is_invalid(arm: str, step: float) -> None:
    judgement = one(cell(), times={arm: [10.0] * 5 + [step]})
    assert verdict(judgement, Gate.LATENCY).reason.startswith("invalid: sensor implausible")
    assert (judgement.coverage.invalid, judgement.coverage.comparable) == (1, 0)
    assert judgement.rows[0].decision is Decision.DEFER


# -- correctness and determinism -----------------------------------------------------------------------------------


def test_c1_a_change_within_tolerance_passes_with_that_word_on_each_architecture() -> None:
    error = {"rms_error": 0.003, "max_error": 0.02}
    old = ok(outputs={"y": output(dtype="bfloat16", **error)})
    new = ok(outputs={"y": output(dtype="bfloat16", changed=True, **error)})
    cells = [cell(capability="cuda.sm80"), cell(capability="cuda.sm90")]
    pairs = [(of, result(of, {"baseline": old, "candidate": arm})) for of, arm in zip(cells, (new, old), strict=True)]
    judgement = judge(evidence(pairs, tier(backends=("cuda",))))
    reasons = [next(v for v in found.verdicts if v.gate is Gate.CORRECTNESS).reason for found in judgement.cells]
    assert reasons == ["changed within tolerance: y", "bitwise identical"]
    assert judgement.tiers[0].decision is Decision.ADOPT


def test_c2_results_that_differ_between_releases_are_repeatable_and_a_note() -> None:
    changed = output(changed=True, rms_error=6e-8)
    arms = {
        "baseline": ok(repeat_digests=("a",) * 5),
        "candidate": ok(repeat_digests=("b",) * 5, outputs={"y": changed}),
    }
    judgement = one(cell(), arms=arms)
    assert verdict(judgement, Gate.DETERMINISM).status is Status.PASS
    assert verdict(judgement, Gate.CORRECTNESS).reason == "changed within tolerance: y"
    loose = one(cell(), arms=arms | {"candidate": ok(repeat_digests=("b", "b", "c", "b", "b"))})
    assert verdict(loose, Gate.DETERMINISM).status is Status.FAIL


@pytest.mark.parametrize("in_service", [False, True])
def test_c3_a_baseline_that_fails_its_known_answer_points_at_the_machine(in_service: bool) -> None:
    wrong = ok(outputs={"y": output(rms_error=0.3, max_error=2.0, gain=0.9)})
    of = cell()
    host = HOST.model_copy(update={"os": "macOS 14.4 (23E214)"})
    run = evidence([(of, result(of, {"baseline": wrong, "candidate": wrong}, host=host))], tier(in_service=in_service))
    found = verdict(judge(run), Gate.CORRECTNESS)
    assert found.status is Status.UNTESTED
    assert found.reason.startswith("reference invalid: baseline fails its oracle")
    assert judge(run).rows[0].decision is Decision.DEFER
    assert "23E214" in printed(run)


# -- queue and fleet -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("in_service", "decision"), [(False, Decision.DEFER), (True, Decision.ROLLBACK)])
def test_q5_a_barrier_that_hangs_is_the_candidates_only_where_the_baseline_passed(
    in_service: bool, decision: Decision
) -> None:
    hang = ended(Outcome.TIMED_OUT, "no answer within 120 s in 'first barrier'")
    of, limits = cell(), tier(in_service=in_service)
    alone = judge(evidence([(of, result(of, {"candidate": hang}))], limits))
    found = verdict(alone, Gate.CORRECTNESS)
    assert (found.status, found.figure) == (Status.FAIL, None)
    assert found.reason.startswith("candidate timed out: no answer within 120 s")
    assert alone.rows[0].decision is decision
    both = judge(evidence([(of, result(of, {"baseline": hang, "candidate": hang}))], limits))
    assert verdict(both, Gate.CORRECTNESS).status is Status.UNTESTED
    assert both.rows[0].decision is Decision.DEFER


# -- versions ------------------------------------------------------------------------------------------------------


def a_a(*, known: bool, times: dict[str, float], in_service: bool = False) -> Evidence:
    same = environment("2.12.1")
    of = cell()
    arms = tuple(arm.model_copy(update={"environments": {HOST.target: same.key}}) for arm in of.arms)
    of = of.model_copy(update={"arms": arms})
    made = evidence([(of, result(of, times=times))], tier(in_service=in_service), aa=known)
    plan = made.plan.model_copy(update={"environments": {same.key: same}})
    return made.model_copy(update={"plan": plan})


@pytest.mark.parametrize("known", [True, False], ids=["resolved as A/A", "found in the plan"])
@pytest.mark.parametrize("in_service", [False, True])
@pytest.mark.parametrize("candidate_ms", [9.0, 10.0, 12.0])
def test_v6_one_wheel_in_both_arms_is_said_and_decides_nothing(
    known: bool, in_service: bool, candidate_ms: float
) -> None:
    judgement = judge(a_a(known=known, times={"candidate": candidate_ms}, in_service=in_service))
    assert "both arms are one wheel" in judgement.rows[0].reason
    assert judgement.rows[0].decision is Decision.DEFER
    assert judgement.tiers[0].decision is Decision.DEFER


@pytest.mark.parametrize("outcome", [Outcome.BACKEND_UNREACHABLE, Outcome.FELL_BACK])
def test_v8_a_device_that_torch_does_not_reach_is_said_and_is_no_figure(outcome: Outcome) -> None:
    reason = "the driver is too old: torch ran on the CPU"
    judgement = one(cell(), arms={"candidate": ended(outcome, reason)}, times={"baseline": 10.0, "candidate": 500.0})
    for gate in (Gate.LATENCY, Gate.THROUGHPUT):
        found = verdict(judgement, gate)
        assert (found.status, found.figure, found.reason) == (Status.FAIL, None, f"candidate {outcome}: {reason}")
    both = one(cell(), arms={name: ended(outcome, reason) for name in ("baseline", "candidate")})
    assert {v.status for v in both.cells[0].verdicts if v.gate is not Gate.ROLLBACK} == {Status.UNTESTED}


@pytest.mark.parametrize(("variant", "broken"), [("cpu", False), ("cu130", True)])
def test_v11_one_build_is_one_identity_and_two_variants_are_a_broken_control(variant: str, broken: bool) -> None:
    old, new = environment("2.12.1"), environment("2.13.0")
    # The index names the build in one wheel and not in the other; what torch says of itself is the same.
    new = new.model_copy(update={"release": new.release.model_copy(update={"local": variant, "variant": variant})})
    of = cell()
    run = evidence([(of, result(of))], tier(in_service=True))
    run = run.model_copy(update={"plan": run.plan.model_copy(update={"environments": {old.key: old, new.key: new}})})
    assert (old.release.identity, new.release.identity) == ("2.12.1+cpu", f"2.13.0+{variant}")
    (row,) = judge(run).rows
    assert row.decision is (Decision.DEFER if broken else Decision.ADOPT)
    assert row.reason.startswith("control broken: build variants differ: cpu and cu130") is broken


def test_a_comparison_is_sound_before_a_case_breaks_it() -> None:
    assert comparison().rms_error < 2**-23
    assert len(restarts({"baseline": 1.0})) == 6
    assert judge(run_of(cell())).tiers[0].decision is Decision.ADOPT
