"""`farm workload new`: a working file and a matrix that asks for it."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from string import Template

import click

from farm.catalogue import catalogue
from farm.errors import InfrastructureFailed, UsageError

__all__ = ["command", "matrix_of", "source_of"]

ENTRY = """[[workload]]
name = "{name}"
file = "{name}.py"
features = ["fused"] # new paths to hold against the old one; leave it out to compare releases only
"""


@click.command(
    "new", epilog="\b\nExamples:\n  farm workload new our_attention\n  farm workload new our_attention --to work/"
)
@click.argument("name")
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=".",
    show_default=True,
    help="Where to write.",
)
def command(name: str, folder: Path) -> None:
    """Write NAME.py, a workload that runs as it stands, and NAME.toml, a matrix that asks for it.

    The matrix is the one that ships with the farm, its workloads replaced: tiers, suites and stages come with it.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name):
        raise UsageError(f"'{name}' cannot be a workload's name; write small letters, digits and _, a letter first")
    if name in catalogue():
        raise UsageError(
            f"there is a workload '{name}' already; see it with farm workload show {name}, or take another name"
        )
    written = {f"{name}.py": source_of(name), f"{name}.toml": matrix_of(ENTRY.format(name=name))}
    for file in written:
        if (folder / file).exists():
            raise UsageError(f"'{folder / file}' is there already and was not touched; take another name or --to")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in written.items():
            # Never over what came there meanwhile.
            with (folder / file).open("x", encoding="utf-8") as out:
                out.write(text)
    except OSError as error:
        raise InfrastructureFailed(f"'{folder}' cannot be written: {error.strerror or error}") from error
    click.echo(f"{folder / f'{name}.py'}: a workload that runs as it stands; put your work in its place")
    click.echo(f"{folder / f'{name}.toml'}: a matrix that asks for it, with the tiers and suites that ship")
    click.echo(f"\nNext:\n  farm workload check {folder / f'{name}.py'}")
    click.echo(f"  farm submit --candidate 2.13 --matrix {folder / f'{name}.toml'}")


def source_of(name: str) -> str:
    """Return a workload that runs as it stands: two paths, an output that is not zero, 4 ms a step on one core."""
    template = Template((files("cli") / "new_workload.template").read_text())
    kind = "".join(word.capitalize() for word in name.split("_"))
    return template.substitute(title=name.replace("_", " ").capitalize(), kind=kind)


def matrix_of(entry: str) -> str:
    """Return the matrix that ships with ``entry`` in place of its workloads and of what is claimed of them."""
    text = (files("farm") / "default_matrix.toml").read_text()
    # A table of it ends with a blank line, and the comment above one belongs to it.
    paragraphs = text.split("\n\n")
    replaced = [bool(re.search(r"^\[\[(workload|claim)\]\]$", one, re.MULTILINE)) for one in paragraphs]
    first = replaced.index(True)
    kept = [one for one, gone in zip(paragraphs, replaced, strict=True) if not gone]
    return "\n\n".join([*kept[:first], entry.strip(), *kept[first:]])
