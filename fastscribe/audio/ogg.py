"""Check that an Ogg file is one whole recording: libsndfile reads only the first of several and accepts a truncated one.

The check reads the pages at both ends of the file only (RFC 3533), because libsndfile takes the length from them. A page
missing in between is found when the samples are read. The end-of-stream flag proves nothing: Android's recorder and some
messengers omit it from good files.

Two kinds of whole files are found by their packets: Opus of which some are missing, and Vorbis that was cut out of a longer
file. Its first page holds more samples than its position says: libsndfile decodes all of that page, and leaves out as much at
the file's end. ogg_links.py reads several recordings in one file.
"""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from fastscribe.audio.header import CONVERT, MIN_BYTES_A_SECOND

if TYPE_CHECKING:
    from fastscribe.audio.media import Content

PAGE_HEADER = struct.Struct("<4sBBqI8xB")  # magic, version 0, flags, position, serial number, number of segments
HEAD_BYTES = 1 << 17  # header pages are small, the first with audio is at most 65 kB
LONG_HEAD_BYTES = 1 << 24  # for a file with pictures in its comments
TAIL_BYTES = 1 << 17  # room for two pages of maximum size
FIRST_PAGE_FLAG, LAST_PAGE_FLAG = 2, 4
FIRST_PAGE = b"OggS\0\2"
CHECKSUM = slice(22, 26)
FIRST_PAGE_BYTES = 100
OPUS_RATE = 48_000  # positions count at this rate, whatever the recording's own
_FULL_SEGMENT = 255  # bytes; the packet goes on in the next segment
_OPUS_HEADERS = 2  # packets
_LEAST_GAP = 480  # samples; rounding is less, and a lost packet is more
TRAILING_TAGS = (b"TAG", b"ID3", b"APETAGEX", b"LYRICSBEGIN")  # tags that may follow the last page
_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_VORBIS_SIZES_AT = 28  # in the identification header; in samples of a channel
_VORBIS_HEADERS = 3  # packets
_MODE_BITS, _COUNT_BITS, _MAX_MODES = 41, 6, 64


class OggFile(NamedTuple):
    begins: list[int]  # where the recordings in it begin; of several, all else is left open
    problem: str | None = None  # what is wrong with its first or last pages
    min_samples: int = 0  # samples after the first page with audio, at `rate`; 0: unknown
    rate: int = 0  # samples a second of the positions; 0: unknown
    has_gaps: bool = False  # in Opus: its clock is more than its packets, which libsndfile takes for the length alone
    samples_too_many: int = 0  # of Vorbis that was cut out, whose end libsndfile would leave out


class _Page(NamedTuple):
    flags: int
    position: int  # samples up to the page's end; 0 in headers, -1 if no packet ends in it
    serial: int
    begin: int
    packets_begin: int
    end: int


def examine(data: Content) -> OggFile | None:
    """Examine both ends of an Ogg file, and look for several recordings and gaps; None if no page is found at the end."""
    head = data[:HEAD_BYTES]
    first, is_broken = _first_with_audio(head)
    if first is None and not is_broken and len(head) < len(data):
        head = data[:LONG_HEAD_BYTES]
        first, is_broken = _first_with_audio(head)
    tail_begin = max(0, len(data) - TAIL_BYTES)
    tail = data[tail_begin:]
    last = _last_page(tail)
    if last is None:
        return None
    begins = _link_begins(data)
    if len(begins) > 1:
        return OggFile(begins)
    has_no_audio = first is None and len(head) >= len(data)
    if tail_begin + last.end > len(data):
        return OggFile(begins, "truncated: ends in the middle of an Ogg page")
    if last.serial not in _first_serials(head):
        parts = "several recordings in one, of which the first page of one is not whole"
        return OggFile(begins, f"damaged: {parts}: {CONVERT}")
    if is_broken or has_no_audio or not _has_intact_end(tail, last):
        return OggFile(begins, "damaged: its first or last Ogg pages are not whole")
    num_samples = last.position - first.position if first is not None and first.serial == last.serial else 0
    num_samples, rate = max(0, num_samples), _rate(head)
    is_possible = num_samples * MIN_BYTES_A_SECOND <= max(1, rate) * len(data)
    return OggFile(
        begins, None, num_samples, rate, is_possible and has_opus_gaps(data), samples_too_many(data[:HEAD_BYTES])
    )


def _link_begins(data: Content) -> list[int]:
    """Return where each of the recordings that follow one another in an Ogg file begins.

    The streams of one recording begin in adjacent pages. A page counts if it is whole.
    """
    begins, at, end = [], -1, -1
    while (at := data.find(FIRST_PAGE, at + 1)) >= 0:
        page = _page(data, at)
        if page is not None and _has_valid_checksum(data, page):
            if at != end:
                begins.append(at)
            end = page.end
    return begins


def may_hold_audio(data: Content, begin: int, end: int) -> bool:
    """Return False if a recording of a chained file surely has headers alone, as where a station changes its titles."""
    first, is_broken = _first_with_audio(data[begin : min(end, begin + HEAD_BYTES)])
    return first is not None or is_broken or end - begin > HEAD_BYTES


def has_opus_gaps(data: Content) -> bool:
    """Return True if Opus packets are missing from a file whose pages are all there, as where a caller is muted.

    A page's position counts the samples up to the end of its packets (RFC 7845), and so do the first bytes of the packets.
    """
    if data[:4] != b"OggS" or data.find(b"OpusHead", 0, FIRST_PAGE_BYTES) < 0:
        return False
    at = number = num_packets = held = last = 0
    serial, rest = int.from_bytes(data[14:18], "little"), b""
    while (page := _page(data, at)) is not None:
        if page.serial == serial:
            if int.from_bytes(data[at + 18 : at + 22], "little") != number:
                return False  # pages are lost
            number += 1
            packets, rest = _packets(data, page, rest, 2)
            held += sum(map(_opus_samples, packets[max(0, _OPUS_HEADERS - num_packets) :]))
            num_packets += len(packets)
            if page.position > 0:
                if page.position - last - held > _LEAST_GAP:
                    return True
                last, held = page.position, 0
        at = page.end
    return False


def _packets(data: Content, page: _Page, rest: bytes, most: int) -> tuple[list[bytes], bytes]:
    """Return the first `most` bytes of each packet that ends in a page, and of one that goes on in the next.

    Args:
        data: The file.
        page: The page.
        rest: The first bytes of the packet that a page before began.
        most: How many are wanted.
    """
    ended, at = list[bytes](), page.packets_begin
    for size in data[page.begin + PAGE_HEADER.size : page.packets_begin]:
        rest += data[at : at + min(size, most - len(rest))]
        at += size
        if size < _FULL_SEGMENT:
            ended.append(rest)
            rest = b""
    return ended, rest


def _opus_samples(head: bytes) -> int:
    """Return the samples at 48,000 Hz in a packet, from its first two bytes (RFC 6716, section 3.1)."""
    if not head:
        return 0
    config, code = head[0] >> 3, head[0] & 3
    silk = (480, 960, 1920, 2880)[config & 3]  # configurations below 12; hybrid below 16, then CELT
    frame = silk if config < 12 else 480 << (config & 1) if config < 16 else 120 << (config & 3)
    return frame * (1, 2, 2, head[1] & 63 if len(head) > 1 else 0)[code]


def _rate(head: bytes) -> int:
    if (at := head.find(b"\x01vorbis", 0, FIRST_PAGE_BYTES)) >= 0:
        return int.from_bytes(head[at + 12 : at + 16], "little")
    return OPUS_RATE if head.find(b"OpusHead", 0, FIRST_PAGE_BYTES) >= 0 else 0


def _first_with_audio(head: bytes) -> tuple[_Page | None, bool]:
    """(the first page in which audio ends, whether anything but a whole page precedes it).

    (None, False): `head` ends too soon.
    """
    at = 0
    while at + PAGE_HEADER.size <= len(head):
        page = _page(head, at)
        if page is not None and page.end > len(head):
            break
        if page is None or not _has_valid_checksum(head, page):
            return None, True
        if page.position > 0:
            return page, False
        at = page.end
    return None, False


def _has_intact_end(tail: bytes, last: _Page) -> bool:
    """Verify the last two pages, and that no part of a third follows."""
    behind, before = tail[last.end :], _last_page(tail[: last.begin])
    if b"OggS" in behind or not (last.flags & LAST_PAGE_FLAG or _is_trailing_data(behind)):
        return False
    return _has_valid_checksum(tail, last) and (
        before is None or (before.end == last.begin and _has_valid_checksum(tail, before))
    )


def _is_trailing_data(behind: bytes) -> bool:
    """True for the end of the file, a tag, padding of one byte value (or zeros before anything else), and less than a page
    header that is not the start of one."""
    if b"OggS".startswith(behind):
        return not behind
    is_padding = behind[:1] == b"\0" or not behind.strip(behind[:1])
    return is_padding or behind.startswith(TRAILING_TAGS) or len(behind) < PAGE_HEADER.size


def _first_serials(head: bytes) -> set[int]:
    """Serial numbers of the streams that begin at the file's start: one, unless they are interleaved."""
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


def _page(data: Content, at: int) -> _Page | None:
    """Parse the page at `at`, even if the file ends within it; None if no page begins there."""
    header = data[at : at + PAGE_HEADER.size]
    if not header.startswith(b"OggS") or any(header[4:5]):
        return None
    if len(header) < PAGE_HEADER.size:
        serial = int.from_bytes(header[14:18], "little")
        return _Page(0, -1, serial, at, at + PAGE_HEADER.size, at + PAGE_HEADER.size)
    _, _, flags, position, serial, num_segments = PAGE_HEADER.unpack(header)
    begin = at + PAGE_HEADER.size + num_segments
    return _Page(flags, position, serial, at, begin, begin + sum(data[at + PAGE_HEADER.size : begin]))


def _has_valid_checksum(data: Content, where: _Page) -> bool:
    page = data[where.begin : where.end]
    return page[CHECKSUM] == checksum(page).to_bytes(4, "little")


def checksum(page: bytes) -> int:
    """Return the CRC-32 of a whole page.

    Unlike zlib's, it reverses the bits of each byte and of the result, and has no complement at either end.
    """
    blank = page[: CHECKSUM.start] + bytes(4) + page[CHECKSUM.stop :]
    mirrored = zlib.crc32(blank.translate(_MIRRORED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{mirrored:032b}"[::-1], 2)


def samples_too_many(head: bytes) -> int:
    """Return how many samples the first page with audio holds beyond its position; 0 or less for a file that was not cut.

    Args:
        head: The first bytes of a Vorbis file, with that page. 0 is returned without it, and for other codecs.
    """
    at = head.find(b"\x01vorbis", 0, FIRST_PAGE_BYTES) + _VORBIS_SIZES_AT
    if at < _VORBIS_SIZES_AT or len(head) <= at:
        return 0
    sizes = 1 << (head[at] & 15), 1 << (head[at] >> 4)
    begin, packets, rest = 0, list[bytes](), b""
    while len(packets) <= _VORBIS_HEADERS and (page := _page(head, begin)) is not None:
        ended, rest = _packets(head, page, rest, len(head))
        if page.end > len(head) or page.flags & LAST_PAGE_FLAG:  # a last page may hold more than is heard
            break
        if len(packets) == _VORBIS_HEADERS and ended and page.position > 0:
            return _samples(ended, _are_long(packets[-1]), sizes) - page.position
        packets += ended
        begin = page.end
    return 0


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
