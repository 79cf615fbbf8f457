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
_NUMBERS = ("durations_s", "offsets_s", "part_of", "starts", "num_bytes", "channels", "request_of", "lines")
_MAX_NAMED, _MAX_LETTERS = 3, 8  # rows, and letters of each, in a message
_PIECES = ("paths", "texts", "tokens")


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


class _Pieces(NamedTuple):
    """Arrays of different lengths, end to end: number i is flat[starts[i] : starts[i] + lengths[i]]."""

    flat: AnyArray
    starts: Int64Array
    lengths: AnyArray

    def piece(self, index: int) -> AnyArray:
        start = int(self.starts[index])
        piece: AnyArray = self.flat[start : start + int(self.lengths[index])]
        return piece

    def take(self, indices: AnyArray) -> _Pieces:
        return _Pieces(self.flat, self.starts[indices], self.lengths[indices])

    def joined(self, others: _Pieces) -> _Pieces:
        assert self.flat is others.flat
        return _Pieces(
            self.flat,
            np.concatenate([self.starts, others.starts]),
            np.concatenate([self.lengths, others.lengths]),
        )


@dataclass(frozen=True, eq=False)
class Examples(Sequence[Example]):
    """Examples in columns [examples].

    Attributes:
        parts: the manifests that they are from.
        part_of: index of each example's manifest.
        starts, num_bytes, lines: as Example's.
        channels: -1: the mean of all.
        requests: the different ones.
        request_of: index of each example's request.
    """

    parts: tuple[ManifestPart, ...]
    requests: tuple[Request | None, ...]
    durations_s: Float64Array
    offsets_s: Float64Array
    part_of: AnyArray
    starts: AnyArray
    num_bytes: AnyArray
    channels: AnyArray
    request_of: AnyArray
    lines: AnyArray
    paths: _Pieces
    texts: _Pieces
    tokens: _Pieces

    @classmethod
    def of(cls, examples: Iterable[Example], parts: Sequence[ManifestPart] = (ManifestPart(""),)) -> Examples:
        builder = ExamplesBuilder(parts)
        for example in examples:
            builder.add(example)
        return builder.build()

    @property
    def num_tokens(self) -> Int64Array:
        return self.tokens.lengths.astype(np.int64)

    @property
    def non_speech(self) -> AnyArray:
        """True for each example without speech."""
        return np.array([part.non_speech for part in self.parts], bool)[self.part_of]

    def __len__(self) -> int:
        return len(self.durations_s)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> Examples: ...
    def __getitem__(self, index: int | slice) -> Example | Examples:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        part = int(self.part_of[index])
        return Example(
            os.fsdecode(self.paths.piece(index).tobytes()),
            self.text(index),
            float(self.durations_s[index]),
            float(self.offsets_s[index]),
            tuple(self.tokens.piece(index).tolist()),
            part,
            self.parts[part].non_speech,
            int(self.starts[index]),
            int(self.num_bytes[index]),
            int(self.channels[index]) if self.channels[index] >= 0 else None,
            self.requests[self.request_of[index]],
            int(self.lines[index]),
        )

    def text(self, index: int) -> str:
        return self.texts.piece(index).tobytes().decode()

    def iter_texts(self) -> Iterator[str]:
        return map(self.text, range(len(self)))

    def iter_requests(self) -> Iterator[Request | None]:
        return (self.requests[number] for number in self.request_of)

    def take(self, indices: AnyArray) -> Examples:
        """Return the examples of these indices, or of a mask. The texts, paths and tokens are not copied."""
        numbers = {name: getattr(self, name)[indices] for name in _NUMBERS}
        columns: dict[str, Any] = {**numbers, **{name: getattr(self, name).take(indices) for name in _PIECES}}
        return Examples(self.parts, self.requests, **columns)

    def joined(self, others: Examples) -> Examples:
        """Return these examples and others of the same columns, which `take` has taken."""
        numbers = {name: np.concatenate([getattr(self, name), getattr(others, name)]) for name in _NUMBERS}
        pieces = {name: getattr(self, name).joined(getattr(others, name)) for name in _PIECES}
        columns: dict[str, Any] = {**numbers, **pieces}
        return Examples(self.parts, self.requests, **columns)

    def with_tokens(self, tokens: Iterable[Sequence[int]]) -> Examples:
        """Return the examples with their tokens, given in order."""
        flat, lengths = array("i"), array("i")
        for row in tokens:
            flat.extend(row)
            lengths.append(len(row))
        ids = _view(flat, np.int32)
        narrow = ids.astype(np.uint16) if len(ids) and int(ids.max()) < _MAX_UINT16 else ids
        return replace(self, tokens=_pieces(narrow, _view(lengths, np.int32)))

    def digest(self) -> str:
        """Hash what decides a run: texts, tokens, spans and how often an epoch has them; not the paths."""
        hashed = hashlib.blake2b(digest_size=16)
        rows = zip(self.durations_s.tolist(), self.offsets_s.tolist(), self.part_of.tolist(), strict=True)
        for index, (duration_s, offset_s, part) in enumerate(rows):
            tokens, repeat = tuple(self.tokens.piece(index).tolist()), self.parts[part].repeat
            share = () if self.parts[part].share is None else (self.parts[part].share,)
            request = self.requests[self.request_of[index]]
            # The examples of a fraction are drawn by their manifest's number.
            asked = (() if request is None else (request,)) + ((part,) if repeat % 1 or share else ())
            asked += (int(self.channels[index]),) if self.channels[index] >= 0 else ()
            identity = repr((self.text(index), tokens, duration_s, offset_s, repeat, *share, *asked)).encode()
            hashed.update(len(identity).to_bytes(8, "big"))
            hashed.update(identity)
        return hashed.hexdigest()


class ExamplesBuilder:
    """Collects examples one by one."""

    def __init__(self, parts: Sequence[ManifestPart]) -> None:
        self._parts = tuple(parts)
        self._durations_s, self._offsets_s, self._part_of = array("d"), array("d"), array("h")
        self._byte_starts, self._num_bytes, self._channels = array("q"), array("q"), array("h")
        self._paths, self._texts = bytearray(), bytearray()
        self._starts, self._lengths = array("q"), array("i")  # of the paths
        self._text_lengths = array("i")
        self._requests: dict[Request | None, int] = {}
        self._request_of, self._lines = array("h"), array("i")
        self._tokens: list[tuple[int, ...]] = []
        self._last_path = ""

    def add(self, example: Example) -> None:
        if example.path != self._last_path or not self._starts:  # segments of one recording share its path
            path = os.fsencode(example.path)
            start, length = len(self._paths), len(path)
            self._paths += path
            self._last_path = example.path
        else:
            start, length = self._starts[-1], self._lengths[-1]
        self._starts.append(start)
        self._lengths.append(length)
        text = example.text.encode()
        self._texts += text
        self._text_lengths.append(len(text))
        self._durations_s.append(example.duration_s)
        self._offsets_s.append(example.offset_s)
        self._part_of.append(example.part)
        self._byte_starts.append(example.start)
        self._num_bytes.append(example.num_bytes)
        self._channels.append(-1 if example.channel is None else example.channel)
        self._request_of.append(self._requests.setdefault(example.request, len(self._requests)))
        self._lines.append(example.line)
        if example.tokens:
            self._tokens += [()] * (len(self) - 1 - len(self._tokens)) + [example.tokens]

    def __len__(self) -> int:
        return len(self._starts)

    def build(self) -> Examples:
        paths, texts = (np.frombuffer(flat, np.uint8) for flat in (self._paths, self._texts))
        examples = Examples(
            self._parts,
            tuple(self._requests),
            _view(self._durations_s, np.float64),
            _view(self._offsets_s, np.float64),
            _view(self._part_of, np.int16),
            _view(self._byte_starts, np.int64),
            _view(self._num_bytes, np.int64),
            _view(self._channels, np.int16),
            _view(self._request_of, np.int16),
            _view(self._lines, np.int32),
            _Pieces(paths, _view(self._starts, np.int64), _view(self._lengths, np.int32)),
            _pieces(texts, _view(self._text_lengths, np.int32)),
            _Pieces(np.empty(0, np.int32), np.zeros(len(self), np.int64), np.zeros(len(self), np.int32)),
        )
        if not self._tokens:
            return examples
        return examples.with_tokens([*self._tokens, *[()] * (len(self) - len(self._tokens))])


def _view(numbers: array[Any], dtype: Any) -> AnyArray:
    return np.frombuffer(numbers, dtype) if len(numbers) else np.empty(0, dtype)


def _pieces(flat: AnyArray, lengths: AnyArray) -> _Pieces:
    return _Pieces(flat, np.cumsum(lengths, dtype=np.int64) - lengths, lengths)


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
        place = {"manifest": self.manifest, **line, "audio_filepath": self.path, "duration": self.duration_s}
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
