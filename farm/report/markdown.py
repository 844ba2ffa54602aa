"""A report as Markdown: for pull requests and notes, tables and no pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from farm.model import Evidence, Finding, Judgement
from farm.report.cells import CellView
from farm.report.pairs import arm_samples
from farm.report.text import printable
from farm.report.view import ReportView, report_view

__all__ = ["to_markdown"]


def to_markdown(evidence: Evidence, judgement: Judgement, findings: Sequence[Finding] = ()) -> str:
    """Return the whole report but its pictures, log tails and locks, which the page has."""
    view = report_view(evidence, judgement, findings)
    parts = [*_head(view), *_decisions(view), *_claims(view), *_stages(view)]
    for cell in view.cells:
        parts += _cell(evidence, cell)
    parts += _run(view)
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(view: ReportView) -> list[str]:
    tiers = [
        (tier.tier, f"**{tier.decision}**", tier.reason, tier.would_change, tier.kept_apart) for tier in view.tiers
    ]
    untested = [f"backend {backend.backend} untested: {backend.reason}" for backend in view.untested]
    return [
        f"# {_plain(view.title)}",
        f"Asked: {_plain(view.asked)}.",
        f"**{_plain(view.coverage)}**",
        _bullets([*view.missing, *untested, *view.unfinished]),
        _plain(view.false_alarms),
        _bullets(f"unstable: {line}" for line in view.unstable),
        _bullets(f"waiver: {line}" for line in view.waivers),
        _bullets(f"**alarm**: {alarm}" for alarm in view.alarms),
        _bullets(f"attributed: {line}" for line in view.attributed),
        _table(("tier", "decision", "why", "what would change it", "kept apart"), tiers),
    ]


def _decisions(view: ReportView) -> list[str]:
    rows = [
        (
            row.subject,
            row.backend,
            row.tiers,
            f"**{row.decision}**",
            row.decided_by,
            f"{row.figure_name} {row.figure}".strip(),
            "; ".join((row.reason, *row.warnings, *(f"caveat: {caveat}" for caveat in row.caveats))),
            row.would_change,
            row.kept_apart,
        )
        for row in view.decisions
    ]
    headers = (
        "workload",
        "backend",
        "tier",
        "decision",
        "decided by",
        "figure",
        "why",
        "what would change it",
        "kept apart",
    )
    caveats = ["Caveats of every decision, written down before the run:", _bullets(view.caveats)]
    return ["## Decisions", _table(headers, rows), *(caveats if view.caveats else [])]


def _claims(view: ReportView) -> list[str]:
    if not view.claims:
        return []
    return ["## What the release says of itself", _table(("claim", "source", "here", "why"), view.claims)]


def _stages(view: ReportView) -> list[str]:
    parts = ["## Stages"] if view.stages else []
    for stage in view.stages:
        head = f"**{stage.title}**: {stage.state}" + (f"; {stage.description}" if stage.description else "")
        parts += [_plain(head), _bullets(check.line for check in stage.checks)]
        told = [(tier, f"**{said}**", why) for tier, said, why in stage.tiers]
        parts.append(_table(("tier", "the stage said", "why"), told))
    return parts


def _cell(evidence: Evidence, cell: CellView) -> list[str]:
    parts = [f"## {cell.heading} {_plain(cell.id)}", _plain(cell.state)]
    for pair in cell.pairs:
        rows = [(v.gate, v.status, v.tiers, v.required_by, "; ".join(v.figures), v.reason) for v in pair.verdicts]
        parts += [
            f"### {_plain(pair.title)}",
            _table(("gate", "verdict", "tiers", "required by", "figures", "reason"), rows),
        ]
    arms = [(arm.name, arm.path, arm.outcome, arm.reason, *_times(evidence, cell.id, arm.name)) for arm in cell.arms]
    if cell.kind == "rehearsal":
        arms = [(*row[:4], "", "") for row in arms]
    parts.append(_table(("arm", "path", "outcome", "reason", "median, ms", "p95, ms"), arms))
    if cell.rehearsal is not None:
        walked = cell.rehearsal
        parts += [
            _table(("the way back", ""), [("outcome", walked.outcome), *walked.facts]),
            _table(("step", "duration"), walked.steps),
            _table(("what the candidate wrote", "opened by the baseline"), walked.state),
            _bullets([*walked.reinstalled, *(f"mismatch: {line}" for line in walked.mismatches)]),
        ]
    environments = [(e.arms, e.release, e.wheel, e.sha256, e.python) for e in cell.environments]
    facts = [*cell.host, *cell.measuring, *((f"phase {name}", spent) for name, spent in cell.phases)]
    parts += [
        _table(("arms", "release", "wheel", "sha256", "python"), environments),
        _table(("evidence", ""), facts),
        _bullets(cell.findings),
        _bullets(f"moved with torch: {line}" for line in cell.moved),
        _bullets(f"warning: {line}" for line in cell.warnings),
        _bullets(f"caveat: {line}" for line in cell.caveats),
    ]
    return parts


def _times(evidence: Evidence, cell_id: str, arm: str) -> tuple[str, str]:
    result = next((found for found in evidence.results if found.cell_id == cell_id), None)
    steps = arm_samples(result, arm).steps_ms if result else np.empty(0)
    if not len(steps):
        return "", ""
    median, p95 = np.quantile(steps, [0.5, 0.95])
    return f"{median:.3f}", f"{p95:.3f}"


def _run(view: ReportView) -> list[str]:
    return [
        "## Run",
        _table(("", ""), view.facts),
        _bullets(view.notes),
        "## Reproduce",
        f"```\n{view.reproduce}\n```",
    ]


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, or "" without rows."""
    lines = [f"| {' | '.join(_plain(cell) for cell in row)} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(headers)} |", f"|{' --- |' * len(headers)}", *lines])


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_plain(line)}" for line in lines)


def _plain(text: str) -> str:
    """Return ``text`` on one line, unable to end a table's cell, to open a tag or to load a picture."""
    return printable(text).replace("|", "\\|").replace("<", "&lt;").replace("](", "]\\(")
