"""Read a recording's header: rate, channels, length. No samples are decoded.

A file that libsndfile would open but read in part only (truncated, or several joined into one) is an error here as far as
its structure shows it. Other damage is found when the samples are read (read.py).
"""

from __future__ import annotations

import io
from contextlib import closing
from typing import BinaryIO, NamedTuple

import soundfile

from fastscribe._system.remote import is_url
from fastscribe.audio.containers import ContainerError, NotAContainer, TrackHeader, track_header
from fastscribe.audio.data_size import data_size
from fastscribe.audio.failures import system_problem
from fastscribe.audio.flac_frames import flac_ends_at
from fastscribe.audio.formats import (
    CONTAINER_EXTENSIONS,
    FORMATS,
    HEADERLESS,
    MISSING_TOLERANCE_S,
    UNSUPPORTED_SUBTYPES,
    extension,
    missing_problem,
)
from fastscribe.audio.media import medium_of, whole_content
from fastscribe.audio.mp3_header import mp3_length_s
from fastscribe.audio.mp4_boxes import mp4_problem
from fastscribe.audio.ogg_pages import OggEnd, ogg_end
from fastscribe.audio.plain_header import PlainHeader, plain_header
from fastscribe.audio.sound_file_cache import open_with_libsndfile
from fastscribe.audio.stdin import HEAD_BYTES, STDIN, has_known_format, is_text
from fastscribe.audio.wav_header import WavLengths, wav_lengths
from fastscribe.errors import AudioError
from fastscribe.types import AudioInfo, Medium, Samples, Source

NO_LENGTH = "its header leaves its length out"
UNKNOWN_SAMPLES = 1 << 62  # libsndfile's count if the header has no length
CONVERT = "convert it, e.g. with ffmpeg"
JOINED = "several recordings in one: give each as a file of its own, or join their samples, e.g. with sox"
CONVERT_WAV = f"{CONVERT} -ignore_length 1 -i IN.wav OUT.wav"  # by default ffmpeg trusts the header
# libsndfile guesses a constant-bitrate MP3's length from its first frame; the padding byte makes an hour this much wrong.
GUESS_TOLERANCE = 3e-4
_LIST_EXTENSIONS = frozenset({"", "txt", "lst", "list", "csv", "tsv"})
_LIST_HINT = "; a list of paths, one a line without other columns, goes to stdin: fastscribe transcribe - < LIST"
_TEXT_BYTES = 4096
# Of WAV files that libsndfile decodes: PCM, MS ADPCM, floats, A-law, µ-law, IMA ADPCM, GSM, G.721, NMS ADPCM, MP3, extensible.
SAMPLE_TYPES = frozenset((1, 2, 3, 6, 7, 0x11, 0x31, 0x38, 0x40, 0x55, 0xFFFE))
SAMPLE_RATES = range(1000, 1_000_001)  # a rate outside means a damaged header
# A header may promise at most the longest silence that fits in the file's bytes, so that memory stays bounded. FLAC has
# frames of 65,535 samples in 11 bytes; Ogg Opus, Ogg Vorbis and the rest take 16 bytes a second and more.
MAX_FLAC_SAMPLES_A_BYTE = 6000
MIN_BYTES_A_SECOND = 10
# MPEG audio has none; a WAV or an Ogg file may hold what libsndfile cannot decode.
_LIBSNDFILE_MAGIC = (
    b"RIFF",
    b"RIFX",
    b"RF64",
    b"BW64",
    b"fLaC",
    b"FORM",
    b"caff",
    b"OggS",
    b".snd",
    b"dns.",
    b"NIST_1A",
    b"ID3",
    b"riff",
)


def probe(source: Source) -> AudioInfo:
    """Open a source and read its header.

    Raises:
        AudioError: the source is no readable recording with samples in the requested part; one line.
    """
    if isinstance(samples := source.file, Samples):
        num_samples, channels = samples.samples_SC.shape
        if not num_samples:
            raise AudioError(source.path, "holds no samples")
        return _audio_info(source, PlainHeader(samples.sample_rate, channels, num_samples, samples.is_int16))
    medium = medium_of(samples)
    try:
        num_bytes = _check_file(source, medium)
        with medium.open() as file:  # detects missing permissions
            header: PlainHeader | TrackHeader | None = plain_header(file, num_bytes)
            if header is None:
                buffered = io.BufferedReader(file) if isinstance(file, io.FileIO) else file
                header = _unusual_header(_Opened(source, medium, buffered, num_bytes))
    except AudioError:
        raise
    except (OSError, ValueError) as error:  # ValueError: an impossible file name, a closed file
        raise AudioError(source.path, system_problem(error)) from error
    return _audio_info(source, header)


class _Opened(NamedTuple):
    """A source whose file is open, at any position."""

    source: Source
    medium: Medium
    file: BinaryIO
    num_bytes: int


def _unusual_header(opened: _Opened) -> PlainHeader | TrackHeader:
    if not _is_for_libsndfile(opened.file) and (track := _track_header(opened)) is not None:
        return track
    return _opened_header(opened, _check_complete(opened))


def _audio_info(source: Source, found: PlainHeader | TrackHeader) -> AudioInfo:
    """Return the part of the recording that the source names."""
    track = found if isinstance(found, TrackHeader) else None
    if found.sample_rate not in SAMPLE_RATES:
        raise AudioError(source.path, f"damaged: its header gives a sample rate of {found.sample_rate} Hz")
    if track is None and source.track:
        raise AudioError(source.path, f"track {source.track} was asked for, but it has 1 audio track (counted from 0)")
    start, num_samples = _cut(source, found.sample_rate, found.num_samples)
    return AudioInfo(
        source.path,
        source.id,
        found.sample_rate,
        found.channels,
        num_samples,
        start,
        source.row,
        source.file if source.file != source.path else "",
        is_int16=isinstance(found, PlainHeader) and found.is_int16,
        index=source.index,
        track=None if track is None else source.track or 0,
        num_tracks=1 if track is None else track.num_tracks,
        channel=source.channel,
        given_key=source.given_key,
        boost=source.boost,
        language=source.language,
    )


def _is_for_libsndfile(file: BinaryIO) -> bool:
    """Return True if a file begins like a format that libsndfile reads, which is faster and checks more."""
    file.seek(0)
    head = file.read(16)
    is_mpeg_audio = (
        head[:1] == b"\xff" and len(head) > 1 and head[1] & 0xE0 == 0xE0 and head[1] & 0x06 != 0
    )  # else ADTS
    return is_mpeg_audio or head.startswith(_LIBSNDFILE_MAGIC)


def _track_header(opened: _Opened) -> TrackHeader | None:
    """Read the track's header with FFmpeg's libraries; None if they do not recognise the file."""
    source, medium, file, num_bytes = opened
    size = data_size(file, num_bytes)
    if size is not None and size.is_joined:
        raise AudioError(source.path, JOINED)
    if size is not None and size.is_truncated:
        raise AudioError(source.path, _truncated_message(size.promised_bytes, size.held_bytes))
    if (problem := mp4_problem(file, num_bytes)) is not None:
        raise AudioError(source.path, problem)
    try:
        header = track_header(medium, source.track or 0)
    except NotAContainer as error:
        if extension(source.path) in CONTAINER_EXTENSIONS or (source.path == STDIN and _begins_as_audio(file)):
            raise AudioError(source.path, f"{error.problem}: check that a player opens it") from error
        return None
    except ContainerError as error:
        raise AudioError(source.path, error.problem) from error
    _check_bytes(source, num_bytes, header.num_samples / max(1, header.sample_rate))
    return header


def _begins_as_audio(file: BinaryIO) -> bool:
    file.seek(0)
    return has_known_format(file.read(HEAD_BYTES))


def planned(source: Source, sample_rate: int) -> AudioInfo:
    """Return what the manifest promises of a row with a duration, at `sample_rate`.

    Nothing is opened: the file may be longer, shorter or missing.
    """
    assert source.duration_s is not None
    num_samples = max(1, int(source.duration_s * sample_rate))
    return AudioInfo(
        source.path,
        source.id,
        sample_rate,
        1,
        num_samples,
        row=source.row,
        index=source.index,
        unread=source,
        channel=source.channel,
        given_key=source.given_key,
        boost=source.boost,
        language=source.language,
    )


def _opened_header(opened: _Opened, ogg: OggEnd | None) -> PlainHeader | TrackHeader:
    """Read the header with libsndfile, or with FFmpeg's libraries where libsndfile cannot or would read a part only."""
    source, medium, file, num_bytes = opened
    size = data_size(file, num_bytes)
    try:
        with closing(open_with_libsndfile(medium)) as sound:
            sample_rate, channels, num_samples = sound.samplerate, sound.channels, sound.frames
            sound_format, subtype = sound.format, sound.subtype
    except soundfile.SoundFileError as error:
        if (track := _track_header(opened)) is not None:
            return track
        raise AudioError(source.path, _unreadable_message(error, opened)) from error
    if subtype.startswith("ALAC") and (track := _track_header(opened)) is not None:
        return track
    if sound_format not in FORMATS or subtype.startswith(UNSUPPORTED_SUBTYPES):
        kind = f"{sound_format} files" if sound_format not in FORMATS else f"{sound_format} files of {subtype} samples"
        raise AudioError(source.path, f"{kind} are not read: convert it to wav or flac, e.g. with ffmpeg or sox")
    if size is not None and size.is_joined:
        raise AudioError(source.path, JOINED)
    if size is not None and size.is_truncated:
        _check_size(source, size.promised_bytes, size.held_bytes, num_samples / max(1, sample_rate))
    if num_samples >= UNKNOWN_SAMPLES:
        if sound_format == "FLAC" and (track := _track_header(opened)) is not None:  # counts its frames
            return track
        raise AudioError(source.path, f"{NO_LENGTH} (a stream?): {CONVERT}")
    if num_samples > 0 and sound_format == "MP3":
        known = _mp3_samples(opened, sample_rate, num_samples)
        if known is None and (track := _track_header(opened)) is not None:
            return track
        num_samples = num_samples if known is None else known
    if num_samples <= 0:
        raise AudioError(source.path, _no_samples_message(opened))
    _check_possible(opened, sound_format, sample_rate, num_samples)
    length_s = num_samples / sample_rate
    if ogg is not None and ogg.rate > 0:  # libsndfile may have stopped early, at a damaged page
        _check_length(source, ogg.min_samples / ogg.rate, length_s)
    return PlainHeader(sample_rate, channels, num_samples, subtype == "PCM_16")


def _check_possible(opened: _Opened, sound_format: str, sample_rate: int, num_samples: int) -> None:
    source, num_bytes, length_s = opened.source, opened.num_bytes, num_samples / sample_rate
    if sound_format != "FLAC":
        _check_bytes(source, num_bytes, length_s)
        return
    with whole_content(opened.file) as data:
        if num_samples > MAX_FLAC_SAMPLES_A_BYTE * num_bytes or not flac_ends_at(data, num_samples):
            problem = f"damaged, truncated or several in one: it does not end after the {length_s:.2f} s of its header"
            raise AudioError(source.path, f"{problem}: {CONVERT}")


def _check_bytes(source: Source, num_bytes: int, length_s: float) -> None:
    if length_s > num_bytes / MIN_BYTES_A_SECOND:
        problem = f"damaged: its header promises {length_s:.0f} s, which {num_bytes} bytes cannot hold"
        raise AudioError(source.path, problem)


def _check_file(source: Source, medium: Medium) -> int:
    """Return the file's size, or raise AudioError if it cannot be a recording."""
    num_bytes = medium.num_bytes()
    if num_bytes == 0:
        raise AudioError(source.path, "is empty (0 bytes)")
    if extension(source.path) in HEADERLESS:
        raise AudioError(source.path, "raw samples without a header are not read: convert it to wav or flac")
    return num_bytes


def _check_complete(opened: _Opened) -> OggEnd | None:
    source, _, file, num_bytes = opened
    lengths = wav_lengths(file, num_bytes)
    if lengths is not None:
        if lengths.is_truncated:
            _check_size(source, lengths.promised_bytes, lengths.held_bytes, lengths.held_s)
        if lengths.is_joined:
            raise AudioError(source.path, JOINED)
        if lengths.promised_s > 0 and _has_more_samples(lengths):  # libsndfile may handle a stated length of 0
            raise AudioError(source.path, _longer_message(lengths.promised_s, lengths.held_s, CONVERT_WAV))
    end = ogg_end(file, num_bytes)
    if end is not None and not end.complete:
        raise AudioError(source.path, "truncated: ends in the middle of an Ogg page")
    if end is not None and end.chained:
        raise AudioError(source.path, f"holds several streams one after another: {CONVERT}")
    if end is not None and end.damaged:
        raise AudioError(source.path, "damaged: its first or last Ogg pages are not whole")
    return end


def _check_length(source: Source, promised_s: float, held_s: float) -> None:
    if (problem := missing_problem(promised_s, held_s)) is not None:
        raise AudioError(source.path, problem)


def _check_size(source: Source, promised_bytes: int, held_bytes: int, held_s: float) -> None:
    """Tolerate a header that is wrong by a few samples, as some writers leave it."""
    if held_s == 0 or held_s * (promised_bytes / held_bytes - 1) > MISSING_TOLERANCE_S:
        raise AudioError(source.path, _truncated_message(promised_bytes, held_bytes, held_s))


def _truncated_message(promised_bytes: int, held_bytes: int, held_s: float = 0.0) -> str:
    """`held_s` is the length of the audio in the file, 0 if it is unknown."""
    if held_bytes == 0 or held_s == 0:
        return f"truncated: header promises {promised_bytes:,} bytes of samples, file holds {held_bytes:,}"
    lengths = f"header promises {held_s * promised_bytes / held_bytes:.2f} s, file holds {held_s:.2f} s"
    return f"truncated: {lengths} ({promised_bytes:,} and {held_bytes:,} bytes)"


def _has_more_samples(lengths: WavLengths) -> bool:
    return lengths.has_more_samples and lengths.held_s - lengths.promised_s > MISSING_TOLERANCE_S


def _longer_message(given_s: float, held_s: float, advice: str) -> str:
    return f"its header gives {given_s:.2f} s, it holds {held_s:.2f} s: {advice}"


def _no_samples_message(opened: _Opened) -> str:
    lengths = wav_lengths(opened.file, opened.num_bytes)
    has_some = lengths is not None and lengths.promised_s == 0 and _has_more_samples(lengths)
    return f"{NO_LENGTH}: {CONVERT}" if has_some else "holds no samples"


def _mp3_samples(opened: _Opened, sample_rate: int, num_samples: int) -> int | None:
    """libsndfile's number, or the true one if that was a guess beyond the end.

    None: the file holds more (several in one, or a guess that is too small). libsndfile reads no further than its number.
    """
    with whole_content(opened.file) as data:
        length = mp3_length_s(data)
    if length is None:
        return num_samples
    (held_s, is_stated), length_s = length, num_samples / sample_rate
    if held_s - length_s > max(MISSING_TOLERANCE_S, GUESS_TOLERANCE * held_s):
        return None
    if is_stated:
        _check_length(opened.source, length_s, held_s)
        return num_samples
    return min(num_samples, round(held_s * sample_rate))


def _unreadable_message(error: soundfile.SoundFileError, opened: _Opened) -> str:
    (path, file), code = (opened.source.path, opened.file), getattr(error, "code", None)
    lengths = wav_lengths(file, opened.num_bytes)
    if lengths is not None and lengths.sample_type not in SAMPLE_TYPES:
        kind = f"{lengths.sample_type:#06x}"
        return f"a WAV file of samples of type {kind}, which libsndfile does not decode: {CONVERT}"
    if path.endswith("/") and is_url(path):
        return "not audio; a web server lists no folders: name its files, or a manifest of their URLs"
    if code in (1, 7):  # "Format not recognised", and mpg123's failures under a misleading name
        file.seek(0)
        head = file.read(_TEXT_BYTES)
        if is_text(head) and not head.startswith(_LIBSNDFILE_MAGIC):
            return "is text, not audio" + (_LIST_HINT if extension(path) in _LIST_EXTENSIONS else "")
        return "not audio, or in a format that neither libsndfile nor FFmpeg reads"
    return f"cannot be opened, damaged or unsupported (libsndfile: {getattr(error, 'error_string', error)})"


def _cut(source: Source, sample_rate: int, num_samples: int) -> tuple[int, int]:
    """The row's offset and duration as (start, num_samples), rounded down as NeMo does and clipped to the file."""
    offset = (source.offset_s or 0.0) * sample_rate
    if offset >= num_samples:
        length_s = num_samples / sample_rate
        raise AudioError(source.path, f"offset {source.offset_s} s lies beyond its end ({length_s:.2f} s)")
    start = int(offset)
    left = num_samples - start
    requested = source.duration_s * sample_rate if source.duration_s else left
    if requested < 1:
        raise AudioError(source.path, f"a duration of {source.duration_s} s holds no samples")
    return start, int(min(requested, left))
