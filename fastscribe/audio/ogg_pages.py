"""Whether an Ogg file is one recording to its end: libsndfile reads the first of several, and takes a cut one for whole.

Looks at the pages at either end of the file only (RFC 3533), since these are what libsndfile learns the length from: a
page missing in between is found when the samples are read. The end-of-stream flag says nothing: Android's recorder and
some messengers leave it out of good files.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import NamedTuple

PAGE_HEADER = struct.Struct("<4sBBqI8xB")  # magic, version 0, flags, position, serial number, number of segments
HEAD_BYTES = 1 << 17  # the pages that streams begin with are small, the first with audio is at most 65 kB
LONG_HEAD_BYTES = 1 << 24  # unless there are pictures among the comments
TAIL_BYTES = 1 << 17  # two of the largest pages
FIRST_PAGE_FLAG, LAST_PAGE_FLAG = 2, 4
CHECKSUM = slice(22, 26)
FIRST_PAGE_BYTES = 100
OPUS_RATE = 48_000  # of positions, whatever the recording's rate was
NO_AUDIO = (b"TAG", b"ID3", b"APETAGEX", b"LYRICSBEGIN")  # what a file may end with behind its last page: tags
_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


class OggEnd(NamedTuple):
    complete: bool  # False: the last page says that it is longer than what is left of the file
    chained: bool  # True: the last page belongs to a stream that began later than the file
    damaged: bool  # True: the first or the last page with audio is no page to libsndfile, and never missed
    least_samples: int  # between the end of the first page with audio and the end, at the rate below; 0 where unknown
    rate: int  # that positions count at; 0 where unknown


class _Page(NamedTuple):
    flags: int
    position: int  # samples up to its end; 0 in headers, -1 where no packet ends
    serial: int
    begin: int
    end: int


def ogg_end(path: str) -> OggEnd | None:
    """None for other formats, and when no page is found at the end."""
    with open(path, "rb") as file:
        head = file.read(HEAD_BYTES)
        if not head.startswith(b"OggS"):
            return None
        size = os.fstat(file.fileno()).st_size
        first, is_broken = _first_with_audio(head)
        if first is None and not is_broken and len(head) < size:
            head += file.read(LONG_HEAD_BYTES - len(head))
            first, is_broken = _first_with_audio(head)
        tail_begin = max(0, size - TAIL_BYTES)
        file.seek(tail_begin)
        tail = file.read(TAIL_BYTES)
    last = _last_page(tail)
    if last is None:
        return None
    complete = tail_begin + last.end <= size
    has_no_audio = first is None and len(head) >= size
    damaged = complete and (is_broken or has_no_audio or not _ends_intact(tail, last))
    least = last.position - first.position if first is not None and first.serial == last.serial else 0
    return OggEnd(complete, last.serial not in _first_serials(head), damaged, max(0, least), _rate(head))


def _rate(head: bytes) -> int:
    if (at := head.find(b"\x01vorbis", 0, FIRST_PAGE_BYTES)) >= 0:
        return int.from_bytes(head[at + 12 : at + 16], "little")
    return OPUS_RATE if head.find(b"OpusHead", 0, FIRST_PAGE_BYTES) >= 0 else 0


def _first_with_audio(head: bytes) -> tuple[_Page | None, bool]:
    """The first page in which audio ends, and whether something else than a whole page comes before it.

    (None, False) where `head` ends before it does.
    """
    at = 0
    while at + PAGE_HEADER.size <= len(head):
        page = _page(head, at)
        if page is not None and page.end > len(head):
            break
        if page is None or not _is_intact(head, page):
            return None, True
        if page.position > 0:
            return page, False
        at = page.end
    return None, False


def _ends_intact(tail: bytes, last: _Page) -> bool:
    """The last two pages, and no remains of a third behind them."""
    behind, before = tail[last.end :], _last_page(tail[: last.begin])
    if b"OggS" in behind or not (last.flags & LAST_PAGE_FLAG or _is_no_audio(behind)):
        return False
    return _is_intact(tail, last) and (before is None or (before.end == last.begin and _is_intact(tail, before)))


def _is_no_audio(behind: bytes) -> bool:
    """Nothing; a tag; padding of one and the same byte (zeros with anything after them, too); less than a page's header,
    unless it is how one begins."""
    if b"OggS".startswith(behind):
        return not behind
    is_padding = behind[:1] == b"\0" or not behind.strip(behind[:1])
    return is_padding or behind.startswith(NO_AUDIO) or len(behind) < PAGE_HEADER.size


def _first_serials(head: bytes) -> set[int]:
    """Of the streams that begin together at the file's beginning: one, unless they are interleaved."""
    serials: set[int] = set()
    page = _page(head, 0)
    while page is not None and (page.flags & FIRST_PAGE_FLAG or not serials):
        serials.add(page.serial)
        page = _page(head, page.end)
    return serials


def _last_page(tail: bytes) -> _Page | None:
    at = tail.rfind(b"OggS")
    while at >= 0:
        page = _page(tail, at)
        if page is not None:
            return page
        at = tail.rfind(b"OggS", 0, at)
    return None


def _page(data: bytes, at: int) -> _Page | None:
    """The page whose header begins at `at`, even where the file ends within it; None when none begins there."""
    header = data[at : at + PAGE_HEADER.size]
    if not header.startswith(b"OggS") or any(header[4:5]):
        return None
    if len(header) < PAGE_HEADER.size:
        serial = int.from_bytes(header[14:18], "little")
        return _Page(0, -1, serial, at, at + PAGE_HEADER.size)
    _, _, flags, position, serial, num_segments = PAGE_HEADER.unpack(header)
    table = data[at + PAGE_HEADER.size : at + PAGE_HEADER.size + num_segments]
    return _Page(flags, position, serial, at, at + PAGE_HEADER.size + num_segments + sum(table))


def _is_intact(data: bytes, where: _Page) -> bool:
    page = data[where.begin : where.end]
    return page[CHECKSUM] == checksum(page).to_bytes(4, "little")


def checksum(page: bytes) -> int:
    """Of a whole page: CRC-32 with the bits of each byte and of the result the other way round than zlib has them, and
    without its complements at the beginning and the end."""
    blank = page[: CHECKSUM.start] + bytes(4) + page[CHECKSUM.stop :]
    mirrored = zlib.crc32(blank.translate(_MIRRORED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{mirrored:032b}"[::-1], 2)
