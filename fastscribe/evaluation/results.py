"""Read rows that `transcribe` wrote as pairs of reference and hypothesis.

Rows of a manifest have their reference in `text` and the hypothesis in `pred_text`. Rows of plain files have the hypothesis
in `text`, and References finds the reference in a manifest. An unusable row is yielded as a ManifestError, and the rest
goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from textwrap import shorten
from typing import Any, NamedTuple

from fastscribe._system.key_counter import KeyCounter
from fastscribe.audio.manifest import resolve, row_source
from fastscribe.errors import ManifestError
from fastscribe.evaluation.scores import Pair, Recording, recording_of
from fastscribe.results.rows import ResultRow, read_rows

_BEYOND_MS = 500  # a result this much longer than its reference's audio is of other audio
_SHOWN = 60  # characters of a text in a message


@dataclass(frozen=True)
class Fields:
    """Names of a row's fields. hypothesis None: pred_text, or text if a row without pred_text has a manifest."""

    reference: str = "text"
    hypothesis: str | None = None
    group_by: tuple[str, ...] = ()


class _Reference(NamedTuple):
    row: ResultRow  # with only the fields that are needed
    recording: Recording


class References:
    """The references of one manifest, in memory, by audio path, offset, audio track and duration.

    A result's reference is that of the same file: paths are relative to the manifest's folder there, to the current one in
    results. If that finds none (both were written elsewhere), it is that of the row with an equal audio_filepath. If there is
    none either, it is that of the one file whose path has the longest common end with the result's.

    Attributes:
        by_end: The first result that was found by its path's end, and the path in the manifest; None: none was.
        num_by_end: Results that were.
    """

    def __init__(self, manifest: str, fields: Fields) -> None:
        """Raises UsageError if the manifest cannot be read."""
        self.manifest = manifest
        self.problems: list[ManifestError] = []
        self._num_rows = 0
        self._by_file: dict[tuple[str, int | str], list[_Reference]] = {}
        self._by_name: dict[tuple[str, int | str], list[_Reference]] = {}
        self._by_base: dict[tuple[str, int | str], list[_Reference]] = {}
        self.by_end: tuple[str, str] | None = None
        self.num_by_end = 0
        self._found: set[int] = set()  # lines
        kept = (fields.reference, *fields.group_by)
        for row in read_rows([manifest]):
            try:
                if isinstance(row, ManifestError):
                    raise row
                row_source(manifest, row.line, row.fields)
                self._add(row, {name: row.fields[name] for name in kept if name in row.fields}, fields.reference)
            except ManifestError as error:
                self.problems.append(error)

    def _add(self, row: ResultRow, kept: dict[str, Any], reference: str) -> None:
        path = row.fields["audio_filepath"]
        recording = recording_of(row.fields, resolve(self.manifest, path))
        rows = self._by_file.setdefault((recording.file, recording.offset), [])
        for row_before, before in rows:
            if before.track == recording.track and before.lasts_as(recording):
                texts = f"{_quoted(row_before.fields.get(reference))}, not {_quoted(kept.get(reference))}"
                raise row.problem(
                    f"the same recording as {row_before.file}: line {row_before.line}, which is used: {texts}"
                )
        self._num_rows += 1
        rows.append(_Reference(row._replace(fields=kept), recording))
        self._by_name.setdefault((path, recording.offset), []).append(rows[-1])
        self._by_base.setdefault((_parts(recording.file)[-1], recording.offset), []).append(rows[-1])

    def find(self, row: ResultRow) -> Mapping[str, Any]:
        """Return the fields of the manifest's row for a result.

        Raises:
            ManifestError: There is none, or it is not clear which one.
        """
        path = row.fields.get("audio_filepath")
        if not isinstance(path, str):
            raise row.problem("no audio_filepath")
        recording = recording_of(row.fields, path)
        rows = (
            self._by_file.get((recording.file, recording.offset)) or self._by_name.get((path, recording.offset)) or []
        )
        if not rows and (rows := _with_longest_end(self._by_base.get((_parts(path)[-1], recording.offset), []), path)):
            self.num_by_end += 1
            self.by_end = self.by_end or (path, rows[0].recording.file)
        if not rows:
            raise row.problem(f"{self.manifest} has no row for this audio_filepath and offset")
        found = _of_same_length(rows, recording)
        if found is None:
            raise row.problem(f"the rows of {self.manifest} for this audio_filepath and offset have other durations")
        self._found.add(found.row.line)
        return found.row.fields

    @property
    def num_unused(self) -> int:
        """Number of rows without a result so far."""
        return self._num_rows - len(self._found)


def _parts(path: str) -> list[str]:
    return path.replace(os.sep, "/").split("/")


def _with_longest_end(rows: list[_Reference], path: str) -> list[_Reference]:
    """Return the rows of the one file whose path has the longest common end with another path; none if it is not clear."""
    ends: dict[str, int] = {}
    for row in rows:
        pairs = zip(reversed(_parts(row.recording.file)), reversed(_parts(path)), strict=False)
        ends[row.recording.file] = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    best = [file for file, common in ends.items() if common == max(ends.values())]
    return [row for row in rows if row.recording.file == best[0]] if len(best) == 1 else []


def _of_same_length(rows: list[_Reference], recording: Recording) -> _Reference | None:
    """Return the row whose recording it is, among rows with its file and offset.

    A row without a duration reaches to the end, which the result knows. A single row may promise more than the file holds, but
    a result that goes beyond it is of other audio.
    """
    rows = [one for one in rows if one.recording.track == recording.track] or rows
    same = [one for one in rows if one.recording.lasts_as(recording)]
    same = same or [one for one in rows if one.recording.duration is None]
    if not same and len(rows) == 1:
        ours, theirs = recording.duration, rows[0].recording.duration
        is_longer = isinstance(ours, int) and isinstance(theirs, int) and ours > theirs + _BEYOND_MS
        same = [] if is_longer else rows
    return same[0] if len(same) == 1 else None


def _quoted(text: object) -> str:
    return f'"{shorten(text, _SHOWN, placeholder=" ..")}"' if isinstance(text, str) else "(no text)"


def read_pairs(
    inputs: Iterable[str], fields: Fields, normalize: Callable[[str], str], references: References | None = None
) -> Iterator[Pair | ManifestError]:
    """Yield every row as a pair of normalised texts, or the reason against it. A row with an `error` is a failed recording.

    Args:
        inputs: as in read_rows().
        normalize: applied to both texts.
        references: the references if the rows do not hold them.
    """
    for row in read_rows(inputs):
        if isinstance(row, ManifestError):
            yield row
            continue
        try:
            yield _pair(row, fields, normalize, references)
        except ManifestError as error:
            yield error


def unique_recordings(pairs: Iterable[Pair | ManifestError]) -> Iterator[Pair | ManifestError]:
    """Yield the pairs; one without a path, or of a recording that an earlier pair has, becomes a ManifestError."""
    seen: dict[Recording, Pair] = {}
    for pair in pairs:
        if isinstance(pair, ManifestError):
            yield pair
            continue
        file, _, line = pair.where.rpartition(": line ")
        before = seen.setdefault(pair.key, pair)
        if not pair.audio_path:
            yield ManifestError(file, int(line), "no audio_filepath, by which two runs are compared")
        elif before is not pair:
            texts = [_shown_text(one, by_hypothesis=pair.reference == before.reference) for one in (before, pair)]
            problem = f"the same recording as {before.where}, which is used: {texts[0]}, not {texts[1]}"
            yield ManifestError(file, int(line), problem)
        else:
            yield pair


class PooledRuns:
    """Counts recordings that come again where several results are scored together: they may be of two runs."""

    def __init__(self) -> None:
        self.num_repeats = 0
        self._seen = KeyCounter()

    def watch(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """Yield the pairs, counting."""
        for pair in pairs:
            digest = hashlib.blake2b(repr(pair.key).encode("utf-8", "surrogatepass"), digest_size=8).digest()
            self.num_repeats += bool(pair.audio_path) and self._seen.count(int.from_bytes(digest, "big")) == 1
            yield pair


def _shown_text(pair: Pair, by_hypothesis: bool) -> str:
    if by_hypothesis and pair.hypothesis is None:
        return "failed"
    return _quoted(pair.hypothesis if by_hypothesis else pair.reference)


def _pair(row: ResultRow, fields: Fields, normalize: Callable[[str], str], references: References | None) -> Pair:
    found = row.fields if references is None else references.find(row)
    if fields.reference not in found:
        raise row.problem(f"no reference: there is no {fields.reference}")
    reference = _text(row, fields.reference, found[fields.reference], normalize)
    groups = tuple(_label(row.fields.get(name, found.get(name))) for name in fields.group_by)
    hypothesis = None if isinstance(row.fields.get("error"), dict) else _hypothesis(row, fields, normalize, references)
    path = row.fields.get("audio_filepath")
    path = path if isinstance(path, str) else ""
    return Pair(reference, hypothesis, groups, path, f"{row.file}: line {row.line}", recording_of(row.fields, path))


def _hypothesis(row: ResultRow, fields: Fields, normalize: Callable[[str], str], references: References | None) -> str:
    name = fields.hypothesis or "pred_text"
    if fields.hypothesis is None and references is not None and name not in row.fields:
        name = "text"
    if name not in row.fields:
        hint = "" if references or fields.hypothesis else " (of plain files? give their references with --manifest)"
        raise row.problem(f"no hypothesis: there is no {name}{hint}")
    return _text(row, name, row.fields[name], normalize)


def _text(row: ResultRow, name: str, value: object, normalize: Callable[[str], str]) -> str:
    if not isinstance(value, str):
        raise row.problem(f"{name} is {json.dumps(value, ensure_ascii=False):.40}, not text")
    try:
        return normalize(value)
    except (AssertionError, ValueError) as error:  # for numbers of thousands of digits
        raise row.problem(f"{name} cannot be normalised: {type(error).__name__} {value!r:.40}") from error


def _label(value: object) -> str | None:
    """A group's name: numbers, booleans and lists as JSON."""
    return value if isinstance(value, str) or value is None else json.dumps(value, ensure_ascii=False, sort_keys=True)
