"""What is stored is read back as it was, numbers that are none included; what is not known is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import msgpack
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from farm.model import (
    MAX_SAMPLES_BYTES,
    SCHEMA_VERSION,
    ArmResult,
    CellOrder,
    CellResult,
    Comparison,
    Evidence,
    Figure,
    Gate,
    Model,
    Outcome,
    Plan,
    Tier,
    pack_ns,
    unpack_ns,
)
from tests.evidence import (
    ENVIRONMENTS,
    HOST,
    RUN,
    cell,
    comparison,
    environment,
    evidence,
    ok,
    output,
    plan,
    rehearsal,
    result,
    run_of,
    tier,
    window,
)

EVERYTHING: list[Model] = [
    plan([cell(features=["flex"], parameters={"seq": 3, "rate": 0.5, "mode": "train", "causal": True})], [tier()]),
    result(cell(), rehearsal=rehearsal(), phases_ns={"examine": 3}),
    run_of(cell(), cell("matmul")),
    CellOrder(run_id=RUN, attempt=2, cell=cell(), environments={}, source="import torch\n"),
]


def through_json(model: Model) -> Model:
    return type(model).model_validate_json(model.model_dump_json())


def through_msgpack(model: Model) -> Model:
    return type(model).model_validate(msgpack.unpackb(msgpack.packb(model.model_dump(mode="python"))))


# -- there and back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("carry", [through_json, through_msgpack])
@pytest.mark.parametrize("model", EVERYTHING, ids=lambda model: type(model).__name__)
def test_a_record_is_read_back_as_it_was(model: Model, carry: Any) -> None:
    assert carry(model) == model
    assert carry(model).digest() == model.digest()


@pytest.mark.parametrize("carry", [through_json, through_msgpack])
@given(value=st.floats(), low=st.none() | st.floats(), high=st.none() | st.floats())
def test_a_number_that_is_none_is_read_back_as_it_was(
    carry: Any, value: float, low: float | None, high: float | None
) -> None:
    figure = Figure(name="p50 ratio", value=value, low=low, high=high)
    found = carry(figure)
    assert repr(found) == repr(figure)
    assert found.digest() == figure.digest()


@pytest.mark.parametrize("carry", [through_json, through_msgpack])
def test_a_gain_that_is_not_a_number_does_not_become_missing(carry: Any) -> None:
    found = carry(comparison(finite=False, gain=math.nan, max_error=math.inf))
    assert isinstance(found, Comparison)
    assert math.isnan(found.gain)
    assert found.max_error == math.inf


def test_facts_that_are_not_finite_have_a_digest() -> None:
    odd = ArmResult(outcome=Outcome.OK, facts={"first_loss": math.nan, "scale": [math.inf, 1.0]})
    assert odd.digest() == odd.model_copy().digest()
    assert odd.digest() != ArmResult(outcome=Outcome.OK, facts={"first_loss": 0.0, "scale": [math.inf, 1.0]}).digest()


# -- digests -------------------------------------------------------------------------------------------------------


def test_a_digest_is_over_content_and_not_over_the_order_of_keys() -> None:
    one = ArmResult(outcome=Outcome.OK, facts={"torch": "2.13.0", "python": "3.11"})
    other = ArmResult(outcome=Outcome.OK, facts={"python": "3.11", "torch": "2.13.0"})
    assert one.digest() == other.digest()
    assert len(one.digest()) == 64


def test_a_digest_leaves_out_what_it_is_told_to() -> None:
    one, other = tier(description="one"), tier(description="other")
    assert one.digest() != other.digest()
    assert one.digest(exclude={"description"}) == other.digest(exclude={"description"})


@given(st.sampled_from(["p50_ratio", "throughput_ratio", "error_multiple"]), st.floats(0.1, 10), st.floats(0.1, 10))
def test_two_limits_have_one_digest_where_they_are_equal_and_only_there(name: str, one: float, other: float) -> None:
    assert (tier(**{name: one}).digest() == tier(**{name: other}).digest()) == (one == other)


def test_an_environment_is_known_by_what_is_in_it() -> None:
    key = environment("2.13.0").key
    assert key == environment("2.13.0").key
    assert key != environment("2.12.1").key
    made = environment("2.13.0")
    assert made.model_copy(update={"python": "3.12"}).key != key
    elsewhere = made.release.model_copy(update={"platform": "aarch64-unknown-linux-gnu"})
    assert made.model_copy(update={"release": elsewhere}).key != key
    rebuilt = made.packages[0].model_copy(update={"sha256": "00" * 32})
    assert made.model_copy(update={"packages": (rebuilt,)}).key != key
    mirrored = made.packages[0].model_copy(update={"url": "https://mirror.example.org"})
    assert made.model_copy(update={"packages": (mirrored,)}).key == key, "a mirror serves the same bytes"


def test_an_identity_says_the_variant_whether_or_not_the_wheel_does() -> None:
    release = ENVIRONMENTS["candidate"].release
    assert release.identity == "2.13.0+cpu"
    assert release.model_copy(update={"local": "cpu"}).identity == "2.13.0+cpu"


def test_a_machine_names_what_environments_are_made_for() -> None:
    assert HOST.target == "x86_64-unknown-linux-gnu, Python 3.11"


def test_the_way_back_takes_as_long_as_it_takes_without_the_preparation() -> None:
    assert rehearsal(steps_ns={"prepare": 60, "prepare control": 7, "reinstall": 6, "control": 4}).duration_ns == 10


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", EVERYTHING, ids=lambda model: type(model).__name__)
def test_a_field_that_nobody_knows_is_refused(model: Model) -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        type(model).model_validate(model.model_dump() | {"colour": "blue"})


def test_a_field_that_nobody_knows_is_refused_however_deep_it_is() -> None:
    data = json.loads(evidence([(cell(), result(cell()))]).model_dump_json())
    data["plan"]["cells"][0]["control"]["colour"] = "blue"
    with pytest.raises(ValidationError, match=r"plan\.cells\.0\.control\.colour"):
        Evidence.model_validate(data)


def test_a_record_does_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        tier().p50_ratio = 2.0


@pytest.mark.parametrize(
    ("kind", "model", "change"),
    [
        (Tier, tier(), {"required": ["latncy"]}),
        (Tier, tier(), {"backends": ["tpu"]}),
        (Tier, tier(), {"determinism": "mostly"}),
        (ArmResult, ok(), {"outcome": "fine"}),
        (CellResult, result(cell()), {"attempt": "second"}),
        (CellResult, result(cell()), {"wall_ns": 1.5}),
        (Plan, EVERYTHING[0], {"cells": None}),
    ],
)
def test_a_word_that_is_not_in_the_vocabulary_is_refused(kind: type[Model], model: Model, change: Any) -> None:
    with pytest.raises(ValidationError):
        kind.model_validate(model.model_dump() | change)


def test_words_are_written_as_they_are_said() -> None:
    said = json.loads(output().model_dump_json()) | json.loads(tier().model_dump_json())
    assert said["required"] == [gate.value for gate in Gate]
    assert json.loads(ArmResult(outcome=Outcome.TIMED_OUT).model_dump_json())["outcome"] == "timed out"
    assert json.loads(plan([], [tier()]).model_dump_json())["schema_version"] == SCHEMA_VERSION


# -- samples -------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 2**64 - 1), max_size=50))
def test_samples_are_unpacked_as_they_were(samples: list[int]) -> None:
    assert unpack_ns(pack_ns(np.array(samples, dtype=np.uint64))).tolist() == samples


def test_samples_are_packed_alike_whatever_array_holds_them() -> None:
    steps = np.array([3, 1, 4, 1, 5, 9, 2, 6], dtype=np.uint64)
    assert pack_ns(steps[::2]) == pack_ns(np.array([3, 4, 5, 2], dtype=">u8")) == pack_ns(np.array([3, 4, 5, 2]))
    assert window(0, [3, 4]).steps_ns == pack_ns(np.array([3, 4]))


@pytest.mark.parametrize(
    "packed", [b"", b"damaged", pack_ns(np.arange(9))[:-1], pack_ns(np.arange(9)) + b"x", zstandard.compress(b"odd")]
)
def test_damaged_samples_are_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match=r"cannot be decompressed|multiple of element size"):
        unpack_ns(packed)


@pytest.mark.parametrize("size", [MAX_SAMPLES_BYTES + 8, 2**28])
def test_more_samples_than_a_window_can_hold_are_refused_for_their_size(size: int) -> None:
    with pytest.raises(ValueError, match=f"{size} bytes are more than the {MAX_SAMPLES_BYTES} that are taken"):
        unpack_ns(zstandard.compress(bytes(size)))


def test_as_many_samples_as_a_window_can_hold_are_taken() -> None:
    assert len(unpack_ns(zstandard.compress(bytes(MAX_SAMPLES_BYTES)))) == MAX_SAMPLES_BYTES // 8
