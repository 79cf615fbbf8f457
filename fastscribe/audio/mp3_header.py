"""Measure an MP3 by its frames, because libsndfile has only a count in the first frame or a guess from the file size.

The guess fails for a variable bit rate without that count, and the count for a file that is truncated or joined from two.
The walk reads the four header bytes of each frame; nothing is decoded. It covers layers I and II as well.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from fastscribe.audio.first_bytes import ID3V1_BYTES, after_tags

if TYPE_CHECKING:
    from fastscribe.audio.media import Content

BIT_RATES = {  # kbit/s by (MPEG 1, layer) and by the header's four bits; 0 (free format) and 15 are left out
    (True, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
RESYNC_BYTES = 1 << 16  # of other data between two frames; the walk stops at a longer gap
FRAMES_TO_SYNC = 4  # in a row, before bytes that look like a header count as one
FIRST_FRAME_BYTES = 256  # the part that is parsed


class RateChanges(Exception):
    """The frames of a file have several sample rates."""


Kind = tuple[float, dict[bytes, int]]  # seconds in a frame; bytes in a frame by the first three bytes of its header


def mp3_length_s(data: Content) -> tuple[float, bool] | None:
    """Measure the file if libsndfile's length cannot be trusted.

    Returns:
        (seconds in its frames, True if the first frame states their number). None if libsndfile's length holds: the first
        frame's count and size fit the file (the usual case, which needs no walk), or the file is not MPEG audio throughout.

    Raises:
        RateChanges: the sample rate changes.
    """
    begin = _sync(data, 0)
    if begin is None:
        return None
    frame_s, frame_bytes = _frame_kinds()[data[begin : begin + 3]]
    length = frame_bytes[data[begin : begin + 3]]
    xing = _xing_frame(data[begin : begin + FIRST_FRAME_BYTES])
    if xing is None or xing.num_frames == 0:  # 0: the writer was stopped before it stored the count
        held_s = _walk_s(data, begin if xing is None else begin + length)
        return None if held_s is None else (held_s, False)
    next_length = frame_bytes.get(data[begin + length : begin + length + 3])
    lengths = [next_length] if xing.is_constant and next_length else list(frame_bytes.values())
    rest = xing.num_bytes - length
    # Plus or minus a few frames: some writers count the first one, some a tag.
    plausible = range(rest // (max(lengths) + 1) - 2, rest // (min(lengths) - 1) + 3)
    if 0 <= len(data) - begin - xing.num_bytes <= ID3V1_BYTES and xing.num_frames in plausible:
        return None
    held_s = _walk_s(data, begin + length)
    sample_s = frame_s / (1152 if _is_mpeg1(data[begin + 1]) else 576)
    return None if held_s is None else (held_s - xing.trimmed_samples * sample_s, True)


def _walk_s(data: Content, begin: int) -> float | None:
    """Seconds in the frames from `begin` on; None if other data take up more than RESYNC_BYTES. Raises RateChanges."""
    held_s, at, size = 0.0, begin, len(data)
    kind: Kind | None = None
    while at < size:
        found = _sync(data, at)
        if found is None:
            return held_s if size - after_tags(data, at) <= RESYNC_BYTES else None
        last, kind = kind, _frame_kinds()[data[found : found + 3]]
        if last is not None and last is not kind:
            raise RateChanges
        frame_s, frame_bytes = kind
        num_frames, at = 0, found
        while (length := frame_bytes.get(data[at : at + 3])) and at + length <= size:
            num_frames += 1
            at += length
        held_s += num_frames * frame_s
        if length:  # the last frame is truncated and not decoded
            return held_s
    return held_s


def _sync(data: Content, at: int) -> int | None:
    """Offset of the next run of FRAMES_TO_SYNC frames, or of a frame that ends the file; tags are skipped."""
    at = after_tags(data, at)
    end = min(len(data), at + RESYNC_BYTES)
    while (at := data.find(b"\xff", at, end)) >= 0:
        if _frames_follow(data, at):
            return at
        at += 1
    return None


def _frames_follow(data: Content, at: int) -> bool:
    first = at
    for _ in range(FRAMES_TO_SYNC):
        kind = _frame_kinds().get(data[at : at + 3])
        if kind is None:
            break
        at += kind[1][data[at : at + 3]]
    else:
        return True
    return first < at <= len(data) and after_tags(data, at) >= len(data)


class _XingFrame(NamedTuple):
    num_frames: int  # 0: not stated
    num_bytes: int  # from this frame to the end; 0: not stated
    trimmed_samples: int  # encoder delay and padding, which are not played
    is_constant: bool  # constant bit rate: frames differ by a padding byte only


def _xing_frame(frame: bytes) -> _XingFrame | None:
    """Parse a Xing or Info frame; None for audio."""
    mono = frame[3:4] >= b"\xc0"
    begin = 4 + ((17 if mono else 32) if _is_mpeg1(frame[1]) else (9 if mono else 17))
    if frame[begin : begin + 4] not in (b"Xing", b"Info"):
        return None
    flags = int.from_bytes(frame[begin + 4 : begin + 8], "big")
    if not flags & 1:  # it has a seek table, but no number of frames
        return None
    num_frames = int.from_bytes(frame[begin + 8 : begin + 12], "big")
    num_bytes = int.from_bytes(frame[begin + 12 : begin + 16], "big") if flags & 2 else 0
    encoder = begin + 12 + 4 * bool(flags & 2) + 100 * bool(flags & 4) + 4 * bool(flags & 8)
    gaps = int.from_bytes(frame[encoder + 21 : encoder + 24], "big") if any(frame[encoder : encoder + 9]) else 0
    is_constant = frame[begin : begin + 4] == b"Info"
    return _XingFrame(num_frames, num_bytes, (gaps >> 12) + (gaps & 0xFFF), is_constant)


def _is_mpeg1(second_byte: int) -> bool:
    return second_byte >> 3 & 3 == 3


@lru_cache(maxsize=1)
def _frame_kinds() -> dict[bytes, Kind]:
    """Frame duration and sizes by the first three bytes of a header, for every version, layer and rate."""
    kinds: dict[bytes, Kind] = {}
    for version in (0, 2, 3):  # MPEG 2.5, 2, 1
        for layer in (1, 2, 3):
            for rate_index in (0, 1, 2):
                kind = _frame_kind(version, layer, rate_index)
                kinds.update(dict.fromkeys(kind[1], kind))
    return kinds


def _frame_kind(version: int, layer: int, rate_index: int) -> Kind:
    mpeg1 = version == 3
    rate = (44_100, 48_000, 32_000)[rate_index] // {3: 1, 2: 2, 0: 4}[version]
    samples = 384 if layer == 1 else 1152 if layer == 2 or mpeg1 else 576
    slot_bytes = 4 if layer == 1 else 1
    frame_bytes: dict[bytes, int] = {}
    for index, kilobits in enumerate(BIT_RATES[mpeg1, layer], start=1):
        slots = samples * kilobits * 125 // rate // slot_bytes
        for low_bits in range(8):  # padded, private, not protected
            padded, private, unprotected = low_bits >> 2, low_bits >> 1 & 1, low_bits & 1
            second = 0xE0 | version << 3 | (4 - layer) << 1 | unprotected
            third = index << 4 | rate_index << 2 | padded << 1 | private
            frame_bytes[bytes((0xFF, second, third))] = (slots + padded) * slot_bytes
    return samples / rate, frame_bytes
