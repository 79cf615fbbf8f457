"""What a WAV header promises against what the file holds.

libsndfile silently shortens a truncated WAV to the bytes present, and one whose header gives too small a size to that: a
transcript that ends early without a word would be the worst kind of failure. Samples are never read here.
"""

from __future__ import annotations

import os
import struct
from typing import BinaryIO, NamedTuple

STREAMED_BYTES = 0x7FFF0000  # writers into a pipe leave 0, 0x7ffff000, 0xffffffff or so where the size belongs
PADDING_BYTES = 1 << 16  # of zeros behind the samples are padding; fewer may be a pause between words
MAX_CHUNKS = 1000  # before the data; more than that is not a header


class WavLengths(NamedTuple):
    promised_s: float
    held_s: float
    goes_on: bool  # what follows the samples is not another chunk, a tag or padding, and so is more of them


def wav_lengths_s(path: str) -> WavLengths | None:
    """What the header promises and what the file holds; None for other formats and unstated sizes."""
    with open(path, "rb") as file:
        try:
            sizes = _data_sizes(file)
        except struct.error:  # shorter than its own header; opening it will say what is wrong
            return None
        if sizes is None:
            return None
        byte_rate, promised_bytes = sizes
        begin = file.tell()
        held_bytes = os.fstat(file.fileno()).st_size - begin
        file.seek(min(begin + promised_bytes, begin + held_bytes))
        goes_on = not _is_no_audio(file.read(PADDING_BYTES))
    return WavLengths(promised_bytes / byte_rate, held_bytes / byte_rate, goes_on)


def _is_no_audio(behind: bytes) -> bool:
    """The name of a chunk, at once or behind the byte that makes a size even, or of a tag; nothing but zeros."""
    return not any(behind) or any(_is_name(name) for name in (behind[:4], behind[1:5]))


def _is_name(four: bytes) -> bool:
    return four.isascii() and four.decode("ascii").isprintable()


def _data_sizes(file: BinaryIO) -> tuple[int, int] | None:
    """(bytes a second, bytes promised) with `file` left at the first byte of the data."""
    magic, kind = struct.unpack("<4s4x4s", file.read(12))
    if magic not in (b"RIFF", b"RIFX", b"RF64", b"BW64") or kind != b"WAVE":
        return None
    order = ">" if magic == b"RIFX" else "<"
    byte_rate, large_bytes = 0, 0
    for _ in range(MAX_CHUNKS):
        name, size = struct.unpack(order + "4sI", file.read(8))
        begin = file.tell()
        if name == b"data":
            promised = large_bytes if size == 0xFFFFFFFF else size if size < STREAMED_BYTES else 0
            return (byte_rate, promised) if byte_rate and promised else None
        if name == b"fmt ":
            (byte_rate,) = struct.unpack(order + "8xI", file.read(12))
        elif name == b"ds64":
            (large_bytes,) = struct.unpack("<8xQ", file.read(16))
        file.seek(begin + size + size % 2)
    return None
