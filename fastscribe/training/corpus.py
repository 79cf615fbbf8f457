"""The examples of a corpus in columns: numpy arrays, so that ten million fit in memory.

A row is an Example only while somebody looks at it. Texts, paths and tokens lie end to end in one array each. No model, no
audio.
"""

from __future__ import annotations

import hashlib
import math
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, overload

import numpy as np

from fastscribe._system.text_layout import first_of
from fastscribe.config import Options
from fastscribe.errors import UsageError
from fastscribe.types import AnyArray, Float64Array, Int64Array

_MAX_UINT16 = 1 << 16
_MAX_NAMED, _MAX_LETTERS = 3, 8  # rows, and letters of each, in a message


@dataclass(frozen=True)
class ManifestPart:
    """A manifest. Raises UsageError.

    Attributes:
        repeat: how often an epoch repeats it; of a fraction, each epoch takes other examples.
        share: the part of an epoch's audio that comes from it, other examples each epoch; None: as often as `repeat` says.
        tar: the tar archives that have the recordings, such as audio_{0..127}.tar; None: these are files.
        decides: of several manifests to validate with, those that decide decide which model is best; if none does, all do.
        non_speech: no recording of it has speech, and no row a text. A model learns to write nothing for it.
    """

    path: str
    repeat: float = 1.0
    share: float | None = None
    tar: str | None = None
    decides: bool = False
    non_speech: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.repeat < math.inf:
            raise UsageError(f"{self.path}: repeat {self.repeat!r}: not a number above 0")
        if self.share is not None and not 0 < self.share < 1:
            raise UsageError(f"{self.path}: share {self.share!r}: not a number between 0 and 1")
        if self.share is not None and self.repeat != 1:
            raise UsageError(f"{self.path}: give repeat or share, not both")


@dataclass(frozen=True)
class Request:
    """What an attention decoder's prompt asks for. Languages are the checkpoint's own names."""

    source_language: str
    target_language: str
    pnc: bool = True

    @property
    def options(self) -> Options:
        """The options of `transcribe` that ask for this."""
        return Options(language=self.source_language, target_language=self.target_language, pnc=self.pnc)


@dataclass(frozen=True)
class Example:
    """One span of a recording and its transcript.

    Attributes:
        path: the file to open.
        text: cleaned; empty without speech.
        tokens: empty until `tokenise`, or without speech.
        part: index of its manifest.
        start, num_bytes: where in the file the recording lies, a member of a tar archive; 0 bytes: it is the whole file.
        channel: None: the mean of all.
        request: what an attention decoder is asked for; None for other models.
        line: of its manifest, from 1; 0: a folder has it.
    """

    path: str
    text: str
    duration_s: float
    offset_s: float = 0.0
    tokens: tuple[int, ...] = ()
    part: int = 0
    non_speech: bool = False
    start: int = 0
    num_bytes: int = 0
    channel: int | None = None
    request: Request | None = None
    line: int = field(default=0, compare=False)


class _Numbers(NamedTuple):
    """What is known of an example in numbers: those of Example, and where its path, text and tokens are.

    Attributes:
        path_at, text_at: first byte among all `letters`.
        tokens_at: first one among all `ids`.
        channel: -1: the mean of all.
        request: index of the request.
    """

    duration_s: float
    offset_s: float
    start: int
    num_bytes: int
    path_at: int
    text_at: int
    tokens_at: int
    path_length: int
    text_length: int
    num_tokens: int
    line: int
    part: int
    channel: int
    request: int


_DTYPE = np.dtype(
    list(zip(_Numbers._fields, ["f8"] * 2 + ["i8"] * 5 + ["i4"] * 4 + ["i2"] * 3, strict=True)), align=True
)


@dataclass(frozen=True, eq=False)
class Examples(Sequence[Example]):
    """Examples in columns.

    Attributes:
        parts: the manifests that they are from.
        requests: the different ones.
        rows: the numbers of each example, by the names of _Numbers: [examples].
        letters: the bytes of all paths and texts, end to end.
        ids: all tokens, end to end.
    """

    parts: tuple[ManifestPart, ...]
    requests: tuple[Request | None, ...]
    rows: AnyArray
    letters: bytearray
    ids: AnyArray

    @classmethod
    def of(cls, examples: Iterable[Example], parts: Sequence[ManifestPart] = (ManifestPart(""),)) -> Examples:
        letters, ids, requests = bytearray(), array("i"), dict[Request | None, int]()

        def kept(text: bytes) -> tuple[int, int]:
            letters.extend(text)
            return len(letters) - len(text), len(text)

        def numbers() -> Iterator[_Numbers]:
            path, path_at, path_length = "", 0, 0
            for example in examples:
                if example.path != path:  # segments of one recording share its path
                    path, (path_at, path_length) = example.path, kept(os.fsencode(example.path))
                text_at, text_length = kept(example.text.encode())
                yield _Numbers(
                    *(example.duration_s, example.offset_s, example.start, example.num_bytes),
                    *(path_at, text_at, len(ids), path_length, text_length, len(example.tokens)),
                    *(example.line, example.part, -1 if example.channel is None else example.channel),
                    requests.setdefault(example.request, len(requests)),
                )
                ids.extend(example.tokens)

        rows = np.fromiter(numbers(), _DTYPE)
        return cls(tuple(parts), tuple(requests), rows, letters, _narrow(ids))

    @property
    def durations_s(self) -> Float64Array:
        return self._column("duration_s")

    @property
    def part_of(self) -> AnyArray:
        """Index of each example's manifest."""
        return self._column("part")

    @property
    def num_tokens(self) -> Int64Array:
        return self._column("num_tokens").astype(np.int64)

    @property
    def non_speech(self) -> AnyArray:
        """True for each example without speech."""
        return np.array([part.non_speech for part in self.parts], bool)[self.part_of]

    def _column(self, name: str) -> AnyArray:
        column: AnyArray = self.rows[name]
        return column

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> Examples: ...
    def __getitem__(self, index: int | slice) -> Example | Examples:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        row = self._numbers(index)
        return Example(
            os.fsdecode(bytes(self.letters[row.path_at : row.path_at + row.path_length])),
            self.text(index),
            row.duration_s,
            row.offset_s,
            self.tokens(index),
            row.part,
            self.parts[row.part].non_speech,
            row.start,
            row.num_bytes,
            row.channel if row.channel >= 0 else None,
            self.requests[row.request],
            row.line,
        )

    def _numbers(self, index: int) -> _Numbers:
        return _Numbers(*self.rows[index].item())

    def text(self, index: int) -> str:
        row = self._numbers(index)
        return self.letters[row.text_at : row.text_at + row.text_length].decode()

    def tokens(self, index: int) -> tuple[int, ...]:
        row = self._numbers(index)
        return tuple(self.ids[row.tokens_at : row.tokens_at + row.num_tokens].tolist())

    def iter_texts(self) -> Iterator[str]:
        return map(self.text, range(len(self)))

    def iter_requests(self) -> Iterator[Request | None]:
        return (self.requests[number] for number in self._column("request"))

    def take(self, indices: AnyArray) -> Examples:
        """Return the examples of these indices, or of a mask. The texts, paths and tokens are not copied."""
        return replace(self, rows=self.rows[indices])

    def continued_paths(self) -> set[str]:
        """Return the paths of recordings in which an example begins later than at the start."""
        later = self.take(self._column("offset_s") > 0)
        firsts = np.unique(later._column("path_at"), return_index=True)[1]
        return {later[index].path for index in firsts.tolist()}

    def joined(self, others: Examples) -> Examples:
        """Return these examples and others, both taken of the same ones by `take`."""
        assert self.letters is others.letters and self.ids is others.ids
        return replace(self, rows=np.concatenate([self.rows, others.rows]))

    def with_tokens(self, tokens: Iterable[Sequence[int]]) -> Examples:
        """Return the examples with their tokens, given in order."""
        ids, rows = array("i"), self.rows.copy()
        for index, row in enumerate(tokens):
            rows["tokens_at"][index], rows["num_tokens"][index] = len(ids), len(row)
            ids.extend(row)
        return replace(self, rows=rows, ids=_narrow(ids))

    def digest(self) -> str:
        """Hash what decides a run: texts, tokens, spans and how often an epoch has them; not the paths."""
        hashed = hashlib.blake2b(digest_size=16)
        for index in range(len(self)):
            row = self._numbers(index)
            part, request = self.parts[row.part], self.requests[row.request]
            share = () if part.share is None else (part.share,)
            # The examples of a fraction are drawn by their manifest's number.
            asked = (() if request is None else (request,)) + ((row.part,) if part.repeat % 1 or share else ())
            asked += (row.channel,) if row.channel >= 0 else ()
            span = row.duration_s, row.offset_s
            identity = repr((self.text(index), self.tokens(index), *span, part.repeat, *share, *asked)).encode()
            hashed.update(len(identity).to_bytes(8, "big"))
            hashed.update(identity)
        return hashed.hexdigest()


def _narrow(ids: array[int]) -> AnyArray:
    """Return token ids as numpy's, with two bytes each if they fit."""
    wide = np.frombuffer(ids, np.int32) if ids else np.empty(0, np.int32)
    return wide.astype(np.uint16) if ids and int(wide.max()) < _MAX_UINT16 else wide


class LeftOutRow(NamedTuple):
    """A row that is not used. `letters` are those that the vocabulary lacks."""

    reason: str
    manifest: str
    line: int
    path: str
    duration_s: float
    letters: str = ""

    @classmethod
    def of(cls, example: Example, parts: Sequence[ManifestPart], reason: str, letters: str = "") -> LeftOutRow:
        return cls(reason, parts[example.part].path, example.line, example.path, example.duration_s, letters)

    def __str__(self) -> str:
        place = f"{self.manifest}: line {self.line}" if self.line else self.path
        return f"{place} ({first_of(self.letters.split(), _MAX_LETTERS)})" if self.letters else place

    def to_json(self) -> dict[str, Any]:
        """Return the row in the words of a manifest."""
        letters = {"letters": self.letters} if self.letters else {}
        line = {"line": self.line} if self.line else {}
        duration = {"duration": self.duration_s} if self.duration_s else {}  # 0: it was not opened
        place = {"manifest": self.manifest, **line, "audio_filepath": self.path, **duration}
        return {"left_out": self.reason, **letters, **place}


def by_reason(rows: Iterable[LeftOutRow]) -> dict[str, list[LeftOutRow]]:
    """Return the rows by the reason to leave them out."""
    found: dict[str, list[LeftOutRow]] = {}
    for row in rows:
        found.setdefault(row.reason, []).append(row)
    return found


def first_left_out(rows: Iterable[LeftOutRow]) -> list[str]:
    """Return a line for each reason, with the first rows."""
    return [f"{reason}: {first_of(list(map(str, some)), _MAX_NAMED)}" for reason, some in by_reason(rows).items()]


@dataclass(frozen=True)
class Corpus:
    examples: Examples
    left_out: tuple[LeftOutRow, ...] = ()

    @property
    def duration_s(self) -> float:
        return float(self.examples.durations_s.sum())

    def __str__(self) -> str:
        """Summarise the corpus in one line."""
        kept = f"{len(self.examples):,} examples, {self.duration_s / 3600:.2f} h"
        reasons = []
        for reason, rows in by_reason(self.left_out).items():
            duration_s = sum(row.duration_s for row in rows)
            reasons.append(f"{len(rows):,} {reason}" + (f" ({duration_s / 60:.1f} min)" if duration_s else ""))
        return f"{kept}; left out: {', '.join(reasons)}" if reasons else kept
