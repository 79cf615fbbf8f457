"""Check the boxes of an MP4 or MOV file before FFmpeg's libraries read it.

FFmpeg makes an entry in memory for every sample that a table counts. A table of samples that are all of one size needs no
bytes for each of them, so a file of a kilobyte could take gigabytes. Of two files that were joined, FFmpeg reads the first.
The boxes: ISO/IEC 14496-12.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

_FIRST_BOXES = frozenset((b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot"))
_PARENTS = frozenset((b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf"))
_MAX_DEPTH = 8
_MAX_BOXES = 2_000_000  # seven for each fragment of a second would be 79 hours
_TRUN_FIELDS = 0xF00  # flags of a trun box: it has a duration, size, flags or time offset for each sample


def mp4_problem(file: BinaryIO, num_bytes: int) -> str | None:
    """Return what is wrong with the boxes of an MP4 or MOV file; None for other files, and if nothing is.

    Args:
        file: the file, open at any position.
        num_bytes: its size.

    Raises:
        OSError: the file cannot be read.
    """
    file.seek(4)
    if file.read(4) not in _FIRST_BOXES:
        return None
    num_movies = num_samples = 0
    for num_boxes, (name, begin) in enumerate(_boxes(file, 0, num_bytes)):
        if num_boxes == _MAX_BOXES:
            return f"damaged: it has more than {_MAX_BOXES:,} boxes"
        num_movies += name == b"moov"
        if name in (b"stsz", b"trun"):
            num_samples += _unlisted_samples(file, name, begin)
    if num_movies > 1:
        return "several recordings in one: convert it, e.g. with ffmpeg"
    if num_samples > num_bytes:
        return f"damaged: its tables count {num_samples} samples, which {num_bytes} bytes cannot hold"
    return None


def _boxes(file: BinaryIO, begin: int, end: int, depth: int = 0) -> Iterator[tuple[bytes, int]]:
    """Yield the name and the content's offset of each box, parents before their children."""
    while begin + 8 <= end:
        file.seek(begin)
        head = file.read(16)
        if len(head) < 8:
            return
        size, name = struct.unpack_from(">I4s", head)
        content = begin + 8
        if size == 1 and len(head) == 16:
            (size,) = struct.unpack_from(">Q", head, 8)
            content = begin + 16
        box_end = end if size == 0 else min(begin + size, end)
        if box_end < content:
            return
        yield name, content
        if name in _PARENTS and depth < _MAX_DEPTH:
            yield from _boxes(file, content, box_end, depth + 1)
        begin = box_end


def _unlisted_samples(file: BinaryIO, name: bytes, begin: int) -> int:
    """Return how many samples the box at `begin` counts without a byte for each of them."""
    file.seek(begin)
    content = file.read(12)
    if len(content) < 12:
        return 0
    flags, first, second = struct.unpack(">III", content)
    if name == b"stsz":  # `first` is the size of every sample; 0: a table follows
        return int(second) if first else 0
    return 0 if flags & _TRUN_FIELDS else int(first)
