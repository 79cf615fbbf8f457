"""Read the header of a FLAC file, and check that it ends where that says. Every frame holds its position, so the last one
gives the length.

Of a plain file a few bytes say all, in less time than libsndfile takes to open it; all others are None there, and are decoded
to be counted (unusual_header.py). libsndfile reads exactly as many samples as the header gives, and memory is planned by that
number: one flipped bit there would lose half a recording or ask for a hundred gigabytes. The check also detects concatenated
files: their frames begin at 0 again, even if only the first file has a header (ffmpeg drops the others).
RFC 9639, section 9.1; nothing is decoded.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import BinaryIO, NamedTuple

from fastscribe.audio.header import PLAIN_CHANNELS, Header

# A plain file's frames are checked at each 1/parts of the file; only seven joined recordings of one length would pass.
_PARTS = (2, 3)
_TAIL_BYTES = 1 << 14  # the last frame begins within these, unless it is very large
HEADER_BYTES = 16  # the longest frame header
BLOCK_SIZES = {
    **{1: 192},
    **{code: 576 << code - 2 for code in range(2, 6)},
    **{code: 256 << code - 8 for code in range(8, 16)},
}
_SIZE_BYTES = {6: 1, 7: 2}  # block sizes stored after the frame number
_RATE_BYTES = {12: 1, 13: 2, 14: 2}  # sample rates stored after the block size
_FEW_BITS, _MAX_NUMBER_BYTES = 0x80, 7
MAGIC = b"fLaC"
_SIZES_AND_RATES = bytes(code for code in range(0x10, 0x100) if code & 15 < 15)  # 0 and 15 are reserved
_FRAME = re.compile(rb"\xff[\xf8\xf9][" + re.escape(_SIZES_AND_RATES) + rb"][\x00-\xaf]")


class FrameHeader(NamedTuple):
    start: int  # samples before the frame
    end: int
    length: int  # header bytes without the checksum


def plain_header(head: bytes, file: BinaryIO, num_bytes: int) -> Header | None:
    """Read a plain header; None if libsndfile has to decide. Raises OSError if the file cannot be read.

    The STREAMINFO block comes first (RFC 9639, section 8.2). It is verified with the last frame and others.

    Args:
        head: its first bytes, which begin with MAGIC.
        file: the file, open at any position.
        num_bytes: its size.
    """
    block_type, block_bytes = head[4:5], int.from_bytes(head[5:8], "big")
    if block_type not in (b"\x00", b"\x80") or block_bytes != 34 or len(head) < 42:
        return None
    packed = int.from_bytes(head[18:26], "big")
    rate, channels = packed >> 44, (packed >> 41 & 7) + 1
    bits, num_samples = (packed >> 36 & 31) + 1, packed & (1 << 36) - 1
    block_size = int.from_bytes(head[10:12], "big")
    if rate == 0 or num_samples == 0 or bits not in (16, 24) or channels > PLAIN_CHANNELS:
        return None
    first = frame_header(_read_at(file, begin := after_blocks(head, 4), HEADER_BYTES), block_size)
    tail = _read_at(file, max(0, num_bytes - _TAIL_BYTES), _TAIL_BYTES)
    if first is None or first.start or not ends_at(num_samples, block_size, tail):
        return None
    for parts in _PARTS:
        piece = _read_at(file, begin + (num_bytes - begin) // parts, _TAIL_BYTES)
        if not is_position_plausible(num_samples, parts, block_size, piece):
            return None
    return Header(rate, channels, num_samples, bits == 16)


def _read_at(file: BinaryIO, position: int, num_bytes: int) -> bytes:
    file.seek(position)
    return file.read(num_bytes)


def ends_at(num_samples: int, block_size: int, tail: bytes) -> bool:
    """Return True if a frame ends the recording after `num_samples`.

    Args:
        num_samples: the length that the header promises.
        block_size: samples in every frame but the last, if frames are numbered instead of positioned.
        tail: the end of the file.

    A few bytes that look like a frame would have to give exactly that number by chance. For a contradiction, two adjacent
    frames with valid checksums are required.
    """
    next_start = -1
    for match in reversed(list(_FRAME.finditer(tail))):
        frame = frame_header(tail[(at := match.start()) : at + HEADER_BYTES], block_size)
        if frame is not None and frame.end == num_samples:
            return tail.find(MAGIC, at) < 0  # else another file follows
        if frame is not None and _has_valid_checksum(tail[at : at + frame.length + 1]):
            if num_samples == frame.start or next_start == frame.end:  # the last frames end elsewhere
                return False
            next_start = frame.start
    return False


def is_position_plausible(num_samples: int, parts: int, block_size: int, piece: bytes) -> bool:
    """Check the position of the first frame in `piece`, which is read at 1/parts of the frames' bytes.

    Returns:
        False if it is far from 1/parts of the recording. Such a file may hold much silence and be whole, or may be
        several of one length joined into one.
    """
    for match in _FRAME.finditer(piece):
        frame = valid_header(piece, match.start(), block_size)
        if frame is not None:
            return num_samples <= 2 * parts * frame.start <= 3 * num_samples + 2 * parts * block_size
    return True


def after_blocks(data: bytes, at: int) -> int:
    """Return the offset after the metadata blocks that begin at `at`."""
    is_last = False
    while not is_last and at + 4 <= len(data):
        is_last = data[at] >= 0x80
        at += 4 + int.from_bytes(data[at + 1 : at + 4], "big")
    return at


def valid_header(data: bytes, at: int, block_size: int) -> FrameHeader | None:
    frame = frame_header(data[at : at + HEADER_BYTES], block_size)
    return frame if frame is not None and _has_valid_checksum(data[at : at + frame.length + 1]) else None


def frame_header(head: bytes, block_size: int) -> FrameHeader | None:
    """Parse a frame header; None if `head` does not begin with a whole one."""
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
    """(value, bytes) of a number in the UTF-8 scheme extended to 36 bits; (0, 0) if it is invalid."""
    first = head[at]
    if first < _FEW_BITS:
        return first, 1
    length = 8 - (first ^ 0xFF).bit_length()
    following = head[at + 1 : at + length]
    if not 2 <= length <= _MAX_NUMBER_BYTES or any(byte >> 6 != 2 for byte in following):
        return 0, 0
    value = first & 0x7F >> length
    for byte in following:
        value = value << 6 | byte & 0x3F
    return value, length


def _has_valid_checksum(header: bytes) -> bool:
    """Verify the CRC-8 (polynomial 0x07) in the last byte; with that byte included it comes to 0."""
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
