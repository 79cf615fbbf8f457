"""Check what the program writes against its published JSON Schemas."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from fastscribe.cli.schema import SchemaName, schema_text


@cache
def validator(name: SchemaName) -> Draft202012Validator:
    schema = json.loads(schema_text(name))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def check_schema(name: SchemaName, documents: Iterable[dict[str, Any]]) -> None:
    """Fail with the worst error of the first document that is not as the schema says. Fail without documents."""
    documents = list(documents)
    assert documents
    for document in documents:
        error = best_match(validator(name).iter_errors(document))
        assert error is None, f"{error.json_path}: {error.message}"
