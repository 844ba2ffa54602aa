"""What the documents say about the code is what the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.main import COMMANDS
from farm import matrix as matrix_module
from farm.settings import KEYS

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("model", ["_Tier", "_Suite", "_Workload"])
def test_every_key_of_a_matrix_is_explained(model: str) -> None:
    page = (ROOT / "docs" / "tiers.md").read_text()
    for name in getattr(matrix_module, model).model_fields:
        assert f"`{name}`" in page or f"[[workload.{name}]]" in page, name


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
