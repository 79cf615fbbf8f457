"""Find Vorbis files that were cut out of longer ones: their first page holds more samples than its position says.

libsndfile decodes all of that page, and leaves out as much at the file's end. Pure. Sizes are in samples of a channel.
"""

from __future__ import annotations

from itertools import pairwise

from fastscribe.audio.ogg_pages import FIRST_PAGE_BYTES, LAST_PAGE_FLAG, PAGE_HEADER

_FULL_SEGMENT = 255  # bytes; the packet goes on in the next segment
_SIZES_AT = 28  # in the identification header
_HEADERS = 3  # packets
_MODE_BITS, _COUNT_BITS, _MAX_MODES = 41, 6, 64


def samples_too_many(head: bytes) -> int:
    """Return how many samples the first page with audio holds beyond its position; 0 or less for a file that was not cut.

    Args:
        head: The file's first bytes, with that page. 0 is returned without it, and for other codecs.
    """
    at = head.find(b"\x01vorbis", 0, FIRST_PAGE_BYTES)
    if at < 0 or len(head) <= at + _SIZES_AT:
        return 0
    sizes = 1 << (head[at + _SIZES_AT] & 15), 1 << (head[at + _SIZES_AT] >> 4)
    page_at, packets, rest = 0, list[bytes](), b""
    while head[page_at : page_at + 4] == b"OggS" and page_at + PAGE_HEADER.size <= len(head):
        _, _, flags, position, _, num_segments = PAGE_HEADER.unpack_from(head, page_at)
        begin = page_at + PAGE_HEADER.size + num_segments
        ended, rest, page_at = _packets(head, begin, head[page_at + PAGE_HEADER.size : begin], rest)
        if page_at > len(head) or flags & LAST_PAGE_FLAG:  # a last page may hold more than is heard
            break
        if len(packets) == _HEADERS and ended and position > 0:
            return _samples(ended, _are_long(packets[-1]), sizes) - int(position)
        packets += ended
        if len(packets) > _HEADERS:
            break
    return 0


def _packets(head: bytes, at: int, segments: bytes, rest: bytes) -> tuple[list[bytes], bytes, int]:
    """Return the packets that end in a page, the beginning of one that goes on, and where the page ends."""
    ended = []
    for size in segments:
        rest += head[at : at + size]
        at += size
        if size < _FULL_SEGMENT:
            ended.append(rest)
            rest = b""
    return ended, rest, at


def _are_long(setup: bytes) -> list[bool]:
    """Return which modes of a setup header have long blocks (Vorbis I, section 4.2.4). They stand at its end."""
    bits = int.from_bytes(setup, "little")
    end = bits.bit_length() - 1  # the last set bit frames the header
    found, are_long = list[bool](), list[bool]()
    for number in range(1, _MAX_MODES + 1):
        at = end - number * _MODE_BITS
        mode = bits >> max(0, at) & (1 << _MODE_BITS) - 1
        if at < _COUNT_BITS or mode >> 1 & 0xFFFFFFFF or mode >> 33 > 63:  # window and transform are 0; the mapping
            break
        found.insert(0, bool(mode & 1))
        if (bits >> (at - _COUNT_BITS) & 63) + 1 == number:
            are_long = list(found)
    return are_long


def _samples(packets: list[bytes], are_long: list[bool], sizes: tuple[int, int]) -> int:
    """Return the samples that these packets give from the start on: the first one gives none."""
    mode_bits = max(0, len(are_long) - 1).bit_length()
    blocks = []
    for packet in packets:
        mode = packet[0] >> 1 & (1 << mode_bits) - 1 if packet else len(are_long)
        if mode < len(are_long) and not packet[0] & 1:
            blocks.append(sizes[are_long[mode]])
    return sum((before + after) // 4 for before, after in pairwise(blocks))
