"""What a WAV header promises against what the file holds.

libsndfile silently shortens a truncated WAV to the bytes present, and one whose header gives too small a size to that: a
transcript that ends early without a word would be the worst kind of failure. Samples are never read here.
"""

from __future__ import annotations

import os
import struct
from typing import BinaryIO, NamedTuple

STREAMED_BYTES = 0x7FFF0000  # writers into a pipe leave 0, 0x7ffff000, 0xffffffff or so where the size belongs
PADDING_BYTES = 1 << 16  # of zeros are padding, whatever comes behind them; fewer may be a pause between words
TAGS = (b"ID3", b"TAG")
MAX_CHUNKS = 1000  # before the data; more than that is not a header


class WavLengths(NamedTuple):
    promised_bytes: int
    held_bytes: int
    byte_rate: int
    goes_on: bool  # what follows the samples is not another chunk, a tag or padding, and so is more of them
    header_counts: bool  # the writer took the file's size for the samples': they end where the file ends

    @property
    def promised_s(self) -> float:
        return self.promised_bytes / self.byte_rate

    @property
    def held_s(self) -> float:
        return self.held_bytes / self.byte_rate

    @property
    def is_truncated(self) -> bool:
        return self.held_bytes < self.promised_bytes and not self.header_counts


def wav_lengths(path: str) -> WavLengths | None:
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
        file_bytes = os.fstat(file.fileno()).st_size
        held_bytes = max(0, file_bytes - begin)
        file.seek(min(begin + promised_bytes, begin + held_bytes))
        goes_on = not _is_no_audio(file.read(PADDING_BYTES), held_bytes - promised_bytes)
    return WavLengths(promised_bytes, held_bytes, byte_rate, goes_on, promised_bytes in (file_bytes, file_bytes - 8))


def _is_no_audio(behind: bytes, num_bytes: int) -> bool:
    """A chunk, at once or behind the byte that makes a size even; padding of one and the same byte, with a chunk or a tag
    behind it or none. `behind` is the first of `num_bytes`."""
    for at in (0, 1):
        chunk_bytes = 8 + int.from_bytes(behind[at + 4 : at + 8], "little")
        if num_bytes - at - chunk_bytes in (0, 1):  # ends with the file, whatever its name is
            return True
    rest = behind.lstrip(b"\0\xff")
    is_padding = len(rest) < 4 or not behind.strip(behind[:1])
    return is_padding or rest.startswith(TAGS) or any(is_name(name) for name in (rest[:4], behind[1:5]))


def is_name(four: bytes) -> bool:
    """Whether a chunk may be called so."""
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
            is_stated = size < STREAMED_BYTES or (size == 0xFFFFFFFF and large_bytes > 0)
            promised = large_bytes if size == 0xFFFFFFFF else size
            return (byte_rate, promised) if byte_rate and is_stated else None
        if name == b"fmt ":
            (byte_rate,) = struct.unpack(order + "8xI", file.read(12))
        elif name == b"ds64":
            (large_bytes,) = struct.unpack("<8xQ", file.read(16))
        file.seek(begin + size + size % 2)
    return None
