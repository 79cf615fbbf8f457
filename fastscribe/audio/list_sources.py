"""The rows of a list as recordings to transcribe. A row that names none is a Failure that says where it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from fastscribe.audio.failures import input_failure, is_utf8, printable, relative_id, system_problem
from fastscribe.audio.formats import MANIFEST_EXTENSIONS, list_kind
from fastscribe.audio.json_lines import NotAList
from fastscribe.audio.list_rows import BadRow, Row, list_rows
from fastscribe.audio.list_rows import manifest_rows as rows_of_manifest
from fastscribe.audio.manifest import opened, source_of
from fastscribe.errors import ManifestError
from fastscribe.types import Failure, File, Source


def read_list(path: str, left_out: Counter[str] | None = None) -> Iterator[Source | Failure]:
    """Yield every row of a list in order, a broken one as a Failure.

    Args:
        path: Path or URL of the list.
        left_out: Counts the files of an archive that are not taken for audio, by kind.
    """
    if list_kind(path) != "tar":
        return _sources(path, list_rows(path))
    from fastscribe.audio.tar_rows import tar_rows

    return _sources(path, tar_rows(path, Counter() if left_out is None else left_out))


def manifest_rows(path: str, lines: Iterable[bytes]) -> Iterator[Source | Failure]:
    """Yield the rows in a manifest's lines; if these are no JSON lines at all, one Failure."""
    return _sources(path, rows_of_manifest(path, lines))


def _sources(path: str, rows: Iterator[Row]) -> Iterator[Source | Failure]:
    empty = True
    try:
        for row in rows:
            empty = False
            yield _source(row)
    except (OSError, NotAList) as error:
        yield input_failure(path, system_problem(error))
        return
    if empty:
        yield input_failure(
            path, f"this {'manifest' if list_kind(path) in MANIFEST_EXTENSIONS else 'list'} holds no rows"
        )


def _source(row: Row) -> Source | Failure:
    if isinstance(row, BadRow):
        return _failure(row)
    file: File = opened(row.file) if isinstance(row.file, str) else row.file
    try:
        if row.fields is None and not is_utf8(row.span.path):
            raise ManifestError(row.where, row.number, "a path that is not valid UTF-8; rename the file")
        source = source_of(row.where, row.number, row.fields or {}, row.span, file)
    except ManifestError as error:
        return _failure(BadRow(row.where, row.number, error, row.fields))
    if row.id is None and row.fields is not None:
        return source
    return replace(source, id=source.id if row.id is None else relative_id(row.id), row=row.fields)


def _failure(row: BadRow) -> Failure:
    given = row.fields.get("audio_filepath") if row.fields else None
    path = given if isinstance(given, str) and given else printable(row.where)
    row_id = f"{printable(relative_id(row.where))}:{row.number}"
    return Failure(path, row_id, "input", type(row.error).__name__, printable(str(row.error)), row.fields)
