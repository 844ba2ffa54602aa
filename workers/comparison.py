"""How far outputs are from a reference, as numbers that a gate can judge; computed in float64 with numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from farm.model import Comparison, Output

__all__ = ["compare", "compare_outputs", "load"]


def load(entry: Mapping[str, Any]) -> np.ndarray:
    """Return the values that a runner wrote: a file of little-endian float64 of shape ``entry["shape"]``."""
    values: np.ndarray = np.fromfile(entry["file"], dtype="<f8")
    return values.reshape(tuple(entry["shape"]))


def compare(values: np.ndarray, reference: np.ndarray, *, bitwise_equal: bool) -> Comparison:
    """Return the error of ``values`` against ``reference``, two float64 arrays that should have one shape.

    ``gain`` is <x, r> / <r, r>: rounding errors average out of it, a factor does not, so 1 % is seen even where
    one element's rounding error is 0.4 % (bfloat16).
    """
    same_shape = values.shape == reference.shape
    finite = bool(np.isfinite(values).all())
    reference_finite = bool(np.isfinite(reference).all())
    if not (same_shape and finite and reference_finite) or values.size == 0:
        rms = 0.0 if bitwise_equal else math.nan
        return Comparison(
            finite=finite,
            reference_finite=reference_finite,
            same_shape=same_shape,
            bitwise_equal=bitwise_equal,
            rms_error=rms,
            max_error=rms,
            reference_rms=math.nan,
            gain=math.nan,
        )
    error = values - reference
    energy = float(np.vdot(reference, reference))
    return Comparison(
        finite=True,
        reference_finite=True,
        same_shape=True,
        bitwise_equal=bitwise_equal,
        rms_error=float(np.sqrt(np.mean(error * error))),
        max_error=float(np.abs(error).max()),
        reference_rms=math.sqrt(energy / reference.size),
        gain=float(np.vdot(values, reference)) / energy if energy > 0 else (1.0 if not values.any() else math.inf),
    )


def compare_outputs(
    outputs: Mapping[str, Mapping[str, Any]],
    oracle: Mapping[str, Mapping[str, Any]] | None,
    reference: Mapping[str, Mapping[str, Any]] | None,
) -> dict[str, Output]:
    """Return every output of one arm beside the oracle and beside the arm that it is compared with.

    An output that the oracle or the reference does not have is compared with nothing; one that is missing here
    is reported with an empty shape and `same_shape` False, never left out.
    """
    result = {}
    for name in sorted(set(outputs) | set(oracle or {}) | set(reference or {})):
        entry = outputs.get(name)
        values = load(entry) if entry else np.empty(0)
        result[name] = Output(
            dtype=entry["dtype"] if entry else "missing",
            shape=tuple(entry["shape"]) if entry else (),
            sha256=entry["sha256"] if entry else "",
            against_oracle=(
                compare(values, load(oracle[name]), bitwise_equal=False) if oracle and name in oracle else None
            ),
            against_reference=(
                compare(
                    values,
                    load(reference[name]),
                    bitwise_equal=bool(entry) and entry["sha256"] == reference[name]["sha256"],  # type: ignore[index]
                )
                if reference and name in reference
                else None
            ),
        )
    return result
