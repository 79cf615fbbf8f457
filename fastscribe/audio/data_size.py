"""Compare what a header promises with the bytes in the file: AIFF, ASF, AU, AVI, CAF, W64, NIST SPHERE, MP4, Matroska.

libsndfile and FFmpeg read what is left of a truncated file without an error. Samples are never read here. WAV has its own
module (wav.py), and so have FLAC, MP3 and Ogg, whose headers have no such number. containers.py checks other containers, and
those below once more, by their packets.

Of MP4 and MOV (ISO/IEC 14496-12), FFmpeg makes an entry in memory for every sample that a table counts. A table of samples
that are all of one size needs no bytes for each of them, so a file of a kilobyte could take gigabytes. Of two files that were
joined, FFmpeg reads the first. The size of Matroska's segment (RFC 8794, RFC 9559) says what its stated duration does not:
writers count that from 0 or from the first packet, and round it.

The writer of some WAV, RF64 and AU files never filled in the size, as when a recorder's power fails: it is 0, or one of an
earlier moment with more samples behind it. libsndfile reads as much as the size says, so it gets the right one. What follows
the samples of a finished file (chunks, tags, padding) is no sound.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import BinaryIO

from fastscribe.audio.header import HEAD_BYTES, DataSize, Unfinished
from fastscribe.audio.media import FileRange
from fastscribe.audio.wav import (
    MAX_OFFSET,
    STREAMED_BYTES,
    UNKNOWN,
    chunks,
    is_joined,
    is_wav,
    unfinished_of,
    wav_size,
)

_W64_RIFF = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00"
_ASF_HEADER = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
_ASF_DATA = bytes.fromhex("3626b2758e66cf11a6d900aa0062ce6c")
_NIST_FIELD = re.compile(rb"^(channel_count|sample_count|sample_n_bytes) -\w+ (\d{1,18})\s*$", re.MULTILINE)
_NIST_HEADER_BYTES = 1 << 16  # the largest header accepted; 1,024 is usual
_FIRST_BOXES = frozenset((b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot"))
# Kinds of samples of audio tracks that are encrypted (ISO/IEC 23001-7; the others as FFmpeg's mov demuxer has them)
_PROTECTIONS = {b"enca": "Common Encryption", b"drms": "Apple's FairPlay", b"aavd": "Audible"}
_PARENTS = frozenset((b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf"))
_MAX_DEPTH = 8
_MAX_BOXES = 2_000_000  # seven for each fragment of a second would be 79 hours
_TRUN_FIELDS = 0xF00  # flags of a trun box: it has a duration, size, flags or time offset for each sample
_EBML, _SEGMENT = b"\x1aE\xdf\xa3", b"\x18S\x80g"
_AU = (b".snd", b"dns.")
_STARTS = tuple(
    re.compile(start, re.DOTALL) for start in (rb"\.snd\0\0[\0-\3].", rb"caff\0\x01\0", re.escape(_ASF_HEADER))
)
_AU_BYTES = {1: 1, 2: 1, 3: 2, 4: 3, 5: 4, 6: 4, 7: 8, 27: 1}  # in a sample, by the header's encoding


def data_size(head: bytes, file: BinaryIO, num_bytes: int) -> DataSize | None:
    """Read the size that the header promises and the size of what follows it.

    Args:
        head: its first bytes.
        file: the file, open at any position.
        num_bytes: its size.

    Returns:
        None for other formats and for headers without a size.

    Raises:
        OSError: the file cannot be read.
    """
    read_span = next((read for start, read in _SPANS.items() if head.startswith(start)), None)
    try:
        if read_span is None or is_wav(head):
            return wav_size(head, file, num_bytes)
        span = read_span(file)
    except struct.error:  # the file ends within its header; opening it reports why
        return None
    if span is None:
        return None
    begin, promised = span
    held = max(0, num_bytes - begin)
    # libsndfile and FFmpeg report joined AIFF files, and read all samples of the others.
    start = next((start for start in _STARTS if start.match(head)), None)
    is_several = start is not None and promised > 0 and is_joined(file, begin + promised, num_bytes, start)
    unfinished = _unfinished_au(head, promised, held) if head.startswith(_AU) and not is_several else None
    return DataSize(promised, held, is_several, unfinished=unfinished) if promised or unfinished is not None else None


_Span = tuple[int, int]  # offset of the samples, and the number of bytes that the header promises


def _chunk(
    file: BinaryIO, begin: int, header: str, wanted: bytes, alignment: int, largest: int, own_bytes: int = 0
) -> _Span | None:
    """Find the chunk with the samples. Arguments are those of chunks(); a larger size than `largest` is none."""
    found = chunks(file, begin, struct.Struct(header), alignment, own_bytes)
    at, size = next(((at, size) for name, at, size in found if name == wanted), (0, 0))
    return (at, size) if 0 < size < largest else None


def _w64(file: BinaryIO) -> _Span | None:
    """A chunk's size counts its own header of 24 bytes."""
    file.seek(24)
    is_wave = file.read(4) == b"wave"
    return _chunk(file, 40, "<4s12xQ", b"data", alignment=8, largest=MAX_OFFSET, own_bytes=24) if is_wave else None


def _au(file: BinaryIO) -> _Span | None:
    file.seek(0)
    order = ">" if file.read(4) == b".snd" else "<"
    begin, size = struct.unpack(order + "II", file.read(8))
    return (begin, size) if size < STREAMED_BYTES else None


def _avi(file: BinaryIO) -> _Span | None:
    file.seek(4)
    (size,) = struct.unpack("<I", file.read(4))
    return (8, size) if file.read(4) == b"AVI " and size < STREAMED_BYTES else None


def _asf(file: BinaryIO) -> _Span | None:
    """The data object follows the header object; the size of either counts its own 24 bytes."""
    file.seek(16)
    (begin,) = struct.unpack("<Q", file.read(8))
    if begin >= MAX_OFFSET:
        return None
    file.seek(begin)
    name, size = struct.unpack("<16sQ", file.read(24))
    return (begin, size) if name == _ASF_DATA and 24 < size < MAX_OFFSET else None


def _nist(file: BinaryIO) -> _Span | None:
    """The header is text; its second line is its own length."""
    file.seek(8)
    length = file.read(8).strip()
    if not length.isdigit() or int(length) > _NIST_HEADER_BYTES:
        return None
    file.seek(0)
    header = file.read(int(length))
    fields = {name: int(value) for name, value in _NIST_FIELD.findall(header)}
    if b"sample_count" not in fields or b"shorten" in header:  # compressed samples, which libsndfile does not read
        return None
    frame_bytes = fields.get(b"channel_count", 1) * fields.get(b"sample_n_bytes", 2)
    return int(length), fields[b"sample_count"] * frame_bytes


_SPANS: dict[bytes, Callable[[BinaryIO], _Span | None]] = {
    b"FORM": partial(_chunk, begin=12, header=">4sI", wanted=b"SSND", alignment=2, largest=STREAMED_BYTES),
    b"RIFF": _avi,
    _ASF_HEADER: _asf,
    b"caff": partial(_chunk, begin=8, header=">4sQ", wanted=b"data", alignment=1, largest=MAX_OFFSET),
    _W64_RIFF: _w64,
    b".snd": _au,
    b"dns.": _au,
    b"NIST_1A": _nist,
}


def mp4_problem(file: BinaryIO, num_bytes: int) -> str | None:
    """Return what is wrong with the boxes of an MP4 or MOV file; None for other files, and if nothing is.

    Args:
        file: the file, open at any position.
        num_bytes: its size.

    Raises:
        OSError: the file cannot be read.
    """
    file.seek(4)
    if file.read(4) not in _FIRST_BOXES:
        return None
    num_movies = num_samples = 0
    for num_boxes, (name, begin) in enumerate(_boxes(file, 0, num_bytes)):
        if num_boxes == _MAX_BOXES:
            return f"damaged: it has more than {_MAX_BOXES:,} boxes"
        num_movies += name == b"moov"
        if name == b"stsd" and (protection := _PROTECTIONS.get(_entry(file, begin))):
            return f"is encrypted ({protection}): nothing reads it without its key; give a copy without protection"
        if name in (b"stsz", b"trun"):
            num_samples += _unlisted_samples(file, name, begin)
    if num_movies > 1:
        return "several recordings in one: convert it, e.g. with ffmpeg"
    if num_samples > num_bytes:
        return f"damaged: its tables count {num_samples} samples, which {num_bytes} bytes cannot hold"
    return None


def _boxes(file: BinaryIO, begin: int, end: int, depth: int = 0) -> Iterator[tuple[bytes, int]]:
    """Yield the name and the content's offset of each box, parents before their children."""
    while begin + 8 <= end:
        file.seek(begin)
        head = file.read(16)
        if len(head) < 8:
            return
        size, name = struct.unpack_from(">I4s", head)
        content = begin + 8
        if size == 1 and len(head) == 16:
            (size,) = struct.unpack_from(">Q", head, 8)
            content = begin + 16
        box_end = end if size == 0 else min(begin + size, end)
        if box_end < content:
            return
        yield name, content
        if name in _PARENTS and depth < _MAX_DEPTH:
            yield from _boxes(file, content, box_end, depth + 1)
        begin = box_end


def _entry(file: BinaryIO, begin: int) -> bytes:
    """Return the kind of the first entry of the table at `begin`, which describes a track's samples."""
    file.seek(begin + 12)
    return file.read(4)


def _unlisted_samples(file: BinaryIO, name: bytes, begin: int) -> int:
    """Return how many samples the box at `begin` counts without a byte for each of them."""
    file.seek(begin)
    content = file.read(12)
    if len(content) < 12:
        return 0
    flags, first, second = struct.unpack(">III", content)
    if name == b"stsz":  # `first` is the size of every sample; 0: a table follows
        return int(second) if first else 0
    return 0 if flags & _TRUN_FIELDS else int(first)


def is_whole_matroska(file: BinaryIO, num_bytes: int) -> bool:
    """Return True for a Matroska or WebM file whose segment states a size that the file holds.

    Args:
        file: The file, open at any position.
        num_bytes: Its size.

    Raises:
        OSError: The file cannot be read.
    """
    file.seek(0)
    head = file.read(HEAD_BYTES)
    at = head.find(_SEGMENT) + len(_SEGMENT)
    if not head.startswith(_EBML) or at < len(_SEGMENT) or at == len(head):
        return False
    size_bytes = 9 - head[at].bit_length()
    unknown = (1 << 7 * size_bytes) - 1
    size = int.from_bytes(head[at : at + size_bytes], "big") & unknown
    return size != unknown and at + size_bytes + size <= num_bytes


def _unfinished_au(head: bytes, given: int, held: int) -> Unfinished | None:
    """Whatever follows an AU file's stated samples is sound: it has no chunks."""
    order = ">" if head.startswith(b".snd") else "<"
    encoding, rate, channels = struct.unpack_from(order + "12x3I", head.ljust(24, b"\0"))
    byte_rate = _AU_BYTES.get(encoding, 0) * rate * channels
    if byte_rate == 0:
        return None
    return unfinished_of(given / byte_rate, held / byte_rate, 8, struct.pack(order + "I", UNKNOWN))


class RepairedFile(FileRange):
    """An open file with the right size in its header. It closes the file.

    Raises:
        OSError: The file cannot be read.
    """

    def __init__(self, file: BinaryIO) -> None:
        num_bytes = file.seek(0, os.SEEK_END)
        super().__init__(file, 0, num_bytes)
        file.seek(0)
        head = file.read(HEAD_BYTES)
        size = data_size(head, file, num_bytes)
        found = None if size is None else size.unfinished
        self._at, self._field = (found.size_at, found.size) if found is not None else (0, b"")

    def read_at(self, position: int, buffer: memoryview) -> int:
        num_bytes = super().read_at(position, buffer)
        for at, byte in enumerate(self._field, start=self._at - position):
            if 0 <= at < num_bytes:
                buffer[at] = byte
        return num_bytes
