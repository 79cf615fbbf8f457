"""Read rate, channels and length of plain WAV and FLAC files from a few of their bytes. Most corpora consist of these.

Opening a file with libsndfile takes several times as long, and a run does it for every file. Anything unusual (another
sample type, a missing size, a truncated file, tags in front) is None here, and libsndfile decides; tests compare the two.
What reads the frames of FLAC files, or looks behind a WAV's samples, is imported when such a file comes.
"""

from __future__ import annotations

import struct
from typing import BinaryIO, NamedTuple

from fastscribe.audio.flac import TAIL_BYTES, after_blocks, ends_at, frame_header, is_position_plausible

HEAD_BYTES = 4096  # other chunks may precede a WAV's samples
MAX_CHANNELS = 2  # of more, libsndfile says what they are for
# A FLAC's frames are checked at each 1/PARTS of the file; only seven joined recordings of one length would pass.
PARTS = (2, 3)
MAX_BEHIND_BYTES = 128  # of anything after a WAV's samples; whole chunks may be longer
PCM = 1
# How frames of DTS and of S/PDIF (AC-3) begin, in a WAV file that gives itself as stereo PCM, such as one taken from a DTS CD
DISGUISED = (b"\xfe\x7f\1\x80", b"\x7f\xfe\x80\1", b"\xff\x1f\0\xe8", b"\x1f\xff\xe8\0", b"\x72\xf8\x1f\x4e")
# AudioInfo's `reading`: the times of a track are counted, and a file holds more samples than its header gives (unfinished.py)
FROM_START, TO_END = "from_start", "to_end"
_CHUNK = struct.Struct("<4sI")
_FORMAT = struct.Struct("<HHIIHH")  # sample type, channels, rate, bytes a second, bytes a frame, bits


class Header(NamedTuple):
    """What the header of a recording says, whatever read it."""

    sample_rate: int
    channels: int
    num_samples: int
    is_int16: bool = False
    layout: tuple[str, ...] | None = None  # as AudioInfo's; None: not stated
    num_tracks: int | None = None  # None: libsndfile reads the file, which has one
    reading: str = ""  # as AudioInfo's, and so is the next
    notes: tuple[str, ...] = ()


def plain_header(file: BinaryIO, num_bytes: int) -> Header | None:
    """Read a plain header; None if libsndfile has to decide. Raises OSError if the file cannot be read.

    Args:
        file: the file, at its beginning.
        num_bytes: its size.
    """
    head = file.read(HEAD_BYTES)
    if head.startswith(b"fLaC"):
        return _flac(head, file, num_bytes)
    return _wav(head, num_bytes, file) if head.startswith(b"RIFF") and head[8:12] == b"WAVE" else None


def _read_at(file: BinaryIO, position: int, num_bytes: int) -> bytes:
    file.seek(position)
    return file.read(num_bytes)


def _wav(head: bytes, num_bytes: int, file: BinaryIO) -> Header | None:
    """Accept 16-bit integers whose declared size fits in the file and fills it, apart from a few bytes or other chunks."""
    kind: tuple[int, int] | None = None
    at = 12
    while at + _CHUNK.size <= len(head):
        name, size = _CHUNK.unpack_from(head, at)
        at += _CHUNK.size
        if name == b"data":
            if kind is None or size == 0 or size % (2 * kind[1]):
                return None
            if kind[1] == 2 and any(start in head for start in DISGUISED):
                return None
            end = at + size
            behind_bytes = num_bytes - end
            if behind_bytes < 0:
                return None
            if behind_bytes > MAX_BEHIND_BYTES and not _are_chunks(file, end, num_bytes):
                return None
            return Header(*kind, size // (2 * kind[1]), True)
        if name == b"fmt ":
            if kind is not None:
                return None
            kind = _int16_format(head, at)
            if kind is None:
                return None
        at += size + size % 2
    return None


def _are_chunks(file: BinaryIO, at: int, num_bytes: int) -> bool:
    """Return True if a chunk begins behind the samples, and no other WAV file."""
    from fastscribe.audio.wav import is_chunk, is_wav_behind

    return is_chunk(_read_at(file, at, 8), num_bytes - at) and not is_wav_behind(file, at, num_bytes)


def _int16_format(head: bytes, at: int) -> tuple[int, int] | None:
    """(rate, channels)"""
    if at + _FORMAT.size > len(head):
        return None
    sample_type, channels, rate, byte_rate, frame_bytes, bits = _FORMAT.unpack_from(head, at)
    consistent = frame_bytes == 2 * channels and byte_rate == rate * frame_bytes
    ordinary = sample_type == PCM and bits == 16 and rate > 0 and 0 < channels <= MAX_CHANNELS
    return (rate, channels) if consistent and ordinary else None


def _flac(head: bytes, file: BinaryIO, num_bytes: int) -> Header | None:
    """Read the STREAMINFO block, which comes first (RFC 9639, section 8.2), and verify it with the last frame and others."""
    block_type, block_bytes = head[4:5], int.from_bytes(head[5:8], "big")
    if block_type not in (b"\x00", b"\x80") or block_bytes != 34 or len(head) < 42:
        return None
    packed = int.from_bytes(head[18:26], "big")
    rate, channels = packed >> 44, (packed >> 41 & 7) + 1
    bits, num_samples = (packed >> 36 & 31) + 1, packed & (1 << 36) - 1
    block_size = int.from_bytes(head[10:12], "big")
    if rate == 0 or num_samples == 0 or bits not in (16, 24) or channels > MAX_CHANNELS:
        return None
    first = frame_header(_read_at(file, begin := after_blocks(head, 4), 16), block_size)
    tail = _read_at(file, max(0, num_bytes - TAIL_BYTES), TAIL_BYTES)
    if first is None or first.start or not ends_at(num_samples, block_size, tail):
        return None
    for parts in PARTS:
        piece = _read_at(file, begin + (num_bytes - begin) // parts, TAIL_BYTES)
        if not is_position_plausible(num_samples, parts, block_size, piece):
            return None
    return Header(rate, channels, num_samples, bits == 16)
