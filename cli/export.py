"""`farm export`: a run's numbers in the formats that other tools read."""

from __future__ import annotations

from pathlib import Path

import click

from cli.evidence import given_evidence
from cli.report import write_or_print
from farm.errors import InfrastructureFailed, UsageError
from farm.model import Evidence
from farm.settings import Home

__all__ = ["command"]

FORMATS = ("csv", "pytorch-v3", "asv")


@click.command(
    "export",
    epilog="\b\nExamples:\n"
    "  farm export RUN > run.csv                            one row a cell, arm, restart and metric\n"
    "  farm export RUN --format pytorch-v3 -o run.json      records of the PyTorch benchmark database\n"
    "  farm export RUN --format asv -o .asv/results         a results folder for asv compare and asv show",
)
@click.argument("evidence", metavar="EVIDENCE")
@click.option("--format", "kind", type=click.Choice(FORMATS), default="csv", show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write into a file; of asv into a folder.")
def command(evidence: str, kind: str, output: Path | None) -> None:
    """Write what EVIDENCE (a run's id, a file, or - for stdin) measured in the format of another tool.

    A failed arm and an invalid cell are never a number: csv leaves the value empty beside outcome and validity, the
    others leave it out (asv has a word for failed) and say so on stderr.
    """
    found, _ = given_evidence(evidence, Home.default())
    if kind == "csv":
        from farm.export.table import to_csv

        write_or_print(to_csv(found).rstrip("\n"), output)
        return
    if kind == "pytorch-v3":
        from farm.export.pytorch import to_pytorch_v3

        text, left_out = to_pytorch_v3(found)
        write_or_print(text, output)
    else:
        left_out = _write_asv(found, output)
    for line in left_out:
        click.echo(f"left out: {line}", err=True)


def _write_asv(evidence: Evidence, folder: Path | None) -> list[str]:
    """Write the files of asv's results folder; what is there of other runs stays."""
    from farm.export.asv import merged, to_asv

    if folder is None:
        raise UsageError("asv reads a folder; name one: farm export RUN --format asv -o .asv/results")
    files, left_out = to_asv(evidence)
    path = folder
    try:
        # All of them before the first is written: a folder that is not ours stays as it is.
        whole = {}
        for place, text in files.items():
            path = folder / place
            whole[path] = merged(path.read_text(encoding="utf-8"), text) if path.is_file() else text
        for path, text in whole.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InfrastructureFailed(f"'{path}' cannot be written: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(
            f"'{path}' is no file of asv's that this can be added to: {error}; name another folder"
        ) from error
    click.echo(f"wrote {len(files)} files into {folder}", err=True)
    return left_out
