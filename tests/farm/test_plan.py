"""The frozen plan: what becomes a cell, and what its digest stands for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from farm.errors import UsageError
from farm.matrix import Matrix, load_matrix
from farm.model import Backend, Gate, Host, Plan, Side
from farm.plan import PlanRequest, make_plan
from farm.releases import Resolution
from tests import evidence as made

ROOT = Path(__file__).parent.parent.parent
MATRIX = (ROOT / "farm" / "default_matrix.toml").read_text()
FIXTURES = ROOT / "tests" / "fixtures" / "workloads"


def host(*capabilities: str) -> Host:
    return made.HOST.model_copy(update={"capabilities": capabilities})


def resolution(candidate: str = "2.13.0", **more: object) -> Resolution:
    environments = {Side.BASELINE: made.environment("2.12.1"), Side.CANDIDATE: made.environment(candidate)}
    pins = {Side.CANDIDATE: candidate, Side.BASELINE: "2.12.1"}
    return Resolution(environments=environments, pins=pins, **more)  # type: ignore[arg-type]


def planned(
    matrix: Matrix | None = None,
    *,
    hosts: tuple[Host, ...] = (host("cpu"),),
    backends: tuple[Backend, ...] = (),
    suite: str = "smoke",
    resolve: Callable[[Backend, Host], Resolution] = lambda backend, host: resolution(),
) -> Plan:
    request = PlanRequest("2.13", None, suite, backends)
    return make_plan(matrix or load_matrix(), request, list(hosts), resolve)


@pytest.fixture
def changed(tmp_path: Path) -> Callable[..., Matrix]:
    """Return the default matrix with texts replaced, from a file in a folder of the given name."""

    def change(*pairs: tuple[str, str], folder: str = "here") -> Matrix:
        text = MATRIX
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new, 1)
        path = tmp_path / folder / "matrix.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return load_matrix(path)

    return change


def test_every_case_of_the_suite_is_a_cell_and_every_capability_has_one_rehearsal() -> None:
    plan = planned()
    assert [cell.id for cell in plan.cells] == [
        "transformer_block/infer-fp32@cpu",
        "flex_attention/sliding-window-fp32@cpu",
        "linear_cross_entropy/train-fp32@cpu",
        "rollback/transformer_block-infer-fp32@cpu",
    ]
    assert [cell.kind for cell in plan.cells] == ["measure"] * 3 + ["rehearsal"]
    assert len(planned(suite="standard").cells) > len(plan.cells)
    assert any(cell.production_shape for cell in planned(suite="standard").cells)


def test_arms_are_both_releases_and_the_new_paths_of_the_candidate() -> None:
    arms = {cell.workload: [arm.name for arm in cell.arms] for cell in planned().cells if cell.kind == "measure"}
    assert arms == {
        "transformer_block": ["baseline", "candidate"],
        "flex_attention": ["baseline", "candidate", "candidate+flex"],
        "linear_cross_entropy": ["baseline", "candidate", "candidate+lce"],
    }


def test_a_path_that_the_candidate_has_not_got_is_not_asked_about() -> None:
    plan = planned(resolve=lambda backend, host: resolution("2.12.0"))
    (cell,) = (cell for cell in plan.cells if cell.workload == "linear_cross_entropy")
    assert [arm.name for arm in cell.arms] == ["baseline", "candidate"]
    assert any("lce" in note and "2.13" in note for note in plan.resolution_notes)


def test_a_release_candidate_has_the_paths_of_its_release() -> None:
    plan = planned(resolve=lambda backend, host: resolution("2.13.0rc2"))
    (cell,) = (cell for cell in plan.cells if cell.workload == "linear_cross_entropy")
    assert "candidate+lce" in [arm.name for arm in cell.arms]


def test_backends_without_a_worker_are_listed_and_those_not_asked_for_say_so() -> None:
    plan = planned(hosts=(host("cpu"), host("cuda.sm90", "cpu")))
    assert {cell.capability for cell in plan.cells} == {"cpu", "cuda.sm90"}
    assert plan.unserved_backends == dict.fromkeys(("mps", "rocm", "distributed"), "no worker")
    asked = planned(hosts=(host("cpu"), host("cuda.sm90", "cpu")), backends=("cpu",))
    assert {cell.capability for cell in asked.cells} == {"cpu"}
    assert asked.unserved_backends["cuda"] == "not requested"
    assert planned(backends=("rocm",)).cells == ()


def test_a_backend_that_the_matrix_has_not_got_is_refused(changed: Callable[..., Matrix]) -> None:
    matrix = changed(('["mps", "cuda", "rocm", "cpu", "distributed"]', '["cpu", "mps", "cuda", "rocm", "distributed"]'))
    assert planned(matrix).cells
    with pytest.raises(UsageError, match="no suite 'nosuch'"):
        planned(suite="nosuch")


def test_a_broken_control_is_written_into_every_cell() -> None:
    broken = "build variant differs: baseline cu130, candidate cpu"
    plan = planned(resolve=lambda backend, host: resolution(broken_control=broken))
    assert {cell.broken_control for cell in plan.cells} == {broken}


def test_a_workload_without_a_program_is_not_asked_to_compile() -> None:
    gates = {cell.workload: cell.gates for cell in planned().cells if cell.kind == "measure"}
    assert Gate.COMPILE_EXPORT in gates["transformer_block"]
    assert Gate.COMPILE_EXPORT not in gates["linear_cross_entropy"]


# -- the digest ----------------------------------------------------------------------------------------------------


def test_the_same_question_has_the_same_digest_wherever_it_is_asked(
    changed: Callable[..., Matrix],
) -> None:
    first = planned(changed(folder="here"))
    again = planned(changed(folder="there"))
    assert first.command != again.command
    assert first.plan_digest == again.plan_digest
    later = first.model_copy(update={"created": "2030-01-01T00:00:00+00:00"})
    assert later.plan_digest == first.plan_digest


def test_who_else_is_away_is_not_part_of_the_question() -> None:
    alone = planned(backends=("cpu",))
    beside = planned(hosts=(host("cpu"), host("cuda.sm90")), backends=("cpu",))
    assert alone.plan_digest == beside.plan_digest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("p50_ratio = 1.03", "p50_ratio = 1.04"),
        ('privacy = "', 'privacy = "indeed, '),
        ("seed = 20260701", "seed = 20260702"),
        ("looks = [5]", "looks = [5, 6]"),
        ('p50_ratio = "the capacity plan has', 'p50_ratio = "the capacity plan, they say, has'),
    ],
    ids=["threshold", "caveat", "seed", "looks", "reason"],
)
def test_whatever_judges_or_measures_is_part_of_the_digest(changed: Callable[..., Matrix], old: str, new: str) -> None:
    assert planned(changed((old, new))).plan_digest != planned(changed()).plan_digest


def test_a_comment_is_not_part_of_the_digest(changed: Callable[..., Matrix]) -> None:
    assert planned(changed(("# Few restarts", "# A few restarts"))).plan_digest == planned(changed()).plan_digest


def test_another_wheel_is_another_question() -> None:
    assert planned(resolve=lambda b, h: resolution("2.13.1")).plan_digest != planned().plan_digest


def test_the_source_of_a_workload_of_ones_own_travels_and_is_part_of_the_digest(tmp_path: Path) -> None:
    file = tmp_path / "slowed.py"
    shutil.copy(FIXTURES / "slowed.py", file)
    matrix = tmp_path / "matrix.toml"
    named = '[[workload]]\nname = "slowed"\nfile = "slowed.py"\ncandidate_path = "slowed"\n\n[[workload]]'
    matrix.write_text(MATRIX.replace("[[workload]]", named, 1))
    first = planned(load_matrix(matrix))
    assert first.sources == {"slowed": file.read_text()}
    paths = {arm.name: arm.path for cell in first.cells if cell.workload == "slowed" for arm in cell.arms}
    assert paths == {"baseline": "as_is", "candidate": "slowed"}
    file.write_text(file.read_text() + "\n# another word\n")
    assert planned(load_matrix(matrix)).plan_digest != first.plan_digest
