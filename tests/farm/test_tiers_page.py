"""The page on tiers shows the numbers of the matrix that ships, each with its reason, and cannot go stale."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.matrix import load_matrix
from farm.model import Tier

PAGE = Path(__file__).parent.parent.parent / "docs" / "tiers.md"
TIERS = load_matrix().tiers
#: What a tier says of itself and no number stands behind.
WORDS = ("name", "description", "backends", "workloads", "in_service", "required", "reason", "stage")
#: Every limit that a tier can have, in the order of the model.
LIMITS = tuple(name for name in Tier.model_fields if name not in WORDS)


def value(tier: Tier, name: str) -> str:
    """Return a limit as it stands in the matrix; "–" where the tier has none."""
    found = getattr(tier, name)
    if found is None or found == ():
        return "–"
    return ", ".join(map(str, found)) if isinstance(found, tuple) else str(found)


def table(headers: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(headers)} |", f"|{' --- |' * len(headers)}", *lines])


def test_the_page_has_one_table_of_all_numbers() -> None:
    rows = [(f"`{name}`", *(value(tier, name) for tier in TIERS)) for name in ("backends", "required", *LIMITS)]
    assert table(("limit", *(tier.name for tier in TIERS)), rows) in PAGE.read_text()


@pytest.mark.parametrize("tier", TIERS, ids=lambda tier: tier.name)
def test_the_page_says_why_each_number_is_what_it_is(tier: Tier) -> None:
    rows = [(f"`{name}`", value(tier, name), why) for name, why in tier.reason.items()]
    assert f"### {tier.name}: {tier.description}\n\n{table(('limit', 'is', 'because'), rows)}\n" in PAGE.read_text()


@pytest.mark.parametrize("tier", TIERS, ids=lambda tier: tier.name)
def test_every_number_that_ships_has_a_reason(tier: Tier) -> None:
    assert [name for name in LIMITS if value(tier, name) != "–"] == list(tier.reason)
    assert all(why.strip() for why in tier.reason.values())


def test_tiers_differ_in_every_limit_that_they_could_share_by_carelessness() -> None:
    # Their bound on errors is one: it is a bound on rounding, whoever uses the results.
    alike = [name for name in LIMITS if len({value(tier, name) for tier in TIERS}) == 1]
    assert alike == ["peak_memory_bytes", "error_multiple"]
