"""The last layer's loss: every setting beside its oracle, every chunk size as asked, and faults that the gates see."""

from __future__ import annotations

import ast
import hashlib
import math
import random
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farm.catalogue import read_workload
from farm.model import Outcome, Status
from tests.workloads.conftest import Examine
from tests.workloads.judging import judged
from workers.comparison import compare_outputs
from workers.session import ArmEnded

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "workloads" / "linear_cross_entropy.py"
CONVERGENCE = ROOT / "workloads" / "lce_convergence.py"

#: Shapes for milliseconds; 130 tokens are three chunks of 64, the last of them short.
SMALL = {"tokens": 130, "hidden": 16, "vocab": 384}
OLD, LCE, AUTO, CHUNKED = "linear+cross_entropy", "lce", "lce-auto", "lce-chunk-64"

LAST_LAYER, TRAINED = "linear_cross_entropy", "lce_convergence"

SETTINGS = [
    {},
    {"bias": False},
    {"reduction": "sum", "class_weights": True},
    {"reduction": "none", "class_weights": True, "ignored": 0.3, "ignore_index": 0},
    {"class_weights": True, "ignored": 0.3},
    {"dtype": "bfloat16", "ignored": 0.3},
    {"autocast": True, "class_weights": True},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda given: ",".join(f"{k}={v}" for k, v in given.items()) or "-")
def test_the_defaults_are_the_old_loss_to_the_last_bit_and_chunks_are_as_right(
    examine: Examine, settings: dict[str, Any]
) -> None:
    old, new, chunked = (examine(LAST_LAYER, path, SMALL | settings) for path in (OLD, LCE, CHUNKED))
    assert judged(new, old).reason == "bitwise identical"
    found = judged(chunked, old)
    assert found.status is Status.PASS, found
    assert "changed within tolerance" in found.reason
    assert chunked["path_ran"].endswith("chunks of 64 tokens, 3 in all")
    assert "all logits at once" in new["path_ran"]


@pytest.mark.parametrize(
    "settings",
    [*SETTINGS, {"label_smoothing": 0.1, "class_weights": True, "ignored": 0.3}],
    ids=lambda given: ",".join(f"{k}={v}" for k, v in given.items()) or "-",
)
def test_the_oracle_in_rows_is_the_oracle_at_once(examine: Examine, tmp_path: Path, settings: dict[str, Any]) -> None:
    few, all_rows = tmp_path / "few.py", tmp_path / "all.py"
    text = SOURCE.read_text()
    assert "ORACLE_BYTES = 2**28" in text
    few.write_text(text.replace("ORACLE_BYTES = 2**28", "ORACLE_BYTES = 8 * 384 * 7"))
    all_rows.write_text(text.replace("self.rows = max(1,", "return\n        self.rows = max(1,"))
    assert few.read_text() != text != all_rows.read_text()
    values = [examine(file, OLD, SMALL | settings) for file in (few, all_rows)]
    for name, output in compare_outputs(values[0]["oracle"], values[1]["oracle"], None).items():
        assert output.against_oracle is not None
        assert output.against_oracle.rms_error <= 1e-14 * output.against_oracle.reference_rms, name


@pytest.mark.parametrize("path", [AUTO, CHUNKED])
def test_chunks_that_the_library_leaves_aside_are_a_fall_back_with_its_own_words(examine: Examine, path: str) -> None:
    with pytest.raises(ArmEnded, match="all logits at once: linear_cross_entropy: ``options`` ignored") as ended:
        examine(LAST_LAYER, path, SMALL | {"label_smoothing": 0.1})
    assert ended.value.outcome is Outcome.FELL_BACK


@pytest.mark.parametrize("path", [LCE, AUTO, CHUNKED])
def test_a_path_that_is_switched_off_says_so(examine: Examine, path: str) -> None:
    drill = examine(LAST_LAYER, path, SMALL, drill=True)["drill"]
    assert drill["result"] == "switched off", drill


def test_a_chunk_size_that_did_not_run_is_a_fall_back(examine: Examine, tmp_path: Path) -> None:
    other = tmp_path / "other_size.py"
    other.write_text(SOURCE.read_text().replace('batch_chunk_size=int(path.rsplit("-", 1)[1])', "batch_chunk_size=32"))
    with pytest.raises(ArmEnded, match="chunks of 32 tokens ran, 64 were asked for"):
        examine(other, CHUNKED, SMALL)


def test_peaks_are_what_the_logits_and_weights_make_expect(examine: Examine) -> None:
    shape = {"tokens": 256, "hidden": 64, "vocab": 2048}
    peaks = {}
    for path, settings in (
        (OLD, {"hidden": 1024, "tokens": 64}),
        (CHUNKED, {"hidden": 1024, "tokens": 64}),
        (OLD, {"dtype": "bfloat16"}),
        (OLD, {}),
        (LCE, {}),
        (AUTO, {}),
        ("lce-chunk-256", {}),
        (CHUNKED, {"reduction": "none"}),
        (CHUNKED, {}),
    ):
        raw = examine(LAST_LAYER, path, shape | settings, oracle=False, memory=True)
        peak = raw["memory"]["allocator_peak_bytes"]
        peaks[(path, 1024) if "hidden" in settings else path] = peak
        assert peak == pytest.approx(raw["facts"]["peak to expect, bytes"], rel=0.12), (path, settings)
    logits = 4 * 256 * 2048
    assert peaks[LCE] == peaks[OLD] >= 3 * logits
    assert peaks[CHUNKED] < logits
    # Of few tokens and a wide layer, chunks save nothing: the gradient of the weights is there twice.
    assert peaks[CHUNKED, 1024] > peaks[OLD, 1024]


def test_what_a_training_stack_would_meet_is_told_in_the_librarys_words(examine: Examine) -> None:
    new, chunked = (
        examine(LAST_LAYER, path, SMALL | {"stack": True}, oracle=False)["facts"] for path in (LCE, CHUNKED)
    )
    assert new["new integration work"] == "hidden states (B, T, H); state_dict keys; checkpoint of nn.Linear"
    assert chunked["stack: hidden states (B, T, H)"].endswith("expected input with dimensionality 1 or 2, got 3")
    assert chunked["stack: bfloat16 autocast"] == "ignored: float32 all the same"
    assert "backward called twice" in chunked["stack: second backward"]
    assert chunked["stack: label smoothing"].endswith("the options are ignored")
    assert (new["stack: torch.compile"], chunked["stack: torch.compile"]) == (
        "1 graphs, 0 breaks",
        "0 graphs, 1 breaks",
    )
    assert chunked["stack: torch.export"] == "torch_nn._linear_cross_entropy_batch_chunked"


# -- faults ----------------------------------------------------------------------------------------------------------

LITTLE = "1 % more label smoothing"
#: What a port of the loss gets wrong, the path that it is on, and a case in which it can be seen.
FAULTS = {
    "sum for mean": (CHUNKED, 'settings["reduction"] = "sum"', {}),
    "ignored tokens count": (
        CHUNKED,
        'settings["ignore_index"] = -100',
        {"reduction": "none", "ignored": 0.3, "ignore_index": 0},
    ),
    "the mean is over ignored tokens too": (
        LCE,
        'settings["ignore_index"] = -100',
        {"ignored": 0.3, "ignore_index": 0},
    ),
    "no class weights": (CHUNKED, 'settings["weight"] = None', {"class_weights": True}),
    "no label smoothing": (LCE, 'settings["label_smoothing"] = 0.0', {"label_smoothing": 0.1}),
    LITTLE: (LCE, 'settings["label_smoothing"] = 0.101', {"label_smoothing": 0.1}),
}


@pytest.mark.parametrize(
    ("fault", "dtype"),
    # Of the smoothing, 1 % is below the rounding of bfloat16.
    [(fault, dtype) for fault in FAULTS for dtype in ("float32", "bfloat16") if (fault, dtype) != (LITTLE, "bfloat16")],
)
def test_a_loss_that_leaves_a_setting_out_fails_correctness(
    examine: Examine, tmp_path: Path, fault: str, dtype: str
) -> None:
    path, wrong, settings = FAULTS[fault]
    mark = "    options = None\n"
    text = SOURCE.read_text()
    assert mark in text
    file = tmp_path / "faulty.py"
    file.write_text(text.replace(mark, f"{mark}    {wrong}\n"))
    parameters = SMALL | settings | {"dtype": dtype}
    old = examine(LAST_LAYER, OLD, parameters)
    assert judged(examine(LAST_LAYER, path, parameters), old).status is Status.PASS
    found = judged(examine(file, path, parameters), old)
    assert found.status is Status.FAIL, found


# -- convergence -----------------------------------------------------------------------------------------------------

TRAINING = {"steps": 60, "tokens": 64}


def test_curves_of_either_loss_are_one_and_the_chunked_one_is_as_near_as_rounding(examine: Examine) -> None:
    old, new, chunked = (examine(TRAINED, path, TRAINING) for path in (OLD, LCE, "lce-chunked"))
    assert judged(new, old).reason == "bitwise identical"
    assert judged(chunked, old).status is Status.PASS
    facts = chunked["facts"]
    assert 0 < facts["largest distance of the curves, nats"] < 1e-4
    assert facts["trains the intended model"] is True
    assert new["facts"]["curve to the last bit"] == old["facts"]["curve to the last bit"]
    assert facts["curve to the last bit"] != old["facts"]["curve to the last bit"]
    assert len({raw["facts"]["data slice"] for raw in (old, new, chunked)}) == 1
    assert facts["best possible loss, nats"] < facts["loss at the end, nats"] < facts["loss at the start, nats"] - 0.5


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("head(_hidden(body, before_N2), next_N)", "head(_hidden(body, before_N2), next_N.abs() % 256)"),
        ("loss.backward()", "(loss * 1.0).backward(); optimizer.param_groups[0]['lr'] = 0.0102"),
        ("loss.backward()", "loss.backward(); model['head'].linear.bias.grad = None"),
    ],
    ids=["ignored tokens are trained on", "another learning rate", "no gradient of the bias"],
)
def test_a_loss_that_trains_another_model_is_seen(examine: Examine, tmp_path: Path, right: str, wrong: str) -> None:
    text = CONVERGENCE.read_text().replace(
        'model["head"](_hidden(model["body"], before_N2), next_N)', "head(_hidden(body, before_N2), next_N)"
    )
    text = text.replace(
        "            with self._precision():\n                loss = head",
        '            head, body = model["head"], model["body"]\n'
        "            with self._precision():\n                loss = head",
    )
    assert right in text
    file = tmp_path / "faulty.py"
    file.write_text(text)
    old = examine(file, OLD, TRAINING)
    # Now the new path alone, for the old one and the oracle have run.
    file.write_text(text.replace(right, wrong, 1))
    found = judged(examine(file, LCE, TRAINING, oracle=False), old)
    assert found.status is Status.FAIL, found


def test_the_frozen_slice_is_the_one_that_it_was() -> None:
    """Its digest names it: another generator, another rule or another byte order would be another slice."""
    wanted = {"frozen_tokens", "source_entropy"}
    tree = ast.parse(CONVERGENCE.read_text())
    body = [
        node
        for node in tree.body
        if (isinstance(node, ast.FunctionDef) and node.name in wanted)
        or (isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "SUCCESSORS")
    ]
    scope: dict[str, Any] = {"random": random, "math": math}
    exec(compile(ast.Module(body, []), str(CONVERGENCE), "exec"), scope)  # no torch here, and none is needed
    p = SimpleNamespace(**{name: entry["default"] for name, entry in read_workload(CONVERGENCE).parameters.items()})
    tokens = scope["frozen_tokens"](p.data, p.vocab, (p.steps + 8) * p.tokens + 2)
    digest = hashlib.sha256(array("q", tokens).tobytes()).hexdigest()
    assert digest == "6810bf22cbc41f6cb68cad1f76c2bab33850672dca960bb466d13f4d80ba4ada"
    # The source is as it says: the entropy of what was drawn after each token is near the one that is told.
    assert scope["source_entropy"](p.vocab) == pytest.approx(2.1495, abs=1e-3)
