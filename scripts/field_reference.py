"""Every field of results, reports and events as Markdown, in docs/fields.md. Made from the JSON Schemas.

python scripts/field_reference.py    writes it; do so after a change of fastscribe/results/formats/schema/
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT)]

from fastscribe.cli.schema import SchemaName, schema_text  # noqa: E402

PAGE = ROOT / "docs" / "fields.md"
MARK = "<!-- made by scripts/field_reference.py -->"
Schema = Mapping[str, Any]


def field_reference() -> str:
    """Return a heading and a table of fields for each object."""
    return "\n".join(line for name in get_args(SchemaName) for line in _of_schema(json.loads(schema_text(name))))


def _of_schema(schema: Schema) -> Iterator[str]:
    yield from (f"## {schema['title']}", "", schema["description"], "")
    for definition in schema["$defs"].values():
        if "properties" in definition:
            yield from _table(definition, schema)
            for field in definition["properties"].values():
                if "properties" in field:
                    yield from _table(field, schema)


def _table(definition: Schema, schema: Schema) -> Iterator[str]:
    yield from (f"### {definition['title']}", "")
    if "description" in definition:
        yield from (definition["description"], "")
    yield from ("| field | type | present | meaning |", "| --- | --- | --- | --- |")
    for name, field in definition["properties"].items():
        whole = {**_target(field, schema), **field}
        when = "always" if name in definition.get("required", ()) else whole["when"]
        yield f"| `{name}` | {_type(whole, schema)} | {when} | {whole['description']} |"
    yield ""


def _target(field: Schema, schema: Schema) -> Schema:
    """Return the definition that a field refers to; an empty one if to none."""
    name = field.get("$ref", "").removeprefix("#/$defs/")
    found: Schema = schema["$defs"][name] if name else {}
    return found


def _type(field: Schema, schema: Schema) -> str:
    if "anyOf" in field:
        return " or ".join(_type({**_target(one, schema), **one}, schema) for one in field["anyOf"])
    if "enum" in field:
        return "string"
    if "const" in field:
        return "boolean" if field["const"] is True else "string"
    kind = field.get("type", "any")
    if kind == "array":
        items = field["items"]
        return f"list of {_type({**_target(items, schema), **items}, schema)}s"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    introduction, _, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    PAGE.write_text(f"{introduction}{MARK}\n\n{field_reference().rstrip()}\n", encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)
