"""Read training manifests into a corpus, without tokens and with them.

A manifest is JSON lines (audio/list_rows.py reads them, for `transcribe` too): NeMo's, whose recordings are files or members of
tar archives, or Lhotse's cuts; a Shar folder of Lhotse; or a folder of recordings with their texts (`a.wav` beside `a.txt`).

A wrong row (no JSON, a text that is no text) is an error that names the line, because the user has to correct it. So is a
missing recording, which the first rows and a sample of the others are checked for: on a network file system a look at each of
millions takes hours. The loader leaves out those that are found missing later. An unusable row (no text, too long, too many
tokens a second) is left out, and kept with its reason. Only a row without a duration has its recording opened, for its length.
"""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from fastscribe._system.file_kinds import safe_read
from fastscribe._system.text_layout import count_of
from fastscribe._system.urls import is_url
from fastscribe.audio.failures import system_problem
from fastscribe.audio.folders import walk
from fastscribe.audio.formats import CONTAINER_EXTENSIONS, is_audio_name
from fastscribe.audio.json_lines import NotAList
from fastscribe.audio.list_rows import BadRow, FindMember, ListRow, list_rows
from fastscribe.audio.manifest import PATH_NAMES
from fastscribe.audio.probe import probe
from fastscribe.errors import AudioError, FastscribeError, ManifestError, UsageError
from fastscribe.training.archives import Archives, expand
from fastscribe.training.bpe import clean_text
from fastscribe.training.corpus import (
    Corpus,
    Example,
    Examples,
    LeftOutRow,
    ManifestPart,
    Request,
    first_left_out,
)
from fastscribe.types import AnyArray, Source

# What a row asks an attention decoder for; None for other models. Raises ValueError that says what is wrong with the row.
ReadRequest = Callable[[Mapping[str, Any]], Request | None]
# The ids of a text, of which an attention decoder is asked something; None where the vocabulary cannot write it.
Encode = Callable[[str, Request | None], tuple[int, ...] | None]
_MAX_NAMED = 5  # wrong rows in a message
# Fields that may have the text, the first that is there: NeMo's, Common Voice's, and those of Hugging Face's data sets.
_TEXT_NAMES = ("text", "sentence", "transcript", "transcription")
_LEAST_LETTERS_PER_S = 0.1  # of a text
_FIRST_ROWS, _SAMPLE_GROWTH = 100, 1.01  # rows whose recording has to exist: the first, then each 1 % further down
LACKS_LETTERS, WITHOUT_TEXT = "with letters that the vocabulary lacks", "without text"  # reasons to leave examples out


@dataclass(frozen=True)
class ExampleLimits:
    """Limits of usable examples. Raises UsageError."""

    min_duration_s: float = 0.3
    max_duration_s: float = 30.0
    max_tokens: int | None = None
    max_tokens_per_s: float = 25.0  # twice an encoder's usual 12.5 frames a second, faster than speech
    extra_tokens: int = 0  # of each example, which are not its text's: prompt and end of an attention decoder

    def __post_init__(self) -> None:
        if not 0 <= self.min_duration_s <= self.max_duration_s < math.inf:
            problem = "not 0 <= min_duration_s <= max_duration_s"
            raise UsageError(
                f"min_duration_s {self.min_duration_s!r}, max_duration_s {self.max_duration_s!r}: {problem}"
            )
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UsageError(f"max_tokens {self.max_tokens!r}: not a number from 1")
        if not self.max_tokens_per_s > 0:
            raise UsageError(f"max_tokens_per_s {self.max_tokens_per_s!r}: not a number above 0")


def no_request(row: Mapping[str, Any]) -> None:
    """Rows ask models without an attention decoder for nothing."""
    return None


def read_manifests(
    parts: Iterable[ManifestPart],
    limits: ExampleLimits,
    purpose: str = "train on",
    read_request: ReadRequest = no_request,
    ignores_texts: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Corpus:
    """Read every usable row of all manifests in order, without tokens.

    Args:
        purpose: what the manifests are for, in error messages.
        read_request: reads what a row asks an attention decoder for.
        ignores_texts: take every row as one without text, whatever it says.
        say: called with a line that counts the durations that were measured, if any.

    Raises:
        UsageError: a manifest cannot be read, rows of it are wrong, or no row is usable.
    """
    parts = tuple(parts)
    readers = [RowReader(part, number, read_request, ignores_texts) for number, part in enumerate(parts)]
    left_out = list[LeftOutRow]()

    def usable() -> Iterator[Example]:
        for reader in readers:
            for example in _part_examples(reader, limits.max_duration_s):
                reason = _why_unusable(example, limits)
                if reason is None:
                    yield example
                else:
                    left_out.append(LeftOutRow.of(example, parts, reason))

    examples = Examples.of(usable(), parts)
    if num_measured := sum(reader.num_measured for reader in readers):
        say(
            f"to {purpose}: durations of {count_of(num_measured, 'recording')} were measured, because their rows have none"
        )
    return _not_empty(Corpus(examples, tuple(left_out)), purpose)


def check_most_usable(corpus: Corpus, limits: ExampleLimits, purpose: str) -> None:
    """Raise UsageError if more rows are left out than stay, not counting those that somebody meant to leave out.

    These are recordings of a folder without a .txt, and with limits of a recipe's own, what is beyond them.
    """
    is_own = limits != ExampleLimits()
    unmeant = [
        row
        for row in corpus.left_out
        if (row.line if row.reason == WITHOUT_TEXT else row.reason == LACKS_LETTERS or not is_own)
    ]
    if len(unmeant) > len(corpus.examples):
        raise UsageError("; ".join([f"most rows to {purpose} cannot be used: {corpus}", *first_left_out(unmeant)]))


def _not_empty(corpus: Corpus, purpose: str) -> Corpus:
    if not len(corpus.examples):
        raise UsageError("; ".join([f"nothing to {purpose}: {corpus}", *first_left_out(corpus.left_out)]))
    return corpus


def tokenise(
    corpus: Corpus, encode: Encode, limits: ExampleLimits, lacking: Mapping[str, str] = MappingProxyType({})
) -> Corpus:
    """Add tokens, and leave out examples with too many. Raises UsageError if none is left.

    Args:
        lacking: gets from `encode` the letters that the vocabulary lacks, by the texts that have them.
    """
    examples, is_known = corpus.examples, np.ones(len(corpus.examples), bool)

    def encoded() -> Iterator[tuple[int, ...]]:
        rows = zip(examples.iter_texts(), examples.iter_requests(), examples.non_speech, strict=True)
        for index, (text, request, non_speech) in enumerate(rows):
            ids = () if non_speech else encode(text, request)
            is_known[index] = ids is not None
            yield ids or ()

    examples = examples.with_tokens(encoded())
    left_out, is_kept = list(corpus.left_out), np.ones(len(examples), bool)
    for reason, is_unusable in _unusable_tokens(examples, is_known, limits):
        chosen = is_unusable & is_kept
        for example in map(examples.__getitem__, np.flatnonzero(chosen).tolist()):
            letters = lacking.get(example.text, "") if reason == LACKS_LETTERS else ""
            left_out.append(LeftOutRow.of(example, examples.parts, reason, letters))
        is_kept &= ~chosen
    kept = Corpus(examples if is_kept.all() else examples.take(is_kept), tuple(left_out))
    return _not_empty(kept, "train on")


def _why_unusable(example: Example, limits: ExampleLimits) -> str | None:
    if not example.text and not example.non_speech:
        return WITHOUT_TEXT
    if example.duration_s < limits.min_duration_s:
        return f"shorter than {limits.min_duration_s:g} s"
    if example.duration_s > limits.max_duration_s:
        # The text of 4 s has too few letters for 4,000 s.
        is_sparse = len(example.text) < _LEAST_LETTERS_PER_S * example.duration_s
        is_in_ms = is_sparse and limits.min_duration_s <= example.duration_s / 1000 <= limits.max_duration_s
        asked = ", perhaps in milliseconds instead of seconds" if is_in_ms else ""
        return f"longer than {limits.max_duration_s:g} s{asked}"
    return None


def _unusable_tokens(examples: Examples, is_known: AnyArray, limits: ExampleLimits) -> Iterator[tuple[str, AnyArray]]:
    """Yield each reason to leave examples out for their tokens, with those that it holds for."""
    counts = examples.num_tokens
    yield LACKS_LETTERS, ~is_known
    yield WITHOUT_TEXT, (counts == 0) & ~examples.non_speech
    if limits.max_tokens is not None:
        yield f"of more than {limits.max_tokens} tokens", counts > limits.max_tokens
    too_fast = counts - limits.extra_tokens > limits.max_tokens_per_s * examples.durations_s
    yield f"of more than {limits.max_tokens_per_s:g} tokens a second", too_fast


def _part_examples(reader: RowReader, max_duration_s: float) -> Iterator[Example]:
    """Yield the examples of a reader's manifest; recordings without speech, which may be long, in pieces."""
    part = reader.part
    if os.path.isdir(part.path) and part.tar is not None:
        raise UsageError(f"{part.path}: a folder, whose recordings are in it: leave tar out")
    if not os.path.isdir(part.path):
        paths = expand(part.path)
        find = Archives(part.tar, paths).find if part.tar is not None else None
        found: Iterable[Iterator[Example]] = (
            reader.examples(path, find and partial(find, index)) for index, (path, _) in enumerate(paths)
        )
    elif manifests := _shar_manifests(part.path):
        found = map(reader.examples, manifests)
    else:
        found = [_folder_examples(part, reader.number, reader.read_request)]
    for example in chain.from_iterable(found):
        yield from _pieces(example, max_duration_s) if part.non_speech else (example,)
    reader.check_texts()


def _shar_manifests(folder: str) -> list[str]:
    """Return the manifests of a Shar folder in order; none if it is no such folder."""
    start = os.path.join(glob.escape(folder), "cuts.*.jsonl")
    return sorted([*glob.glob(start), *glob.glob(start + ".gz")])


def _pieces(example: Example, max_duration_s: float) -> Iterator[Example]:
    """Cut a recording without speech, which may be long, into equal pieces of at most `max_duration_s`."""
    count = max(1, math.ceil(example.duration_s / max_duration_s)) if max_duration_s else 1
    each_s = example.duration_s / count
    for number in range(count):
        yield replace(example, offset_s=example.offset_s + number * each_s, duration_s=each_s)


class _WrongRows:
    """Wrong rows, of which the first are named in one message."""

    def __init__(self) -> None:
        self._count, self._places = 0, dict[str, list[str]]()  # of the first, by what is wrong with them

    def add(self, said: str) -> None:
        """Add a row by its message, "place: problem"."""
        self._count += 1
        if self._count <= _MAX_NAMED:
            place, _, problem = said.partition(": ")
            self._places.setdefault(problem, []).append(place)

    def check(self, start: str = "") -> None:
        """Raise UsageError, which begins with `start`, if there are any."""
        if self._count:
            count = f"; {self._count:,} wrong rows in all" if self._count > 1 else ""
            named = "; ".join(f"{', '.join(places)}: {problem}" for problem, places in self._places.items())
            raise UsageError(f"{start}{named}{count}")


class RowReader:
    """Reads the files of a manifest.

    Attributes:
        num_measured: recordings whose rows have no duration.

    Args:
        number: of the manifest.
        read_request: reads what a row asks an attention decoder for.
        ignores_texts: take every row as one without text, whatever it says.
    """

    def __init__(self, part: ManifestPart, number: int, read_request: ReadRequest, ignores_texts: bool) -> None:
        self.part, self.number, self.read_request, self.num_measured = part, number, read_request, 0
        self._ignores_texts, self._next_checked = ignores_texts, 1
        self._has_texts = False  # a row with an empty one will do
        self._first_without: ManifestError | None = None

    def examples(self, path: str, find_member: FindMember | None = None) -> Iterator[Example]:
        """Yield the rows of a file in order.

        Args:
            path: the file.
            find_member: finds recordings in tar archives; None: they are files, or in archives beside the manifest.

        Raises:
            UsageError: the file cannot be read; or, at its end, rows of it are wrong, of which it names the first.
        """
        wrong, self._next_checked = _WrongRows(), 1
        try:
            for row in list_rows(path, find=find_member):
                try:
                    yield self._example(row)
                except FastscribeError as error:
                    wrong.add(str(error).removeprefix(f"{path}: "))
        except (OSError, NotAList) as error:
            raise UsageError(f"{path}: {system_problem(error)}") from error
        wrong.check(f"{path}: ")

    def check_texts(self) -> None:
        """Raise UsageError, after all files, if no row has the field of the text."""
        if self._first_without is not None and not self._has_texts:
            raise UsageError(str(self._first_without))

    def _example(self, row: ListRow | BadRow) -> Example:
        if isinstance(row, BadRow):
            raise row.error
        fields, span = row.fields or {}, row.span
        text = self._text(row)
        if span.track:
            raise _wrong(row, f"audio_track {span.track}: training reads the first track: extract this one")
        if isinstance(row.file, str) and is_url(row.file):
            raise _wrong(row, f"{row.file}: training reads files, not addresses: download it")
        path, start, size = (
            (row.file, 0, 0) if isinstance(row.file, str) else (row.file.path, row.file.start, row.file.size)
        )
        if row.number >= self._next_checked and not size:
            if not _is_file(path):
                raise _wrong(row, f"no such recording: {os.path.abspath(path)!r}")
            is_first = row.number < _FIRST_ROWS
            self._next_checked = row.number + 1 if is_first else math.ceil(row.number * _SAMPLE_GROWTH)
        try:
            request = self.read_request(fields)
        except ValueError as error:
            raise _wrong(row, str(error)) from error
        place = (self.number, self.part.non_speech, start, size, span.channel)
        duration_s = self._duration_s(row, text)
        return Example(path, text, duration_s, span.offset_s or 0.0, (), *place, request, row.number)

    def _duration_s(self, row: ListRow, text: str) -> float:
        """Return the row's duration, or the length that the header of its recording states."""
        span = row.span
        if span.duration_s is not None:
            return span.duration_s
        if not text and not self.part.non_speech:
            return 0.0  # it is left out
        self.num_measured += 1
        try:
            return probe(Source(span.path, row.file, span.path, offset_s=span.offset_s)).duration_s
        except AudioError as error:
            raise _wrong(row, f"no duration (0 is none), and it cannot be measured: {error}") from error

    def _text(self, row: ListRow) -> str:
        fields = row.fields or {}
        name = next((name for name in _TEXT_NAMES if fields.get(name) is not None), None)
        if self._ignores_texts or (self.part.non_speech and name is None):
            return ""
        if name is None:
            self._first_without = self._first_without or _wrong(row, _no_text(fields))
            return ""
        self._has_texts, text = True, fields[name]
        if not isinstance(text, str):
            raise _wrong(row, f"{name} is {text!r:.40}, not a string")
        cleaned = clean_text(text)
        if self.part.non_speech and cleaned:
            raise _wrong(row, f"{name} {cleaned!r:.40} in a manifest of non_speech")
        return cleaned


def _no_text(fields: Mapping[str, Any]) -> str:
    """Say that a row has no text, which fields may have it, and which there are."""
    path = fields.get("audio_filepath")
    is_renamed = any(name.lower() in PATH_NAMES[1:] and value == path for name, value in fields.items())
    own = {**fields, "audio_filepath": None} if is_renamed else fields  # as the list has it
    held = [name for name, value in own.items() if value is not None]
    return f"no text: a field {', '.join(_TEXT_NAMES)} has to have it; there are {', '.join(held) or 'none':.100}"


def _wrong(row: ListRow, problem: str) -> ManifestError:
    return ManifestError(row.where, row.number, problem)


def _is_file(path: str) -> bool:
    try:
        return os.path.isfile(path)
    except ValueError:  # a null character in it
        return False


_MAX_TEXT_BYTES = 1 << 20


def _folder_examples(part: ManifestPart, number: int, read_request: ReadRequest) -> Iterator[Example]:
    """Yield the recordings of a folder that have a text, then the others, which are counted only.

    One without speech has no texts. Raises UsageError if there is no recording, or at the end, if some or their texts cannot
    be read.
    """
    recordings, texts = _files_of(part.path)
    if part.non_speech:
        chosen: list[tuple[str, str | None]] = [(path, None) for _, path in recordings]
        problem = "no recordings here"
    else:
        chosen = [(path, texts[stem]) for stem, path in recordings if stem in texts]
        problem = "no recording here has a .txt of the same name beside it"
    if not chosen:
        raise UsageError(f"{part.path}: {problem}")
    try:
        request = None if part.non_speech else read_request({})
    except ValueError as error:
        raise UsageError(f"{part.path}: {error}") from error
    wrong = _WrongRows()
    for path, text_path in chosen:
        try:
            text, duration_s = _read_pair(path, text_path)
        except UsageError as error:
            wrong.add(str(error))
            continue
        yield Example(path, text, duration_s, part=number, non_speech=part.non_speech, request=request)
    wrong.check()
    for stem, path in recordings:
        if stem not in texts and not part.non_speech:
            yield Example(path, "", 0.0, part=number)  # counted only: there may be a million, so none is opened


def _files_of(folder: str) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Return the recordings of a folder, each with its name without extension, and the texts by these names."""
    recordings, containers, texts = list[tuple[str, str]](), list[tuple[str, str]](), dict[str, str]()
    for name in walk(folder):
        if isinstance(name, OSError):
            raise UsageError(f"{name.filename}: {system_problem(name)}")
        stem, extension = os.path.splitext(name)
        path = os.path.join(folder, name)
        if extension.lower() == ".txt":
            texts[stem] = path
        elif extension[1:].lower() in CONTAINER_EXTENSIONS:
            containers.append((stem, path))
        elif is_audio_name(name):
            recordings.append((stem, path))
    known = {stem for stem, _ in recordings}
    # A video beside the sound that was taken from it is the same recording.
    return recordings + [(stem, path) for stem, path in containers if stem not in known], texts


def _read_pair(path: str, text_path: str | None) -> tuple[str, float]:
    """Return the text and the duration of a recording. Raises UsageError."""
    try:
        text = "" if text_path is None else safe_read(Path(text_path), _MAX_TEXT_BYTES).decode("utf-8-sig")
        return clean_text(text), probe(Source(path, path, path)).duration_s
    except AudioError as error:
        raise UsageError(f"{error}; put it right, or take {'it' if text_path is None else 'its .txt'} away") from error
    except OSError as error:
        raise UsageError(f"{text_path or path}: {system_problem(error)}") from error
    except ValueError as error:
        problem = "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise UsageError(f"{text_path}: {problem}") from error
