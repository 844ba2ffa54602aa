"""`farm schema`: the formats, for whoever reads or writes them."""

from __future__ import annotations

import json
from typing import Any

import click
from pydantic import BaseModel

from farm.matrix import matrix_schema
from farm.model import (
    SCHEMA_VERSION,
    Bisection,
    CellOrder,
    CellResult,
    Evidence,
    Isolation,
    Judgement,
    Plan,
    Rejudgement,
)

__all__ = ["command"]

MODELS: dict[str, type[BaseModel]] = {
    "evidence": Evidence,
    "plan": Plan,
    "result": CellResult,
    "order": CellOrder,
    "judgement": Judgement,
    "rejudgement": Rejudgement,
    "isolation": Isolation,
    "bisection": Bisection,
}


@click.command(
    "schema",
    epilog="\b\nExamples:\n  farm schema                       of evidence\n"
    "  farm schema judgement > judgement.schema.json   of what farm report --json prints",
)
@click.argument("name", type=click.Choice([*MODELS, "matrix"]), default="evidence")
def command(name: str) -> None:
    """Print the JSON Schema of NAME, by default of evidence.

    The format has one version, schema_version in every record: a file of another version is refused with words.
    """
    # Of what is written: every field that a record has is in it.
    schema: dict[str, Any] = (
        matrix_schema() if name == "matrix" else MODELS[name].model_json_schema(mode="serialization")
    )
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": f"schema_version {SCHEMA_VERSION}"}
    click.echo(json.dumps(head | schema, indent=2))
