"""Read the header of a FLAC file, and check that it ends where that says. Every frame holds its position, so the last one
gives the length.

Of a plain file a few bytes say all, in less time than libsndfile takes to open it; all others are None there.
libsndfile reads exactly as many samples as the header gives, and memory is planned by that number: one flipped bit there
would lose half a recording or ask for a hundred gigabytes. The check also detects concatenated files: their frames begin
at 0 again, even if only the first file has a header (ffmpeg drops the others). FLAC that was cut out of a longer file is told
from these: its frames are whole, but are not those that its header promises.
RFC 9639, section 9.1; nothing is decoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import BinaryIO, NamedTuple

from fastscribe.audio.first_bytes import after_tags
from fastscribe.audio.header import PLAIN_CHANNELS, Header
from fastscribe.audio.media import Content

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
_CRC_8, _CRC_16 = 0x107, 0x18005  # polynomials of a header's checksum and of a frame's
MAGIC = b"fLaC"
FIRST_SEARCH_BYTES, MAX_SEARCH_BYTES = 1 << 12, 1 << 20  # read at a time, from the end
MAX_MARKERS = 100_000  # checked; a file with more of them after its last frame passes
_SIZES_AND_RATES = bytes(code for code in range(0x10, 0x100) if code & 15 < 15)  # 0 and 15 are reserved
_FRAME = re.compile(rb"\xff[\xf8\xf9][" + re.escape(_SIZES_AND_RATES) + rb"][\x00-\xaf]")
_MAX_LAST_MARKERS = 200  # among which the last frame is


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


def flac_ends_at(data: Content, num_samples: int) -> bool:
    """Return True if the file is a single FLAC stream that ends after `num_samples`.

    Unlike ends_at(), it reads the whole file, so tags in front, Ogg pages and long data after the last frame are no
    obstacle. It also returns True if there is no FLAC header or the frames hold no positions.
    """
    header = data.find(MAGIC, after_tags(data, 0))
    if header < 0:
        return True
    least_block, block_size = (int.from_bytes(data[header + at : header + at + 2], "big") for at in (8, 10))
    begin = after_blocks(data, header + len(MAGIC))
    first = valid_header(data, begin, block_size)
    if first is None:  # in Ogg pages
        return ends_at(num_samples, block_size, data)
    if least_block != block_size:  # frame numbers count blocks of the first frame's size, as in libFLAC
        block_size = first.end - first.start
    again = find_repeated_start(data, begin, first.length)
    if again >= 0:
        return num_samples > block_size and not _has_later_frame(data, begin + first.length, again, block_size)
    return ends_at(num_samples, block_size, data)


def ends_at(num_samples: int, block_size: int, data: Content) -> bool:
    """Return True if a frame in `data` ends the recording after `num_samples`.

    Args:
        num_samples: the length that the header promises.
        block_size: samples in every frame but the last, if frames are numbered instead of positioned.
        data: the end of the file.

    A few bytes that look like a frame would have to give exactly that number by chance. For a contradiction, two adjacent
    frames with valid checksums are required.
    """
    next_start, nummarkers = -1, 0
    for at in islice(markers(data), MAX_MARKERS):
        nummarkers += 1
        frame = frame_header(data[at : at + HEADER_BYTES], block_size)
        if frame is not None and frame.end == num_samples:
            return data.find(MAGIC, at) < 0  # else another file follows
        if frame is not None and _checksum(data[at : at + frame.length + 1], _CRC_8) == 0:
            if num_samples == frame.start or next_start == frame.end:  # the last frames end elsewhere
                return False
            next_start = frame.start
    return nummarkers == MAX_MARKERS


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


def markers(data: Content) -> Iterator[int]:
    """Offsets where a frame may begin, from the last to the first."""
    end, num_bytes = len(data), FIRST_SEARCH_BYTES
    while end > 0:
        begin = max(0, end - num_bytes)
        piece = data[begin : end + 3]
        if b"\xff\xf8" in piece or b"\xff\xf9" in piece:
            yield from reversed([begin + match.start() for match in _FRAME.finditer(piece)])
        end, num_bytes = begin, min(2 * num_bytes, MAX_SEARCH_BYTES)


def after_blocks(data: Content, at: int) -> int:
    """Return the offset after the metadata blocks that begin at `at`."""
    is_last = False
    while not is_last and at + 4 <= len(data):
        is_last = data[at] >= 0x80
        at += 4 + int.from_bytes(data[at + 1 : at + 4], "big")
    return at


def find_repeated_start(data: Content, begin: int, length: int) -> int:
    """Offset where the header of the first frame (at `begin`) occurs again; -1 if it does not."""
    first, at = data[begin : begin + length], begin
    while (at := data.find(first[:3], at + 1)) >= 0:  # the next four bits, the channel coding, may differ
        head = data[at : at + length + 1]
        if head[4:length] == first[4:] and not (head[3] ^ first[3]) & 15 and _checksum(head, _CRC_8) == 0:
            return at
    return -1


def _has_later_frame(data: Content, begin: int, end: int, block_size: int) -> bool:
    """Return True if any frame in the range has another position than 0; some recorders number every frame 0."""
    frames = (valid_header(data, begin + match.start(), block_size) for match in _FRAME.finditer(data[begin:end]))
    return any(frame is not None and frame.start > 0 for frame in frames)


def valid_header(data: Content, at: int, block_size: int) -> FrameHeader | None:
    frame = frame_header(data[at : at + HEADER_BYTES], block_size)
    return frame if frame is not None and _checksum(data[at : at + frame.length + 1], _CRC_8) == 0 else None


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


def _checksum(content: bytes, polynomial: int) -> int:
    """Return the CRC of a frame or its header. With the stored one, which comes last, it is 0."""
    value, bits, table = 0, polynomial.bit_length() - 1, _checksums(polynomial)
    for byte in content:
        value = value << 8 & (1 << bits) - 1 ^ table[value >> bits - 8 ^ byte]
    return value


@cache
def _checksums(polynomial: int) -> list[int]:
    """Return the CRC of each byte."""
    bits, table = polynomial.bit_length() - 1, []
    for value in range(256):
        value <<= bits - 8
        for _ in range(8):
            value = value << 1 ^ (polynomial if value >> bits - 1 else 0)
        table.append(value)
    return table


def is_cut_out(data: Content, num_samples: int, is_whole: bool) -> bool:
    """Return True for one FLAC stream of whole frames that are not those of its header, as `ffmpeg -c copy` cuts them.

    Args:
        data: The file. Nothing but frames may stand behind its header.
        num_samples: What the header promises.
        is_whole: flac_ends_at().
    """
    header = data.find(MAGIC, after_tags(data, 0))
    begin = after_blocks(data, header + len(MAGIC))
    block_size = int.from_bytes(data[header + 10 : header + 12], "big")
    first = valid_header(data, begin, block_size)
    if first is not None and first.start == 0 and is_whole:
        return False
    if (
        header < 0
        or first is None
        or data.find(MAGIC, begin) >= 0
        or find_repeated_start(data, begin, first.length) >= 0
    ):
        return False
    for at in islice(markers(data), _MAX_LAST_MARKERS):
        last = valid_header(data, at, block_size)
        if last is not None and _checksum(data[at : len(data)], _CRC_16) == 0:
            return first.start < last.start and (first.start > 0 or last.end < num_samples)
    return False
