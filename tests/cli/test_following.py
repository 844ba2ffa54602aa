"""What a submitter is told where the farm that it follows goes away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cli import submit
from farm.errors import InfrastructureFailed
from tests.evidence import cell, plan, tier


@pytest.mark.parametrize(("url", "said"), [("redis://x", "; run r-1 goes on when"), (None, "the server is away$")])
def test_a_coordinator_that_goes_leaves_the_way_back_to_the_run(
    monkeypatch: pytest.MonkeyPatch, url: str | None, said: str
) -> None:
    def away(*_: object) -> None:
        raise InfrastructureFailed("the server is away")

    monkeypatch.setattr(submit, "follow", away)
    asked = SimpleNamespace(settings=SimpleNamespace(url=url))
    client = SimpleNamespace(submit=lambda _: "r-1")
    with pytest.raises(InfrastructureFailed, match=said):
        submit._run(cast(Any, asked), cast(Any, client), plan([cell()], [tier()]), lambda: None, None)
