"""What a recording's header says: rate, channels, length. No samples are decoded.

A file that libsndfile would open but read in part only (cut short, several joined into one) is an error here as far as
its structure tells. Other damage further in is found when the samples are read (read.py).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import TypeVar

import soundfile

from fastscribe.audio.data_size import data_size
from fastscribe.audio.failures import system_problem
from fastscribe.audio.flac_frames import flac_ends_at
from fastscribe.audio.formats import (
    CONTAINER_ADVICE,
    CONTAINER_EXTENSIONS,
    FORMATS,
    HEADERLESS,
    MISSING_TOLERANCE_S,
    UNREAD_SUBTYPES,
    extension,
)
from fastscribe.audio.mp3_header import mp3_length_s
from fastscribe.audio.ogg_pages import OggEnd, ogg_end
from fastscribe.audio.plain_header import PlainHeader, plain_header
from fastscribe.audio.wav_header import WavLengths, wav_lengths
from fastscribe.errors import AudioError
from fastscribe.types import AudioInfo, Source

T = TypeVar("T")

LEFT_OUT = "its header leaves its length out"
UNKNOWN_SAMPLES = 1 << 62  # libsndfile's count for a stream whose header leaves the length out
CONVERT = "convert it, e.g. with ffmpeg"
CONVERT_WAV = f"{CONVERT} -ignore_length 1 -i IN.wav OUT.wav"  # ffmpeg by itself believes the header
# libsndfile guesses a constant-bitrate MP3's length from its first frame, whose padding byte makes an hour this much wrong.
GUESS_TOLERANCE = 3e-4
SAMPLE_RATES = range(1000, 1_000_001)  # beyond them is no recording of speech but a damaged header
# A header may promise at most what the longest silence takes, so that memory is bounded by what a file can hold: FLAC has
# frames of 65,535 samples in 11 bytes; Ogg Opus, Ogg Vorbis and the rest take 16 bytes a second and more.
MAX_FLAC_SAMPLES_A_BYTE = 6000
MIN_BYTES_A_SECOND = 10


def probe(source: Source) -> AudioInfo:
    """Raises AudioError, one line, for anything that is not a readable recording with samples in the asked stretch."""
    try:
        num_bytes = _check_file(source)
        header = plain_header(source.file, num_bytes)  # opens the file, and so finds out about permissions
        ogg = None if header is not None else _check_complete(source)
    except AudioError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise AudioError(source.path, system_problem(error)) from error
    sample_rate, channels, num_samples, is_int16 = header or _opened_header(source, num_bytes, ogg)
    if sample_rate not in SAMPLE_RATES:
        raise AudioError(source.path, f"damaged: its header gives a sample rate of {sample_rate} Hz")
    start, num_samples = _cut(source, sample_rate, num_samples)
    file = source.file if source.file != source.path else ""
    cut = sample_rate, channels, num_samples, start
    return AudioInfo(source.path, source.id, *cut, source.row, file, is_int16, source.index)


def planned(source: Source, sample_rate: int) -> AudioInfo:
    """What the manifest promises of a row that has a duration, at `sample_rate`. Nothing is opened: its file may be longer
    or shorter, or not there."""
    assert source.duration_s is not None
    num_samples = max(1, int(source.duration_s * sample_rate))
    return AudioInfo(
        source.path, source.id, sample_rate, 1, num_samples, row=source.row, index=source.index, unread=source
    )


def _opened_header(source: Source, num_bytes: int, ogg: OggEnd | None) -> PlainHeader:
    """What libsndfile makes of the file."""
    size = _looked_into(source, data_size)
    try:
        with soundfile.SoundFile(source.file) as sound:
            sample_rate, channels, num_samples = sound.samplerate, sound.channels, sound.frames
            sound_format, subtype = sound.format, sound.subtype
    except soundfile.SoundFileError as error:
        problem = _truncated(*size) if size is not None and size.is_truncated else _unreadable(source, error)
        raise AudioError(source.path, problem) from error
    if sound_format not in FORMATS or subtype.startswith(UNREAD_SUBTYPES):
        kind = f"{sound_format} files" if sound_format not in FORMATS else f"{sound_format} files of {subtype} samples"
        raise AudioError(source.path, f"{kind} are not read: convert it to wav or flac, e.g. with ffmpeg or sox")
    if size is not None and size.is_truncated:
        _check_size(source, *size, num_samples / max(1, sample_rate))
    if num_samples >= UNKNOWN_SAMPLES:
        raise AudioError(source.path, f"{LEFT_OUT} (a stream?): {CONVERT}")
    if num_samples > 0 and sound_format == "MP3":
        num_samples = _mp3_samples(source, sample_rate, num_samples)
    if num_samples <= 0:
        raise AudioError(source.path, _no_samples(source))
    _check_possible(source, sound_format, num_bytes, sample_rate, num_samples)
    length_s = num_samples / sample_rate
    if ogg is not None and ogg.rate > 0:  # libsndfile may have stopped at a damaged page
        _check_length(source, ogg.least_samples / ogg.rate, length_s)
    return PlainHeader(sample_rate, channels, num_samples, subtype == "PCM_16")


def _check_possible(source: Source, sound_format: str, num_bytes: int, sample_rate: int, num_samples: int) -> None:
    length_s = num_samples / sample_rate
    if sound_format == "FLAC":
        possible = num_samples <= MAX_FLAC_SAMPLES_A_BYTE * num_bytes
        if not possible or not _looked_into(source, lambda path: flac_ends_at(path, num_samples)):
            problem = f"damaged, truncated or several in one: it does not end after the {length_s:.2f} s of its header"
            raise AudioError(source.path, f"{problem}: {CONVERT}")
    elif length_s > num_bytes / MIN_BYTES_A_SECOND:
        problem = f"damaged: its header promises {length_s:.0f} s, which {num_bytes} bytes cannot hold"
        raise AudioError(source.path, problem)


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


def _check_complete(source: Source) -> OggEnd | None:
    lengths = wav_lengths(source.file)
    if lengths is not None:
        if lengths.is_truncated:
            _check_size(source, lengths.promised_bytes, lengths.held_bytes, lengths.held_s)
        if lengths.promised_s > 0 and _holds_more(lengths):  # of none at all libsndfile may make something
            raise AudioError(source.path, _longer(lengths.promised_s, lengths.held_s, CONVERT_WAV))
    end = ogg_end(source.file)
    if end is not None and not end.complete:
        raise AudioError(source.path, "truncated: ends in the middle of an Ogg page")
    if end is not None and end.chained:
        raise AudioError(source.path, f"holds several streams one after another: {CONVERT}")
    if end is not None and end.damaged:
        raise AudioError(source.path, "damaged: its first or last Ogg pages are not whole")
    return end


def _check_length(source: Source, promised_s: float, held_s: float) -> None:
    if promised_s - held_s > MISSING_TOLERANCE_S:
        raise AudioError(source.path, f"truncated: header promises {promised_s:.2f} s, file holds {held_s:.2f} s")


def _check_size(source: Source, promised_bytes: int, held_bytes: int, held_s: float) -> None:
    """A header that is off by a few samples, as some writers leave it, costs no words."""
    if held_s == 0 or held_s * (promised_bytes / held_bytes - 1) > MISSING_TOLERANCE_S:
        raise AudioError(source.path, _truncated(promised_bytes, held_bytes, held_s))


def _truncated(promised_bytes: int, held_bytes: int, held_s: float = 0.0) -> str:
    """`held_s` is the length of the audio in the file, 0 if it is unknown."""
    if held_bytes == 0 or held_s == 0:
        return f"truncated: header promises {promised_bytes:,} bytes of samples, file holds {held_bytes:,}"
    lengths = f"header promises {held_s * promised_bytes / held_bytes:.2f} s, file holds {held_s:.2f} s"
    return f"truncated: {lengths} ({promised_bytes:,} and {held_bytes:,} bytes)"


def _holds_more(lengths: WavLengths) -> bool:
    return lengths.goes_on and lengths.held_s - lengths.promised_s > MISSING_TOLERANCE_S


def _longer(given_s: float, held_s: float, advice: str) -> str:
    return f"its header gives {given_s:.2f} s, it holds {held_s:.2f} s: {advice}"


def _no_samples(source: Source) -> str:
    lengths = _looked_into(source, wav_lengths)
    has_some = lengths is not None and lengths.promised_s == 0 and _holds_more(lengths)
    return f"{LEFT_OUT}: {CONVERT}" if has_some else "holds no samples"


def _looked_into(source: Source, look: Callable[[str], T]) -> T:
    """What `look` finds in the file, which may have become unreadable since it was opened last."""
    try:
        return look(source.file)
    except (OSError, ValueError) as error:
        raise AudioError(source.path, system_problem(error)) from error


def _mp3_samples(source: Source, sample_rate: int, num_samples: int) -> int:
    """libsndfile's number, or where that was a guess beyond the end, the true one. It reads no further than its own."""
    length = _looked_into(source, mp3_length_s)
    if length is None:
        return num_samples
    (held_s, is_stated), length_s = length, num_samples / sample_rate
    if held_s - length_s > max(MISSING_TOLERANCE_S, GUESS_TOLERANCE * held_s):
        raise AudioError(source.path, _longer(length_s, held_s, CONVERT))
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
