"""Stored results with their texts changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fastscribe.errors import FastscribeError, ManifestError
from fastscribe.readable.edits import TextEdits
from fastscribe.readable.words import with_own_words
from fastscribe.results.rows import ResultRow
from fastscribe.types import Failure, Transcript

Stored = tuple[Transcript | Failure, ResultRow]


def edited(results: Iterable[Stored | ManifestError], edits: TextEdits) -> Iterator[Stored | ManifestError]:
    """Yield results of results.export.stored_results() with changed texts, and what cannot be changed as an error."""
    for stored in results:
        if isinstance(stored, ManifestError):
            yield stored
            continue
        result, row = stored
        if isinstance(result, Transcript):
            own = with_own_words(result)
            if own is None:
                yield row.problem("the texts of its segments are not made of its words, so they cannot be told apart")
                continue
            result = own
        try:
            changed = edits.apply(result)
        except FastscribeError as error:
            yield row.problem(str(error))
            continue
        yield changed, row
