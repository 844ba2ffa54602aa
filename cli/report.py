"""`farm report`: a run's decisions again, from its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from cli.beside import findings_of
from cli.evidence import find_evidence, other_judgements
from farm.errors import InfrastructureFailed
from farm.judge import judge
from farm.model import Evidence, Finding, Judgement
from farm.settings import Home, load_settings

__all__ = ["command", "render"]

FORMATS = ("table", "json", "markdown", "html")


@click.command(
    "report",
    epilog="\b\nExamples:\n  farm report                                   the newest run\n"
    "  farm report RUN --format html -o page.html\n  farm report RUN --format json | jq .tiers\n"
    "  farm report RUN --traces traces               and one profiled step of every arm, for a trace viewer",
)
@click.argument("run", required=False)
@click.option("--format", "kind", type=click.Choice(FORMATS), default="table", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to a file.")
@click.option(
    "--traces",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Write Chrome traces of every arm, too.",
)
def command(run: str | None, kind: str, as_json: bool, output: Path | None, traces: Path | None) -> None:
    """Judge the stored evidence of RUN (by default the newest) again and print what it says."""
    home = Home.default()
    evidence = find_evidence(home, load_settings(), run)
    if traces is not None:
        _write_traces(evidence, traces, home)
    findings = findings_of(home, evidence.run_id)
    write_or_print(render(evidence, judge(evidence), "json" if as_json else kind, findings), output)
    if others := other_judgements(home, evidence.run_id):
        said = f"{len(others)} judgement{'s' if len(others) > 1 else ''} under limits that were named afterwards"
        click.echo(f"{said}: {others[0].parent}", err=True)


def write_or_print(text: str, output: Path | None) -> None:
    """Print ``text``, or write it into ``output``. Raises InfrastructureFailed where that cannot be written."""
    if output is None:
        click.echo(text)
        return
    try:
        output.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
    except OSError as error:
        raise InfrastructureFailed(f"'{output}' cannot be written: {error.strerror}") from error
    click.echo(f"wrote {output}", err=True)


def _write_traces(evidence: Evidence, folder: Path, home: Home) -> None:
    from cli.traces import HOW_TO_OPEN, write_traces

    written, missing = write_traces(evidence, folder, home.root / "traces")
    for words in missing:
        click.echo(f"no trace: {words}", err=True)
    if written:
        click.echo(f"wrote {len(written)} traces into {folder}; {HOW_TO_OPEN}", err=True)
    elif not missing:
        click.echo("no traces: no arm of this run was profiled", err=True)


def render(evidence: Evidence, judgement: Judgement, kind: str, findings: Sequence[Finding] = ()) -> str:
    """Return the report in one of `FORMATS`; the JSON is the judgement, findings are files of their own."""
    if kind == "json":
        return judgement.model_dump_json(indent=2)
    if kind == "markdown":
        from farm.report.markdown import to_markdown

        return to_markdown(evidence, judgement, findings)
    if kind == "html":
        from farm.report.html import to_html

        return to_html(evidence, judgement, findings)
    from farm.report.table import summary

    return summary(evidence, judgement, findings)
