"""A report as one file of HTML: opens offline, needs no script, loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from farm.model import Evidence, Finding, Judgement
from farm.report.charts import LEFT, RIGHT, WIDTH
from farm.report.view import report_view

__all__ = ["to_html"]


def to_html(evidence: Evidence, judgement: Judgement, findings: Sequence[Finding] = ()) -> str:
    """Return the page of a run."""
    view = report_view(evidence, judgement, findings)
    return _template().render(view=view, width=WIDTH, left=LEFT, right=RIGHT)


@lru_cache(maxsize=1)
def _template() -> Template:
    # Log tails, reasons and facts come from machines that are not ours: everything is escaped.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2")
