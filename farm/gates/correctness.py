"""Correctness: the challenger's error against a float64 oracle may be no more than a multiple of the reference's.

The rule is FlashAttention's own (its tests allow twice the error that plain PyTorch makes), with a floor for outputs
that the reference gets exactly right, and with the gain beside it: a result that is 1 % too large everywhere hides
below bfloat16's rounding, yet its projection on the oracle shows it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farm.gates.question import GateQuestion
from farm.model import Comparison, Figure, Gate, Output, Status, Verdict

__all__ = ["EPSILON", "close_enough", "judge"]

#: Machine epsilon of what an output is computed in (2 ** -(explicit mantissa bits)).
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

#: Of the output's rms, in epsilons: what an output that the reference gets exactly right may be off. Rounding
#: alone gives 0.29 (a uniform error of one half); twice that is for the challenger as for any other.
FLOOR = 1 / 8
#: An extreme is a few times the rms where the error is rounding: 4.5 sigma is one in 150,000.
EXTREME = 4.5
FLOOR_MAX = EXTREME * FLOOR
#: How far the gains of two honest implementations may lie apart, in epsilons, and never less than `GAIN_LEAST`.
#: Measured on the CPU: at most 0.035 epsilons in bfloat16; a gradient times 1.01 is 1.25 epsilons off.
GAIN = 0.5
GAIN_LEAST = 1e-5
#: Error that stands for the reference's where the reference did not run or is an eager twin, in epsilons.
NOMINAL = 8.0
#: TF32 keeps 10 bits of the mantissa: what is within four of its epsilons of the oracle is not broken.
LOST_LEAST = 2.0**-8


@dataclass(frozen=True)
class _Finding:
    """One output's answer: ``excess`` is its error in units of what is allowed, 1 at the limit."""

    name: str
    excess: float
    reason: str


def judge(asked: GateQuestion) -> Verdict:
    """Return the verdict on every output and gradient of the challenger."""
    challenger = asked.challenger.examination
    if challenger is None:
        return _verdict(Status.UNTESTED, "the arm was not examined")
    reference = asked.other.examination if asked.reference_ran else None
    if asked.reference_ran and reference is None:
        return _verdict(Status.UNTESTED, "the reference was not examined")
    names = challenger.outputs.keys() | (reference.outputs.keys() if reference else set())
    findings: list[_Finding] = []
    unknown: Verdict | None = None
    for name in sorted(names):
        output = challenger.outputs.get(name)
        if output is None:
            return _verdict(Status.FAIL, f"output '{name}' is missing")
        known = reference.outputs.get(name) if reference else None
        if reference and known is None:
            return _verdict(Status.FAIL, f"output '{name}' is new: the reference has none to compare it with")
        broken = _broken(name, output, known, both_ran=reference is not None)
        if broken is not None and broken.status is Status.FAIL:
            return broken
        if broken is not None:
            unknown = unknown or broken
            continue
        findings.append(_finding(name, output, known, asked.tier.error_multiple))
    if not findings or all(0 in output.shape for output in challenger.outputs.values()):
        return unknown or _verdict(Status.UNTESTED, "the workload gave no outputs")
    worst = max(findings, key=lambda finding: finding.excess)
    figure = Figure(name=f"error of '{worst.name}' over the allowed", value=worst.excess, limit=1.0, unit="")
    if worst.excess > 1.0:
        return _verdict(Status.FAIL, worst.reason, figure)
    lost = _lost(challenger.outputs)
    if reference is not None and lost:
        # Both are as wrong as each other: no worse, and not right.
        unknown = unknown or _verdict(Status.UNTESTED, f"reference invalid: {asked.reference} fails its oracle: {lost}")
    if unknown is not None:
        return unknown
    return _verdict(Status.PASS, _note(challenger.outputs, asked), figure)


def close_enough(comparison: Comparison, dtype: str, shape: Sequence[int]) -> bool:
    """Return whether a compiled or reloaded output is its eager twin but for rounding."""
    if comparison.bitwise_equal or not (comparison.finite and comparison.same_shape):
        return comparison.bitwise_equal
    allowed = NOMINAL * EPSILON.get(dtype, 0.0) * comparison.reference_rms
    gain_off = abs(comparison.gain - 1.0) if comparison.reference_rms != 0 else 0.0
    return (
        comparison.rms_error <= allowed
        and comparison.max_error <= EXTREME * allowed
        and gain_off <= _gain_allowed(dtype, shape)
    )


def _gain_allowed(dtype: str, shape: Sequence[int]) -> float:
    """Return how far a gain may be off: a few values round each its own way, which averages out over many."""
    epsilon = EPSILON.get(dtype, 0.0)
    return max(GAIN * epsilon, GAIN_LEAST) + epsilon / math.sqrt(max(1, math.prod(shape)))


def _lost(outputs: Mapping[str, Output]) -> str:
    """Return what has lost half of its digits against the oracle, or is off in gain; empty where nothing has.

    An output far smaller than the largest is left out: a gradient that is zero but for rounding is all error.
    """
    known = {name: output.against_oracle for name, output in outputs.items() if output.against_oracle is not None}
    largest = max((against.reference_rms for against in known.values()), default=0.0)
    for name, against in sorted(known.items()):
        epsilon = EPSILON.get(outputs[name].dtype, 0.0)
        if not (against.finite and against.same_shape) or not against.reference_rms > epsilon * largest:
            continue
        if against.rms_error > max(math.sqrt(epsilon), LOST_LEAST) * against.reference_rms:
            return f"the error of '{name}' is {against.rms_error / against.reference_rms:.1%} of its rms"
        if abs(against.gain - 1.0) > max(2 * epsilon, LOST_LEAST) + _gain_allowed(outputs[name].dtype, ()):
            return f"the gain of '{name}' is {against.gain:.5f}"
    return ""


def _broken(name: str, output: Output, known: Output | None, *, both_ran: bool) -> Verdict | None:
    """Return the verdict for what no error can be computed of; a NaN is never compared (`nan > limit` is false)."""
    against = output.against_oracle
    if against is None:
        return _verdict(Status.UNTESTED, f"reference invalid: there is no oracle for '{name}'")
    if not against.reference_finite:
        return _verdict(Status.UNTESTED, f"reference invalid: the oracle of '{name}' is not finite")
    if not math.isfinite(against.reference_rms) and against.same_shape and 0 not in output.shape and against.finite:
        return _verdict(Status.UNTESTED, f"reference invalid: the oracle of '{name}' has no rms")
    if known is not None and known.dtype != output.dtype:
        return _verdict(Status.FAIL, f"'{name}' is {output.dtype}, was {known.dtype}")
    if not against.same_shape:
        return _verdict(Status.FAIL, f"'{name}' has shape {output.shape}, which is not the oracle's")
    if not against.finite:
        if _not_finite(known):
            return _verdict(Status.UNTESTED, f"'{name}' is not finite in either arm")
        return _verdict(Status.FAIL, f"'{name}' is not finite" + (", the reference is" if both_ran else ""))
    if _not_finite(known):
        return _verdict(Status.UNTESTED, f"invalid: '{name}' is not finite in the reference, and is in the challenger")
    return None


def _not_finite(output: Output | None) -> bool:
    return output is not None and output.against_oracle is not None and not output.against_oracle.finite


def _finding(name: str, output: Output, known: Output | None, multiple: float) -> _Finding:
    against = output.against_oracle
    assert against is not None
    if 0 in output.shape:
        return _Finding(name, 0.0, f"'{name}' holds no values")
    epsilon = EPSILON.get(output.dtype, 0.0)
    floor = epsilon * against.reference_rms
    # One value may be met by chance, as a loss often is; of many the rms cannot.
    few = floor / math.sqrt(math.prod(output.shape))
    other = known.against_oracle if known is not None else None
    if other is None or not _has_figures(other):
        rms_of, max_of, gain_of = NOMINAL * floor, NOMINAL * EXTREME * floor, 1.0
    else:
        rms_of, max_of, gain_of = other.rms_error, other.max_error, other.gain
    shares = {
        f"rms error {against.rms_error:.3g}, the reference's is {rms_of:.3g}": _share(
            against.rms_error, multiple * rms_of + FLOOR * floor + few
        ),
        f"largest error {against.max_error:.3g}, the reference's is {max_of:.3g}": _share(
            against.max_error, multiple * max_of + FLOOR_MAX * floor + few
        ),
        f"gain {against.gain:.5f}, the reference's is {gain_of:.5f}": _share(
            # One that is right is no worse than a reference that is not: float32 beside bfloat16 autocast.
            min(abs(against.gain - gain_of), abs(against.gain - 1.0)),
            _gain_allowed(output.dtype, output.shape),
        )
        # A gradient of zero has no direction to project on.
        if against.reference_rms != 0
        else 0.0,
    }
    words, excess = max(shares.items(), key=lambda item: item[1])
    return _Finding(name, excess, f"'{name}' ({output.dtype}): {words}, {excess:.3g} times what is allowed")


def _has_figures(other: Comparison) -> bool:
    figures = [other.rms_error, other.max_error] + ([other.gain] if other.reference_rms != 0 else [])
    return other.finite and other.same_shape and all(map(math.isfinite, figures))


def _share(error: float, allowed: float) -> float:
    """Return ``error`` in units of what is allowed; infinity for a NaN, which no comparison would ever find."""
    if not (math.isfinite(error) and math.isfinite(allowed)) or error < 0:
        return math.inf
    if error == 0.0:
        return 0.0
    return error / allowed if allowed > 0 else math.inf


def _note(outputs: dict[str, Output], asked: GateQuestion) -> str:
    if not asked.reference_ran:
        return "within the oracle's tolerance; the reference did not run"
    known = asked.other.examination.outputs if asked.other.examination else {}
    if any(output.against_reference is None and not output.sha256 for output in outputs.values()):
        return "within tolerance; whether it is bitwise the same was not recorded"
    changed = [name for name, output in outputs.items() if not _same_bytes(output, known.get(name))]
    if not changed:
        return "bitwise identical"
    return f"changed within tolerance: {', '.join(sorted(changed)[:4])}{' and more' if len(changed) > 4 else ''}"


def _same_bytes(output: Output, known: Output | None) -> bool:
    if output.against_reference is not None:
        return output.against_reference.bitwise_equal
    return known is not None and known.sha256 == output.sha256


def _verdict(status: Status, reason: str, figure: Figure | None = None) -> Verdict:
    return Verdict(gate=Gate.CORRECTNESS, status=status, reason=reason, figure=figure)
