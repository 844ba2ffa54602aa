"""Evidence and its judgement as rows and strings: every format of a report shows these and nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from farm.aa import run_limit
from farm.budget import percent_apart
from farm.model import Coverage, Decision, DecisionRow, Evidence, Finding, Judgement, RunState, Side
from farm.report.cells import CellView, cell_anchor, cell_view
from farm.report.environments import LockView, lock_views
from farm.report.stages import StageView, stage_views
from farm.report.text import anchor, figure_text, plural

__all__ = [
    "BackendView",
    "DecisionView",
    "ReportView",
    "TierView",
    "afterwards",
    "asked",
    "backend_views",
    "claim_lines",
    "claim_rows",
    "decision_views",
    "decision_words",
    "false_alarm_line",
    "missing_lines",
    "report_view",
    "reproduce_command",
    "run_facts",
    "shared_caveats",
    "tier_views",
    "unfinished_views",
    "unstable_lines",
    "waiver_lines",
]


@dataclass(frozen=True)
class BackendView:
    """A backend that nothing ran on."""

    backend: str
    reason: str
    anchor: str


@dataclass(frozen=True)
class DecisionView:
    """A decision on one workload or path and backend, for all the tiers that decide alike."""

    subject: str
    """Workload, with its path where the row is about a new one: "flex_attention, path flex"."""
    question: str
    backend: str
    tiers: str
    decision: str
    """In words: "adopt", "defer (would adopt)"."""
    chip: str
    """The bare decision: what a style may hang on."""
    decided_by: str
    """A gate, or "" where none decided."""
    figure_name: str
    figure: str
    """"1.004 [0.991, 1.012] limit 1.030"."""
    short_figure: str
    """The same, limits that differ from tier to tier as a range."""
    reason: str
    would_change: str
    kept_apart: str
    warnings: tuple[str, ...]
    caveats: tuple[str, ...]
    """Of this decision and not of every one."""
    cell_id: str
    anchor: str


@dataclass(frozen=True)
class TierView:
    tier: str
    description: str
    decision: str
    chip: str
    reason: str
    would_change: str
    kept_apart: str
    limits: tuple[tuple[str, str, str], ...]
    """(name, number, why it is what it is), for numbers that the matrix gives a reason for."""

    @property
    def line(self) -> str:
        """The tier in one line."""
        apart = f"; kept apart: {self.kept_apart}" if self.kept_apart else ""
        change = f"; what would change it: {self.would_change}" if self.would_change else ""
        return f"{self.tier}: {self.decision}, {self.reason}{apart}{change}"


@dataclass(frozen=True)
class ReportView:
    """A whole report."""

    title: str
    asked: str
    coverage: str
    """How much was compared: its head."""
    missing: tuple[str, ...]
    untested: tuple[BackendView, ...]
    unfinished: tuple[str, ...]
    decisions: tuple[DecisionView, ...]
    tiers: tuple[TierView, ...]
    stages: tuple[StageView, ...]
    waivers: tuple[str, ...]
    claims: tuple[tuple[str, str, str, str], ...]
    """(sentence, its source, result, reason) of what the release says of itself."""
    alarms: tuple[str, ...]
    attributed: tuple[str, ...]
    """Whose change it is, of cases that several machines measured."""
    false_alarms: str
    """"A/A: 0 of 2 cells accused falsely (0 of 37 on record beyond 3 %)"; "" where none was planned."""
    unstable: tuple[str, ...]
    caveats: tuple[str, ...]
    """Of every decision."""
    notes: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    locks: tuple[LockView, ...]
    cells: tuple[CellView, ...]
    reproduce: str


def report_view(evidence: Evidence, judgement: Judgement, findings: Sequence[Finding] = ()) -> ReportView:
    """Return everything that a page shows of ``evidence``, ``judgement`` and what was looked into afterwards."""
    compared = f"{releases(evidence, Side.CANDIDATE)} against {releases(evidence, Side.BASELINE)}"
    return ReportView(
        title=compared + afterwards(judgement),
        asked=asked(evidence),
        coverage=judgement.coverage.head,
        missing=missing_lines(judgement.coverage),
        untested=backend_views(judgement.coverage),
        unfinished=unfinished_views(evidence),
        decisions=decision_views(judgement.rows),
        tiers=tier_views(evidence, judgement),
        stages=stage_views(evidence, judgement),
        waivers=waiver_lines(judgement),
        claims=tuple(claim_rows(judgement)),
        alarms=judgement.alarms,
        attributed=judgement.attributed,
        false_alarms=false_alarm_line(evidence, judgement),
        unstable=unstable_lines(judgement),
        caveats=shared_caveats(judgement.rows),
        notes=resolution_notes(evidence),
        facts=run_facts(evidence, judgement),
        locks=lock_views(evidence.plan),
        cells=tuple(cell_view(evidence, judgement, cell, findings) for cell in evidence.plan.cells),
        reproduce=reproduce_command(evidence),
    )


def releases(evidence: Evidence, side: Side) -> str:
    """Return the releases of one side, "2.13.0+cpu"; more than one where platforms differ in build variant."""
    plan = evidence.plan
    found = dict.fromkeys(
        release.identity for name, release in plan.releases.items() if name.partition("@")[0] == side.value
    )
    return " and ".join(found) or f"{plan.requested.get(side.value, side.value)} (no environment)"


def afterwards(judgement: Judgement) -> str:
    """Return the words of a judgement whose limits nobody registered before the run, "" of the registered one."""
    return "" if judgement.registered else ", under limits that were named after the run"


def asked(evidence: Evidence) -> str:
    """Return what was asked, in one line."""
    plan = evidence.plan
    typed = ", ".join(f"{name} {what}" for name, what in plan.requested.items())
    only = f", workloads {', '.join(plan.requested_workloads)} only" if plan.requested_workloads else ""
    same = "; an A/A run: both arms are one wheel" if plan.aa else ""
    asked_for = f" (asked for: {typed})" if typed else ""
    return (
        f"candidate {releases(evidence, Side.CANDIDATE)} against baseline {releases(evidence, Side.BASELINE)}, "
        f"suite {plan.suite}, backends {', '.join(plan.requested_backends) or 'none'}{only}{asked_for}{same}"
    )


def missing_lines(coverage: Coverage) -> tuple[str, ...]:
    """Return a line for each arm that cells miss, with how it ended there."""
    return tuple(
        f"missing on {who if who == 'both' else f'the {who}'}: "
        + ", ".join(f"{count} {outcome}" for outcome, count in ended.items())
        for who, ended in coverage.outcomes.items()
    )


def false_alarm_line(evidence: Evidence, judgement: Judgement) -> str:
    """Return how often the run accused one release of being itself, and what is on record; "" without A/A cells."""
    found = judgement.false_alarms
    if found is None:
        return ""
    if not found.cells:
        return "A/A: no cell gave a valid answer, so nothing is known of false accusations"
    limit = run_limit(evidence.plan)
    record = "none on record"
    if found.on_record and limit is not None:
        record = f"{found.on_record_beyond} of {found.on_record} on record beyond {percent_apart(limit)}"
    changed = f", {found.changed} read as changed" if found.changed else ""
    return f"A/A: {found.failed} of {plural(found.cells, 'cell')} accused falsely{changed} ({record})"


def unstable_lines(judgement: Judgement) -> tuple[str, ...]:
    """Return a line for every cell whose own noise is wider than a limit that judges it."""
    return tuple(f"{cell}: {history}" for cell, history in judgement.unstable.items())


def claim_rows(judgement: Judgement) -> list[tuple[str, str, str, str]]:
    """Return every claim as (sentence, source, result, reason)."""
    return [(one.claim.sentence, one.claim.source, one.result, one.reason) for one in judgement.claims]


def claim_lines(judgement: Judgement) -> list[str]:
    """Return the claims that something was seen of, a line each, and how many nothing was."""
    told = [f"{one.result}: {one.claim.sentence}: {one.reason}" for one in judgement.claims if one.result != "untested"]
    count = len(judgement.claims) - len(told)
    return [*told, f"untested: {plural(count, 'claim')} of the release (farm report has them all)"] if count else told


def waiver_lines(judgement: Judgement) -> tuple[str, ...]:
    """Return a line for every waiver, needed or not: who answers for what, why, and until when."""
    states = {"used": "used", "unused": "unused", "expired": "expired, a failure", "not waivable": "not waivable"}
    lines = []
    for use in judgement.waivers:
        waiver = use.waiver
        where = f" for {', '.join(use.cells)}" if use.cells else ""
        until = "expired on" if use.state == "expired" else "until"
        lines.append(
            f"{waiver.subject}: {states[use.state]}{where}; {waiver.owner} {until} {waiver.expires}: {waiver.reason}"
        )
    return tuple(lines)


def backend_views(coverage: Coverage) -> tuple[BackendView, ...]:
    """Return the backends that nothing ran on, with their reasons."""
    return tuple(
        BackendView(backend, reason, anchor("backend", backend))
        for backend, reason in coverage.untested_backends.items()
    )


def unfinished_views(evidence: Evidence) -> tuple[str, ...]:
    """Return a line for every cell without a result, "not run: block/infer@cpu: no worker for bench.cpu"."""
    told = [(cell, *evidence.without_result(cell)) for cell in (*evidence.unfinished, *evidence.skipped)]
    return tuple(": ".join(part for part in (word, cell, reason) if part) for cell, word, reason in told)


def decision_words(decision: Decision, would: Decision | None) -> str:
    """Return "defer (would adopt)" where the decision was held back, else the bare decision."""
    return f"{decision} (would {would})" if would is not None else str(decision)


def decision_views(rows: Iterable[DecisionRow]) -> tuple[DecisionView, ...]:
    """Return the rows, one workload's together; tiers that decide alike for the same reason share a row."""
    rows = tuple(rows)
    everywhere = shared_caveats(rows)
    subjects: dict[tuple[str, ...], dict[tuple[object, ...], list[DecisionRow]]] = {}
    for row in rows:
        subject = (row.question, row.workload, row.path, row.backend)
        shown = (row.figure.name, row.figure.value, row.figure.low, row.figure.high) if row.figure else None
        alike = (
            row.decision,
            row.would,
            row.decided_by,
            row.cell_id,
            row.reason,
            row.kept_apart,
            shown,
            tuple(one.waiver for one in row.waived),
        )
        subjects.setdefault(subject, {}).setdefault(alike, []).append(row)
    return tuple(_decision_view(group, everywhere) for groups in subjects.values() for group in groups.values())


def shared_caveats(rows: Sequence[DecisionRow]) -> tuple[str, ...]:
    """Return the caveats of every row, which are said once beside them all."""
    return tuple(caveat for caveat in (rows[0].caveats if rows else ()) if all(caveat in row.caveats for row in rows))


def _decision_view(group: Sequence[DecisionRow], everywhere: Sequence[str]) -> DecisionView:
    row = group[0]
    limits = [(other.figure.limit if other.figure else None, other.tier) for other in group]
    warnings = dict.fromkeys(warning for other in group for warning in other.warnings)
    return DecisionView(
        subject=f"{row.workload}, path {row.path}" if row.path else row.workload,
        question=row.question.value,
        backend=row.backend,
        tiers=", ".join(other.tier for other in group),
        decision=decision_words(row.decision, row.would),
        chip=row.decision.value,
        decided_by=row.decided_by.value if row.decided_by else "",
        figure_name=row.figure.name if row.figure else "",
        figure=figure_text(row.figure, limits),
        short_figure=figure_text(row.figure, limits, short=True),
        reason=row.reason,
        would_change=_by_tier({other.tier: other.would_change for other in group}),
        kept_apart=row.kept_apart,
        warnings=tuple(warnings),
        caveats=tuple(caveat for caveat in row.caveats if caveat not in everywhere),
        cell_id=row.cell_id or "",
        anchor=cell_anchor(row.cell_id) if row.cell_id else _where_untested(row),
    )


def _by_tier(said: Mapping[str, str]) -> str:
    """Return what all tiers say, or what each of them does where their limits differ."""
    distinct = dict.fromkeys(said.values())
    if len(distinct) == 1:
        return next(iter(distinct))
    return "; ".join(f"{', '.join(t for t, words in said.items() if words == one)}: {one}" for one in distinct)


def _where_untested(row: DecisionRow) -> str:
    return anchor("backend", row.backend) if row.reason.startswith("untested") else "coverage"


def tier_views(evidence: Evidence, judgement: Judgement) -> tuple[TierView, ...]:
    """Return every tier's decision, with the reasons that its matrix gives for its limits."""
    tiers = {tier.name: tier for tier in evidence.plan.tiers}
    found = []
    for decided in judgement.tiers:
        tier = tiers.get(decided.tier)
        reasons = tier.reason if tier else {}
        found.append(
            TierView(
                tier=decided.tier,
                description=tier.description if tier else "",
                decision=decision_words(decided.decision, decided.would),
                chip=decided.decision.value,
                reason=decided.reason,
                would_change=decided.would_change,
                kept_apart=", ".join(decided.kept_apart),
                limits=tuple((name, str(getattr(tier, name, "")), why) for name, why in reasons.items()),
            )
        )
    return tuple(found)


def resolution_notes(evidence: Evidence) -> tuple[str, ...]:
    """Return how releases were resolved, and which environments were refused."""
    refused = [
        f"{r.side} on {r.platform}: no environment: {r.reason}" + (f" ({r.last_words.strip()})" if r.last_words else "")
        for r in evidence.plan.refused
    ]
    return (*evidence.plan.resolution_notes, *refused)


def run_facts(evidence: Evidence, judgement: Judgement) -> tuple[tuple[str, str], ...]:
    """Return what identifies the run: its id, digests and sources."""
    plan = evidence.plan
    names = ", ".join(f"{name} = {version}" for name, version in plan.versions.items())
    facts = [
        ("run", evidence.run_id),
        ("state", _state(evidence)),
        ("created", plan.created),
        ("plan digest", judgement.plan_digest),
        ("matrix digest", judgement.matrix_digest),
        ("matrix source", plan.matrix_source),
        ("names in the matrix", names),
        ("seed", str(plan.seed)),
        ("results kept and not counted", str(len(evidence.extras)) if evidence.extras else ""),
    ]
    return tuple((name, value) for name, value in facts if value)


def _state(evidence: Evidence) -> str:
    if evidence.state is RunState.COMPLETE or not evidence.unfinished:
        return evidence.state.value
    return f"{evidence.state}: {plural(len(evidence.unfinished), 'cell')} without a result"


def reproduce_command(evidence: Evidence) -> str:
    """Return the command that makes the same plan again, ready for a shell."""
    return shlex.join(evidence.plan.command)
