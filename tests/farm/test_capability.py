"""What a machine can run, as a partial order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.capability import BACKENDS, backend_of, closure, queue_of
from farm.errors import UsageError

PARTS = st.lists(st.text("abcxyz019", min_size=1, max_size=6), max_size=3)
CAPABILITIES = st.builds(lambda backend, rest: ".".join([backend, *rest]), st.sampled_from(BACKENDS), PARTS)


@pytest.mark.parametrize(
    ("capability", "backend"),
    [("cpu", "cpu"), ("cuda.sm90", "cuda"), ("rocm.gfx942", "rocm"), ("distributed.gloo.x2", "distributed")],
)
def test_a_capability_begins_with_its_backend(capability: str, backend: str) -> None:
    assert backend_of(capability) == backend


@pytest.mark.parametrize("capability", ["tpu", "cudax", "", "gloo.distributed"])
def test_one_that_begins_with_none_is_refused(capability: str) -> None:
    with pytest.raises(UsageError, match="allowed are"):
        backend_of(capability)


def test_a_worker_listens_to_all_that_it_satisfies_the_most_particular_first() -> None:
    assert closure(["cuda.sm90", "cpu"]) == ["cuda.sm90", "cpu", "cuda"]
    assert closure(["distributed.gloo.x2"]) == ["distributed.gloo.x2", "distributed.gloo", "distributed"]
    assert closure([]) == []


def test_a_queue_is_named_by_its_capability() -> None:
    assert queue_of("cuda.sm90") == "bench.cuda.sm90"


def test_another_architecture_is_not_satisfied_by_a_likeness_of_names() -> None:
    assert "cuda.sm90" not in closure(["cuda.sm100"])
    assert "cuda.sm90" not in closure(["cuda.sm90a"])


@given(st.lists(CAPABILITIES, max_size=4))
def test_what_a_machine_can_do_it_satisfies_and_what_is_more_general_and_nothing_else(named: list[str]) -> None:
    found = closure(named)
    assert len(set(found)) == len(found)
    for capability in found:
        assert any(own == capability or own.startswith(f"{capability}.") for own in named)
    for own in named:
        assert {own, backend_of(own)} <= set(found)
    depths = [capability.count(".") for capability in found]
    assert depths == sorted(depths, reverse=True)


@given(st.lists(CAPABILITIES, max_size=4), st.randoms())
def test_the_order_and_the_number_of_names_mean_nothing(named: list[str], chance: random.Random) -> None:
    shuffled = [*named, *named]
    chance.shuffle(shuffled)
    assert closure(shuffled) == closure(named) == closure(closure(named))
