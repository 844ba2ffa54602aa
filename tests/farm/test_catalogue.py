"""A workload is read from its source and never run; what cannot be meant names the file, the line and the way out."""

from __future__ import annotations

import importlib.resources
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from farm.catalogue import WorkloadSpec, catalogue, read_workload
from farm.errors import EXIT_USAGE, UsageError

ROOT = Path(__file__).parent.parent.parent
FIXTURES = sorted((ROOT / "tests/fixtures/workloads").glob("*.py"))

WHOLE = '''"""What the file is about."""

import nowhere_to_be_found
from workloads.contract import Workload

raise SystemExit("a workload is never run here")


class Attention(Workload):
    """Attention as we run it.

    More of it.
    """

    item = "tokens"
    parameters = {
        "seq": {"default": 64, "doc": "tokens of a sequence"},
        "rate": {"default": 0.5, "doc": "of dropout"},
        "causal": {"default": True, "doc": "whether it looks back only"},
        "dtype": {"default": "float32", "choices": ["float32", "bfloat16"], "doc": "of everything"},
    }
    paths = {"old": "as we run it", "new": {"doc": "the new interface", "needs": "2.13"}, "newer": {"doc": "later"}}
    cases = {
        "small": {"suites": ["smoke", "standard"]},
        "large": {"parameters": {"seq": 4096, "dtype": "bfloat16"}, "production_shape": True},
    }
    track = "prototype"
    compiles: bool = True
    exports = False

    def setup(self, p, path, device):
        cases = {}
'''

BARE = """from workloads import contract


class Bare(contract.Workload):
    cases = {"only": {}}
"""

HEAD = BARE.split("    cases")[0]

Read = Callable[..., WorkloadSpec]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Read a workload of the given source, by default the whole one with the first text replaced by the second."""

    def reading(source: str = WHOLE, old: str = "", new: str = "") -> WorkloadSpec:
        assert old in source
        file = tmp_path / "own.py"
        file.write_text(source.replace(old, new, 1))
        return read_workload(file)

    return reading


def refusal(read: Read, *given: str) -> str:
    with pytest.raises(UsageError) as refused:
        read(*given)
    assert refused.value.exit_code == EXIT_USAGE
    assert "\n" not in str(refused.value)
    return str(refused.value)


# -- what is read --------------------------------------------------------------------------------------------------


def test_a_workload_is_read_as_it_declares_itself_and_not_run(read: Read, tmp_path: Path) -> None:
    spec = read()
    assert (spec.name, spec.file, spec.source) == ("own", tmp_path / "own.py", WHOLE)
    assert (spec.summary, spec.item, spec.track) == ("Attention as we run it.", "tokens", "prototype")
    assert (spec.compiles, spec.exports, spec.shipped) == (True, False, False)
    assert [(path.name, path.doc, path.needs) for path in spec.paths] == [
        ("old", "as we run it", None),
        ("new", "the new interface", Version("2.13")),
        ("newer", "later", None),
    ]
    small, large = spec.cases
    assert (small.name, small.suites, small.production_shape) == ("small", ("smoke", "standard"), False)
    assert dict(small.parameters) == {"seq": 64, "rate": 0.5, "causal": True, "dtype": "float32"}
    assert (large.name, large.suites, large.production_shape) == ("large", ("standard",), True)
    assert dict(large.parameters) == {"seq": 4096, "rate": 0.5, "causal": True, "dtype": "bfloat16"}


def test_what_is_not_declared_has_its_default(read: Read) -> None:
    spec = read(BARE)
    assert (spec.summary, spec.item, spec.track, spec.compiles, spec.exports) == (
        "",
        "samples",
        "production",
        False,
        False,
    )
    assert [path.name for path in spec.paths] == ["eager"]
    assert dict(spec.cases[0].parameters) == {}


def test_without_a_docstring_of_its_own_a_class_has_that_of_its_file(read: Read) -> None:
    own = '"""Attention as we run it.\n\n    More of it.\n    """\n'
    assert read(WHOLE, own, "").summary == "What the file is about."


def test_two_sources_have_two_digests_and_one_source_has_one(read: Read) -> None:
    assert read().digest == read().digest
    assert read(WHOLE, "More of it.", "Less of it.").digest != read().digest


def test_a_workload_that_builds_on_one_of_ours_changes_with_it(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    base = "from workloads.contract import Workload\n"
    alone = read(WHOLE, base, base)
    building = f"{base}from workloads.flex_attention import FlexAttention\n"
    before = read(WHOLE, base, building).digest
    assert before != alone.digest
    original = Path.read_text

    def edited(path: Path, *given: Any, **named: Any) -> str:
        text = original(path, *given, **named)
        return text.replace("q >= kv", "q > kv") if path.name == "flex_attention.py" else text

    monkeypatch.setattr(Path, "read_text", edited)
    assert read(WHOLE, base, building).digest != before
    assert read(WHOLE, base, base).digest == alone.digest


@pytest.mark.parametrize("file", FIXTURES, ids=lambda file: file.stem)
def test_every_workload_of_these_tests_can_be_read(file: Path) -> None:
    spec = read_workload(file)
    assert spec.name == file.stem
    assert spec.cases
    assert spec.summary


def test_the_catalogue_is_read_without_torch_by_the_name_of_each_entry() -> None:
    program = (
        "import sys; from farm.catalogue import catalogue; found = catalogue(); "
        "print(*(f'{name}={spec.name}' for name, spec in found.items() if spec.shipped), 'torch' in sys.modules, "
        "any(name.startswith('workloads.') for name in sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    folder = Path(str(importlib.resources.files("workloads")))
    names = sorted({file.stem for file in folder.glob("*.py")} - {"__init__", "contract"})
    assert {"exported_decoder", "flex_attention", "linear_cross_entropy", "transformer_block"} <= set(names)
    assert said.split() == [*(f"{name}={name}" for name in names), "False", "False"]


def test_a_shipped_workload_says_in_one_line_what_it_is_and_documents_what_can_be_set() -> None:
    for spec in catalogue().values():
        assert spec.summary.endswith(".")
        assert all(entry["doc"] for entry in spec.parameters.values())
        assert all(path.doc for path in spec.paths)
        assert spec.paths[0].needs is None, "the old path is there in every release"


# -- packages that bring workloads ---------------------------------------------------------------------------------


def install(folder: Path, name: str, module: str) -> None:
    """Put a package's metadata into ``folder`` that names ``module`` as a workload."""
    metadata = folder / f"of_ours_{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: of-ours-{name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[farm.workloads]\n{name} = {module}\n")


def test_a_package_brings_its_workload_through_the_same_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "attention_of_ours.py").write_text(WHOLE)
    install(tmp_path, "ours", "attention_of_ours")
    monkeypatch.syspath_prepend(tmp_path)
    spec = catalogue()["ours"]
    assert (spec.name, spec.source, spec.shipped) == ("ours", WHOLE, False)
    assert "transformer_block" in catalogue()


def test_a_package_cannot_take_the_name_of_another_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "attention_of_ours.py").write_text(WHOLE)
    install(tmp_path, "transformer_block", "attention_of_ours")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="workload 'transformer_block': 'attention_of_ours' has the name of another"):
        catalogue()


@pytest.mark.parametrize("module", ["gone_from_here", "gone_from_here.inside"])
def test_a_package_whose_module_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    install(tmp_path, "ours", module)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError) as refused:
        catalogue()
    assert str(refused.value) == f"workload 'ours': module '{module}' cannot be found; install its package again"


# -- mistakes ------------------------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "bytes.py").write_bytes(b"x = '\xff'")
    for file in (tmp_path / "nosuch.py", tmp_path, tmp_path / "bytes.py"):
        with pytest.raises(UsageError) as refused:
            read_workload(file)
        assert str(refused.value).startswith(f"workload '{file}' cannot be read: ")


def test_a_file_with_null_bytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "zero.py").write_bytes(b"x = 1\0")
    with pytest.raises(UsageError, match="null bytes") as refused:
        read_workload(tmp_path / "zero.py")
    assert str(refused.value).startswith(f"workload '{tmp_path / 'zero.py'}'")
    assert "None" not in str(refused.value)


def test_a_syntax_error_is_named_with_its_line(read: Read, tmp_path: Path) -> None:
    assert refusal(read, WHOLE, "import nowhere", "import = nowhere") == (
        f"workload '{tmp_path / 'own.py'}', line 3: invalid syntax"
    )


@pytest.mark.parametrize(
    ("source", "count"), [("", 0), ("x = 1\n", 0), (WHOLE.replace("(Workload)", "(Base)"), 0), (WHOLE + BARE, 2)]
)
def test_one_file_holds_one_workload(read: Read, tmp_path: Path, source: str, count: int) -> None:
    assert refusal(read, source) == (
        f"workload '{tmp_path / 'own.py'}' has {count} subclasses of Workload; one file holds one"
    )


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ('"default": 64', '"default": SEQ', "parameters"),
        ('"default": 64', '"default": 8 * 8', "parameters"),
        ('"default": 64', '"default": int(64)', "parameters"),
        ('"default": 64', '"default": 64, **MORE', "parameters"),
        ('"seq": {', "[]: {", "parameters"),
        ('item = "tokens"', "item = TOKENS", "item"),
        ('track = "prototype"', "track = str('prototype')", "track"),
        ("compiles: bool = True", "compiles: bool = not False", "compiles"),
    ],
)
def test_a_declaration_that_would_have_to_be_run_is_refused_with_its_line(
    read: Read, tmp_path: Path, old: str, new: str, name: str
) -> None:
    line = next(number for number, line in enumerate(WHOLE.splitlines(), 1) if line.strip().startswith(name))
    assert refusal(read, WHOLE, old, new) == (
        f"workload '{tmp_path / 'own.py'}', line {line}: '{name}' must be a literal: "
        "it is read without running the file"
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('item = "tokens"', "item = 3", "line 15: 'item' must be str"),
        ("exports = False", 'exports = "no"', "line 29: 'exports' must be bool"),
        ("compiles: bool = True", "compiles: bool = 1", "line 28: 'compiles' must be bool"),
        ('track = "prototype"', 'track = "prototyp"', "track 'prototyp'; allowed are production, prototype"),
    ],
)
def test_a_declaration_of_another_kind_is_refused(read: Read, tmp_path: Path, old: str, new: str, words: str) -> None:
    said = refusal(read, WHOLE, old, new)
    assert said.startswith(f"workload '{tmp_path / 'own.py'}', ")
    assert said.endswith(words)


@pytest.mark.parametrize(
    ("head", "declared", "words"),
    [
        (HEAD, "parameters = {}", "'cases' is missing; declare at least one"),
        (HEAD, "cases = {}", "'cases' is missing; declare at least one"),
        (BARE, "paths = {}", "'paths' is empty; the old path comes first"),
        (
            BARE,
            'paths = {"a": "old", "b": {"needs": 2.10}}',
            "path 'b': needs 2.1 is no release; write a text: \"2.13\"",
        ),
        (BARE, 'paths = {"b": {"needs": "soon"}}', "path 'b': needs 'soon' is no release; write a text: \"2.13\""),
        (BARE, 'paths = {"b": {"needs": ""}}', "path 'b': needs '' is no release; write a text: \"2.13\""),
        (BARE, 'paths = {"b": {"need": "2.13"}}', "path 'b': unknown key 'need'; allowed are doc, needs"),
        (BARE, 'parameters = {"n": 3}', "parameter 'n' needs a 'default' and a 'doc'"),
        (BARE, 'parameters = {"n": {"default": 3}}', "parameter 'n' needs a 'default' and a 'doc'"),
        (BARE, 'parameters = {"n": {"doc": "how many"}}', "parameter 'n' needs a 'default' and a 'doc'"),
        (BARE, 'parameters = {"n": {"default": None, "doc": "x"}}', "default None must be int, float, str or bool"),
        (BARE, 'parameters = {"n": {"default": [1], "doc": "x"}}', "default [1] must be int, float, str or bool"),
        (
            BARE,
            'parameters = {"n": {"default": 1, "doc": "x", "choices": [2]}}',
            "choices must be a list that holds the default 1",
        ),
        (
            BARE,
            'parameters = {"n": {"default": "a", "doc": "x", "choices": "ab"}}',
            "must be a list that holds the default 'a'",
        ),
        (HEAD, 'cases = {"c": []}', "case 'c' must be dict"),
        (HEAD, 'cases = {"c": {"suites": "smoke"}}', "case 'c': 'suites' must be list or tuple"),
        (HEAD, 'cases = {"c": {"parameters": []}}', "case 'c': 'parameters' must be dict"),
        (
            HEAD,
            'cases = {"c": {"packages": True}}',
            "case 'c': packages = True needs a workload that says exports = True"
            ": what is packaged is the exported program",
        ),
        (HEAD, 'cases = {"c": {"production_shape": "no"}}', "case 'c': 'production_shape' must be bool"),
        (
            HEAD,
            'cases = {"c": {"suite": []}}',
            "case 'c': unknown key 'suite'; allowed are suites, parameters, production_shape, packages",
        ),
        (HEAD, 'cases = {"c": {"parameters": {"n": 1}}}', "case 'c': no parameter 'n'; allowed are "),
    ],
)
def test_what_does_not_fit_together_is_refused_naming_the_class(
    read: Read, tmp_path: Path, head: str, declared: str, words: str
) -> None:
    said = refusal(read, f"{head}    {declared}\n")
    assert said.startswith(f"workload '{tmp_path / 'own.py'}', class Bare")
    assert said.endswith(words)


# -- the values of a case ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sequence": 3}, "here: no parameter 'sequence'; allowed are seq, rate, causal, dtype"),
        ({"dtype": "float8"}, "here: dtype = 'float8'; allowed are float32, bfloat16"),
        ({"dtype": 32}, "here: dtype = 32; allowed are float32, bfloat16"),
        ({"seq": "64"}, "here: seq = '64' must be int"),
        ({"seq": 64.0}, "here: seq = 64.0 must be int"),
        ({"seq": True}, "here: seq = True must be int"),
        ({"rate": 1}, "here: rate = 1 must be float"),
        ({"causal": 1}, "here: causal = 1 must be bool"),
    ],
)
def test_a_value_that_was_not_declared_is_refused(read: Read, given: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        read().case_parameters(given, "here")
    assert str(refused.value) == words


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "seq": st.integers(),
            "rate": st.floats(allow_nan=False),
            "causal": st.booleans(),
            "dtype": st.sampled_from(["float32", "bfloat16"]),
        },
    )
)
def test_values_that_are_given_win_over_the_defaults_and_the_rest_stay(given: dict[str, object]) -> None:
    spec = read_workload(FIXTURES[0])
    spec = WorkloadSpec(**{**vars(spec), "parameters": PARAMETERS})
    defaults = {name: entry["default"] for name, entry in PARAMETERS.items()}
    assert spec.case_parameters(given, "here") == defaults | given


PARAMETERS = {
    "seq": {"default": 64, "doc": "tokens"},
    "rate": {"default": 0.5, "doc": "of dropout"},
    "causal": {"default": True, "doc": "looks back only"},
    "dtype": {"default": "float32", "choices": ["float32", "bfloat16"], "doc": "of everything"},
}
