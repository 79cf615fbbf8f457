"""Read chained Ogg files: recordings one after another in a file, such as a saved radio stream or `cat a.opus b.opus`.

A player plays one after the other. libsndfile reads the first only, and FFmpeg seeks to the wrong one. So each recording (a
link, RFC 3533) is found by its first page, and is checked and read as a file of its own. All take the highest sample rate and
number of channels among them.

Dimensions: S samples, C channels.
"""

from __future__ import annotations

import io
import json
from bisect import bisect_right
from collections.abc import Callable
from itertools import count
from math import gcd
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import soxr

from fastscribe.audio.failures import ContainerError
from fastscribe.audio.frame_samples import mixed
from fastscribe.audio.header import HEAD_BYTES, LINKS, Header
from fastscribe.audio.media import FileRange, is_held, whole_content
from fastscribe.audio.ogg import may_hold_audio
from fastscribe.errors import AudioError
from fastscribe.types import Float32Array, Medium, SampleArray, Source

_MARGIN_S = 0.1  # of audio on both sides of a piece that is resampled
_BLOCK_SAMPLES = 1 << 20  # resampled at a time
_numbers = count()


class Link:
    """One recording of a chained file, as a medium (media.py).

    Args:
        medium: The whole file.
        begin: Offset of its first page.
        end: Offset behind its last page.
    """

    local_path: str | None = None

    def __init__(self, medium: Medium, begin: int, end: int) -> None:
        self._medium, self._begin, self._end = medium, begin, end
        # The identity of a caller's data does not say what it holds, so what is known of it is never used again.
        self.identity = f"{medium.identity}@{begin}+{end - begin}" + (f" {next(_numbers)}" if is_held(medium) else "")

    def version(self) -> str:
        return self._medium.version()

    def num_bytes(self) -> int:
        return self._end - self._begin

    def open(self) -> BinaryIO:
        return io.BufferedReader(FileRange(self._medium.open(), self._begin, self.num_bytes()))


class _Part(NamedTuple):
    """What the header of a link says."""

    begin: int  # in bytes
    end: int
    sample_rate: int
    channels: int
    num_samples: int  # at its own rate
    layout: list[str]  # what each channel is for; none: unknown
    track: int | None  # as AudioInfo's, and so is the next
    reading: str


def chain(source: Source, medium: Medium, begins: list[int], header_of: Callable[..., Header]) -> Header:
    """Read and check the headers of all links.

    Args:
        source: The recording.
        medium: Where its bytes are.
        begins: Where the links begin (ogg.examine()).
        header_of: unusual_header().

    Raises:
        AudioError: One of them is no recording, or one that would be read in part only.
        OSError: The file cannot be read.
    """
    begins, notes = sorted({0, *begins}), list[str]()
    with medium.open() as file, whole_content(file) as data:
        links = list(zip(begins, [*begins[1:], len(data)], strict=True))
        links = [(begin, end) for begin, end in links if may_hold_audio(data, begin, end)] or links
    parts = []
    for number, (begin, end) in enumerate(links, start=1):
        link = Link(medium, begin, end)
        try:
            with link.open() as file:
                header = header_of(source, link, file, link.num_bytes(), file.read(HEAD_BYTES))
        except AudioError as error:
            raise AudioError(source.path, f"recording {number} of {len(links)} in it: {error.problem}") from error
        track = None if header.num_tracks is None else source.track or 0
        if track is None and source.track:
            raise AudioError(
                source.path, f"track {source.track} was asked for, but it has 1 audio track (counted from 0)"
            )
        found = header.sample_rate, header.channels, header.num_samples, list(header.layout or ())
        parts.append(_Part(begin, end, *found, track, header.reading))
        notes += [note for note in header.notes if note not in notes]
    return _chain(parts, notes)


def _chain(parts: list[_Part], notes: list[str]) -> Header:
    rate, widest = _rate(parts), max(parts, key=lambda part: part.channels)
    said = [f"holds {len(parts)} recordings one after another, which were read as one"]
    kinds = sorted({(part.sample_rate, part.channels) for part in parts})
    if len(kinds) > 1:
        named = ", ".join(f"{kind[0]} Hz {kind[1]} ch" for kind in kinds)
        said.append(f"they differ ({named}): all were converted to {rate} Hz {widest.channels} ch")
    num_samples = sum(_length(part, rate) for part in parts)
    layout, reading = tuple(widest.layout) or None, LINKS + json.dumps(parts)
    return Header(rate, widest.channels, num_samples, False, layout, 1, reading, (*said, *notes))


def _rate(parts: list[_Part]) -> int:
    return max(part.sample_rate for part in parts)


def _length(part: _Part, rate: int) -> int:
    """Return the number of samples of a link at the file's rate."""
    return round(part.num_samples * rate / part.sample_rate)


class LinkedSound:
    """An open chained file with the methods of soundfile.SoundFile that read.py uses. For one thread at a time.

    Args:
        medium: The file.
        reading: The links, from chain().
        open_sound: Opens one of them (sound.py).
    """

    format, subtype = "Ogg links", "FLOAT"

    def __init__(self, medium: Medium, reading: str, open_sound: Callable[..., Any]) -> None:
        self._medium, self._open_sound = medium, open_sound
        self._links = [_Part(*part) for part in json.loads(reading.removeprefix(LINKS))]
        self.samplerate, self.channels = _rate(self._links), max(part.channels for part in self._links)
        self._starts = [0]  # position of each link's first sample, and of the end
        for part in self._links:
            self._starts.append(self._starts[-1] + _length(part, self.samplerate))
        self._position = 0
        self._index, self._at = -1, 0  # the open link, and where its sound stands
        self._sound: Any = None

    def seek(self, position: int) -> None:
        """Continue at this sample."""
        self._position = position

    def buffer_read_into(self, samples_SC: SampleArray, dtype: str) -> int:
        """Fill float32 samples [S, C] from the front; return the number read, which is lower at the end."""
        assert dtype == "float32"
        filled = 0
        while filled < len(samples_SC) and self._position < self._starts[-1]:
            index = bisect_right(self._starts, self._position) - 1
            left = self._starts[index + 1] - self._position
            piece_SC = samples_SC[filled : filled + min(left, _BLOCK_SAMPLES)]
            got = self._read_link(index, self._position - self._starts[index], piece_SC)
            filled, self._position = filled + got, self._position + got
            if got < len(piece_SC):
                break
        return filled

    def _read_link(self, index: int, position: int, piece_SC: SampleArray) -> int:
        """Fill a piece from this position of a link on, both at the file's rate."""
        part = self._links[index]
        self._open_link(index)
        if part.sample_rate == self.samplerate:
            samples_SC = self._native(part, position, len(piece_SC))
            piece_SC[: len(samples_SC)] = samples_SC
            return len(samples_SC)
        divisor = gcd(part.sample_rate, self.samplerate)
        step, made_step = part.sample_rate // divisor, self.samplerate // divisor  # samples that last equally long
        margin = 1 + int(_MARGIN_S * divisor)
        first = max(0, position // made_step - margin)
        last = (position + len(piece_SC)) // made_step + 1 + margin
        wanted = min(last * step, part.num_samples) - first * step
        samples_SC = self._native(part, first * step, wanted)
        made_SC = soxr.resample(samples_SC, part.sample_rate, self.samplerate, quality="HQ")
        begin = position - first * made_step
        made_SC = made_SC[begin : begin + len(piece_SC)]
        piece_SC[: len(made_SC)] = made_SC
        piece_SC[len(made_SC) :] = 0
        return len(piece_SC) if len(samples_SC) == wanted else len(made_SC)

    def _open_link(self, index: int) -> None:
        if self._index == index:
            return
        self._close_link()
        part = self._links[index]
        self._sound = self._open_sound(Link(self._medium, part.begin, part.end), part.track, part.reading)
        self._index, self._at = index, 0
        if (self._sound.samplerate, self._sound.channels) != (part.sample_rate, part.channels):
            raise ContainerError("changed since the run began")

    def _native(self, part: _Part, position: int, num_samples: int) -> Float32Array:
        """Return samples [S, C] of the open link at its own rate, with the file's number of channels."""
        assert self._sound is not None
        if position != self._at:
            self._sound.seek(position)
        samples_SC: Float32Array = np.empty((num_samples, part.channels), np.float32)
        got = int(self._sound.buffer_read_into(samples_SC, "float32"))
        self._at, samples_SC = position + got, samples_SC[:got]
        if part.channels == self.channels:
            return samples_SC
        return mixed(samples_SC, part.layout).repeat(self.channels, 1)

    def _close_link(self) -> None:
        if self._sound is not None:
            self._sound.close()
        self._index, self._sound = -1, None

    def close(self) -> None:
        self._close_link()
