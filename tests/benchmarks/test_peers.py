"""Decisions of the peers on plain numbers."""

from __future__ import annotations

import pytest

from benchmarks.peers import (
    asv_accuses,
    hyperfine_accuses,
    pyperf_accuses,
    sequential_accuses,
    student_quantile,
)

QUIET = [1.00, 1.01, 0.99, 1.00, 1.01, 0.99, 1.00, 1.01, 0.99, 1.00]
NOISY = [1.0, 3.0, 0.2, 1.4, 0.6, 2.2, 0.9, 1.1, 0.4, 1.6]
SLOWER = [value * 1.05 for value in QUIET]


def test_torch_has_no_test_so_the_ratio_of_medians_decides() -> None:
    assert sequential_accuses(QUIET, SLOWER, 1.02)
    assert not sequential_accuses(QUIET, QUIET, 1.02)
    assert sequential_accuses(NOISY, [value * 1.05 for value in NOISY], 1.02)


def test_hyperfine_accuses_what_welchs_test_tells_apart() -> None:
    assert hyperfine_accuses(QUIET, SLOWER, 1.02)
    assert not hyperfine_accuses(QUIET, [value * 1.015 for value in QUIET], 1.02)
    assert not hyperfine_accuses(NOISY, [value * 1.05 for value in NOISY], 1.02)


def test_pyperf_accuses_what_its_own_test_finds_significant() -> None:
    pytest.importorskip("pyperf", reason="pyperf comes with the extra 'bench'")
    assert pyperf_accuses(QUIET, SLOWER, 1.02)
    assert not pyperf_accuses(NOISY, [value * 1.05 for value in NOISY], 1.02)


def test_asv_accuses_what_its_own_test_finds_different() -> None:
    pytest.importorskip("asv", reason="asv comes with the extra 'bench'")
    assert asv_accuses(QUIET, SLOWER, 1.02)
    assert not asv_accuses(NOISY, [value * 1.05 for value in NOISY], 1.02)


@pytest.mark.parametrize(("freedom", "quantile"), [(3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042), (1e6, 1.960)])
def test_students_quantile_is_that_of_the_tables(freedom: float, quantile: float) -> None:
    assert student_quantile(freedom) == pytest.approx(quantile, rel=0.01)
