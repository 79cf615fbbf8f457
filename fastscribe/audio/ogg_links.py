"""Read chained Ogg files: recordings one after another in a file, such as a saved radio stream or `cat a.opus b.opus`.

A player plays one after the other. libsndfile reads the first only, and FFmpeg seeks to the wrong one. So each recording (a
link, RFC 3533) is found by its first page, and is checked and read as a file of its own. All have the same sample rate and
number of channels.

Dimensions: S samples, C channels.
"""

from __future__ import annotations

import io
import json
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate, count
from typing import Any, BinaryIO, NamedTuple

from fastscribe.audio.failures import ContainerError
from fastscribe.audio.header import CONVERT, HEAD_BYTES, LINKS, Header
from fastscribe.audio.media import FileRange, is_held, whole_content
from fastscribe.audio.ogg import may_hold_audio
from fastscribe.errors import AudioError
from fastscribe.types import Medium, SampleArray, Source

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
    num_samples: int
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
    begins, notes = sorted({0, *begins}), dict[str, None]()
    with medium.open() as file, whole_content(file) as data:
        links = list(zip(begins, [*begins[1:], len(data)], strict=True))
        links = [(begin, end) for begin, end in links if may_hold_audio(data, begin, end)] or links
    parts: list[_Part] = []
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
        parts.append(_Part(begin, end, header.sample_rate, header.channels, header.num_samples, track, header.reading))
        notes |= dict.fromkeys(header.notes)
    kinds = sorted({(part.sample_rate, part.channels) for part in parts})
    if len(kinds) > 1:
        named = ", ".join(f"{kind[0]} Hz {kind[1]} ch" for kind in kinds)
        raise AudioError(source.path, f"several recordings in one, of different kinds ({named}): {CONVERT}")
    said = f"holds {len(parts)} recordings one after another, which were read as one"
    num_samples = sum(part.num_samples for part in parts)
    return Header(*kinds[0], num_samples, False, header.layout, 1, LINKS + json.dumps(parts), (said, *notes))


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
        self.samplerate, self.channels = self._links[0].sample_rate, self._links[0].channels
        self._starts = [0, *accumulate(part.num_samples for part in self._links)]  # of each link, and the end
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
            self._open_link(index)
            position = self._position - self._starts[index]
            if position != self._at:
                self._sound.seek(position)
            piece_SC = samples_SC[filled : filled + self._starts[index + 1] - self._position]
            got = int(self._sound.buffer_read_into(piece_SC, dtype))
            self._at, filled, self._position = position + got, filled + got, self._position + got
            if got < len(piece_SC):
                break
        return filled

    def _open_link(self, index: int) -> None:
        if self._index == index:
            return
        self.close()
        part = self._links[index]
        self._sound = self._open_sound(Link(self._medium, part.begin, part.end), part.track, part.reading)
        self._index, self._at = index, 0
        if (self._sound.samplerate, self._sound.channels) != (part.sample_rate, part.channels):
            raise ContainerError("changed since the run began")

    def close(self) -> None:
        if self._sound is not None:
            self._sound.close()
        self._index, self._sound = -1, None
