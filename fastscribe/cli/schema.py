"""`fastscribe schema`: the JSON Schemas (draft 2020-12) of what programs read: results, reports and events.

They lie in results/formats/schema/. Their descriptions are the documentation of every field (docs/fields.md). The key `when`,
which validators ignore, says when an optional field is there.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Annotated, Literal, get_args

import typer

from fastscribe.cli.app import app, check_stdout
from fastscribe.errors import UsageError

SchemaName = Literal["result", "report", "event"]


def schema_text(name: SchemaName) -> str:
    """Return a schema as JSON."""
    return (files("fastscribe") / "results" / "formats" / "schema" / f"{name}.json").read_text(encoding="utf-8")


@app.command(
    short_help="Print the JSON Schema of results, reports or events.",
    epilog="Example: fastscribe schema result > result.schema.json",
)
def schema(
    name: Annotated[
        str,
        typer.Argument(
            help="result: a row of transcripts.jsonl, on stdout, or of -f json; report: report.json; event: a line of "
            "--events.",
            metavar="NAME",
        ),
    ] = "result",
) -> None:
    """Print the JSON Schema (draft 2020-12) of a result, of report.json or of an event. Each field has a description."""
    check_stdout()
    names: dict[str, SchemaName] = {known: known for known in get_args(SchemaName)}
    if name not in names:
        raise UsageError(f"schema {name}: not one of {', '.join(names)}")
    print(schema_text(names[name]), end="")
