"""Errors against a reference are numbers that a gate can judge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workers.comparison import compare, compare_outputs


def bf16(values: np.ndarray) -> np.ndarray:
    """Round float64 to bfloat16 and back: to nearest, ties to even."""
    bits = values.astype("<f4").view("<u4")
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype("<u4").view("<f4").astype("<f8")


def write(folder: Path, name: str, values: np.ndarray) -> dict[str, object]:
    path = folder / name
    values.astype("<f8").tofile(path)
    return {"dtype": "float32", "shape": list(values.shape), "sha256": name, "file": str(path)}


def test_one_percent_too_large_shows_in_the_gain_even_in_bfloat16():
    # given a tensor whose elements carry rounding errors of 0.4 %
    reference = np.random.default_rng(1).normal(size=10_000)
    # when everything is 1 % too large
    right = compare(bf16(reference), reference, bitwise_equal=False)
    wrong = compare(bf16(reference * 1.01), reference, bitwise_equal=False)
    # then the gain tells them apart though single elements do not
    assert abs(right.gain - 1) < 1e-4
    assert abs(wrong.gain - 1.01) < 1e-4


@given(scale=st.floats(0.5, 2.0), size=st.integers(1, 200))
def test_gain_is_the_factor_of_a_scaled_reference(scale: float, size: int):
    reference = np.random.default_rng(size).normal(size=size) + 3.0
    assert abs(compare(reference * scale, reference, bitwise_equal=False).gain - scale) < 1e-9


def test_a_value_that_is_not_finite_is_said_and_never_becomes_a_small_error():
    reference = np.ones(4)
    found = compare(np.array([1.0, np.nan, 1.0, 1.0]), reference, bitwise_equal=False)
    assert (found.finite, found.reference_finite) == (False, True)
    assert np.isnan(found.rms_error)


def test_a_reference_that_is_not_finite_is_said():
    found = compare(np.ones(2), np.array([1.0, np.inf]), bitwise_equal=False)
    assert (found.finite, found.reference_finite) == (True, False)


def test_another_shape_is_never_broadcast():
    found = compare(np.ones((2, 1)), np.ones((2, 3)), bitwise_equal=False)
    assert not found.same_shape
    assert np.isnan(found.max_error)


def test_an_output_that_is_missing_is_reported_not_left_out(tmp_path: Path):
    reference = {"y": write(tmp_path, "y", np.ones(3)), "grad.w": write(tmp_path, "w", np.ones(2))}
    found = compare_outputs({"y": write(tmp_path, "y", np.ones(3))}, reference, reference)
    assert found["y"].against_reference is not None
    assert found["y"].against_reference.bitwise_equal
    assert found["grad.w"].dtype == "missing"
    assert found["grad.w"].against_oracle is not None
    assert not found["grad.w"].against_oracle.same_shape
