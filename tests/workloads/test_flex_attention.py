"""FlexAttention: each mask is the mask that it says, a wrong one is caught, and what ran is proven."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farm.catalogue import read_workload
from farm.gates.correctness import judge
from farm.model import Status
from tests.evidence import ask, ok
from workers.comparison import compare_outputs

pytestmark = pytest.mark.torch

FILE = "inside_flex.py"

needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("c++")), reason="compiled FlexAttention needs a C++ compiler"
)

Inside = Callable[..., str]


def verdict(entry: dict[str, Any]) -> Any:
    """Return what the correctness gate says of flex beside the old path."""
    outputs = {name: compare_outputs(entry[name], entry["oracle"], None) for name in ("old", "flex")}
    old = ok(outputs=outputs["old"])
    return judge(ask({"baseline": old, "candidate": old, "candidate+flex": ok(outputs=outputs["flex"])}, path="flex"))


def test_every_mask_is_right_and_every_wrong_one_fails_correctness(
    inside: Inside, candidate_python: Path, tmp_path: Path
) -> None:
    found = json.loads(inside(candidate_python, FILE, "values", str(tmp_path)))
    assert len([entry for entry in found if entry["mutant"]]) == 14
    for entry in found:
        name = " ".join(entry[key] for key in ("mask", "score", "mode", "dtype", "mutant"))
        if entry["mode"] == "train":
            assert "FlexAttention does not support backward on CPU" in entry["refused"], name
            old = compare_outputs(entry["old"], entry["oracle"], None)
            assert old.keys() == {"y", "grad.q", "grad.k", "grad.v"}
            for output in old.values():
                assert output.against_oracle is not None
                assert output.against_oracle.rms_error < 1e-6 * output.against_oracle.reference_rms, name
            continue
        given = verdict(entry)
        assert given.status is (Status.FAIL if entry["mutant"] else Status.PASS), (name, given)


def test_backward_is_refused_in_the_words_of_the_older_release_too(
    inside: Inside, baseline_python: Path, tmp_path: Path
) -> None:
    found = json.loads(inside(baseline_python, FILE, "values", str(tmp_path)))
    for entry in found:
        words = (
            r"torch 2\.12\.1\S*: FlexAttention does not support backward on CPU\. Please set the input requires_grad .*"
        )
        assert (entry["mode"] == "train") == bool(re.fullmatch(words, entry["refused"]))
    assert {verdict(entry).status for entry in found if entry["mode"] == "infer" and not entry["mutant"]} == {
        Status.PASS
    }


@needs_compiler
def test_the_compiled_kernel_is_proven_and_the_drill_flips_the_proof(inside: Inside, candidate_python: Path) -> None:
    inside(candidate_python, FILE, "drill")


def test_the_attention_of_the_documents_is_a_workload(inside: Inside, candidate_python: Path, tmp_path: Path) -> None:
    page = Path(__file__).parent.parent.parent / "docs" / "catalogue.md"
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text().partition("### Your own attention")[2], re.DOTALL)
    file = tmp_path / "our_attention.py"
    file.write_text(example)
    spec = read_workload(file)
    assert [path.name for path in spec.paths] == ["ours", "flex"]
    inside(candidate_python, FILE, "own", str(file))


@pytest.mark.parametrize("side", ["baseline", "candidate"])
def test_what_other_devices_would_say_is_understood(inside: Inside, request: pytest.FixtureRequest, side: str) -> None:
    inside(request.getfixturevalue(f"{side}_python"), FILE, "proofs")
