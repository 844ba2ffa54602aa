"""The frozen plan: what becomes a cell, and what its digest stands for."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from farm.errors import UsageError
from farm.matrix import Matrix, load_matrix
from farm.model import Backend, EnvironmentRefused, Gate, Host, Plan, Side
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
    smoke = [
        f"{workload.spec.name}/{case.name}@cpu"
        for workload in load_matrix().workloads
        for case in workload.cases
        if "smoke" in case.suites
    ]
    assert {"transformer_block/infer-fp32@cpu", "exported_decoder/infer-small@cpu"} <= set(smoke)
    *measured, control, back = plan.cells
    assert [cell.id for cell in measured] == smoke
    assert control.id in [f"aa/{one.replace('/', '-')}" for one in smoke]
    assert back.id == "rollback/transformer_block-infer-fp32@cpu"
    assert [cell.kind for cell in plan.cells] == ["measure"] * len(smoke) + ["aa", "rehearsal"]
    assert len(planned(suite="standard").cells) > len(plan.cells)
    assert any(cell.production_shape for cell in planned(suite="standard").cells)


def test_arms_are_both_releases_and_the_new_paths_of_the_candidate() -> None:
    arms = {cell.workload: [arm.name for arm in cell.arms] for cell in planned().cells if cell.kind == "measure"}
    assert {
        "transformer_block": ["baseline", "candidate"],
        "flex_attention": ["baseline", "candidate", "candidate+flex"],
        "linear_cross_entropy": [
            "baseline",
            "candidate",
            "candidate+lce",
            "candidate+lce-auto",
            "candidate+lce-chunk-64",
            "candidate+lce-chunk-256",
        ],
    }.items() <= arms.items()


def test_a_program_is_asked_for_what_its_workload_has_and_its_case_wants() -> None:
    asked = {cell.id: cell.programs for suite in ("smoke", "standard") for cell in planned(suite=suite).cells}
    assert asked["exported_decoder/infer-small@cpu"] == ("compile", "export")
    assert asked["exported_decoder/infer-fp32@cpu"] == ("compile", "export", "package")
    assert asked["early_exit/infer-fp32@cpu"] == ("compile",)
    assert asked["flex_attention/sliding-window-fp32@cpu"] == ()
    # Half a minute a release: the suite that is run most has few.
    assert sum("package" in programs for programs in asked.values()) <= 2


def test_a_path_that_the_candidate_has_not_got_is_not_asked_about() -> None:
    plan = planned(resolve=lambda backend, host: resolution("2.12.0"))
    (cell,) = (cell for cell in plan.cells if cell.id == "linear_cross_entropy/train-fp32@cpu")
    assert [arm.name for arm in cell.arms] == ["baseline", "candidate"]
    assert any("lce" in note and "2.13" in note for note in plan.resolution_notes)


def test_a_release_candidate_has_the_paths_of_its_release() -> None:
    plan = planned(resolve=lambda backend, host: resolution("2.13.0rc2"))
    (cell,) = (cell for cell in plan.cells if cell.id == "linear_cross_entropy/train-fp32@cpu")
    assert "candidate+lce" in [arm.name for arm in cell.arms]


def test_backends_without_a_worker_are_listed_and_those_not_asked_for_say_so() -> None:
    plan = planned(hosts=(host("cpu"), host("cuda.sm90", "cpu")))
    assert {cell.capability for cell in plan.cells} == {"cpu", "cuda.sm90"}
    assert plan.unserved_backends == dict.fromkeys(("mps", "rocm", "distributed"), "no worker")
    asked = planned(hosts=(host("cpu"), host("cuda.sm90", "cpu")), backends=("cpu",))
    assert {cell.capability for cell in asked.cells} == {"cpu"}
    assert asked.unserved_backends["cuda"] == "not requested"
    assert planned(backends=("rocm",)).cells == ()


def test_a_backend_or_a_suite_that_the_matrix_has_not_got_is_refused_naming_those_that_it_has() -> None:
    small = dataclasses.replace(load_matrix(), backends=("cpu", "mps"))
    with pytest.raises(UsageError, match="no backend 'cuda' in the matrix; allowed are cpu, mps"):
        planned(small, backends=("cpu", "cuda"))
    with pytest.raises(UsageError, match="no suite 'nosuch'; allowed are smoke, standard"):
        planned(suite="nosuch")


def test_a_broken_control_is_written_into_every_cell() -> None:
    broken = "build variant differs: baseline cu130, candidate cpu"
    plan = planned(resolve=lambda backend, host: resolution(broken_control=broken))
    assert {cell.broken_control for cell in plan.cells if cell.kind != "aa"} == {broken}


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


# -- several machines ----------------------------------------------------------------------------------------------

ARM = host("cpu").model_copy(update={"name": "bench-2", "platform": "aarch64-unknown-linux-gnu"})
BOTH = host("cpu", "cuda.sm90")


def build(backend: Backend, machine: Host) -> Resolution:
    """Resolve as an index does that has one build for each backend and platform."""
    variant = "cu130" if backend == "cuda" else "cpu"
    found = {}
    for side, version in ((Side.BASELINE, "2.12.1"), (Side.CANDIDATE, "2.13.0")):
        made_ = made.environment(version)
        sha256 = f"{version} {variant} {machine.platform}"
        release = made_.release.model_copy(update={"variant": variant, "platform": machine.platform, "sha256": sha256})
        torch = made_.packages[0].model_copy(update={"sha256": sha256})
        found[side] = made_.model_copy(update={"release": release, "packages": (torch,)})
    pins = {Side.CANDIDATE: "2.13.0", Side.BASELINE: "2.12.1"}
    return Resolution(found, pins=pins, notes=(f"{variant} was chosen",))


def test_machines_of_two_platforms_share_a_cell_and_each_has_environments_of_its_own() -> None:
    plan = planned(hosts=(host("cpu"), ARM), resolve=build)
    assert {cell.capability for cell in plan.cells} == {"cpu"}
    assert len(plan.environments) == 4
    for cell in plan.cells:
        for arm in cell.arms:
            assert set(arm.environments) == {made.HOST.target, ARM.target}
            for target, key in arm.environments.items():
                release = plan.environments[key].release
                assert (release.platform, release.version) == (
                    target.partition(",")[0],
                    "2.12.1" if arm.side is Side.BASELINE else "2.13.0",
                )


def test_a_machine_of_two_backends_has_the_build_of_each_and_the_plan_names_both() -> None:
    plan = planned(hosts=(BOTH,), resolve=build)
    assert {cell.capability for cell in plan.cells} == {"cpu", "cuda.sm90"}
    for cell in plan.cells:
        variants = {plan.environments[key].release.variant for arm in cell.arms for key in arm.environments.values()}
        assert variants == {"cu130" if cell.backend == "cuda" else "cpu"}
    assert sorted(release.identity for release in plan.releases.values()) == [
        "2.12.1+cpu",
        "2.12.1+cu130",
        "2.13.0+cpu",
        "2.13.0+cu130",
    ]


def test_neither_the_order_of_machines_nor_that_of_backends_is_part_of_the_question() -> None:
    asked: list[tuple[Backend, ...]] = [("cpu", "cuda"), ("cuda", "cpu"), ("cpu", "cuda", "cpu"), ()]
    plans = [
        planned(hosts=hosts, backends=backends, resolve=build)
        for hosts in itertools.permutations((ARM, BOTH, host("cuda.sm90", "cpu")))
        for backends in asked
    ]
    assert len({plan.plan_digest for plan in plans}) == 1
    assert len({plan.command for plan in plans}) == 1
    assert plans[0].requested_backends == ("cuda", "cpu")


def test_a_second_machine_of_one_kind_is_not_resolved_again_and_changes_nothing() -> None:
    asked = []

    def resolve(backend: Backend, machine: Host) -> Resolution:
        asked.append((backend, machine.target))
        return build(backend, machine)

    twin = host("cpu").model_copy(update={"name": "bench-3"})
    assert planned(hosts=(host("cpu"), twin), resolve=resolve).plan_digest == planned(resolve=build).plan_digest
    assert asked == [("cpu", made.HOST.target)]


def test_every_capability_has_a_rehearsal_of_both_releases_and_nothing_else() -> None:
    plan = planned(hosts=(BOTH,), resolve=build)
    rehearsals = [cell for cell in plan.cells if cell.kind == "rehearsal"]
    assert [cell.capability for cell in rehearsals] == ["cpu", "cuda.sm90"]
    assert {cell.gates for cell in rehearsals} == {(Gate.ROLLBACK,)}
    assert {tuple(arm.name for arm in cell.arms) for cell in rehearsals} == {("baseline", "candidate")}
    assert len({cell.id for cell in plan.cells}) == len(plan.cells)
    assert not any(Gate.ROLLBACK in cell.gates for cell in plan.cells if cell.kind == "measure")


def test_a_control_that_is_broken_on_one_backend_is_written_into_its_cells_alone() -> None:
    def resolve(backend: Backend, machine: Host) -> Resolution:
        found = build(backend, machine)
        return dataclasses.replace(found, broken_control="variants differ") if backend == "cuda" else found

    plan = planned(hosts=(BOTH,), resolve=resolve)
    found = {(cell.backend, cell.broken_control) for cell in plan.cells if cell.kind != "aa"}
    assert found == {("cpu", None), ("cuda", "variants differ")}


def test_a_run_is_a_a_only_where_every_machine_has_one_wheel_in_both_arms() -> None:
    assert planned(resolve=lambda backend, host: resolution(aa=True)).aa
    assert not planned(hosts=(BOTH,), resolve=lambda backend, host: resolution(aa=backend == "cpu")).aa
    assert not planned(hosts=()).aa


def test_an_arm_that_could_not_be_resolved_has_no_environment_and_the_plan_says_where_and_why() -> None:
    refused = EnvironmentRefused(side=Side.CANDIDATE, platform="x86_64-unknown-linux-gnu", reason="no such wheel")
    half = Resolution({Side.BASELINE: made.environment("2.12.1")}, refused=(refused,))
    plan = planned(resolve=lambda backend, host: half)
    arms = {arm.name: arm.environments for cell in plan.cells for arm in cell.arms}
    assert arms["candidate"] == {}
    assert list(arms["baseline"]) == [made.HOST.target]
    assert [(one.side, one.platform, one.reason) for one in plan.refused] == [
        (Side.CANDIDATE, made.HOST.target, "no such wheel")
    ]


# -- what a cell holds ---------------------------------------------------------------------------------------------


def test_a_cell_is_measured_until_the_limits_of_every_tier_that_asks_it_are_settled(
    changed: Callable[..., Matrix],
) -> None:
    measuring = {cell.workload: cell.measuring for cell in planned().cells if cell.kind == "measure"}
    assert measuring["transformer_block"].p50_limits == (1.03, 1.05, 1.15)
    assert measuring["transformer_block"].p95_limits == (1.05,)
    assert measuring["transformer_block"].throughput_limits == (0.87, 0.95, 0.97)
    assert measuring["transformer_block"].looks == (5,)
    apart = changed(('name = "serving"', 'name = "serving"\nworkloads = ["flex_attention"]'))
    measuring = {cell.workload: cell.measuring for cell in planned(apart).cells if cell.kind == "measure"}
    assert measuring["transformer_block"].p50_limits == (1.05, 1.15)
    assert measuring["flex_attention"].p50_limits == (1.03, 1.05, 1.15)


def test_a_workload_that_names_its_backends_runs_nowhere_else(changed: Callable[..., Matrix]) -> None:
    matrix = changed(('name = "flex_attention"', 'name = "flex_attention"\nbackends = ["cuda", "distributed"]'))
    hosts = (BOTH, host("distributed.gloo.x2"))
    ran = {(cell.workload, cell.backend) for cell in planned(matrix, hosts=hosts).cells if cell.kind == "measure"}
    assert {backend for workload, backend in ran if workload == "flex_attention"} == {"cuda", "distributed"}
    assert {backend for workload, backend in ran if workload == "transformer_block"} == {"cpu", "cuda"}
    alone = planned(hosts=(host("distributed.gloo.x2"),))
    assert alone.cells == ()
    assert alone.unserved_backends["distributed"] == "no workload of the matrix runs there"


def test_the_caveats_of_a_workload_are_those_of_its_cells_and_hashed_with_them(changed: Callable[..., Matrix]) -> None:
    told = planned(changed(('name = "flex_attention"', 'name = "flex_attention"\ncaveats = ["masks are synthetic"]')))
    caveats = {cell.workload: cell.caveats for cell in told.cells if cell.kind == "measure"}
    assert caveats["flex_attention"] == ("masks are synthetic",)
    assert caveats["transformer_block"] == ()
    assert told.plan_digest != planned().plan_digest


def test_the_frozen_plan_holds_what_will_judge_it() -> None:
    matrix, plan = load_matrix(), planned()
    assert (plan.tiers, plan.caveats, plan.matrix_digest) == (matrix.tiers, matrix.caveats, matrix.digest)
    assert plan.requested == {"candidate": "2.13", "baseline": "by default"}
    assert {cell.control.seed for cell in plan.cells} == {matrix.seed}
    assert plan.sources == {}
    assert Plan.model_validate_json(plan.model_dump_json()).plan_digest == plan.plan_digest


def test_the_command_that_makes_a_plan_again_names_exact_releases() -> None:
    command = planned().command
    options = dict(itertools.pairwise(command))
    assert command[:2] == ("farm", "submit")
    assert (options["--candidate"], options["--baseline"], options["--suite"]) == ("2.13.0", "2.12.1", "smoke")


def test_a_workload_that_changes_changes_its_cells_and_no_others(tmp_path: Path) -> None:
    file, matrix = tmp_path / "slowed.py", tmp_path / "matrix.toml"
    shutil.copy(FIXTURES / "slowed.py", file)
    matrix.write_text(
        MATRIX.replace("[[workload]]", '[[workload]]\nname = "slowed"\nfile = "slowed.py"\n[[workload]]', 1)
    )
    before = {cell.workload: cell.control.workload_digest for cell in planned(load_matrix(matrix)).cells}
    file.write_text(file.read_text() + "\n# another word\n")
    after = {cell.workload: cell.control.workload_digest for cell in planned(load_matrix(matrix)).cells}
    assert {workload for workload in before if before[workload] != after[workload]} == {"slowed"}


def test_the_hash_of_a_wheel_is_part_of_the_digest_and_its_version_alone_is_not_enough() -> None:
    def rebuilt(backend: Backend, machine: Host) -> Resolution:
        found = build(backend, machine)
        wheel = found.environments[Side.CANDIDATE]
        release = wheel.release.model_copy(update={"sha256": "00" * 32})
        torch = wheel.packages[0].model_copy(update={"sha256": "00" * 32})
        other = wheel.model_copy(update={"release": release, "packages": (torch,)})
        return dataclasses.replace(found, environments=found.environments | {Side.CANDIDATE: other})

    assert planned(resolve=rebuilt).plan_digest != planned(resolve=build).plan_digest
