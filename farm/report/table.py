"""The decision table for terminals: plain text without colours, readable in 120 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from tabulate import tabulate

from farm.model import Evidence, Finding, Judgement
from farm.report.stages import stage_views
from farm.report.text import printable
from farm.report.view import (
    DecisionView,
    afterwards,
    asked,
    backend_views,
    claim_lines,
    decision_views,
    false_alarm_line,
    missing_lines,
    reproduce_command,
    run_facts,
    shared_caveats,
    tier_views,
    unfinished_views,
    unstable_lines,
    waiver_lines,
)

__all__ = ["WIDTH", "decision_table", "summary"]

#: Columns that a table is laid out for where nobody says how wide the terminal is.
WIDTH = 120
HEADERS = ("workload", "backend", "tier", "decision", "decided by", "figure", "why")
#: Widest that a column may be, but for the last, which takes what is left.
LIMITS = (21, 11, 12, 12, 14, 16)
LEAST_WHY = 24
BETWEEN = 2
#: What tabulate adds to the width of a header.
HEADER_PADDING = 2
#: A space that no line is broken at.
FIRM = "\N{NO-BREAK SPACE}"


def decision_table(evidence: Evidence, judgement: Judgement, *, width: int | None) -> str:
    """Return the decisions as a table of ``width`` columns; None: one line a row, as wide as it gets.

    Tiers that decide alike for the same reason share a row.
    """
    rows = [_cells(view) for view in decision_views(judgement.rows)]
    if width is not None:
        rows = _wrapped(rows, width)
    # Figures are text here: tabulate must not align "1" and "1.004 [0.991, 1.012]" as numbers.
    table = tabulate(rows, headers=HEADERS, tablefmt="simple", disable_numparse=True)
    return "\n".join(line.rstrip() for line in table.replace(FIRM, " ").splitlines())


def summary(
    evidence: Evidence, judgement: Judgement, findings: Sequence[Finding] = (), *, width: int | None = WIDTH
) -> str:
    """Return coverage, decision table, tiers, waivers, alarms, what was looked into after, how to reproduce it all."""
    facts = dict(run_facts(evidence, judgement))
    coverage = [judgement.coverage.head, *missing_lines(judgement.coverage)]
    untested = [f"{backend.backend} ({backend.reason})" for backend in backend_views(judgement.coverage)]
    coverage += [f"untested backends: {', '.join(untested)}"] if untested else []
    coverage += unfinished_views(evidence)
    coverage += [line] if (line := false_alarm_line(evidence, judgement)) else []
    coverage += [f"unstable: {line}" for line in unstable_lines(judgement)]
    parts = [
        _lines([f"run {evidence.run_id} ({facts['state']}){afterwards(judgement)}: {asked(evidence)}"], width),
        _lines(coverage, width),
        decision_table(evidence, judgement, width=width),
        _lines([f"caveat of every decision: {line}" for line in shared_caveats(judgement.rows)], width),
        _lines([tier.line for tier in tier_views(evidence, judgement)], width),
        _lines([line for stage in stage_views(evidence, judgement) for line in stage.lines], width),
        _lines([f"waiver: {line}" for line in waiver_lines(judgement)], width),
        _lines([f"claim {line}" for line in claim_lines(judgement)], width),
        _lines([f"alarm: {alarm}" for alarm in judgement.alarms], width),
        _lines([f"attributed: {line}" for line in judgement.attributed], width),
        _lines([f"{found.cell_id} {line}" for found in findings for line in found.heads], width),
        # A command is to be copied: it is never broken.
        f"reproduce: {reproduce_command(evidence)}\nplan {judgement.plan_digest[:16]}",
    ]
    return "\n\n".join(part for part in parts if part)


def _cells(view: DecisionView) -> list[str]:
    figure = " ".join(filter(None, (view.figure_name, view.short_figure)))
    apart = (f"kept apart: {view.kept_apart}",) if view.kept_apart else ()
    caveats = (f"caveat: {caveat}" for caveat in view.caveats)
    why = "; ".join((view.reason, *apart, *(f"warning: {warning}" for warning in view.warnings), *caveats))
    cells = [view.subject, view.backend, view.tiers, view.decision, view.decided_by or "-", figure, why]
    return [printable(cell) for cell in cells]


def _wrapped(rows: list[list[str]], width: int) -> list[list[str]]:
    narrow = [[_fill(text, limit) for text, limit in zip(row, LIMITS, strict=False)] for row in rows]
    used = [
        max([len(header) + HEADER_PADDING, *(len(line) for row in narrow for line in row[place].splitlines())])
        for place, header in enumerate(HEADERS[:-1])
    ]
    left = max(LEAST_WHY, width - sum(used) - BETWEEN * len(used))
    return [[*cells, _fill(row[-1], left)] for cells, row in zip(narrow, rows, strict=True)]


def _fill(text: str, width: int) -> str:
    """Return ``text`` in lines of at most ``width``; names are not broken, an interval stays in one piece."""
    firm = text.replace(" limit ", " limit" + FIRM)
    if "[" in firm:
        before, _, after = firm.partition("[")
        firm = before + "[" + after.replace(", ", "," + FIRM, 1)
    wrapper = textwrap.TextWrapper(width=width, break_long_words=False, break_on_hyphens=False)
    # textwrap breaks at ASCII white space alone, so that a firm space holds.
    return "\n".join(wrapper.wrap(firm))


def _lines(found: list[str], width: int | None) -> str:
    lines = [printable(line) for line in found]
    if width is None:
        return "\n".join(lines)
    return "\n".join(textwrap.fill(line, width, subsequent_indent="  ", break_on_hyphens=False) for line in lines)
