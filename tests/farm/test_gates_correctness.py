"""Correctness passes what is as right as the reference, and nothing that cannot be compared."""

from __future__ import annotations

import math

import pytest

from farm.gates import judge_gate
from farm.model import Gate, Outcome, Output, Status, Verdict
from tests.evidence import ask, comparison, ended, ok, output, tier

NAN, INF = math.nan, math.inf


def verdict(candidate: dict[str, Output], baseline: dict[str, Output] | None = None, **limits: float) -> Verdict:
    baseline = {"y": output()} if baseline is None else baseline
    arms = {"candidate": ok(outputs=candidate), "baseline": ok(outputs=baseline)}
    return judge_gate(Gate.CORRECTNESS, ask(arms, limits=tier(**limits)))


def test_equal_outputs_pass_as_bitwise_identical() -> None:
    found = verdict({"y": output()})
    assert (found.status, found.reason) == (Status.PASS, "bitwise identical")


def test_outputs_that_nobody_compared_are_not_called_identical() -> None:
    lone = output().model_copy(update={"against_reference": None, "sha256": "00" * 32})
    assert verdict({"y": lone}).reason == "changed within tolerance: y"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"rms_error": 1.1e-7}, Status.PASS),
        ({"rms_error": 1.5e-7}, Status.FAIL),
        ({"max_error": 4e-7}, Status.PASS),
        ({"max_error": 6e-7}, Status.FAIL),
        ({"gain": 1.000009}, Status.PASS),
        ({"gain": 1.00002}, Status.FAIL),
    ],
)
def test_twice_the_references_error_and_a_floor_are_allowed(error: dict[str, float], status: Status) -> None:
    found = verdict({"y": output(changed=True, **error)})
    assert found.status is status
    assert found.figure is not None
    assert (found.figure.value > 1) is (status is Status.FAIL)


def test_a_single_value_that_the_reference_met_by_chance_may_be_off_by_its_rounding() -> None:
    # The mean loss of a small case: 1.4e-7 and 8.2e-7 of 8.6, which is 0.1 and 0.8 epsilons.
    exact = {"loss": output(shape=(), reference_rms=8.6, rms_error=1.36e-7, max_error=1.36e-7)}
    rounded = {"loss": output(shape=(), reference_rms=8.6, rms_error=8.18e-7, max_error=8.18e-7, gain=1 + 1e-7)}
    assert verdict(rounded, exact).status is Status.PASS
    wrong = {"loss": output(shape=(), reference_rms=8.6, rms_error=2e-6, max_error=2e-6, gain=1 + 2.3e-7)}
    assert verdict(wrong, exact).status is Status.FAIL
    many = {"loss": output(shape=(2**16,), reference_rms=8.6, rms_error=8.18e-7, max_error=8.18e-7)}
    assert verdict(many, {"loss": exact["loss"].model_copy(update={"shape": (2**16,)})}).status is Status.FAIL


def test_a_gain_that_is_right_is_no_worse_than_one_that_is_not() -> None:
    # Gradients under bfloat16 autocast, whose dtype is float32, beside a kernel that works in float32 all the same.
    old = {"grad.w": output(rms_error=3e-3, max_error=2e-2, gain=1.00008)}
    assert verdict({"grad.w": output(gain=1.0)}, old).status is Status.PASS
    assert verdict({"grad.w": output(gain=0.9999)}, old).status is Status.FAIL
    assert verdict({"grad.w": output(gain=1.0003)}, old).status is Status.FAIL


def test_a_gradient_one_percent_too_large_fails_in_bfloat16() -> None:
    error = {"rms_error": 0.01, "max_error": 0.05}
    old = {"grad.w": output(dtype="bfloat16", **error)}
    found = verdict({"grad.w": output(dtype="bfloat16", gain=1.01, **error)}, old)
    assert found.status is Status.FAIL
    assert "gain 1.01000" in found.reason


def test_a_tier_may_allow_a_larger_multiple() -> None:
    assert verdict({"y": output(rms_error=1.5e-7)}, error_multiple=4.0).status is Status.PASS


@pytest.mark.parametrize("name", ["rms_error", "max_error", "gain"])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_an_error_that_is_no_number_never_passes(name: str, value: float) -> None:
    found = verdict({"y": output(**{name: value})})
    assert found.status is Status.FAIL
    assert found.figure is not None
    assert found.figure.value == INF


@pytest.mark.parametrize("name", ["rms_error", "max_error", "gain"])
def test_a_reference_whose_error_is_no_number_excuses_nothing(name: str) -> None:
    old = {"y": output(**{name: NAN})}
    assert verdict({"y": output(rms_error=0.1, max_error=1.0, gain=1.1)}, old).status is Status.FAIL
    assert verdict({"y": output()}, old).status is Status.PASS


@pytest.mark.parametrize("rms", [NAN, INF])
def test_an_oracle_without_an_rms_is_an_invalid_reference(rms: float) -> None:
    found = verdict({"y": output(reference_rms=rms)}, {"y": output(reference_rms=rms)})
    assert found.status is Status.UNTESTED
    assert found.reason.startswith("reference invalid")


def test_without_an_oracle_nothing_is_passed() -> None:
    lone = output().model_copy(update={"against_oracle": None})
    assert verdict({"y": lone}).status is Status.UNTESTED


def test_what_is_known_to_be_wrong_comes_before_what_nobody_knows() -> None:
    lone = output().model_copy(update={"against_oracle": None})
    for wrong in (output(finite=False, rms_error=NAN), output(rms_error=1.0)):
        assert verdict({"a": lone, "y": wrong}, {"a": lone, "y": output()}).status is Status.FAIL
    assert verdict({"a": lone, "y": output()}, {"a": lone, "y": output()}).status is Status.UNTESTED


def test_an_output_that_is_gone_or_new_or_of_another_dtype_fails() -> None:
    both = {"y": output(), "z": output()}
    assert verdict({"y": output()}, both).reason == "output 'z' is missing"
    assert verdict(both).status is Status.FAIL
    assert verdict({"y": output(dtype="bfloat16")}).reason == "'y' is bfloat16, was float32"
    assert verdict({"y": output(same_shape=False, rms_error=NAN, gain=NAN)}).status is Status.FAIL


def test_a_workload_without_outputs_is_untested() -> None:
    assert verdict({}, {}).status is Status.UNTESTED


def test_outputs_without_values_are_neither_right_nor_wrong() -> None:
    empty = output(shape=(0, 4), rms_error=NAN, max_error=NAN, reference_rms=NAN, gain=NAN)
    assert verdict({"y": empty}, {"y": empty}).status is Status.UNTESTED
    assert verdict({"y": empty, "z": output()}, {"y": empty, "z": output()}).status is Status.PASS


def test_an_output_of_zeros_has_no_direction_and_is_held_to_the_references_error() -> None:
    zeros = {"rms_error": 0.0, "max_error": 0.0, "reference_rms": 0.0}
    assert verdict({"y": output(**zeros)}, {"y": output(**zeros)}).status is Status.PASS
    off = output(rms_error=1e-9, max_error=1e-9, reference_rms=0.0, gain=INF)
    assert verdict({"y": off}, {"y": output(**zeros)}).status is Status.FAIL


def test_integers_are_right_or_wrong() -> None:
    exact = {"rms_error": 0.0, "max_error": 0.0, "dtype": "int64"}
    assert verdict({"y": output(**exact)}, {"y": output(**exact)}).status is Status.PASS
    one_off = output(**exact | {"max_error": 1.0})
    assert verdict({"y": one_off}, {"y": output(**exact)}).status is Status.FAIL


def test_the_oracle_alone_judges_where_the_reference_did_not_run() -> None:
    def alone(**error: float) -> Verdict:
        return judge_gate(
            Gate.CORRECTNESS, ask({"baseline": ended(Outcome.CRASHED), "candidate": ok(outputs={"y": output(**error)})})
        )

    assert alone().status is Status.PASS
    assert "the reference did not run" in alone().reason
    assert alone(rms_error=1e-4).status is Status.FAIL
    assert alone(gain=NAN).status is Status.FAIL


def test_an_arm_that_was_not_examined_is_untested() -> None:
    bare = ok().model_copy(update={"examination": None})
    assert judge_gate(Gate.CORRECTNESS, ask({"candidate": bare})).status is Status.UNTESTED


def test_a_reference_that_ran_and_was_not_examined_is_no_measure() -> None:
    bare = ok().model_copy(update={"examination": None})
    assert judge_gate(Gate.CORRECTNESS, ask({"baseline": bare})).status is Status.UNTESTED


def test_a_comparison_of_nothing_alike_is_close_only_where_it_is_bitwise() -> None:
    from farm.gates.correctness import close_enough

    assert close_enough(comparison(), "float32", (4, 8))
    assert not close_enough(comparison(rms_error=NAN), "float32", (4, 8))
    assert not close_enough(comparison(finite=False, rms_error=NAN), "float32", (4, 8))
    assert close_enough(comparison(finite=False, bitwise_equal=True, rms_error=0.0), "float32", (4, 8))


@pytest.mark.parametrize("error", [{"gain": 1.05, "rms_error": 0.05}, {"max_error": 10.0}, {"gain": NAN}])
def test_a_compiled_output_that_is_off_everywhere_or_in_one_place_is_not_close(error: dict[str, float]) -> None:
    from farm.gates.correctness import close_enough

    assert close_enough(comparison(rms_error=0.001, max_error=0.01), "bfloat16", (512, 512))
    assert not close_enough(comparison(**{"rms_error": 0.001, "max_error": 0.01} | error), "bfloat16", (512, 512))


def test_one_value_may_round_the_other_way() -> None:
    """A loss in bfloat16 that lands on the neighbouring number is one epsilon off in gain."""
    near = {"dtype": "bfloat16", "rms_error": 2.0**-9, "max_error": 2.0**-9}
    old = {"loss": output(gain=1 - 2.0**-9, **near).model_copy(update={"shape": ()})}
    new = output(gain=1 + 2.0**-8, changed=True, **near).model_copy(update={"shape": ()})
    assert verdict({"loss": new}, old).status is Status.PASS


@pytest.mark.parametrize("error", [{"rms_error": 1.0, "gain": 0.0}, {"rms_error": 0.05}, {"gain": 1.05}])
def test_two_arms_that_are_wrong_alike_are_no_pass(error: dict[str, float]) -> None:
    """CASES.md C3: a baseline that fails its known answer answers for nothing."""
    wrong = {"y": output(**{"rms_error": 1e-6, "max_error": 1e-5} | error)}
    found = verdict(wrong, wrong)
    assert found.status is Status.UNTESTED
    assert found.reason.startswith("reference invalid: baseline fails its oracle")


def test_a_gradient_that_is_zero_but_for_rounding_is_not_called_wrong() -> None:
    outputs = {"y": output(), "grad.key_bias": output(reference_rms=1e-17, rms_error=1e-9, max_error=4e-9, gain=1.0)}
    assert verdict(outputs, outputs).status is Status.PASS
