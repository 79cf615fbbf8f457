"""Read WAV, RF64 and AU files whose writer never filled in the size of the samples, as when a recorder's power fails.

The size is 0, or one of an earlier moment with more samples behind it. libsndfile reads as much as the size says, so it gets
the right one. What follows the samples of a finished file (chunks, tags, padding) is no sound.
"""

from __future__ import annotations

import os
import struct
from typing import BinaryIO, NamedTuple, TypeAlias, cast

from fastscribe.audio.data_size import data_size
from fastscribe.audio.formats import MISSING_TOLERANCE_S
from fastscribe.audio.media import FileRange
from fastscribe.audio.sound import SoundObject
from fastscribe.audio.wav import STREAMED_BYTES, wav_lengths
from fastscribe.types import Medium

TO_THE_END = "it was read to the end of the file"
_AU = (b".snd", b"dns.")
_AU_BYTES = {1: 1, 2: 1, 3: 2, 4: 3, 5: 4, 6: 4, 7: 8, 27: 1}  # in a sample, by the header's encoding
_STARTS = (b"RIFF", b"RIFX", b"RF64", b"BW64", b"ID3", b"TAG", b"APETAGEX", *_AU)
_UNKNOWN = 0xFFFFFFFF  # what streams store as the size


class Unfinished(NamedTuple):
    note: str
    size_at: int  # offset of the field with the size
    size: bytes  # what it should be


def unfinished(file: BinaryIO, num_bytes: int) -> Unfinished | None:
    """Return what is wrong with a file that holds more samples than its header gives; None for all others.

    Args:
        file: The file, open at any position.
        num_bytes: Its size.

    Raises:
        OSError: The file cannot be read.
    """
    file.seek(0)
    head = file.read(24)
    if not head.startswith(_STARTS):
        return None
    found = _unfinished_au(head, file, num_bytes) if head.startswith(_AU) else _unfinished_wav(file, num_bytes)
    if found is None:
        return None
    given_s, held_s, size_at, size = found
    if held_s - given_s <= MISSING_TOLERANCE_S:
        return None
    given = f"gives {given_s:.2f} s" if given_s else "leaves its length out"
    return Unfinished(f"its header {given}: {TO_THE_END}", size_at, size)


# Seconds that the header gives, seconds in the file, offset of the size, what it should be
_Found: TypeAlias = tuple[float, float, int, bytes]


def _unfinished_wav(file: BinaryIO, num_bytes: int) -> _Found | None:
    lengths = wav_lengths(file, num_bytes)
    if lengths is None or lengths.is_joined or lengths.size_includes_header or not lengths.has_more_samples:
        return None
    is_stated = lengths.size_field.size == 8 or lengths.held_bytes < STREAMED_BYTES
    size = lengths.size_field.pack(lengths.held_bytes if is_stated else _UNKNOWN)
    return lengths.promised_s, lengths.held_s, lengths.size_at, size


def _unfinished_au(head: bytes, file: BinaryIO, num_bytes: int) -> _Found | None:
    """Whatever follows an AU file's stated samples is sound: it has no chunks."""
    order = ">" if head.startswith(b".snd") else "<"
    begin, given, encoding, rate, channels = struct.unpack(order + "4x5I", head.ljust(24, b"\0"))
    size = data_size(file, num_bytes)
    byte_rate = _AU_BYTES.get(encoding, 0) * rate * channels
    if byte_rate == 0 or (size is None and given) or (size is not None and size.is_joined):
        return None
    return given / byte_rate, max(0, num_bytes - begin) / byte_rate, 8, struct.pack(order + "I", _UNKNOWN)


class RepairedFile(FileRange):
    """An open file with the right size in its header. It closes the file.

    Raises:
        OSError: The file cannot be read.
    """

    def __init__(self, file: BinaryIO) -> None:
        num_bytes = file.seek(0, os.SEEK_END)
        super().__init__(file, 0, num_bytes)
        found = unfinished(file, num_bytes)
        self._at, self._field = (found.size_at, found.size) if found is not None else (0, b"")

    def read_at(self, position: int, buffer: memoryview) -> int:
        num_bytes = super().read_at(position, buffer)
        for at, byte in enumerate(self._field, start=self._at - position):
            if 0 <= at < num_bytes:
                buffer[at] = byte
        return num_bytes


def open_to_end(medium: Medium) -> SoundObject:
    """Open such a file with libsndfile. Raises SoundFileError, and OSError if the bytes cannot be read."""
    return SoundObject(cast(BinaryIO, RepairedFile(medium.open())))
