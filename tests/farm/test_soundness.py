"""What a workload lacks is read off one release against itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farm.catalogue import WorkloadSpec, read_workload
from farm.model import ArmResult, CellResult, Outcome, Validity
from farm.soundness import Finding, findings, of_file, step_ns
from tests import evidence as made

SOURCE = '''"""One line."""
from workloads.contract import Workload

class One(Workload):
    """One line."""
    paths = {"old": "as it is", "new": "as it may be"}
    cases = {"infer": {"suites": ["smoke"]}}
'''


@pytest.fixture
def spec(tmp_path: Path) -> WorkloadSpec:
    (tmp_path / "one.py").write_text(SOURCE)
    return read_workload(tmp_path / "one.py")


CELL = made.cell("one", "infer", features=("new",))


def measured(times: Any = 5.0, **arms: ArmResult) -> CellResult:
    """Return the answer to CELL; an arm is named by its first word, "candidate_new" for the new path."""
    named = {name.replace("_", "+"): arm for name, arm in arms.items()}
    return made.result(CELL, arms=named, times={arm.name: times for arm in CELL.arms})


def found(spec: WorkloadSpec, result: CellResult, seeds: tuple[str, ...] = ("a", "b", "a")) -> list[Finding]:
    return findings(spec, CELL, result, (), seeds)


def told(spec: WorkloadSpec, result: CellResult, **more: Any) -> list[str]:
    return [f"{one.severity}: {one.what}" for one in found(spec, result, **more)]


def test_a_sound_workload_lacks_nothing(spec: WorkloadSpec) -> None:
    assert found(spec, measured()) == []


@pytest.mark.parametrize(
    ("seeds", "what"),
    [
        (("a", "b", "c"), "problem: no seed: the same seed gives other outputs in one process"),
        (("a", "a", "a"), "note: another seed gives the same outputs: constant inputs hide faults"),
    ],
)
def test_numbers_must_come_from_the_seed(spec: WorkloadSpec, seeds: tuple[str, ...], what: str) -> None:
    assert told(spec, measured(), seeds=seeds) == [what]


def test_a_work_that_ended_early_has_no_seeds_to_compare(spec: WorkloadSpec) -> None:
    assert told(spec, measured(), seeds=()) == []


@pytest.mark.parametrize(
    ("output", "what"),
    [
        (made.output().model_copy(update={"against_oracle": None}), "problem: no oracle for output 'y'"),
        (made.output(reference_finite=False), "problem: the oracle of 'y' is not finite"),
        (made.output(finite=False), "problem: output 'y' is not finite"),
        (
            made.output(reference_rms=0.0),
            "problem: output 'y' is zero everywhere: no fault would be seen",
        ),
    ],
)
def test_an_output_without_a_usable_reference_is_a_problem(spec: WorkloadSpec, output: Any, what: str) -> None:
    assert told(spec, measured(candidate_new=made.ok(outputs={"y": output}))) == [what]


def test_repeats_that_differ_are_counted(spec: WorkloadSpec) -> None:
    shaky = made.ok(repeat_digests=("a", "b", "a"))
    assert told(spec, measured(candidate_new=shaky)) == [
        "problem: output not deterministic: 2 different results in 3 repeats"
    ]


def test_two_processes_that_differ_are_told_where_one_process_repeats(spec: WorkloadSpec) -> None:
    other = made.ok(outputs={"y": made.output().model_copy(update={"sha256": "ab" * 32})})
    assert told(spec, measured(candidate=other)) == ["problem: two processes of one release give another 'y'"]


@pytest.mark.parametrize(
    ("ms", "what"),
    [
        (0.05, ["problem: step too short to time: a step takes 0.05 ms"] * 2),
        (0.5, ["note: a step takes 0.5 ms"] * 2),
        (3.0, []),
        (20.0, ["note: a step takes 20 ms"] * 2),
    ],
)
def test_a_step_too_short_to_time_is_a_problem_and_an_odd_one_a_note(
    spec: WorkloadSpec, ms: float, what: list[str]
) -> None:
    assert told(spec, measured(times=ms)) == what


def test_an_arm_that_failed_says_how(spec: WorkloadSpec) -> None:
    failed = ArmResult(outcome=Outcome.FAILED, reason="AssertionError: tired (step 4)")
    assert told(spec, measured(candidate_new=failed))[0] == "problem: failed: AssertionError: tired (step 4)"


def test_a_new_path_that_proves_nothing_is_a_note_and_the_old_one_need_not(spec: WorkloadSpec) -> None:
    silent = made.ok(path_ran="")
    assert told(spec, measured(baseline=silent, candidate_new=silent)) == ["note: nothing proves that this path ran"]


def test_an_oracle_in_single_precision_is_a_problem_and_other_warnings_are_notes(spec: WorkloadSpec) -> None:
    warned = made.ok(warnings=("a step trains w", "the oracle is no more precise than the work: 'y' is float32 in it"))
    assert told(spec, measured(candidate_new=warned)) == [
        "problem: no oracle: the oracle is no more precise than the work: 'y' is float32 in it",
        "note: a step trains w",
    ]


def test_steps_of_an_invalid_cell_are_still_told() -> None:
    result = measured().model_copy(update={"validity": Validity(valid=False, reasons=("shared",))})
    assert step_ns(result, "baseline") == 5e6
    assert step_ns(result, "nobody") is None


def test_a_file_without_production_shapes_or_a_program_has_notes(spec: WorkloadSpec) -> None:
    assert [one.severity for one in of_file(spec)] == ["note", "note"]
