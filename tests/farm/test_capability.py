"""What a machine can run, as a partial order."""

from __future__ import annotations

import pytest

from farm.capability import backend_of, closure, queue_of
from farm.errors import UsageError


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
