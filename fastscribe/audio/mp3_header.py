"""How long an MP3 is by its frames, where libsndfile has only a count in its first frame or a guess from its size.

A guess fails for a variable bit rate without that count, a count for two files joined into one or one cut short. The
walk looks at the four bytes that head each frame; nothing is decoded. Layers I and II are walked as well.
"""

from __future__ import annotations

import mmap
from functools import lru_cache
from typing import NamedTuple

BIT_RATES = {  # kbit/s by (MPEG 1, layer) and by the header's four bits; 0 (free format) and 15 are left out
    (True, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
RESYNC_BYTES = 1 << 16  # of something else between two frames; what comes after more than that is not looked for
FRAMES_TO_SYNC = 4  # in a row, before three bytes that look like a header are believed
ID3V1_BYTES = 128
FIRST_FRAME_BYTES = 256  # what matters of it

Kind = tuple[float, dict[bytes, int]]  # seconds in a frame; bytes in a frame by the first three bytes of its header


def mp3_length_s(path: str) -> tuple[float, bool] | None:
    """(seconds in its frames, True when its first frame states how many there should be).

    None where libsndfile may be believed: the first frame's count and size fit the file (the usual case, and the rest
    is not walked), or it is not MPEG audio throughout.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        begin = _sync(data, 0)
        if begin is None:
            return None
        frame_s, frame_bytes = _kinds()[data[begin : begin + 3]]
        length = frame_bytes[data[begin : begin + 3]]
        stated = _stated(data[begin : begin + FIRST_FRAME_BYTES])
        if stated is None or stated.num_frames == 0:  # 0: its writer was stopped before it could tell
            held_s = _walk_s(data, begin if stated is None else begin + length)
            return None if held_s is None else (held_s, False)
        next_length = frame_bytes.get(data[begin + length : begin + length + 3])
        lengths = [next_length] if stated.is_constant and next_length else list(frame_bytes.values())
        believable = _frames_that_fill(stated.num_bytes - length, min(lengths) - 1, max(lengths) + 1)
        if 0 <= len(data) - begin - stated.num_bytes <= ID3V1_BYTES and stated.num_frames in believable:
            return None
        held_s = _walk_s(data, begin + length)
        sample_s = frame_s / (1152 if _is_mpeg1(data[begin + 1]) else 576)
        return None if held_s is None else (held_s - stated.trimmed_samples * sample_s, True)


def _walk_s(data: mmap.mmap, begin: int) -> float | None:
    """Seconds in the frames from `begin` on; None when something else takes up more than RESYNC_BYTES."""
    held_s, at, size = 0.0, begin, len(data)
    while at < size:
        found = _sync(data, at)
        if found is None:
            return held_s if size - after_tags(data, at) <= RESYNC_BYTES else None
        frame_s, frame_bytes = _kinds()[data[found : found + 3]]
        num_frames, at = 0, found
        while (length := frame_bytes.get(data[at : at + 3])) and at + length <= size:
            num_frames += 1
            at += length
        held_s += num_frames * frame_s
        if length:  # the last frame is cut short, and not decoded
            return held_s
    return held_s


def _sync(data: mmap.mmap, at: int) -> int | None:
    """The next place where a few frames follow each other, or a last one ends with the file; tags are skipped."""
    at = after_tags(data, at)
    end = min(len(data), at + RESYNC_BYTES)
    while (at := data.find(b"\xff", at, end)) >= 0:
        if _frames_follow(data, at):
            return at
        at += 1
    return None


def _frames_follow(data: mmap.mmap, at: int) -> bool:
    first = at
    for _ in range(FRAMES_TO_SYNC):
        kind = _kinds().get(data[at : at + 3])
        if kind is None:
            break
        at += kind[1][data[at : at + 3]]
    else:
        return True
    return first < at <= len(data) and after_tags(data, at) >= len(data)


def after_tags(data: mmap.mmap, at: int) -> int:
    """Behind the ID3 and APE tags at `at`."""
    while True:
        if data[at : at + 3] == b"ID3" and len(data) - at >= 10:
            a, b, c, d = data[at + 6 : at + 10]
            at += 10 + (a << 21 | b << 14 | c << 7 | d) + (10 if data[at + 5] & 0x10 else 0)
        elif data[at : at + 3] == b"TAG":
            at += ID3V1_BYTES
        elif data[at : at + 8] == b"APETAGEX":
            at += 32 + int.from_bytes(data[at + 12 : at + 16], "little")
        else:
            return at


class _Stated(NamedTuple):
    num_frames: int  # 0 where it does not say
    num_bytes: int  # from it to the end; 0 where it does not say
    trimmed_samples: int  # that are not to be heard
    is_constant: bool  # the bit rate; frames differ by a padding byte only


def _frames_that_fill(num_bytes: int, fewest: int, most: int) -> range:
    """How many frames of such lengths that may be, and a few more or less: some writers count the first, some a tag."""
    return range(num_bytes // most - 2, num_bytes // fewest + 3)


def _stated(frame: bytes) -> _Stated | None:
    """What a Xing or Info frame says; None for audio."""
    mono = frame[3:4] >= b"\xc0"
    begin = 4 + ((17 if mono else 32) if _is_mpeg1(frame[1]) else (9 if mono else 17))
    if frame[begin : begin + 4] not in (b"Xing", b"Info"):
        return None
    flags = int.from_bytes(frame[begin + 4 : begin + 8], "big")
    if not flags & 1:  # says how to seek, but not how long it is
        return None
    num_frames = int.from_bytes(frame[begin + 8 : begin + 12], "big")
    num_bytes = int.from_bytes(frame[begin + 12 : begin + 16], "big") if flags & 2 else 0
    encoder = begin + 12 + 4 * bool(flags & 2) + 100 * bool(flags & 4) + 4 * bool(flags & 8)
    gaps = int.from_bytes(frame[encoder + 21 : encoder + 24], "big") if any(frame[encoder : encoder + 9]) else 0
    is_constant = frame[begin : begin + 4] == b"Info"
    return _Stated(num_frames, num_bytes, (gaps >> 12) + (gaps & 0xFFF), is_constant)


def _is_mpeg1(second_byte: int) -> bool:
    return second_byte >> 3 & 3 == 3


@lru_cache(maxsize=1)
def _kinds() -> dict[bytes, Kind]:
    """By the first three bytes of a header: what frames of its version, layer and rate have in common."""
    kinds: dict[bytes, Kind] = {}
    for version in (0, 2, 3):  # MPEG 2.5, 2, 1
        for layer in (1, 2, 3):
            for rate_index in (0, 1, 2):
                kind = _kind(version, layer, rate_index)
                kinds.update(dict.fromkeys(kind[1], kind))
    return kinds


def _kind(version: int, layer: int, rate_index: int) -> Kind:
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
