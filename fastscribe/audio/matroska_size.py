"""Tell whether a Matroska or WebM file holds all bytes of its segment (RFC 8794, RFC 9559).

The segment's size says what the stated duration does not: writers count that from 0 or from the first packet, and round it.
"""

from __future__ import annotations

from typing import BinaryIO

_HEADER, _SEGMENT, _VOID = 0x1A45DFA3, 0x18538067, 0xEC
_MAX_ELEMENTS = 16  # before the segment


def is_whole_matroska(file: BinaryIO, num_bytes: int) -> bool:
    """Return True for a Matroska or WebM file whose segment states a size that the file holds.

    Args:
        file: The file, open at any position.
        num_bytes: Its size.

    Raises:
        OSError: The file cannot be read.
    """
    at = 0
    for number in range(_MAX_ELEMENTS):
        file.seek(at)
        head = file.read(12)
        if not head or (number == 0 and not head.startswith(_HEADER.to_bytes(4, "big"))):
            return False
        id_bytes = 9 - head[0].bit_length()
        name, rest = int.from_bytes(head[:id_bytes], "big"), head[id_bytes:]
        size_bytes = 9 - rest[0].bit_length() if rest else 9
        if size_bytes > 8 or len(rest) < size_bytes:
            return False
        unknown = (1 << 7 * size_bytes) - 1
        size = int.from_bytes(rest[:size_bytes], "big") & unknown
        at += id_bytes + size_bytes + size
        if name == _SEGMENT:
            return size != unknown and at <= num_bytes
        if size == unknown or name not in (_HEADER, _VOID):
            return False
    return False
