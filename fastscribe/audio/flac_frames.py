"""Whether a FLAC file ends where its header says: every frame tells its place, and so the last one tells the length.

libsndfile reads as many samples as the header gives and no more, and memory is planned by that number, so one flipped bit
there would lose half a recording or ask for a hundred gigabytes. Files joined into one are found out, too: their frames
begin at 0 again, though their header may be the only one (ffmpeg leaves the others out).
RFC 9639, section 9.1; nothing is decoded.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from fastscribe.audio.mp3_header import after_tags

TAIL_BYTES = 1 << 14  # the last frame begins in here, unless it is a very large one
HEADER_BYTES = 16  # no frame's is longer
BLOCK_SIZES = {
    **{1: 192},
    **{code: 576 << code - 2 for code in range(2, 6)},
    **{code: 256 << code - 8 for code in range(8, 16)},
}
_SIZE_BYTES = {6: 1, 7: 2}  # block sizes that stand behind the number
_RATE_BYTES = {12: 1, 13: 2, 14: 2}  # sample rates that stand behind that
_FEW_BITS, _MAX_NUMBER_BYTES = 0x80, 7
_MAGIC = b"fLaC"
FIRST_SEARCH_BYTES, MAX_SEARCH_BYTES = 1 << 12, 1 << 20  # at a time, from the end
MAX_MARKERS = 100_000  # looked at; a file with more of them behind its last frame is believed
_SIZES_AND_RATES = bytes(code for code in range(0x10, 0x100) if code & 15 < 15)  # 0 and 15 stand for none
_FRAME = re.compile(rb"\xff[\xf8\xf9][" + re.escape(_SIZES_AND_RATES) + rb"][\x00-\xaf]")


class FrameHeader(NamedTuple):
    start: int  # samples before the frame
    end: int
    length: int  # of the header in bytes, without its checksum


def flac_ends_at(path: str, num_samples: int) -> bool:
    """ends_at() of a whole file, also of one with tags in front, in Ogg pages or with much behind its last frame, and
    whether it is a single one.

    True as well where there is no header to be found, and where frames tell no places. Raises OSError.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        header = data.find(_MAGIC, after_tags(data, 0))
        if header < 0:
            return True
        least_block, block_size = (int.from_bytes(data[header + at : header + at + 2], "big") for at in (8, 10))
        begin = after_blocks(data, header + len(_MAGIC))
        first = _intact_header(data, begin, block_size)
        if first is None:  # in Ogg pages
            return ends_at(num_samples, block_size, data)
        if least_block != block_size:  # counted in blocks of the first frame's size, as libFLAC does
            block_size = first.end - first.start
        again = _begins_again(data, begin, first.length)
        if again >= 0:
            return num_samples > block_size and not _is_counted(data, begin + first.length, again, block_size)
        return ends_at(num_samples, block_size, data)


def ends_at(num_samples: int, block_size: int, data: bytes | mmap.mmap) -> bool:
    """True if a frame in `data`, which should end with the file, ends the recording after `num_samples`.

    `block_size` is that of all frames but the last, where they are counted. Bytes that merely look like a frame have to
    give just that number by chance; those that look like two frames, one after another, their checksums as well.
    """
    next_start, num_markers = -1, 0
    for at in islice(_markers(data), MAX_MARKERS):
        num_markers += 1
        frame = frame_header(data[at : at + HEADER_BYTES], block_size)
        if frame is not None and frame.end == num_samples:
            return data.find(_MAGIC, at) < 0  # else another file begins behind it
        if frame is not None and _is_intact(data[at : at + frame.length + 1]):
            if num_samples == frame.start or next_start == frame.end:  # the last frames are others
                return False
            next_start = frame.start
    return num_markers == MAX_MARKERS


def is_in_place(num_samples: int, parts: int, block_size: int, piece: bytes) -> bool:
    """False if the first frame in `piece`, which should begin one of so many `parts` into all frames, is not about there in
    the recording: such a file may still be whole, with much silence, or several of one length, joined into one."""
    for match in _FRAME.finditer(piece):
        frame = _intact_header(piece, match.start(), block_size)
        if frame is not None:
            return num_samples <= 2 * parts * frame.start <= 3 * num_samples + 2 * parts * block_size
    return True


def _markers(data: bytes | mmap.mmap) -> Iterator[int]:
    """Where a frame may begin, from the last place to the first."""
    end, num_bytes = len(data), FIRST_SEARCH_BYTES
    while end > 0:
        begin = max(0, end - num_bytes)
        piece = data[begin : end + 3]
        if b"\xff\xf8" in piece or b"\xff\xf9" in piece:
            yield from reversed([begin + match.start() for match in _FRAME.finditer(piece)])
        end, num_bytes = begin, min(2 * num_bytes, MAX_SEARCH_BYTES)


def after_blocks(data: bytes | mmap.mmap, at: int) -> int:
    """Behind the metadata blocks that begin at `at`."""
    is_last = False
    while not is_last and at + 4 <= len(data):
        is_last = data[at] >= 0x80
        at += 4 + int.from_bytes(data[at + 1 : at + 4], "big")
    return at


def _begins_again(data: mmap.mmap, begin: int, length: int) -> int:
    """Where a frame's header with the place of the first one, which begins at `begin`, stands again; -1 for nowhere."""
    first, at = data[begin : begin + length], begin
    while (at := data.find(first[:3], at + 1)) >= 0:  # the next four bits may differ: how channels are coded
        head = data[at : at + length + 1]
        if head[4:length] == first[4:] and not (head[3] ^ first[3]) & 15 and _is_intact(head):
            return at
    return -1


def _is_counted(data: mmap.mmap, begin: int, end: int, block_size: int) -> bool:
    """Whether a frame between the two has another place than 0; some recorders number all of them so."""
    frames = (_intact_header(data, begin + match.start(), block_size) for match in _FRAME.finditer(data[begin:end]))
    return any(frame is not None and frame.start > 0 for frame in frames)


def _intact_header(data: bytes | mmap.mmap, at: int, block_size: int) -> FrameHeader | None:
    frame = frame_header(data[at : at + HEADER_BYTES], block_size)
    return frame if frame is not None and _is_intact(data[at : at + frame.length + 1]) else None


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
    if not 2 <= length <= _MAX_NUMBER_BYTES or any(byte >> 6 != 2 for byte in following):
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
