"""The JSON Schemas (draft 2020-12) of what programs read: results, reports and events. They lie in schema/.

Their descriptions are the documentation of every field (docs/fields.md). The key `when`, which validators ignore, says when an
optional field is there.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Literal

SchemaName = Literal["result", "report", "event"]


def schema_text(name: SchemaName) -> str:
    """Return a schema as JSON."""
    return (files("fastscribe") / "results" / "formats" / "schema" / f"{name}.json").read_text(encoding="utf-8")
