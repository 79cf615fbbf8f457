"""How many bytes of samples a header promises, and how many the file holds: AIFF, AU, CAF, W64 and NIST SPHERE.

libsndfile reads what is left of a truncated file and does not say that it ends early. Samples are never read here. WAV has
a file of its own (wav_header.py), and so have FLAC, MP3 and Ogg, whose headers have no such number.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

from fastscribe.audio.wav_header import MAX_CHUNKS, STREAMED_BYTES

_W64_RIFF = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00"
_NIST_FIELD = re.compile(rb"^(channel_count|sample_count|sample_n_bytes) -\w+ (\d{1,18})\s*$", re.MULTILINE)
_NIST_HEADER_BYTES = 1 << 16  # of a header at most; 1,024 is usual


class DataSize(NamedTuple):
    promised_bytes: int
    held_bytes: int

    @property
    def is_truncated(self) -> bool:
        return self.held_bytes < self.promised_bytes


def data_size(path: str) -> DataSize | None:
    """Returns None for other formats and for headers that leave the size out. Raises OSError."""
    with open(path, "rb") as file:
        magic = file.read(16)
        reader = next((reader for start, reader in _READERS.items() if magic.startswith(start)), None)
        if reader is None:
            return None
        try:
            found = reader(file)
        except struct.error:  # the file ends within its header: opening it says what is wrong
            return None
        if found is None:
            return None
        begin, promised_bytes = found
        held_bytes = max(0, os.fstat(file.fileno()).st_size - begin)
    return DataSize(promised_bytes, held_bytes)


Found = tuple[int, int]  # where the samples begin, and how many bytes of them the header promises


def _aiff(file: BinaryIO) -> Found | None:
    return _chunk(file, 12, struct.Struct(">4sI"), b"SSND", alignment=2, largest=STREAMED_BYTES)


def _caf(file: BinaryIO) -> Found | None:
    return _chunk(file, 8, struct.Struct(">4sQ"), b"data", alignment=1, largest=1 << 62)


def _w64(file: BinaryIO) -> Found | None:
    """A chunk's size counts its own header of 24 bytes."""
    file.seek(24)
    if file.read(4) != b"wave":
        return None
    return _chunk(file, 40, struct.Struct("<4s12xQ"), b"data", alignment=8, largest=1 << 62, header_counts=True)


def _chunk(
    file: BinaryIO,
    begin: int,
    header: struct.Struct,
    wanted: bytes,
    *,
    alignment: int,
    largest: int,
    header_counts: bool = False,
) -> Found | None:
    for _ in range(MAX_CHUNKS):
        file.seek(begin)
        name, size = header.unpack(file.read(header.size))
        begin += header.size
        size -= header.size if header_counts else 0
        if size < 0:
            return None
        if name == wanted:
            return (begin, size) if 0 < size < largest else None
        begin += size + -size % alignment
        if begin >= 1 << 62:
            return None
    return None


def _au(file: BinaryIO) -> Found | None:
    file.seek(0)
    order = ">" if file.read(4) == b".snd" else "<"
    begin, size = struct.unpack(order + "II", file.read(8))
    return (begin, size) if 0 < size < STREAMED_BYTES else None


def _nist(file: BinaryIO) -> Found | None:
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


_READERS: dict[bytes, Callable[[BinaryIO], Found | None]] = {
    b"FORM": _aiff,
    b"caff": _caf,
    _W64_RIFF: _w64,
    b".snd": _au,
    b"dns.": _au,
    b"NIST_1A": _nist,
}
