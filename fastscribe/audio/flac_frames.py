"""Whether a FLAC file ends where its header says: every frame tells its place, and so the last one tells the length.

libsndfile reads as many samples as the header gives and no more, and memory is planned by that number, so one flipped bit
there would lose half a recording or ask for a hundred gigabytes. Two files joined into one are found out, too.
RFC 9639, section 9.1; nothing is decoded.
"""

from __future__ import annotations

import mmap
from functools import lru_cache
from typing import NamedTuple

TAIL_BYTES = 1 << 14  # the last frame begins in here, unless it is a very large one
HEADER_BYTES = 16  # no frame's is longer
BLOCK_SIZES = {
    **{1: 192},
    **{code: 576 << code - 2 for code in range(2, 6)},
    **{code: 256 << code - 8 for code in range(8, 16)},
}
_SIZE_BYTES = {6: 1, 7: 2}  # block sizes that stand behind the number
_RATE_BYTES = {12: 1, 13: 2, 14: 2}  # sample rates that stand behind that
_FEW_BITS, _MOST_NUMBER_BYTES = 0x80, 7
_MAGIC = b"fLaC"


class FrameHeader(NamedTuple):
    start: int  # samples before the frame
    end: int
    length: int  # of the header in bytes, without its checksum


def flac_ends_at(path: str, num_samples: int) -> bool:
    """ends_at() of a whole file, also of one with tags in front, in Ogg pages or with much behind its last frame.

    True as well where there is no header to be found. Raises OSError.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        header = data.find(_MAGIC)
        if header < 0:
            return True
        block_size = int.from_bytes(data[header + 10 : header + 12], "big")
        return ends_at(num_samples, block_size, data)


def ends_at(num_samples: int, block_size: int, data: bytes | mmap.mmap) -> bool:
    """True if a frame in `data`, which should end with the file, ends the recording after `num_samples`.

    `block_size` is STREAMINFO's largest. Bytes that merely look like a frame have to give just that number by chance; those
    that look like the next frame, their checksum as well.
    """
    at = len(data)
    while (at := data.rfind(b"\xff", 0, at)) >= 0:
        if data[at + 1 : at + 2] not in (b"\xf8", b"\xf9"):
            continue
        frame = frame_header(data[at : at + HEADER_BYTES], block_size)
        if frame is not None and frame.end == num_samples:
            return data.find(_MAGIC, at) < 0  # else another file begins behind it
        if frame is not None and frame.start == num_samples and _is_intact(data[at : at + frame.length + 1]):
            return False
    return False


def frame_header(head: bytes, block_size: int) -> FrameHeader | None:
    """None where `head` begins with no frame's header, or ends before it does."""
    if len(head) < 6:
        return None
    number, number_bytes = _coded_number(head, 4)
    size_code, at = head[2] >> 4, 4 + number_bytes
    size_bytes = _SIZE_BYTES.get(size_code, 0)
    size = int.from_bytes(head[at : at + size_bytes], "big") + 1 if size_bytes else BLOCK_SIZES.get(size_code, 0)
    if number_bytes == 0 or size == 0:
        return None
    start = number if head[1] & 1 else number * block_size
    return FrameHeader(start, start + size, at + size_bytes + _RATE_BYTES.get(head[2] & 15, 0))


def _coded_number(head: bytes, at: int) -> tuple[int, int]:
    """(value, bytes) of a number coded as UTF-8 codes characters, to 36 bits; no bytes where that is none."""
    first = head[at]
    if first < _FEW_BITS:
        return first, 1
    length = 8 - (first ^ 0xFF).bit_length()
    following = head[at + 1 : at + length]
    if not 2 <= length <= _MOST_NUMBER_BYTES or any(byte >> 6 != 2 for byte in following):
        return 0, 0
    value = first & 0x7F >> length
    for byte in following:
        value = value << 6 | byte & 0x3F
    return value, length


def _is_intact(header: bytes) -> bool:
    """By its checksum, the last byte: CRC-8 with polynomial 0x07, which comes to 0 with itself included."""
    value = 0
    for byte in header:
        value = _checksums()[value ^ byte]
    return value == 0


@lru_cache(maxsize=1)
def _checksums() -> bytes:
    table = bytearray()
    for value in range(256):
        for _ in range(8):
            value = value << 1 ^ (0x107 if value & 0x80 else 0)
        table.append(value)
    return bytes(table)
