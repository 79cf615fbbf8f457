"""Tell FLAC that was cut out of a longer file: its frames are whole, but are not those that its header promises."""

from __future__ import annotations

from itertools import islice

from fastscribe.audio.flac_frames import MAGIC, after_blocks, find_repeated_start, markers, valid_header
from fastscribe.audio.media import Content
from fastscribe.audio.tags import after_tags

_MAX_LAST_MARKERS = 200  # among which the last frame is


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
        if last is not None and _checksum_16(data[at : len(data)]) == 0:
            return first.start < last.start and (first.start > 0 or last.end < num_samples)
    return False


def _checksum_16(frame: bytes) -> int:
    """Return the CRC-16 (polynomial 0x8005) of a frame; with its last two bytes included it comes to 0."""
    value = 0
    for byte in frame:
        value ^= byte << 8
        for _ in range(8):
            value = (value << 1 ^ (0x18005 if value & 0x8000 else 0)) & 0xFFFF
    return value
