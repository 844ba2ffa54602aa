"""The decoder trains and serves as its oracle does, and the gates see what a port of it gets wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farm.model import Status
from tests.workloads.conftest import Examine
from tests.workloads.judging import judged

pytestmark = pytest.mark.torch

SOURCE = Path(__file__).parent.parent.parent / "workloads" / "decoder.py"

SMALL = {"width": 32, "vocab": 128, "seq": 16, "layers": 2}
TRAIN, PREFILL, DECODE = (SMALL | {"mode": mode, "new_tokens": 8} for mode in ("train", "prefill", "decode"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mode", [TRAIN, PREFILL, DECODE], ids=lambda given: given["mode"])
def test_every_mode_is_near_its_oracle_and_repeats(examine: Examine, mode: dict[str, Any], dtype: str) -> None:
    raw = examine("decoder", "eager", mode | {"dtype": dtype})
    assert judged(raw, raw).reason == "bitwise identical"
    assert not [said for said in raw["warnings"] if "a step" in said or "oracle" in said]
    assert raw["facts"]["tokens a step"] == {"train": 64, "prefill": 32, "decode": 16}[mode["mode"]]


def test_decoding_with_the_cache_is_reading_the_whole_sequence(examine: Examine, tmp_path: Path) -> None:
    """The last logits after a prompt of 16 and 8 decoded tokens are those after a prompt of 24."""
    shape = {"batch": 2, "new_tokens": 8}
    decoded = examine("decoder", "eager", DECODE | shape)
    at_once = 'return {"logits": self.model(self.tokens_BS[:, :-1])[:, 16:]}'
    file = tmp_path / "at_once.py"
    file.write_text(changed(SOURCE.read_text(), 'return {"logits": self._decode()}', at_once))
    whole = examine(file, "eager", DECODE | shape)
    assert judged(whole, decoded).status is Status.PASS


def test_checkpointing_computes_blocks_again_and_the_same_numbers(examine: Examine) -> None:
    plain, again = (examine("decoder", "eager", TRAIN | {"checkpointing": given}) for given in (False, True))
    assert again["outputs"]["loss"]["sha256"] == plain["outputs"]["loss"]["sha256"]
    assert judged(again, plain).reason == "bitwise identical"
    # Two blocks, two micro-batches.
    assert plain["facts"]["attention calls a step"] == 4
    assert again["facts"]["attention calls a step"] == 8


def test_training_learns_and_puts_the_weights_back(examine: Examine) -> None:
    facts = examine("decoder", "eager", TRAIN)["facts"]
    assert facts["loss after 20 steps"] < facts["loss of the first step"] - 0.3
    assert 0 < facts["share of a step that puts weights back"] < 1
    assert facts["optimizer's state, bytes"] > 8 * facts["parameters"]


def test_the_cache_holds_keys_and_values_of_every_layer_and_place(examine: Examine) -> None:
    facts = examine("decoder", "eager", DECODE)["facts"]
    layers, batch, places, width, size = 2, 2, 16 + 8, 32, 4
    assert facts["KV cache, bytes"] == 2 * layers * batch * places * width * size


FAULTS = {
    "the last micro-batch alone": (
        TRAIN,
        "            loss.backward()",
        "            self.optimizer.zero_grad(); loss.backward()",
    ),
    "gradients are not averaged": (TRAIN, " / self.p.accumulate\n", "\n"),
    "no weight decay": (TRAIN, "lr=LEARNING_RATE)", "lr=LEARNING_RATE, weight_decay=0.0)"),
    "another learning rate": (TRAIN, "lr=LEARNING_RATE)", "lr=1.01 * LEARNING_RATE)"),
    "the future is seen": (PREFILL, "is_causal=seen_1C is None)", "is_causal=False)"),
    "the newest token is not seen": (DECODE, "[None] <= position_1", "[None] < position_1"),
    "the cache is written a place too early": (
        DECODE,
        "index_copy_(2, position_1, k",
        "index_copy_(2, position_1 - 1, k",
    ),
    "the prompt is not in the cache": (DECODE, "self.k_BHCD[:, :, :length] = k_BHSD", "pass"),
    "places are counted from the prompt's end": (DECODE, "self.place(position_1)", "self.place(position_1 - 16)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_decoder_that_is_wrong_fails_correctness(examine: Examine, tmp_path: Path, fault: str) -> None:
    parameters, right, wrong = FAULTS[fault]
    old = examine("decoder", "eager", parameters)
    file = tmp_path / "faulty.py"
    file.write_text(changed(SOURCE.read_text(), right, wrong))
    found = judged(examine(file, "eager", parameters, oracle=False), old)
    assert found.status is Status.FAIL, found


def changed(text: str, right: str, wrong: str) -> str:
    assert text.count(right) == 1, right
    return text.replace(right, wrong)
