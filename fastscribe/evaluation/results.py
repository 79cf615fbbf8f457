"""Read rows that `transcribe` wrote as pairs of reference and hypothesis.

Rows of a manifest have their reference in `text` and the hypothesis in `pred_text`. Rows of plain files have the hypothesis
in `text`, and References finds the reference in a manifest. A recording that has several results counts once, with the newest
one. Rows that cannot be used are listed, and the rest goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from itertools import takewhile
from operator import getitem
from textwrap import shorten
from typing import Any, NamedTuple, TypeAlias

from fastscribe.audio.manifest import resolve, row_source
from fastscribe.errors import ManifestError
from fastscribe.evaluation.scores import Pair, Recording, recording_of
from fastscribe.results.rows import ResultRow, read_rows

_BEYOND_MS = 500  # a result this much longer than its reference's audio is of other audio
_WHOLE = 1 << 16  # more than a path has folders
_WITH_THESE_PATHS = "give a manifest with the paths of these results"
_SHOWN = 60  # characters of a text in a message
# What is kept of a result, beside its texts.
_WHERE = ("audio_filepath", "offset", "duration", "audio_track", "audio_channel", "id", "error")

Key: TypeAlias = "Recording | tuple[str, int]"  # a result's recording; its file and line if it names none


@dataclass(frozen=True)
class Fields:
    """Names of a row's fields. hypothesis None: pred_text, or text if a row without pred_text has a manifest."""

    reference: str = "text"
    hypothesis: str | None = None
    group_by: tuple[str, ...] = ()


@dataclass
class Run:
    """The results of a run.

    Attributes:
        pairs: The newest result of each recording.
        num_older: Results of recordings that have a newer one.
        broken: Lines that hold no row.
        problems: Why the other rows that `pairs` lacks cannot be scored.
    """

    pairs: list[Pair] = field(default_factory=list)
    num_older: int = 0
    broken: list[ManifestError] = field(default_factory=list)
    problems: list[ManifestError] = field(default_factory=list)


class _Reference(NamedTuple):
    row: ResultRow  # with only the fields that are needed
    recording: Recording


class _Claim(NamedTuple):
    """A result, and the manifest's row that may be its reference."""

    key: Recording
    reference: _Reference
    end: int  # folders and names that their paths have in common at their ends; _WHOLE: it is found by the whole path


class References:
    """The references of one manifest, in memory, by audio path, offset, audio track, duration and id.

    A result's reference is that of the same file: paths are relative to the manifest's folder there, to the current one in
    results. If that finds none (both were written elsewhere), it is that of the row with an equal audio_filepath. If there is
    none either, it is that of the one file whose path has the longest common end with the result's, if no other result has it.

    Attributes:
        broken: Lines of the manifest that hold no row.
        problems: Why other rows of it cannot be used.
        by_end: The first result that was found by its path's end, and the path in the manifest; None: none was.
        num_by_end: Results that were.
        num_repeated: Rows of the manifest that stand in it again, with the same text.
    """

    def __init__(self, manifest: str, fields: Fields) -> None:
        """Raises UsageError if the manifest cannot be read."""
        self.manifest = manifest
        self.broken: list[ManifestError] = []
        self.problems: list[ManifestError] = []
        self._num_rows = 0
        self._by_file: dict[tuple[str, int | str], list[_Reference]] = {}
        self._by_name: dict[tuple[str, int | str], list[_Reference]] = {}
        self._by_base: dict[tuple[str, int | str], list[_Reference]] = {}
        self.by_end: tuple[str, str] | None = None
        self.num_by_end = self.num_repeated = 0
        self._found: set[int] = set()  # lines
        kept = (fields.reference, *fields.group_by)
        for row in read_rows([manifest]):
            if isinstance(row, ManifestError):
                self.broken.append(row)
                continue
            try:
                row_source(manifest, row.line, row.fields)
                self._add(row, _kept(row.fields, kept), fields.reference)
            except ManifestError as error:
                self.problems.append(error)

    def _add(self, row: ResultRow, kept: dict[str, Any], reference: str) -> None:
        path = row.fields["audio_filepath"]
        recording = recording_of(row.fields, resolve(self.manifest, path))
        rows = self._by_file.setdefault((recording.file, recording.offset), [])
        for row_before, before in rows:
            is_same_part = before.start == recording.start and before.lasts_as(recording)
            if is_same_part and not before.has_other_id(recording):
                if row_before.fields.get(reference) == kept.get(reference):
                    self.num_repeated += 1
                    return
                texts = f"{_quoted(row_before.fields.get(reference))}, not {_quoted(kept.get(reference))}"
                raise row.problem(
                    f"the same recording as {row_before.file}: line {row_before.line}, which is used: {texts}"
                )
        self._num_rows += 1
        rows.append(_Reference(row._replace(fields=kept), recording))
        self._by_name.setdefault((path, recording.offset), []).append(rows[-1])
        self._by_base.setdefault((_parts(recording.file)[-1], recording.offset), []).append(rows[-1])

    def find(self, results: Mapping[Key, ResultRow]) -> dict[Key, _Reference | ManifestError]:
        """Return each result's reference, or why it has none. Results that have a newer one of the same row are left out.

        Args:
            results: The newest result of each recording, in order.
        """
        found: dict[Key, _Reference | ManifestError] = {}
        claims: dict[int, list[_Claim]] = {}  # by the manifest's line
        for key, row in results.items():
            try:
                claim = self._claim(key, row)
                claims.setdefault(claim.reference.row.line, []).append(claim)
            except ManifestError as error:
                found[key] = error
        for line, given in claims.items():
            longest = max(claim.end for claim in given)
            best = [claim.key for claim in given if claim.end == longest]
            found |= {claim.key: results[claim.key].problem(self._no_row) for claim in given if claim.end < longest}
            if longest < _WHOLE and len({key.file for key in best}) > 1:
                end = f"the row of {self.manifest} whose path ends like this one's may be another result's"
                found |= {key: results[key].problem(f"{end}: {_WITH_THESE_PATHS}") for key in best}
                continue
            found[best[-1]] = given[0].reference
            self._found.add(line)
            if longest < _WHOLE:
                self.num_by_end += 1
                path = results[best[-1]].fields["audio_filepath"]
                self.by_end = self.by_end or (path, given[0].reference.recording.file)
        return found

    @property
    def _no_row(self) -> str:
        return f"{self.manifest} has no row for this audio_filepath and offset"

    def _claim(self, key: Key, row: ResultRow) -> _Claim:
        """Return which row of the manifest is a result's, as far as this result tells.

        Raises:
            ManifestError: There is none, or it is not clear which one.
        """
        if not isinstance(key, Recording):
            raise row.problem("no audio_filepath")
        path, end = row.fields["audio_filepath"], _WHOLE
        rows = self._by_file.get((key.file, key.offset)) or self._by_name.get((path, key.offset)) or []
        if not rows:
            candidates = self._by_base.get((_parts(path)[-1], key.offset), [])
            ends = {one.recording.file: _common_end(one.recording.file, path) for one in candidates}
            end = max(ends.values(), default=0)
            best = [file for file, common in ends.items() if common == end]
            if not best:
                raise row.problem(self._no_row)
            if len(best) > 1:
                several = f"several rows of {self.manifest} have paths that end like this one"
                raise row.problem(f"{several}: {_WITH_THESE_PATHS}")
            rows = [one for one in candidates if one.recording.file == best[0]]
        found = _of_same_length(rows, key)
        if found is None:
            raise row.problem(
                f"the rows of {self.manifest} for this audio_filepath and offset have other durations or ids"
            )
        return _Claim(key, found, end)

    @property
    def num_unused(self) -> int:
        """Number of rows without a result so far."""
        return self._num_rows - len(self._found)


def _kept(fields: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the fields of a row that are named. "a.b" is field b of a, unless there is a field of this name."""
    kept = {}
    for name in names:
        with suppress(KeyError, TypeError):  # TypeError: what is no mapping
            kept[name] = fields[name] if name in fields else reduce(getitem, name.split("."), fields)
    return kept


def _parts(path: str) -> list[str]:
    return path.replace("\\", "/").split("/")  # a manifest may come from Windows


def _common_end(path: str, other: str) -> int:
    """Return how many folders and names two paths have in common at their ends."""
    pairs = zip(reversed(_parts(path)), reversed(_parts(other)), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _of_same_length(rows: list[_Reference], recording: Recording) -> _Reference | None:
    """Return the row whose recording it is, among rows with its file and offset. None if there is none, or several are.

    A row without a duration reaches to the end, which the result knows. A single row may promise more than the file holds, but
    a result that goes beyond it is of other audio.
    """
    rows = [one for one in rows if not one.recording.has_other_id(recording)]
    rows = [one for one in rows if one.recording.start[1:] == recording.start[1:]] or rows
    same = [one for one in rows if one.recording.lasts_as(recording)]
    same = same or [one for one in rows if one.recording.duration is None]
    if not same and len(rows) == 1:
        ours, theirs = recording.duration, rows[0].recording.duration
        is_longer = isinstance(ours, int) and isinstance(theirs, int) and ours > theirs + _BEYOND_MS
        same = [] if is_longer else rows
    return same[0] if len(same) == 1 else None


def _quoted(text: object) -> str:
    return f'"{shorten(text, _SHOWN, placeholder=" ..")}"' if isinstance(text, str) else "(no text)"


def read_run(
    inputs: Iterable[str],
    fields: Fields,
    normalize: Callable[[str], str],
    references: References | None = None,
    *,
    skip_failed: bool = False,
    is_compared: bool = False,
) -> Run:
    """Read all rows as pairs of normalised texts. A row with an `error` is a failed recording.

    Args:
        inputs: As in read_rows(). Of several results of a recording, the last one is the newest.
        fields: Names of the rows' fields.
        normalize: Applied to both texts.
        references: The references if the rows do not hold them.
        skip_failed: A failed recording needs no reference.
        is_compared: Rows must name their recording.
    """
    run, newest = Run(), dict[Key, ResultRow]()
    hypotheses = (fields.hypothesis,) if fields.hypothesis else ("pred_text", "text")
    kept = (*_WHERE, *hypotheses, *fields.group_by, *(() if references else (fields.reference,)))
    for row in read_rows(inputs):
        if isinstance(row, ManifestError):
            run.broken.append(row)
            continue
        row = row._replace(fields=_kept(row.fields, kept))
        path = row.fields.get("audio_filepath")
        key: Key = recording_of(row.fields, path) if path and isinstance(path, str) else (row.file, row.line)
        run.num_older += newest.pop(key, None) is not None
        newest[key] = row  # behind all others
    run.num_older += _drop_older_of_failed(newest)
    found = None if references is None else references.find(newest)
    for key in list(newest):
        row = newest.pop(key)  # which makes room for its pair
        if found is not None and key not in found:
            run.num_older += 1
            continue
        try:
            if is_compared and not isinstance(key, Recording):
                raise row.problem("no audio_filepath, by which two runs are compared")
            run.pairs.append(_pair(key, row, fields, normalize, found[key] if found else None, skip_failed))
        except ManifestError as error:
            run.problems.append(error)
    return run


def _drop_older_of_failed(newest: dict[Key, ResultRow]) -> int:
    """Drop the older of two results of which one failed before its duration was known. Return how many were dropped.

    Where several results are like a failed one but for the duration, it is not clear whose it is, and all stay.
    """
    alike: dict[Recording, list[Recording]] = {}  # with the failed one, in the order of `newest`
    for key in newest:
        if isinstance(key, Recording):
            without_duration = key._replace(duration=None)
            if without_duration in newest and _is_failed(newest[without_duration]):
                alike.setdefault(without_duration, []).append(key)
    older = [keys[0] for keys in alike.values() if len(keys) == 2]
    for key in older:
        del newest[key]
    return len(older)


def _is_failed(row: ResultRow) -> bool:
    return isinstance(row.fields.get("error"), dict)


def _pair(
    key: Key,
    row: ResultRow,
    fields: Fields,
    normalize: Callable[[str], str],
    found: _Reference | ManifestError | None,
    skip_failed: bool,
) -> Pair:
    """Return a result and its reference, which its own row has if `found` is None. Raises ManifestError."""
    failed = _is_failed(row)
    if isinstance(found, ManifestError) and not (failed and skip_failed):
        raise found
    stated = found.row.fields if isinstance(found, _Reference) else row.fields
    if failed and skip_failed and not isinstance(stated.get(fields.reference), str):
        reference = ""
    elif fields.reference in stated:
        reference = _text(row, fields.reference, stated[fields.reference], normalize)
    elif failed:
        why = row.fields["error"].get("message")
        raise row.problem(f"no reference of this failed row ({why}): --skip-failed leaves it out")
    else:
        raise row.problem(f"no reference: there is no {fields.reference}")
    groups = tuple(_label(row.fields.get(name, stated.get(name))) for name in fields.group_by)
    hypothesis = None if failed else _hypothesis(row, fields, normalize, has_manifest=found is not None)
    where = f"{row.file}: line {row.line}"
    if not isinstance(key, Recording):
        return Pair(reference, hypothesis, groups, where=where, key=recording_of(row.fields, ""))
    recording = found.recording if isinstance(found, _Reference) else key
    return Pair(reference, hypothesis, groups, row.fields["audio_filepath"], where, recording)


def _hypothesis(row: ResultRow, fields: Fields, normalize: Callable[[str], str], *, has_manifest: bool) -> str:
    name = fields.hypothesis or "pred_text"
    if fields.hypothesis is None and has_manifest and name not in row.fields:
        name = "text"
    if name not in row.fields:
        hint = "" if has_manifest or fields.hypothesis else " (of plain files? give their references with --manifest)"
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
