"""CSV: one row for every cell, arm, restart and metric, for whatever reads tables."""

from __future__ import annotations

import csv
import io

from farm.export.measures import environment_of, measures
from farm.model import Evidence

__all__ = ["HEADER", "to_csv"]

HEADER = (
    "run_id",
    "cell_id",
    "kind",
    "workload",
    "case",
    "backend",
    "capability",
    "arm",
    "path",
    "release",
    "wheel_sha256",
    "host",
    "outcome",
    "validity",
    "restart",
    "purpose",
    "metric",
    "value",
    "unit",
)


def to_csv(evidence: Evidence) -> str:
    """Return the table. A value that is empty was not measured or is not to be used; outcome and validity say why."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    for found in measures(evidence):
        cell, arm = found.cell, found.arm
        environment = environment_of(evidence.plan, arm, found.result)
        writer.writerow(
            [
                evidence.run_id,
                cell.id,
                cell.kind,
                cell.workload,
                cell.case,
                cell.backend,
                cell.capability,
                arm.name,
                arm.path,
                environment.release.identity if environment else "",
                environment.release.sha256 if environment else "",
                found.result.host.name if found.result else "",
                _harmless(found.outcome),
                _harmless(found.validity),
                "" if found.restart is None else found.restart,
                found.purpose,
                found.metric,
                "" if found.value is None else f"{found.value:.12g}",
                found.unit,
            ]
        )
    return text.getvalue()


def _harmless(text: str) -> str:
    """Return ``text`` on one line and as no formula: reasons come from machines that are not ours."""
    line = " ".join(text.split())
    return f"'{line}" if line.startswith(("=", "+", "-", "@")) else line
