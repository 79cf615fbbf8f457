"""What a recording's header says: rate, channels, length. No samples are decoded.

A file that libsndfile would open but read in part only (cut short, several joined into one) is an error here as far as
its structure tells. Other damage further in is found when the samples are read (read.py).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread

import soundfile

from fastscribe.audio.formats import (
    CONTAINER_ADVICE,
    CONTAINER_EXTENSIONS,
    HEADERLESS,
    MISSING_TOLERANCE_S,
    extension,
)
from fastscribe.audio.libsndfile_log import promised_share
from fastscribe.audio.mp3_header import mp3_length_s
from fastscribe.audio.ogg_pages import ogg_end
from fastscribe.audio.plain_header import PlainHeader, plain_header
from fastscribe.audio.source import Source, system_problem, to_failure
from fastscribe.audio.wav_header import wav_lengths_s
from fastscribe.errors import AudioError
from fastscribe.types import AudioInfo, Failure

UNKNOWN_SAMPLES = 1 << 62  # libsndfile's count for a stream whose header leaves the length out
AHEAD_PER_THREAD = 8
CONVERT = "convert it, e.g. with ffmpeg"
# libsndfile guesses a constant-bitrate MP3's length from its first frame, whose padding byte makes an hour this much wrong.
GUESS_TOLERANCE = 3e-4


def probe(source: Source) -> AudioInfo:
    """Raises AudioError, one line, for anything that is not a readable recording with samples in the asked stretch."""
    try:
        num_bytes = _check_file(source)
        header = plain_header(source.file, num_bytes)  # opens the file, and so finds out about permissions
        if header is None:
            _check_complete(source)
    except AudioError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise AudioError(source.path, system_problem(error)) from error
    sample_rate, channels, num_samples, is_int16 = header or _opened_header(source)
    start, num_samples = _cut(source, sample_rate, num_samples)
    file = source.file if source.file != source.path else ""
    return AudioInfo(source.path, source.id, sample_rate, channels, num_samples, start, source.row, file, is_int16)


def _opened_header(source: Source) -> PlainHeader:
    """What libsndfile makes of the file."""
    try:
        with soundfile.SoundFile(source.file) as sound:
            sample_rate, channels, num_samples = sound.samplerate, sound.channels, sound.frames
            sound_format, log, is_int16 = sound.format, sound.extra_info, sound.subtype == "PCM_16"
    except soundfile.SoundFileError as error:
        raise AudioError(source.path, _unreadable(source, error)) from error
    if num_samples >= UNKNOWN_SAMPLES:
        raise AudioError(source.path, f"its header leaves its length out (a stream?): {CONVERT}")
    if num_samples > 0 and sound_format == "MP3":
        num_samples = _mp3_samples(source, sample_rate, num_samples)
    if num_samples <= 0:
        raise AudioError(source.path, "holds no samples")
    length_s = num_samples / sample_rate
    _check_length(source, length_s * promised_share(sound_format, log), length_s)
    return PlainHeader(sample_rate, channels, num_samples, is_int16)


def _check_file(source: Source) -> int:
    """The file's size."""
    status = os.stat(source.file)
    if stat.S_ISDIR(status.st_mode):
        raise AudioError(source.path, "is a folder, not a file")
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its writer
        raise AudioError(source.path, "is not a regular file")
    if status.st_size == 0:
        raise AudioError(source.path, "is empty (0 bytes)")
    if extension(source.file) in HEADERLESS:
        raise AudioError(source.path, "raw samples without a header are not read: convert it to wav or flac")
    return status.st_size


def _check_complete(source: Source) -> None:
    lengths = wav_lengths_s(source.file)
    if lengths is not None:
        _check_length(source, *lengths)
    end = ogg_end(source.file)
    if end is not None and not end.complete:
        raise AudioError(source.path, "truncated: ends in the middle of an Ogg page")
    if end is not None and end.chained:
        raise AudioError(source.path, f"holds several streams one after another: {CONVERT}")


def _check_length(source: Source, promised_s: float, held_s: float) -> None:
    if promised_s - held_s > MISSING_TOLERANCE_S:
        raise AudioError(source.path, f"truncated: header promises {promised_s:.2f} s, file holds {held_s:.2f} s")


def _mp3_samples(source: Source, sample_rate: int, num_samples: int) -> int:
    """libsndfile's number, or where that was a guess beyond the end, the true one. It reads no further than its own."""
    try:
        length = mp3_length_s(source.file)
    except (OSError, ValueError) as error:
        raise AudioError(source.path, system_problem(error)) from error
    if length is None:
        return num_samples
    (held_s, is_stated), length_s = length, num_samples / sample_rate
    if held_s - length_s > max(MISSING_TOLERANCE_S, GUESS_TOLERANCE * held_s):
        raise AudioError(source.path, f"its header gives {length_s:.2f} s, it holds {held_s:.2f} s: {CONVERT}")
    if is_stated:
        _check_length(source, length_s, held_s)
        return num_samples
    return min(num_samples, round(held_s * sample_rate))


def _unreadable(source: Source, error: soundfile.SoundFileError) -> str:
    if extension(source.file) in CONTAINER_EXTENSIONS:
        return f"{extension(source.file)} {CONTAINER_ADVICE}"
    code = getattr(error, "code", None)
    if code in (1, 7):  # "Format not recognised", and mpg123's failures under a name that would mislead
        return "not audio, or in a format that libsndfile does not read"
    return f"cannot be opened, damaged or unsupported (libsndfile: {getattr(error, 'error_string', error)})"


def _cut(source: Source, sample_rate: int, num_samples: int) -> tuple[int, int]:
    """The row's offset and duration as (start, num_samples), rounded down as NeMo does and clipped to the file."""
    offset = (source.offset_s or 0.0) * sample_rate
    if offset >= num_samples:
        length_s = num_samples / sample_rate
        raise AudioError(source.path, f"offset {source.offset_s} s lies beyond its end ({length_s:.2f} s)")
    start = int(offset)
    left = num_samples - start
    asked = source.duration_s * sample_rate if source.duration_s else left
    if asked < 1:
        raise AudioError(source.path, f"a duration of {source.duration_s} s holds no samples")
    return start, int(min(asked, left))


def probe_all(sources: Iterable[Source | Failure], threads: int) -> Generator[AudioInfo | Failure, None, None]:
    """Probes in `threads` threads, in the order given, looking only so far ahead; Failures pass through.

    What is found is given out at once, even while `sources` waits for its next item (paths that are typed).
    """
    probing = _Probing(sources, threads)
    found: dict[int, AudioInfo | Failure | _End] = {}
    expected = 0
    try:
        while True:
            while expected not in found:
                number, result = probing.found.get()
                found[number] = result
            item = found.pop(expected)
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            expected += 1
            probing.tickets.put(True)
            yield item
    finally:
        probing.close()


@dataclass(frozen=True)
class _End:
    error: BaseException | None  # what the sources raised


class _Probing:
    """One thread walks through the sources, the others probe. None is waited for at exit: the first may sit in a read
    from a terminal that never ends. Queues rather than futures, which cost as much as the probing."""

    def __init__(self, sources: Iterable[Source | Failure], threads: int) -> None:
        self.found: SimpleQueue[tuple[int, AudioInfo | Failure | _End]] = SimpleQueue()
        self.tickets: SimpleQueue[bool] = SimpleQueue()  # one for each source that may be looked at; False: no more
        self._todo: SimpleQueue[tuple[int, Source | Failure] | None] = SimpleQueue()
        self._sources, self._threads, self._closed = sources, threads, False
        for _ in range(threads * AHEAD_PER_THREAD):
            self.tickets.put(True)
        for name, target in (("probe-feed", self._feed), *[("probe", self._probe)] * threads):
            Thread(target=target, name=name, daemon=True).start()

    def close(self) -> None:
        self._closed = True
        self.tickets.put(False)

    def _feed(self) -> None:
        number, error, sources = 0, None, iter(self._sources)
        try:
            while self.tickets.get() and not self._closed and (source := next(sources, None)) is not None:
                self._todo.put((number, source))
                number += 1
        except BaseException as raised:  # raised again in the thread that iterates
            error = raised
        self.found.put((number, _End(error)))
        for _ in range(self._threads):
            self._todo.put(None)

    def _probe(self) -> None:
        while (task := self._todo.get()) is not None and not self._closed:
            number, source = task
            self.found.put((number, _probe_or_failure(source)))


def _probe_or_failure(source: Source | Failure) -> AudioInfo | Failure:
    if isinstance(source, Failure):
        return source
    try:
        return probe(source)
    except Exception as error:  # one bad file must not stop the rest, whatever is wrong with it
        return to_failure(source, "probe", error)
