"""The rows of any list of recordings, for `transcribe`, `align` and `train`: one form for all kinds.

NeMo's manifests (with tar archives beside them), Lhotse's cuts and recordings, tables, Kaldi's wav.scp and lists of paths.
They are read line by line as bytes, so that a million rows start at once and one broken row costs one row. The name tells
the kind, and of a .txt, .lst or .list its first line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from fastscribe._system import remote
from fastscribe._system.urls import is_url, join_url
from fastscribe.audio.archives import Shar, TarsBeside, part_at
from fastscribe.audio.cuts import in_shar, is_of_lhotse, read_cut
from fastscribe.audio.first_bytes import archive_problem, has_known_format
from fastscribe.audio.formats import list_kind
from fastscribe.audio.input_names import meant, meant_beside
from fastscribe.audio.json_lines import NotAList, not_blank, numbered_rows, starts_rows, wide_encoding
from fastscribe.audio.manifest import PATH_NAMES, Span, opened_lines, parse_row, resolve, row_span
from fastscribe.audio.media import FilePart
from fastscribe.audio.path_lists import entries_in, path_rows
from fastscribe.audio.tables import scp_rows, table_rows
from fastscribe.errors import FastscribeError, ManifestError

FindMember = Callable[[str, int | None], FilePart]  # of a name and a shard_id; raises KeyError that says what is wrong
_MAX_LOOKS = 100  # at rows, for one whose recording is there


class ListRow(NamedTuple):
    """A recording, or a part of one, that a list names.

    Attributes:
        where: The file that has the row.
        number: Of its line, from 1.
        fields: What it says, with NeMo's names; None: a path alone.
        span: The part.
        file: Path or URL of the recording, or its place in an archive.
        id: The row's own; None: its path and offset.
    """

    where: str
    number: int
    fields: dict[str, Any] | None
    span: Span
    file: str | FilePart
    id: str | None = None


class BadRow(NamedTuple):
    """A row that names no recording. `error` says where it is, and what is wrong."""

    where: str
    number: int
    error: FastscribeError
    fields: dict[str, Any] | None = None


Row: TypeAlias = ListRow | BadRow


def list_rows(path: str, find: FindMember | None = None) -> Iterator[Row]:
    """Yield the rows of a list in order; those of an archive are in list_sources.py. Blank lines are skipped.

    Args:
        path: Path or URL of the list.
        find: Finds the recordings of a manifest's rows in archives; None: those beside the manifest, by shard_id.

    Raises:
        NotAList: The list cannot be read as one, perhaps not to its end.
        OSError: It cannot be read.
    """
    kind = list_kind(path)
    if kind == "tar":
        raise NotAList("is a tar archive: name the manifest of its recordings")
    with opened_lines(path) as lines:
        yield from _rows(kind, path, lines, find)


def _rows(kind: str, path: str, lines: Iterator[bytes], find: FindMember | None) -> Iterator[Row]:
    if kind in ("json", "jsonl", "manifest"):
        yield from manifest_rows(path, lines, find)
        return
    numbered = not_blank(lines)
    first = next(numbered, None)
    if first is None:
        return
    _check_text(first[1])
    rest = chain([first], numbered)
    if kind in ("csv", "tsv"):
        folder = ListFolder(path, has_clips=True)
        yield from (_made(path, number, fields, folder) for number, fields in table_rows(path, kind, rest))
    elif kind == "scp":
        folder = ListFolder(path)
        yield from (_made(where, number, fields, folder, "id") for where, number, fields in scp_rows(path, rest))
    elif starts_rows(first[1]):
        yield from _json_rows(path, rest, find)
    else:
        folder = ListFolder(path)
        for number, given in path_rows(path, entries_in(first[1], rest), folder.is_there):
            spelt = folder.meant(given)
            yield ListRow(path, number, None, Span(spelt, None, None, None, None), folder.file_of(spelt))


def _check_text(head: bytes) -> None:
    """Raise NotAList for the first line of what is no list, whatever its name."""
    if (encoding := wide_encoding(head)) is not None:  # whose mark could begin an MP3
        raise NotAList(f"is {encoding}: save it as UTF-8")
    if has_known_format(head):
        raise NotAList("is a recording with the name of a list: rename it")
    if (problem := archive_problem(head)) is not None:
        raise NotAList(problem)


def manifest_rows(path: str, lines: Iterable[bytes], find: FindMember | None = None) -> Iterator[Row]:
    """Yield the rows in the lines of a manifest: NeMo's, or Lhotse's. Relative paths of stdin count from the current folder.

    Raises:
        NotAList: These are no JSON lines at all.
    """
    return _json_rows(path, numbered_rows(lines), find)


def _json_rows(path: str, lines: Iterable[tuple[int, bytes]], find: FindMember | None) -> Iterator[Row]:
    reader = _Manifest(path, find)
    for number, line in lines:
        fields: dict[str, Any] | None = None
        try:
            fields = parse_row(path, number, line)
            yield reader.row(number, fields)
        except ManifestError as error:
            yield BadRow(path, number, error, fields)
        except KeyError as error:  # of an archive
            yield BadRow(path, number, ManifestError(path, number, str(error.args[0])), fields)


class _Manifest:
    """Makes rows of a manifest's JSON objects. Archives are indexed when a row first asks.

    Args:
        path: The manifest's.
        find: As for list_rows().
    """

    def __init__(self, path: str, find: FindMember | None) -> None:
        self._path, self._find = path, find
        self._folder = ListFolder(path)  # of Lhotse's rows
        self._tars: TarsBeside | None = None
        self._shar: Shar | None = None

    def row(self, number: int, fields: dict[str, Any]) -> ListRow:
        """Return a row. Raises ManifestError, KeyError with a problem, NotAList."""
        if is_of_lhotse(fields):
            return self._of_lhotse(number, fields)
        if "audio_filepath" not in fields:
            given = (path for name in PATH_NAMES if isinstance(path := fields.get(name), str) and path)
            fields = next(({"audio_filepath": path, **fields} for path in given), fields)
        span = row_span(self._path, number, fields)
        span = span._replace(path=meant_beside(self._path, span.path))
        shard = fields.get("shard_id")
        if self._find is not None:
            if shard is not None and type(shard) is not int:
                raise ManifestError(self._path, number, f"shard_id is {shard!r:.40}, not a number")
            return ListRow(self._path, number, fields, span, self._find(span.path, shard))
        part = self._beside(span.path, shard) if type(shard) is int else None
        return ListRow(self._path, number, fields, span, part or resolve(self._path, span.path))

    def _beside(self, name: str, shard: int) -> FilePart | None:
        """Return the recording of a row of a tarred manifest; None: it is a file."""
        if is_url(self._path):
            return None
        self._tars = self._tars or TarsBeside(self._path)
        try:
            return self._tars.find(name, shard)
        except KeyError:
            if os.path.exists(resolve(self._path, name)):
                return None
            raise

    def _of_lhotse(self, number: int, row: dict[str, Any]) -> ListRow:
        if self._find is not None:
            raise ManifestError(self._path, number, "a cut names its recording itself: leave tar out")
        fields = read_cut(self._path, number, row)
        name = str(row["id"]) if row.get("id") else None
        if not in_shar(fields):
            span = row_span(self._path, number, fields)
            return ListRow(self._path, number, fields, span, self._folder.file_of(span.path), name)
        if is_url(self._path):
            raise ManifestError(self._path, number, "a cut of a Shar folder in a store: download the folder")
        self._shar = self._shar or Shar(self._path)
        part = self._shar.find(str(row.get("id")))
        fields["audio_filepath"] = str(name)
        span = row_span(self._path, number, fields)
        return ListRow(self._path, number, fields, span, part, name)


def _made(
    where: str, number: int, fields: dict[str, Any] | ManifestError, folder: ListFolder, id_name: str = ""
) -> Row:
    """Return a row of a list whose paths count from `folder`; `id_name` is the field with its own id."""
    if isinstance(fields, ManifestError):
        return BadRow(where, number, fields)
    try:
        span = row_span(where, number, fields)
        span = span._replace(path=folder.meant(span.path))
    except ManifestError as error:
        return BadRow(where, number, error, fields)
    return ListRow(where, number, fields, span, folder.file_of(span.path), fields.get(id_name))


class ListFolder:
    """The list's own folder, or `clips` in it, as in Common Voice, or else the current one.

    The first row whose recording is there decides for all. Until then it is the list's own.

    Args:
        path: The list's path or URL.
        has_clips: Look in `clips` too.
    """

    def __init__(self, path: str, has_clips: bool = False) -> None:
        self._list, self._looks = path, 0
        own = "" if is_url(path) else os.path.dirname(path)
        self._folders = list(dict.fromkeys([own, *([os.path.join(own, "clips")] if has_clips else [])]))
        if not is_url(path) and "" not in self._folders:
            self._folders.append("")

    def file_of(self, path: str) -> str:
        """Return the path or URL that a row's path means."""
        is_open = len(self._folders) > 1 and self._looks < _MAX_LOOKS
        if is_open and not is_url(path) and not os.path.isabs(path):
            self._looks += 1
            is_there = ([folder] for folder in self._folders if _exists(self._joined(folder, path)))
            self._folders = next(is_there, self._folders)
        return self._joined(self._folders[0], path)

    def meant(self, path: str) -> str:
        """Return the spelling of a row's path that is there, or the path itself."""
        return path if is_url(self._list) else meant(path, self.is_there)

    def is_there(self, path: str) -> bool:
        """Return True if a row's path is a file's, in any of the folders."""
        return any(_exists(self._joined(folder, path)) for folder in self._folders)

    def _joined(self, folder: str, path: str) -> str:
        if is_url(path) or os.path.isabs(path):
            return path
        return join_url(self._list, os.path.join(folder, path)) if is_url(self._list) else os.path.join(folder, path)


def _exists(path: str) -> bool:
    if is_url(path):
        with suppress(OSError, FastscribeError):
            remote.stat_object(path)
            return True
        return False
    with suppress(ValueError):  # a null character in it
        return os.path.exists(path) or (".tar/" in path and part_at(path) is not None)
    return False
