"""Rate, channels and length of plain WAV and FLAC files, which most corpora are made of, from their first and last bytes.

Opening a file with libsndfile to learn these takes several times as long, and a run does it for every file. Whatever is
not quite ordinary (another sample type, a size left out, a file cut short, tags in front) is None here and libsndfile's to
judge; tests compare the two.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from fastscribe.audio.flac_frames import TAIL_BYTES, after_blocks, ends_at, is_in_place
from fastscribe.audio.wav_header import is_name

HEAD_BYTES = 4096  # other chunks may stand before a WAV's samples
MAX_CHANNELS = 8
# A frame is looked at where this part of a FLAC's frames ends: seven recordings of one length, joined, would not show.
PARTS = (2, 3)
MAX_BEHIND_BYTES = 128  # behind a WAV's samples, whatever they are; other chunks may be longer
PCM = 1
_CHUNK = struct.Struct("<4sI")
_FORMAT = struct.Struct("<HHIIHH")  # sample type, channels, rate, bytes a second, bytes a frame, bits


class PlainHeader(NamedTuple):
    sample_rate: int
    channels: int
    num_samples: int
    is_int16: bool


def plain_header(path: str, num_bytes: int) -> PlainHeader | None:
    """`num_bytes` is the file's size. Raises OSError where the file cannot be read."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        head = os.read(descriptor, HEAD_BYTES)
        if head.startswith(b"fLaC"):
            tail = os.pread(descriptor, TAIL_BYTES, max(0, num_bytes - TAIL_BYTES))
            return _flac(head, tail, descriptor, num_bytes)
        return _wav(head, num_bytes, descriptor) if head.startswith(b"RIFF") and head[8:12] == b"WAVE" else None
    finally:
        os.close(descriptor)


def _wav(head: bytes, num_bytes: int, descriptor: int) -> PlainHeader | None:
    """16-bit integers whose declared number lies in the file and fills it, but for a few bytes or other chunks."""
    kind: tuple[int, int] | None = None
    at = 12
    while at + _CHUNK.size <= len(head):
        name, size = _CHUNK.unpack_from(head, at)
        at += _CHUNK.size
        if name == b"data":
            if kind is None or size == 0 or size % (2 * kind[1]):
                return None
            behind_bytes = num_bytes - at - size
            if behind_bytes < 0 or (behind_bytes > MAX_BEHIND_BYTES and not _is_chunk(descriptor, at + size)):
                return None
            return PlainHeader(*kind, size // (2 * kind[1]), True)
        if name == b"fmt ":
            if kind is not None:
                return None
            kind = _int16_format(head, at)
            if kind is None:
                return None
        at += size + size % 2
    return None


def _is_chunk(descriptor: int, at: int) -> bool:
    name = os.pread(descriptor, 4, at)
    return len(name) == 4 and is_name(name)


def _int16_format(head: bytes, at: int) -> tuple[int, int] | None:
    """(rate, channels)"""
    if at + _FORMAT.size > len(head):
        return None
    sample_type, channels, rate, byte_rate, frame_bytes, bits = _FORMAT.unpack_from(head, at)
    consistent = frame_bytes == 2 * channels and byte_rate == rate * frame_bytes
    ordinary = sample_type == PCM and bits == 16 and rate > 0 and 0 < channels <= MAX_CHANNELS
    return (rate, channels) if consistent and ordinary else None


def _flac(head: bytes, tail: bytes, descriptor: int, num_bytes: int) -> PlainHeader | None:
    """From the STREAMINFO block, which comes first (RFC 9639, section 8.2), if the last frame and others bear it out."""
    block_type, block_bytes = head[4:5], int.from_bytes(head[5:8], "big")
    if block_type not in (b"\x00", b"\x80") or block_bytes != 34 or len(head) < 42:
        return None
    packed = int.from_bytes(head[18:26], "big")
    rate, channels = packed >> 44, (packed >> 41 & 7) + 1
    bits, num_samples = (packed >> 36 & 31) + 1, packed & (1 << 36) - 1
    if rate == 0 or num_samples == 0 or bits not in (16, 24):
        return None
    block_size = int.from_bytes(head[10:12], "big")
    if not ends_at(num_samples, block_size, tail):
        return None
    begin = after_blocks(head, 4)
    for parts in PARTS:
        piece = os.pread(descriptor, TAIL_BYTES, begin + (num_bytes - begin) // parts)
        if not is_in_place(num_samples, parts, block_size, piece):
            return None
    return PlainHeader(rate, channels, num_samples, bits == 16)
