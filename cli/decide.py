"""`farm decide`: stored evidence judged again, with its own limits or with others."""

from __future__ import annotations

from pathlib import Path

import click

from cli.evidence import given_evidence, keep_judgement
from cli.report import FORMATS, render, write_or_print
from cli.submit import exit_code
from farm.judge import judge
from farm.matrix import load_matrix
from farm.model import Decision, Evidence, Rejudgement
from farm.plan import planned_workloads
from farm.reading import BY_HAND
from farm.rejudging import rejudge, under
from farm.report.flips import flips_markdown, flips_table
from farm.settings import Home

__all__ = ["command"]

AFTERWARDS = "These limits were named after the run: they are a second opinion beside the registered decision."


@click.command(
    "decide",
    epilog="\b\nExamples:\n  farm decide 20260701-100000-ab12             a run's own limits, judged again\n"
    "  farm decide evidence.json --matrix mine.toml   what other limits would have said, and what flips\n"
    "  farm decide - --json --require adopt < evidence.json",
)
@click.argument("evidence", metavar="EVIDENCE")
@click.option("--matrix", "matrix_path", type=click.Path(path_type=Path), help="Judge with the tiers of this matrix.")
@click.option("--format", "kind", type=click.Choice(FORMATS), default="table", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write into a file.")
@click.option(
    "--require",
    type=click.Choice([Decision.ADOPT.value, Decision.ISOLATE.value]),
    help="Exit with 1 where a requested decision falls short of this.",
)
@click.pass_context
def command(
    ctx: click.Context,
    evidence: str,
    matrix_path: Path | None,
    kind: str,
    as_json: bool,
    output: Path | None,
    require: str | None,
) -> None:
    """Judge EVIDENCE again, offline: a file, - for stdin, or a run's id.

    The same evidence under the same limits gives the same answer, byte for byte. With --matrix the limits are another
    matrix's: what they answer otherwise is listed, and of a run that is kept here the new judgement is kept beside the
    registered one.
    """
    found, folder = given_evidence(evidence, Home.default())
    if matrix_path is None:
        judged, shown = Rejudgement(judgement=judge(found)), found
    else:
        matrix = load_matrix(matrix_path)
        asked = (planned_workloads(matrix), matrix.waivers, matrix.claims)
        judged, shown = rejudge(found, matrix.tiers, matrix.digest, *asked), under(found, matrix.tiers, *asked)
    if found.plan.suite == BY_HAND:
        for note in found.plan.resolution_notes:
            click.echo(f"note: {note}", err=True)
    if folder is not None:
        kept = keep_judgement(folder, judged.judgement)
        click.echo(f"kept in {kept}", err=True)
    write_or_print(_text(shown, judged, "json" if as_json else kind, other=matrix_path is not None), output)
    ctx.exit(exit_code(found, judged.judgement, Decision(require) if require else None))


def _text(evidence: Evidence, judged: Rejudgement, kind: str, *, other: bool) -> str:
    if kind == "json":
        return judged.model_dump_json(indent=2)
    text = render(evidence, judged.judgement, kind)
    if not other or kind == "html":
        # A page is whole: its title says that the limits are not the plan's, what flips the other formats say.
        return text
    if judged.judgement.registered:
        return f"{text}\n\nThese limits are the plan's own: nothing flips."
    told = flips_markdown(judged.flips) if kind == "markdown" else flips_table(judged.flips)
    return f"{text.rstrip()}\n\n{AFTERWARDS}\n\n{told}"
