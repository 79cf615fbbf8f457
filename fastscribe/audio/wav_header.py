"""Compare the length that a WAV header promises with what the file holds.

libsndfile silently shortens a truncated WAV to the bytes present, and a longer file to the size that its header gives. A
transcript that silently ends early would be the worst kind of failure. Samples are never read here.
"""

from __future__ import annotations

import struct
from typing import BinaryIO, NamedTuple

STREAMED_BYTES = 0x7FFF0000  # writers into a pipe store 0, 0x7ffff000, 0xffffffff or the like as the size
PADDING_BYTES = 1 << 16  # this many zeros are padding, whatever follows them; fewer may be a pause between words
TAGS = (b"ID3", b"TAG")
MAX_CHUNKS = 1000  # before the data chunk


class WavLengths(NamedTuple):
    promised_bytes: int
    held_bytes: int
    byte_rate: int
    has_more_samples: bool  # data follow that are no chunk, tag or padding
    size_includes_header: bool  # the size field holds the file's size; the samples end where the file ends

    @property
    def promised_s(self) -> float:
        return self.promised_bytes / self.byte_rate

    @property
    def held_s(self) -> float:
        return self.held_bytes / self.byte_rate

    @property
    def is_truncated(self) -> bool:
        return self.held_bytes < self.promised_bytes and not self.size_includes_header


def wav_lengths(file: BinaryIO, num_bytes: int) -> WavLengths | None:
    """Read the promised and the actual length; None for other formats and missing sizes.

    Args:
        file: the file, open at any position.
        num_bytes: its size.
    """
    file.seek(0)
    try:
        sizes = _data_sizes(file)
    except struct.error:  # the file ends within its header; opening it reports why
        return None
    if sizes is None:
        return None
    byte_rate, promised_bytes = sizes
    begin = file.tell()
    held_bytes = max(0, num_bytes - begin)
    file.seek(min(begin + promised_bytes, begin + held_bytes))
    has_more_samples = not _is_trailing_data(file.read(PADDING_BYTES), held_bytes - promised_bytes)
    includes_header = promised_bytes in (num_bytes, num_bytes - 8)
    return WavLengths(promised_bytes, held_bytes, byte_rate, has_more_samples, includes_header)


def _is_trailing_data(behind: bytes, num_bytes: int) -> bool:
    """True if a chunk, a tag or padding follows the samples. A chunk may stand after the byte that makes a size even.
    Padding repeats one byte, with or without a chunk or a tag after it. `behind` holds the first of `num_bytes`."""
    for at in (0, 1):
        chunk_bytes = 8 + int.from_bytes(behind[at + 4 : at + 8], "little")
        if num_bytes - at - chunk_bytes in (0, 1):  # ends with the file, whatever its name is
            return True
    rest = behind.lstrip(b"\0\xff")
    is_padding = len(rest) < 4 or not behind.strip(behind[:1])
    return is_padding or rest.startswith(TAGS) or any(is_chunk_name(name) for name in (rest[:4], behind[1:5]))


def is_chunk_name(four: bytes) -> bool:
    """Return True if the four bytes can be a chunk's name."""
    return four.isascii() and four.decode("ascii").isprintable()


def _data_sizes(file: BinaryIO) -> tuple[int, int] | None:
    """(bytes a second, promised bytes), with `file` left at the first byte of the data."""
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
