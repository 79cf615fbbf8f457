"""Read the header of any file that is not plain WAV or FLAC, with libsndfile or FFmpeg's libraries, and check it.

The libraries read what is left of a truncated file, and the first of several that were joined, without an error. So a reader of
ours looks at what the file's format promises; docs/log.md says for each what the libraries say instead.
"""

from __future__ import annotations

import io
from contextlib import closing
from typing import BinaryIO

import soundfile

from fastscribe._system.urls import is_url
from fastscribe.audio.channel_layout import sound_layout
from fastscribe.audio.data_size import data_size, mp4_problem
from fastscribe.audio.failures import ContainerError, NotAContainer
from fastscribe.audio.first_bytes import (
    TEXT,
    archive_problem,
    has_known_format,
    headerless_problem,
    is_for_libsndfile,
    is_plain_text,
)
from fastscribe.audio.flac import flac_ends_at, is_cut_out
from fastscribe.audio.formats import (
    CONTAINER_EXTENSIONS,
    FORMATS,
    MISSING_TOLERANCE_S,
    STDIN,
    UNSUPPORTED_SUBTYPES,
    extension,
    missing_problem,
)
from fastscribe.audio.header import CONVERT, MIN_BYTES_A_SECOND, TO_END, Header, Unfinished
from fastscribe.audio.media import EncodedBytes, FileObject, whole_content
from fastscribe.audio.mp3_header import RateChanges, mp3_length_s
from fastscribe.audio.ogg import OggFile, examine
from fastscribe.audio.sound import open_with_libsndfile
from fastscribe.audio.wav import PCM, TO_THE_END, may_be_disguised
from fastscribe.errors import AudioError
from fastscribe.types import Medium, Source

_WITH_SIZE = (b"RIF", b"RF64", b"BW64", b"FORM", b".snd", b"dns.", b"riff")  # their headers have a place for the size
NO_LENGTH = "its header leaves its length out"
UNKNOWN_SAMPLES = 1 << 62  # libsndfile's count if the header has no length
RESCUE = "; get the whole file, or save what is there: ffmpeg -i IN OUT.wav"
JOINED = "several recordings in one: give each as a file of its own, or join their samples, e.g. with sox"
# libsndfile guesses a constant-bitrate MP3's length from its first frame; the padding byte makes an hour this much wrong.
GUESS_TOLERANCE = 3e-4
_LIST_HINT = (
    "; a list of paths, one a line, goes to stdin (fastscribe transcribe - < LIST), or has a name that ends in .txt"
)
_CONTENT_HINT = "; bytes and file objects are the content of a recording: give a path as a str"
_JUNK_BYTES = 1 << 16  # among which a recording behind something else is looked for
# Of WAV files that libsndfile decodes: PCM, MS ADPCM, floats, A-law, µ-law, IMA ADPCM, GSM, G.721, NMS ADPCM, MP3, extensible.
SAMPLE_TYPES = frozenset((1, 2, 3, 6, 7, 0x11, 0x31, 0x38, 0x40, 0x55, 0xFFFE))
MAX_FLAC_SAMPLES_A_BYTE = 6000  # of the longest silence in as many bytes (header.py)


class _Opened:
    """A source whose file is open, at any position, and what its header promises.

    Attributes:
        head: The file's first bytes.
        size: What the header says of the samples' size; None: nothing.
        ogg: What an Ogg file holds; None for other formats.
    """

    def __init__(self, source: Source, medium: Medium, file: BinaryIO, num_bytes: int, head: bytes) -> None:
        self.source, self.medium, self.file, self.num_bytes, self.head = source, medium, file, num_bytes, head
        self.size = data_size(head, file, num_bytes)
        self.ogg: OggFile | None = None
        if head.startswith(b"OggS"):
            with whole_content(file) as data:
                self.ogg = examine(data)

    @property
    def unfinished(self) -> Unfinished | None:
        return None if self.size is None else self.size.unfinished

    def error(self, problem: str) -> AudioError:
        cure = RESCUE if problem.startswith(("truncated:", "damaged or truncated:", "damaged or truncated (")) else ""
        return AudioError(self.source.path, problem + cure)


def unusual_header(source: Source, medium: Medium, file: BinaryIO, num_bytes: int, head: bytes) -> Header:
    """Read and check the header of a file.

    Args:
        source: The recording.
        medium: Where its bytes are.
        file: The open file, at any position.
        num_bytes: Its size.
        head: Its first bytes.

    Returns:
        The header, without a number of tracks if libsndfile reads the file.

    Raises:
        AudioError: The file is no recording, or one that would be read in part only.
        OSError: The file cannot be read.
    """
    path = source.file if isinstance(source.file, str) else source.path  # a list's row names it from the list
    if (problem := headerless_problem(head, path)) is not None:
        raise AudioError(source.path, problem)
    if not isinstance(file, io.FileIO):
        return _checked_header(_Opened(source, medium, file, num_bytes, head))
    buffered = io.BufferedReader(file)
    try:
        return _checked_header(_Opened(source, medium, buffered, num_bytes, head))
    finally:
        buffered.detach()  # the caller closes the file


def _checked_header(opened: _Opened) -> Header:
    track = _ogg_track(opened, opened.ogg) if opened.ogg is not None else _track(opened)
    header = _sound_header(opened) if track is None else track
    if opened.unfinished is not None:
        return header._replace(reading=TO_END, notes=(opened.unfinished.note,))
    if header.num_tracks is None and opened.size is None and opened.head.startswith(_WITH_SIZE):
        # A stream, whose writer could not know its length.
        return header._replace(notes=(f"{NO_LENGTH}: {TO_THE_END}",))
    return header


def _ogg_track(opened: _Opened, ogg: OggFile) -> Header | None:
    """Read the header of several recordings in one, and of one with gaps; None for those that libsndfile reads."""
    if len(ogg.begins) > 1:
        from fastscribe.audio.ogg_links import chain

        return chain(opened.source, opened.medium, ogg.begins, unusual_header)
    if ogg.problem is not None:
        raise opened.error(ogg.problem)
    return _track_header(opened) if ogg.has_gaps else None


def _track(opened: _Opened) -> Header | None:
    """Read the header of what FFmpeg's libraries have to read; None for what libsndfile reads."""
    if not is_for_libsndfile(opened.head) and (track := _track_header(opened)) is not None:
        return track
    if opened.size is None or opened.size.sample_type is None:
        return None
    _check_held(opened)
    return _track_header(opened) if opened.size.sample_type == PCM and may_be_disguised(opened.head) else None


def _track_header(opened: _Opened) -> Header | None:
    """Read the track's header with FFmpeg's libraries; None if they do not recognise the file."""
    from fastscribe.audio.containers import track_header

    if opened.head[12:16] == bytes(4) and opened.head.startswith((b"RIFF", b"RIFX", b"RF64", b"BW64", b"FORM")):
        return None  # FFmpeg would walk gigabytes of chunks without a name
    source = opened.source
    _check_held(opened)
    if (problem := mp4_problem(opened.file, opened.num_bytes)) is not None:
        raise opened.error(problem)
    try:
        header = track_header(opened.medium, source.track or 0, opened.unfinished is not None)
    except NotAContainer as error:
        is_audio_on_stdin = source.path == STDIN and has_known_format(opened.head)
        if extension(source.path) in CONTAINER_EXTENSIONS or is_audio_on_stdin:
            problem = TEXT if is_plain_text(opened.head) else f"{error}: check that a player opens it"
            raise opened.error(problem) from error
        return None
    except ContainerError as error:
        raise opened.error(str(error)) from error
    _check_bytes(opened, header.num_samples / max(1, header.sample_rate))
    return header


def _sound_header(opened: _Opened) -> Header:
    """Read the header with libsndfile, or with FFmpeg's libraries where libsndfile cannot or would read a part only."""
    try:
        with closing(open_with_libsndfile(opened.medium, opened.unfinished is not None)) as sound:
            sample_rate, channels, num_samples = sound.samplerate, sound.channels, sound.frames
            sound_format, subtype = sound.format, sound.subtype
            layout = None if channels <= 2 else sound_layout(sound, opened.file)
    except soundfile.SoundFileError as error:
        if (track := _track_header(opened)) is not None:
            return track
        raise opened.error(_unreadable_message(error, opened)) from error
    if sound_format not in FORMATS or subtype.startswith(UNSUPPORTED_SUBTYPES):
        if (track := _track_header(opened)) is not None:
            return track
        if is_plain_text(opened.head):
            raise opened.error(TEXT)
        kind = f"{sound_format} files" if sound_format not in FORMATS else f"{sound_format} files of {subtype} samples"
        raise opened.error(f"{kind} are not read: convert it to wav or flac, e.g. with ffmpeg or sox")
    _check_held(opened, num_samples / max(1, sample_rate))
    if num_samples >= UNKNOWN_SAMPLES:
        if sound_format == "FLAC" and (track := _track_header(opened)) is not None:  # counts its frames
            return track
        raise opened.error(f"{NO_LENGTH} (a stream?): {CONVERT}")
    if num_samples > 0 and sound_format == "MP3":
        known = _mp3_samples(opened, sample_rate, num_samples)
        if known is None and (track := _track_header(opened)) is not None:
            return track
        num_samples = num_samples if known is None else known
    if num_samples <= 0:
        raise opened.error("holds no samples")
    if sound_format == "FLAC":
        if (track := _cut_flac(opened, sample_rate, num_samples)) is not None:
            return track
    else:
        _check_bytes(opened, num_samples / sample_rate)
    if opened.ogg is not None:
        if opened.ogg.rate > 0:  # libsndfile may have stopped early, at a damaged page
            _check_length(opened, opened.ogg.min_samples / opened.ogg.rate, num_samples / sample_rate)
        is_cut = opened.ogg.samples_too_many > MISSING_TOLERANCE_S * sample_rate
        if is_cut and (track := _track_header(opened)) is not None:
            return track
    return Header(sample_rate, channels, num_samples, subtype == "PCM_16", layout)


def _cut_flac(opened: _Opened, sample_rate: int, num_samples: int) -> Header | None:
    """Check a FLAC file. Read the header of one cut out of another, whose length it still has; None for others."""
    length_s = num_samples / sample_rate
    with whole_content(opened.file) as data:
        is_possible = num_samples <= MAX_FLAC_SAMPLES_A_BYTE * opened.num_bytes
        is_whole = is_possible and flac_ends_at(data, num_samples)
        is_cut = is_possible and is_cut_out(data, num_samples, is_whole)
    if is_cut and (track := _track_header(opened)) is not None:
        held_s = track.num_samples / track.sample_rate
        return track._replace(notes=(f"header promises {length_s:.2f} s, file holds {held_s:.2f} s of whole frames",))
    if not is_whole:
        problem = f"damaged, truncated or several in one: it does not end after the {length_s:.2f} s of its header"
        raise opened.error(f"{problem}: {CONVERT}")
    return None


def _check_bytes(opened: _Opened, length_s: float) -> None:
    if length_s > opened.num_bytes / MIN_BYTES_A_SECOND:
        problem = f"damaged: its header promises {length_s:.0f} s, which {opened.num_bytes} bytes cannot hold"
        raise opened.error(problem)


def _check_length(opened: _Opened, promised_s: float, held_s: float) -> None:
    if (problem := missing_problem(promised_s, held_s)) is not None:
        raise opened.error(problem)


def _check_held(opened: _Opened, length_s: float = 0.0) -> None:
    """Check that a file holds the samples that it promises, and no other file behind them.

    Args:
        opened: The file.
        length_s: The length of the audio in it, if its header does not say it; 0 if it is unknown. A header that is wrong by a
            few samples then, as some writers leave it, is an error too.
    """
    if opened.size is None:
        return
    if opened.size.is_joined:
        raise opened.error(JOINED)
    promised, held, held_s = opened.size.promised_bytes, opened.size.held_bytes, opened.size.held_s or length_s
    if promised <= held or (held_s > 0 and held_s * (promised / held - 1) <= MISSING_TOLERANCE_S):
        return
    if held == 0 or held_s == 0:
        raise opened.error(f"truncated: header promises {promised:,} bytes of samples, file holds {held:,}")
    lengths = f"header promises {held_s * promised / held:.2f} s, file holds {held_s:.2f} s"
    raise opened.error(f"truncated: {lengths} ({promised:,} and {held:,} bytes)")


def _mp3_samples(opened: _Opened, sample_rate: int, num_samples: int) -> int | None:
    """libsndfile's number, or the true one if that was a guess beyond the end.

    None: the file holds more (several in one, or a guess that is too small), or its sample rate changes. libsndfile reads no
    further than its number, and to the first change.
    """
    with whole_content(opened.file) as data:
        try:
            length = mp3_length_s(data)
        except RateChanges:
            return None
    if length is None:
        return num_samples
    (held_s, is_stated), length_s = length, num_samples / sample_rate
    if held_s - length_s > max(MISSING_TOLERANCE_S, GUESS_TOLERANCE * held_s):
        return None
    if is_stated:
        _check_length(opened, length_s, held_s)
        return num_samples
    return min(num_samples, round(held_s * sample_rate))


def _unreadable_message(error: soundfile.SoundFileError, opened: _Opened) -> str:
    path, code = opened.source.path, getattr(error, "code", None)
    sample_type = None if opened.size is None else opened.size.sample_type
    if sample_type is not None and sample_type not in SAMPLE_TYPES:
        kind = f"{sample_type:#06x}"
        return f"a WAV file of samples of type {kind}, which neither libsndfile nor FFmpeg decodes: {CONVERT}"
    if path.endswith("/") and is_url(path):
        return "not audio; a web server lists no folders: name its files, or a manifest of their URLs"
    if code in (1, 7):  # "Format not recognised", and mpg123's failures under a misleading name
        if is_plain_text(opened.head):
            is_given_content = isinstance(opened.medium, EncodedBytes | FileObject) and path != STDIN
            return TEXT + (_CONTENT_HINT if is_given_content else "" if extension(path) else _LIST_HINT)
        if (problem := archive_problem(opened.head)) is not None:
            return problem
        opened.file.seek(0)
        begin = opened.file.read(_JUNK_BYTES)
        at = max(begin.find(b"OggS\0\2"), begin.find(b'fLaC\0\0\0"'))
        if at > 0:
            return f"{at:,} bytes of something else stand before its recording: cut them off, e.g. tail -c +{at + 1} IN > OUT"
        return "not audio, or in a format that neither libsndfile nor FFmpeg reads"
    return f"cannot be opened, damaged or unsupported (libsndfile: {getattr(error, 'error_string', error)})"
