"""Whether an Ogg file is one recording to its end: libsndfile reads the first of several, and takes a cut one for whole.

Looks at the pages at either end of the file only (RFC 3533). The end-of-stream flag says nothing: Android's recorder and
some messengers leave it out of good files.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

PAGE_HEADER = struct.Struct("<4sBB8xI8xB")  # magic, version 0, flags, serial number, number of segments
HEAD_BYTES = 1 << 12  # the pages that streams begin with are small
TAIL_BYTES = 1 << 17  # two of the largest pages
FIRST_PAGE_FLAG = 2


class OggEnd(NamedTuple):
    complete: bool  # False: the last page says that it is longer than what is left of the file
    chained: bool  # True: the last page belongs to a stream that began later than the file


class _Page(NamedTuple):
    flags: int
    serial: int
    end: int


def ogg_end(path: str) -> OggEnd | None:
    """None for other formats, and when no page is found at the end."""
    with open(path, "rb") as file:
        head = file.read(HEAD_BYTES)
        if not head.startswith(b"OggS"):
            return None
        size = os.fstat(file.fileno()).st_size
        tail_begin = max(0, size - TAIL_BYTES)
        file.seek(tail_begin)
        tail = file.read(TAIL_BYTES)
    last = _last_page(tail)
    if last is None:
        return None
    return OggEnd(complete=tail_begin + last.end <= size, chained=last.serial not in _first_serials(head))


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
        return _Page(0, serial, at + PAGE_HEADER.size)
    _, _, flags, serial, num_segments = PAGE_HEADER.unpack(header)
    table = data[at + PAGE_HEADER.size : at + PAGE_HEADER.size + num_segments]
    return _Page(flags, serial, at + PAGE_HEADER.size + num_segments + sum(table))
