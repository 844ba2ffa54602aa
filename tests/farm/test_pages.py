"""What the documents say about the code is what the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.main import COMMANDS
from farm import matrix as matrix_module
from farm.matrix import load_matrix
from farm.settings import KEYS

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("model", ["_Tier", "_Suite", "_Workload"])
def test_every_key_of_a_matrix_is_explained(model: str) -> None:
    page = (ROOT / "docs" / "tiers.md").read_text()
    for name in getattr(matrix_module, model).model_fields:
        assert f"`{name}`" in page or f"[[workload.{name}]]" in page, name


def test_the_page_about_tiers_shows_the_limits_that_ship() -> None:
    page = (ROOT / "docs" / "tiers.md").read_text()
    rows = {
        cells[1].strip(): cells[2:-1] for cells in (line.split("|") for line in page.splitlines()) if len(cells) == 7
    }
    for column, tier in enumerate(load_matrix().tiers):
        assert rows[""][column].strip() == tier.name
        assert rows["backends"][column].strip() == ", ".join(tier.backends)
        assert rows["required"][column].strip() == ", ".join(tier.required)
        assert rows["p50 of a step"][column].strip().startswith(f"{tier.p50_ratio:.2f}")
        assert rows["throughput"][column].strip() == f"{tier.throughput_ratio:.2f}"
        assert rows["peak memory"][column].strip() == f"{tier.peak_memory_ratio:.2f}"
        assert rows["way back"][column].strip() == f"{tier.rollback_s / 60:.0f} min"
        assert f"{(1 - tier.feature_gain) * 100:.0f} %" in rows["gain that a new path must bring"][column]


def test_every_command_setting_and_option_is_explained() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    for name in COMMANDS:
        assert f"`farm {name}" in page
    for key in KEYS:
        assert re.search(rf"^{key} = ", page, re.MULTILINE), key


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
