"""`farm submit --stages` with both releases: a window whose stages follow each other at once on one machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.test_submit import BLOCK, PATIENCE_S, Start, start, submit

__all__ = ["start"]  # the fixture

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

STAGES = """
[[stage]]
name = "single"
gates = ["correctness"]

[[stage]]
name = "canary"
days = 3
kinds = ["measure"]
in_service = ["serving"]
share = 0.05
"""


def test_a_window_ends_with_what_the_share_in_service_should_do(
    start: Start, write_matrix: Callable[..., Path]
) -> None:
    matrix = write_matrix(BLOCK, gates="correctness")
    matrix.write_text(matrix.read_text() + STAGES)
    process = submit(start, matrix, "--stages", "--suite", "smoke", "--json")
    text, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    assert said.index("stage 1 of 2, single") < said.index("stage 2 of 2, canary")
    judgement = json.loads(text)
    assert [(told["name"], told["done"], told["cells"]) for told in judgement["stages"]] == [
        ("single", 1, 1),
        ("canary", 1, 1),
    ]
    # Small shapes: all gates pass, and a share of a service is not enlarged for it.
    (told,) = judgement["stages"][1]["tiers"]
    assert (told["tier"], told["decision"]) == ("serving (canary)", "stay")
    (decided,) = (tier for tier in judgement["tiers"] if tier["tier"] == "serving (canary)")
    assert (decided["decision"], decided["would"]) == ("defer", "adopt")
