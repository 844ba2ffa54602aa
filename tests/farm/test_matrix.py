"""The matrix that ships is whole; a mistake in one names the file, the line or the key, and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import get_args

import pytest

from farm.catalogue import catalogue
from farm.errors import EXIT_USAGE, UsageError
from farm.matrix import Matrix, load_matrix
from farm.model import Backend, Decision, Gate
from farm.plan import planned_workloads
from farm.statistics import least_restarts

WHOLE = (files("farm") / "default_matrix.toml").read_text()
#: Without its claims, which hold on to the workloads that these tests change.
SHIPPED = re.sub(r"\[\[claim\]\]\n(?:.+\n)+\n?", "", WHOLE)
GATES = "allowed are correctness, latency, throughput, peak_memory, determinism, compile_export, rollback"
BACKENDS = "'mps', 'cuda', 'rocm', 'cpu' or 'distributed'"
IN = "tier[research]"
RESEARCH = 'name = "research"'
FLEX = 'name = "flex_attention"\nfeatures = ["flex"]'
BLOCK = 'name = "transformer_block"'
CASE = "\n[[workload.case]]\n"
X = f'{CASE}name = "x"\n'
SHIPPED_WORKLOADS = f"allowed are {', '.join(catalogue())}"

OWN = '''
"""Work of our own."""
from workloads.contract import Workload


class Own(Workload):
    parameters = {"batch": {"default": 2, "doc": "samples a step"}, "rate": {"default": 0.5, "doc": "of dropout"}}
    paths = {"old": "as it is", "new": "as it could be"}
    cases = {"small": {"suites": ["smoke"]}, "large": {"parameters": {"batch": 64}, "production_shape": True}}
'''

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the shipped matrix with the first of each pair replaced by the second."""

    def written(*changes: tuple[str, str]) -> Path:
        text = SHIPPED
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new, 1)
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return path

    return written


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as refused:
        load_matrix(path)
    assert refused.value.exit_code == EXIT_USAGE
    assert "\n" not in str(refused.value)
    return str(refused.value)


def line_of(path: Path, words: str) -> int:
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if words in line)


# -- what ships ----------------------------------------------------------------------------------------------------


def test_the_matrix_that_ships_asks_every_question_of_every_backend() -> None:
    matrix = load_matrix()
    assert matrix.source == "built in"
    assert matrix.path is None
    assert set(matrix.backends) == set(get_args(Backend))
    assert set(matrix.gates) == set(Gate)
    assert set(matrix.decisions) == set(Decision)
    assert {"research", "training", "serving", "finetune"} == {tier.name for tier in matrix.tiers}
    assert {backend for tier in matrix.tiers for backend in tier.backends} == set(get_args(Backend))


def test_the_matrix_that_ships_names_its_releases_and_takes_others_as_they_are() -> None:
    matrix = load_matrix()
    assert matrix.release("pytorch_2_13") == "2.13"
    assert matrix.release("current_baseline") == "2.12"
    assert matrix.release("2.10") == "2.10"


def test_the_matrix_that_ships_asks_what_the_new_paths_are_worth() -> None:
    asked = {workload.spec.name: workload.features for workload in load_matrix().workloads}
    assert asked["transformer_block"] == ()
    assert asked["flex_attention"] == ("flex",)
    assert asked["linear_cross_entropy"] == ("lce", "lce-auto", "lce-chunk-64", "lce-chunk-256")
    assert asked["decoder"] == ("compiled",)
    assert not any(workload.own for workload in load_matrix().workloads)


def test_packages_beside_torch_are_named_once_for_all_arms(write: Write) -> None:
    assert load_matrix().packages == ()
    matrix = load_matrix(write(("[versions]", 'packages = ["onnxscript>=0.5", "onnx"]\n[versions]')))
    assert matrix.packages == ("onnxscript>=0.5", "onnx")
    assert matrix.digest != load_matrix(write(("[versions]", 'packages = ["onnx"]\n[versions]'))).digest
    for wrong, words in (
        ("two words", "packages: 'two words' is no requirement"),
        ("torchvision", "packages: 'torchvision' moves with torch; name packages that are equal in both arms"),
    ):
        assert words in refusal(write(("[versions]", f'packages = ["{wrong}"]\n[versions]')))


def test_every_shipped_workload_has_a_first_look_and_a_production_shape() -> None:
    matrix = load_matrix()
    for workload in matrix.workloads:
        suites = {suite for case in workload.cases for suite in case.suites}
        assert {"smoke", "standard"} <= suites <= set(matrix.suites)
        assert any(case.production_shape for case in workload.cases)
        assert not any(case.production_shape and "smoke" in case.suites for case in workload.cases)


def test_every_suite_that_ships_can_bound_a_ratio_and_every_limit_has_a_reason() -> None:
    matrix = load_matrix()
    for suite in matrix.suites.values():
        assert least_restarts(suite.alpha) <= suite.looks[0]
        assert list(suite.looks) == sorted(set(suite.looks))
    assert all(tier.reason for tier in matrix.tiers)


def test_every_caveat_is_written_down_beforehand() -> None:
    topics = [caveat.partition(":")[0] for caveat in load_matrix().caveats]
    assert topics == [
        "implementation cost",
        "hardware",
        "driver and precision",
        "privacy",
        "caching",
        "evaluation quality",
        "prototype upkeep",
    ]


def test_a_copy_of_the_matrix_says_the_same_and_where_it_is(write: Write) -> None:
    path = write()
    path.write_text(WHOLE)
    mine = load_matrix(path)
    assert mine.digest == load_matrix().digest
    assert (mine.source, mine.path) == (str(path), path)


# -- mistakes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "key", "words"),
    [
        ("p50_ratio = 1.15", "p50_ratio = -1.15", "p50_ratio", "-1.15: input should be greater than 0"),
        ("p50_ratio = 1.15", "p50_ratio = inf", "p50_ratio", "inf: input should be a finite number"),
        ("p50_ratio = 1.15", "p50_ratio = -inf", "p50_ratio", "-inf: input should be a finite number"),
        ("p50_ratio = 1.15", "p50_ratio = nan", "p50_ratio", "nan: input should be a finite number"),
        ("p50_ratio = 1.15", 'p50_ratio = "1.15"', "p50_ratio", "'1.15': input should be a valid number"),
        ("p50_ratio = 1.15", "p50_rato = 1.15", "p50_rato", "unknown key; allowed are backends, compile_ratio,"),
        ("graph_breaks = 2", "graph_breaks = -2", "graph_breaks", "-2: input should be greater than or equal to 0"),
        ("graph_breaks = 2", "graph_breaks = 2.5", "graph_breaks", "2.5: input should be a valid integer"),
        ('determinism = "off"', 'determinism = "of"', "determinism", "'of' is not allowed: input should be 'bitwise',"),
        ('["cpu", "mps"', '["cpu", "tpu"', "backends[1]", f"'tpu' is not allowed: input should be {BACKENDS}"),
    ],
)
def test_a_mistake_in_a_tier_is_named_with_its_line(write: Write, old: str, new: str, key: str, words: str) -> None:
    path = write((old, new))
    said = refusal(path)
    assert said.startswith(f"matrix '{path}', line {line_of(path, new)}, tier[research].{key}: ")
    assert words in said


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("p50_ratio = 1.15\n", "", "tier[research].p50_ratio: Field required"),
        ("p50_ratio = 1.15", "p50_ratio = 0", "tier[research].p50_ratio: 0: input should be greater than 0"),
        ("p50_ratio = 1.15", "p50_ratio = true", "tier[research].p50_ratio: True: input should be a valid number"),
        ("error_multiple = 2.0", "error_multiple = 0.5", "tier[research].error_multiple: 0.5: input should be greater"),
        ('required = ["correctness", "latency"]', "required = []", "tier[research].required: ()"),
        ('["correctness", "latency"]', '["latncy"]', f"tier[research].required: unknown gate 'latncy'; {GATES}"),
        ('= ["latency"]', '= ["speed"]', f"tier[research].may_be_inconclusive: unknown gate 'speed'; {GATES}"),
        ('p50_ratio = "people', 'p50 = "people', "tier[research].reason: 'p50' is no key of a tier; allowed are "),
        (RESEARCH, 'name = "serving"', "tier: 'serving' is there twice"),
        (
            RESEARCH,
            f'{RESEARCH}\nworkloads = ["blok"]',
            f"{IN}.workloads: unknown workload 'blok'; allowed are transformer",
        ),
        ('"mps", "cuda", "rocm", "cpu", ', '"cuda", ', f"{IN}.backends: 'cpu' is not in backends; allowed are cuda,"),
        (
            '"mps", "cuda", "rocm", "cpu", ',
            '"tpu", ',
            f"line 7, backends[0]: 'tpu' is not allowed: input should be {BACKENDS}",
        ),
        ('"rollback"]', '"rolback"]', f"line 8, gates: unknown gate 'rolback'; {GATES}"),
        (', "rollback"]', "]", "tier[training].required: 'rollback' is not in gates; allowed are correctness,"),
        ('"compile_export", "rollback"]', '"rollback", "latency"]', "gates: 'latency' is there twice"),
        ('"isolate"', '"wait"', "line 9, decisions: unknown decision 'wait'; allowed are adopt, isolate, defer,"),
        ("seed = 20260701", "seed = -1", "line 5, seed: -1: input should be greater than or equal to 0"),
        (
            "seed = 20260701",
            "sed = 1",
            "line 5, sed: unknown key; allowed are backends, caveats, claim, decisions, gates,",
        ),
        ("schema_version = 1", "schema_version = 2", "line 4, schema_version: '2' is not allowed: input should be 1"),
        ("schema_version = 1\n", "", "schema_version: Field required"),
        ('privacy = "', 'privacy = 3 # "', "caveats.privacy: 3: input should be a valid string"),
        ("looks = [5]", "looks = [4]", "suite.smoke.looks: alpha 0.032 needs 5 restarts to settle"),
        ("looks = [5]", "looks = [0]", "suite.smoke.looks[0]: 0: input should be greater than 0"),
        ("looks = [5]", "looks = []", "suite.smoke.looks: ()"),
        ("alpha = 0.032", "alpha = 0.5", "suite.smoke.alpha: 0.5: input should be less than 0.5"),
        (
            "warmup_s = 1.5",
            "warmup = 1.5",
            "suite.smoke.warmup: unknown key; allowed are aa_share, alpha, as_it",
        ),
        ("warmup_s = 1.5", "warmup_s = 1.5\naa_share = 0.6", "suite.smoke.aa_share: 0.6: input should be less than or"),
        ("warmup_s = 1.5", "warmup_s = 1.5\naa_share = -0.1", "suite.smoke.aa_share: -0.1: input should be greater"),
        ("warmup_s = 1.5", "warmup_s = 1.5\nconfirm = 1", "suite.smoke.confirm: 1: input should be a valid boolean"),
        (
            "as_it_comes = 6",
            "as_it_comes = 5",
            "suite.standard.as_it_comes: alpha 0.016 needs 6 restarts to bound anything; 0 leaves them out",
        ),
        (
            "max_budget_s = 480.0",
            "max_budget_s = 200.0",
            "suite.standard.max_budget_s: 200 is less than budget_s, 240; it says how far that may grow",
        ),
        ("warmup_s = 1.5", "warmup_s = 1.5\nthreads = 0", "suite.smoke.threads: 0: input should be greater than 0"),
        (
            "[versions]",
            "tiers = 3\n[versions]",
            "tiers: unknown key; allowed are backends, caveats, claim, decisions, gates,",
        ),
    ],
)
def test_a_mistake_anywhere_is_named_with_its_key_and_what_is_allowed(
    write: Write, old: str, new: str, words: str
) -> None:
    path = write((old, new))
    said = refusal(path)
    assert said.startswith(f"matrix '{path}', ") or said.startswith(f"matrix '{path}': ")
    assert words in said


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (BLOCK, 'name = "block"', f"workload[block]: unknown workload; {SHIPPED_WORKLOADS}, or give a file"),
        (BLOCK, FLEX, "workload: 'flex_attention' is there twice"),
        ('features = ["flex"]', 'features = ["flx"]', ".features: no new path 'flx'; allowed are flex"),
        (BLOCK, f'{BLOCK}\nfeatures = ["eager"]', ".features: no new path 'eager'; allowed are none"),
        ('features = ["flex"]', 'candidate_path = "flx"', "candidate_path: no path 'flx'; allowed are old"),
        (FLEX, f'{FLEX}\ncandidate_path = "flex"', "leave out candidate_path"),
        (FLEX, f'{FLEX}\ncases = ["nosuch"]', ".cases: unknown case 'nosuch'; allowed are "),
        (FLEX, f'{FLEX}\nbackends = ["tpu"]', f".backends[0]: 'tpu' is not allowed: input should be {BACKENDS}"),
        (FLEX, f"{FLEX}\nfeature = []", ".feature: unknown key; allowed are backends, candidate_path, case,"),
        (
            FLEX,
            f'{FLEX}{CASE}nme = "x"',
            ".case[0].nme: unknown key; allowed are name, packages, parameters, production_shape, suites",
        ),
        (
            FLEX,
            f'{FLEX}{X}suites = ["standrd"]',
            ".case[x].suites: unknown suite 'standrd'; allowed are smoke, standard",
        ),
        (FLEX, f"{FLEX}{X}{X}", ".case: 'x' is there twice"),
        (FLEX, f"{FLEX}{X}parameters = {{ seqq = 3 }}", ", case[x]: no parameter 'seqq'; allowed are "),
        (FLEX, f'{FLEX}{X}parameters = {{ dtype = "f8" }}', ", case[x]: dtype = 'f8'; allowed are float32, bfloat16"),
        (FLEX, f'{FLEX}{X}parameters = {{ seq = "64" }}', ", case[x]: seq = '64' must be int"),
        (FLEX, f"{FLEX}{X}parameters = {{ seq = true }}", ", case[x]: seq = True must be int"),
    ],
)
def test_a_mistake_in_a_workload_is_named_with_what_is_allowed(write: Write, old: str, new: str, words: str) -> None:
    path = write((old, new))
    said = refusal(path)
    assert said.startswith(f"matrix '{path}', ")
    assert words in said


@pytest.mark.parametrize("written", ["2.10", "2.1", "2", "2.100"])
@pytest.mark.parametrize("name", ["current_baseline", '"current_baseline"', "seed"])
def test_a_version_that_was_written_as_a_number_is_refused_with_every_digit(
    write: Write, name: str, written: str
) -> None:
    """CASES.md V1; ``seed`` is the name of another key, which is a number by right."""
    path = write(('current_baseline = "2.12"', f"{name} = {written}  # the newest"))
    bare = name.strip('"')
    assert refusal(path) == (
        f"matrix '{path}', versions.{bare}: {written} is a number, and 2.10 would be 2.1; "
        f'write it as a text: "{written}"'
    )


def test_a_version_that_is_neither_a_text_nor_a_number_is_refused(write: Write) -> None:
    path = write(('current_baseline = "2.12"', "current_baseline = true"))
    assert "versions.current_baseline: True: input should be a valid string" in refusal(path)


def test_a_file_without_tiers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    head = SHIPPED.split("[[tier]]")[0]
    path.write_text(f"{head}[caveats]\n")
    assert refusal(path) == f"matrix '{path}', tier: Field required"
    path.write_text(f"tier = []\n{head}[caveats]\n")
    assert refusal(path).startswith(f"matrix '{path}', line 1, tier: (): tuple should have at least 1 item")
    path.write_text(head + "[tier]" + SHIPPED.split("[[tier]]")[1].replace("[tier.reason]", "[caveats]"))
    assert refusal(path) == f"matrix '{path}', tier: one table where a list of tables belongs; write [[tier]]"


def test_a_file_that_is_no_toml_is_refused_with_its_line(write: Write) -> None:
    path = write(("seed = 20260701", "seed = "))
    assert refusal(path) == f"matrix '{path}': Invalid value (at line 5, column 8)"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"seed = '\xff'")
    for path in (tmp_path / "nosuch.toml", tmp_path, tmp_path / "bytes.toml"):
        assert refusal(path).startswith(f"matrix '{path}' cannot be read: ")


def test_a_suite_that_is_not_there_is_refused_naming_those_that_are(write: Write) -> None:
    path = write()
    with pytest.raises(UsageError) as refused:
        load_matrix(path).suite("nightly")
    assert str(refused.value) == f"{path}: no suite 'nightly'; allowed are smoke, standard, full"
    assert load_matrix(path).suite("smoke").looks == (5,)


# -- a user's own workload -----------------------------------------------------------------------------------------


def with_own(write: Write, more: str = "") -> Matrix:
    path = write((FLEX, f'name = "own"\nfile = "own.py"\n{more}'))
    (path.parent / "own.py").write_text(OWN)
    return load_matrix(path)


def test_a_workload_of_the_users_own_is_read_from_beside_the_matrix(write: Write) -> None:
    matrix = with_own(write, 'features = ["new"]\nbackends = ["cpu"]')
    (own,) = (workload for workload in matrix.workloads if workload.spec.name == "own")
    assert own.own
    assert (own.spec.source, own.features, own.backends) == (OWN, ("new",), ("cpu",))
    assert [(case.name, dict(case.parameters)) for case in own.cases] == [
        ("small", {"batch": 2, "rate": 0.5}),
        ("large", {"batch": 64, "rate": 0.5}),
    ]


def test_further_cases_keep_the_defaults_and_only_named_cases_stay(write: Write) -> None:
    more = f'cases = ["huge", "small"]{CASE}name = "huge"\nparameters = {{ batch = 512 }}\nproduction_shape = true'
    own = next(workload for workload in with_own(write, more).workloads if workload.own)
    assert [(case.name, case.suites, case.parameters["batch"], case.production_shape) for case in own.cases] == [
        ("huge", ("standard",), 512, True),
        ("small", ("smoke",), 2, False),
    ]


def test_a_file_of_the_users_own_that_is_not_there_is_named(write: Write) -> None:
    path = write((FLEX, 'name = "own"\nfile = "nosuch.py"'))
    assert refusal(path) == f"matrix '{path}', workload[own].file: there is no file '{path.parent / 'nosuch.py'}'"


# -- the digest ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("p50_ratio = 1.15", "p50_ratio = 1.16"),
        ("rollback_s = 600.0", "rollback_s = 601.0"),
        ('privacy = "', 'privacy = "nearly all '),
        ("prototype_upkeep = ", "upkeep = "),
        ('p50_ratio = "people', 'p50_ratio = "many people'),
        ("seed = 20260701", "seed = 20260702"),
        ("alpha = 0.016", "alpha = 0.0157"),
        ('pytorch_2_13 = "2.13"', 'pytorch_2_13 = "2.14"'),
        ('features = ["flex"]', "features = []"),
        ('features = ["flex"]', 'candidate_path = "flex"'),
        (FLEX, f'{FLEX}\nbackends = ["cpu"]'),
        (FLEX, f'{FLEX}{CASE}name = "x"'),
        ('decisions = ["adopt", "isolate", ', 'decisions = ["adopt", '),
        ('required = ["correctness", "latency"]', 'required = ["correctness"]'),
    ],
)
def test_the_digest_changes_with_whatever_changes_the_question(write: Write, old: str, new: str) -> None:
    assert load_matrix(write((old, new))).digest != load_matrix(write()).digest


def test_the_digest_does_not_change_with_comments_and_spaces(write: Write) -> None:
    path = write(
        ("p50_ratio = 1.15", "p50_ratio   =  1.150 # a comment"),
        ("seed = 20260701", "seed = 20_260_701"),
        ("# -- what runs -", "\n\n# -- another title -"),
    )
    assert load_matrix(path).digest == load_matrix(write()).digest


def test_the_digest_changes_with_the_source_and_the_name_of_a_workload(write: Write) -> None:
    first = with_own(write)
    (first.path or Path()).parent.joinpath("own.py").write_text(f"{OWN}# changed\n")
    changed = load_matrix(first.path)
    renamed = write((FLEX, 'name = "ours"\nfile = "own.py"'))
    assert len({first.digest, changed.digest, load_matrix(renamed).digest}) == 3


# -- who answers for a workload ------------------------------------------------------------------------------------


def test_an_owner_and_the_upkeep_of_kernels_are_read_and_hashed(write: Write) -> None:
    owned = load_matrix(write((FLEX, f'{FLEX}\nowner = "ada@example.org"')))
    kept = load_matrix(write((FLEX, f'{FLEX}\nowner = "ada@example.org"\nmaintains = true')))
    flex = next(workload for workload in kept.workloads if workload.spec.name == "flex_attention")
    assert (flex.owner, flex.maintains) == ("ada@example.org", True)
    assert planned_workloads(kept)["flex_attention"].maintains
    assert planned_workloads(owned)["flex_attention"].owner == "ada@example.org"
    assert len({load_matrix(write()).digest, owned.digest, kept.digest}) == 3


def test_kernels_that_nobody_owns_are_maintained_by_nobody(write: Write) -> None:
    words = "workload[flex_attention].maintains: who maintains its kernels? add an owner"
    assert words in refusal(write((FLEX, f"{FLEX}\nmaintains = true")))


def test_caveats_of_a_workload_are_read_and_hashed(write: Write) -> None:
    told = load_matrix(write((FLEX, f'{FLEX}\ncaveats = ["masks are synthetic"]')))
    assert [w.caveats for w in told.workloads if w.spec.name == "flex_attention"] == [("masks are synthetic",)]
    assert told.digest != load_matrix(write()).digest


# -- waivers -------------------------------------------------------------------------------------------------------

WAIVER = """
[[waiver]]
tier = "serving"
workload = "flex_attention"
backend = "cpu"
gate = "latency"
owner = "ada@example.org"
reason = "the new kernels come in September"
expires = 2026-12-31
"""
FIRST_STAGE = '[[stage]]\nname = "single"'


def waived(write: Write, *changes: tuple[str, str]) -> Path:
    text = WAIVER
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return write((FIRST_STAGE, f"{text}\n{FIRST_STAGE}"))


def test_a_waiver_is_read_and_hashed(write: Write) -> None:
    matrix = load_matrix(waived(write))
    (found,) = matrix.waivers
    assert (found.subject, found.expires) == ("serving: latency of flex_attention/* on cpu", "2026-12-31")
    other = load_matrix(waived(write, ("2026-12-31", "2027-01-31")))
    assert len({matrix.digest, other.digest, load_matrix(write()).digest}) == 3


@pytest.mark.parametrize("key", ["owner", "reason", "expires", "gate", "tier", "workload", "backend"])
def test_a_waiver_without_one_of_its_parts_is_refused(write: Write, key: str) -> None:
    line = next(line for line in WAIVER.splitlines() if line.startswith(key))
    assert f"waiver[0].{key}: Field required" in refusal(waived(write, (line, "")))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"ada@example.org"', '" "', "owner: a waiver needs an owner, a reason and an expiry; this one is empty"),
        ("2026-12-31", '"2026-12-31"', "expires: '2026-12-31' is no day; write 2026-12-31, without quotes"),
        ("2026-12-31", "2026-12-31T10:00:00", "is no day; write 2026-12-31, without quotes"),
        ('"latency"', '"speed"', "gate: unknown gate 'speed'; allowed are correctness"),
        ('"latency"', '"throughput"', "gate: tier serving does not require throughput, so there is nothing to waive"),
        ('"serving"', '"sales"', "tier: unknown tier 'sales'; allowed are research, training, serving, finetune"),
        ('"flex_attention"', '"flex"', "workload: tier serving runs no workload 'flex'; allowed are transformer_block"),
        ('"cpu"', '"mps"', "backend: tier serving asks nothing of flex_attention on 'mps'; allowed are cpu, cuda"),
        ('backend = "cpu"', 'backend = "cpu"\ncase = "nothing-*"', "case: 'nothing-*' is no case of flex_attention"),
        (
            'workload = "flex_attention"',
            'workload = "transformer_block"\nquestion = "feature"',
            "question: transformer_block has no features",
        ),
        ('gate = "latency"', 'gate = "latency"\nuntil = "ever"', "unknown key; allowed are backend, case, expires"),
        (WAIVER, WAIVER + WAIVER, "waiver[1]: it is there twice; keep the one that holds"),
    ],
)
def test_a_waiver_that_could_never_be_needed_is_refused(write: Write, old: str, new: str, words: str) -> None:
    assert words in refusal(waived(write, (old, new)))
