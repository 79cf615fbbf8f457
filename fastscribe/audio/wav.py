"""Read the header of a WAV file, and compare the length that it promises with what the file holds.

Of a plain file a few bytes say all. Opening it with libsndfile takes several times as long, and a run does it for every file.
Anything unusual (another sample type, a missing size, a truncated file, tags in front) is None there, and libsndfile decides;
tests compare the two. libsndfile silently shortens a truncated WAV to the bytes present, and a longer file to the size that its
header gives. A transcript that silently ends early would be the worst kind of failure. Samples are never read here.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import BinaryIO

from fastscribe.audio.first_bytes import after_tags
from fastscribe.audio.formats import MISSING_TOLERANCE_S
from fastscribe.audio.header import PLAIN_CHANNELS, DataSize, Header, Unfinished

STREAMED_BYTES = 0x7FFF0000  # writers into a pipe store 0, 0x7ffff000, 0xffffffff or the like as the size
PADDING_BYTES = 1 << 16  # looked at together behind the samples
TAGS = (b"ID3", b"TAG")
MAX_CHUNKS = 1000  # before the data chunk
MAX_OFFSET = 1 << 62  # in a file
TO_THE_END = "it was read to the end of the file"
UNKNOWN = 0xFFFFFFFF  # what streams store as the size
_TAG_HEAD_BYTES = 10
_MAX_BEHIND_BYTES = 128  # of anything after a plain file's samples; whole chunks may be longer
PCM = 1
# How frames of DTS and of S/PDIF (AC-3) begin, in a WAV file that gives itself as stereo PCM, such as one taken from a DTS CD
_DISGUISED = (b"\xfe\x7f\1\x80", b"\x7f\xfe\x80\1", b"\xff\x1f\0\xe8", b"\x1f\xff\xe8\0", b"\x72\xf8\x1f\x4e")
_CHUNK = struct.Struct("<4sI")
_FORMAT = struct.Struct("<HHIIHH")  # sample type, channels, rate, bytes a second, bytes a frame, bits
# Chunks that writers put behind the samples. One of another name has to end within the file: samples may look like a name.
_CHUNKS = frozenset(
    b"LIST,id3 ,ID3 ,bext,iXML,axml,aXML,_PMX,cue ,fact,plst,smpl,inst,cart,chna,DISP,JUNK,junk,PAD ,FLLR,LGWV,umid".split(
        b","
    )
)
_RIFF_NAMES = (b"RIFF", b"RIFX", b"RF64", b"BW64")
_WAV_START = re.compile(rb"(RIF[FX]|RF64|BW64).{4}WAVE", re.DOTALL)
_JOINED_BYTES = 1 << 20  # behind the samples, in which another file is looked for


def plain_header(head: bytes, file: BinaryIO, num_bytes: int) -> Header | None:
    """Read a plain header; None if libsndfile has to decide. Raises OSError if the file cannot be read.

    Plain are 16-bit integers whose declared size fits in the file and fills it, apart from a few bytes or other chunks.

    Args:
        head: its first bytes, those of a RIFF file of type WAVE.
        file: the file, open at any position.
        num_bytes: its size.
    """
    kind: tuple[int, int] | None = None
    at = 12
    while at + _CHUNK.size <= len(head):
        name, size = _CHUNK.unpack_from(head, at)
        at += _CHUNK.size
        if name == b"data":
            if kind is None or size == 0 or size % (2 * kind[1]):
                return None
            if kind[1] == 2 and may_be_disguised(head):
                return None
            end = at + size
            behind_bytes = num_bytes - end
            if behind_bytes < 0:
                return None
            if behind_bytes > _MAX_BEHIND_BYTES:
                file.seek(end)
                if not is_chunk(file.read(8), behind_bytes) or is_joined(file, end, num_bytes):
                    return None
            return Header(*kind, size // (2 * kind[1]), True)
        if name == b"fmt ":
            if kind is not None:
                return None
            kind = _int16_format(head, at)
            if kind is None:
                return None
        at += size + size % 2
    return None


def may_be_disguised(head: bytes) -> bool:
    """Return True if a WAV file of PCM that begins so may hold frames of DTS or AC-3, which FFmpeg finds out."""
    return any(start in head for start in _DISGUISED)


def _int16_format(head: bytes, at: int) -> tuple[int, int] | None:
    """(rate, channels)"""
    if at + _FORMAT.size > len(head):
        return None
    sample_type, channels, rate, byte_rate, frame_bytes, bits = _FORMAT.unpack_from(head, at)
    consistent = frame_bytes == 2 * channels and byte_rate == rate * frame_bytes
    ordinary = sample_type == PCM and bits == 16 and rate > 0 and 0 < channels <= PLAIN_CHANNELS
    return (rate, channels) if consistent and ordinary else None


def wav_size(head: bytes, file: BinaryIO, num_bytes: int) -> DataSize | None:
    """Read the promised and the actual size; None for other formats and missing sizes.

    Args:
        head: its first bytes.
        file: the file, open at any position.
        num_bytes: its size.

    Raises:
        struct.error: the file ends within its header.
    """
    riff_begin = after_tags(head[:_TAG_HEAD_BYTES], 0)  # libsndfile skips an ID3 tag in front too
    file.seek(riff_begin)
    riff = file.read(12)
    if not is_wav(riff):
        return None
    order = ">" if riff.startswith(b"RIFX") else "<"
    kind, large_bytes, field = None, 0, None
    for name, begin, size in chunks(file, riff_begin + len(riff), struct.Struct(order + "4sI"), alignment=2):
        if name == b"data":
            is_large = size == UNKNOWN and (large_bytes > 0 or riff.startswith((b"RF64", b"BW64")))
            promised = large_bytes if is_large else size
            break
        if name == b"fmt ":
            kind = struct.unpack(order + "H6xI", file.read(12))
        elif name == b"ds64":
            (large_bytes,), field = struct.unpack("<8xQ", file.read(16)), (begin + 8, struct.Struct("<Q"))
    else:
        return None
    if kind is None or promised >= (MAX_OFFSET if is_large else STREAMED_BYTES):
        return None
    size_at, form = field if is_large and field is not None else (begin - 4, struct.Struct(order + "I"))
    held = max(0, num_bytes - begin)
    file.seek(begin + min(promised, held))
    has_more = not _is_trailing_data(file, held - promised)
    is_several = is_joined(file, begin + promised, num_bytes)
    sample_type, byte_rate = kind  # 0: not stated, as by FFmpeg for MP3 samples
    given_s, held_s = (count / byte_rate if byte_rate else 0.0 for count in (promised, held))
    if promised in (
        num_bytes - riff_begin,
        num_bytes - riff_begin - 8,
    ):  # the file's size; the samples end where it ends
        return DataSize(min(promised, held), held, is_several, sample_type, held_s)
    is_stated = form.size == 8 or held < STREAMED_BYTES
    is_unfinished = has_more and not is_several
    right = form.pack(held if is_stated else UNKNOWN)
    unfinished = unfinished_of(given_s, held_s, size_at, right) if is_unfinished else None
    return DataSize(promised, held, is_several, sample_type, held_s, unfinished)


def is_wav(head: bytes) -> bool:
    """Return True if a WAV file begins with these bytes, twelve at least."""
    return head.startswith(_RIFF_NAMES) and head[8:12] == b"WAVE"


def is_joined(file: BinaryIO, end: int, num_bytes: int, start: re.Pattern[bytes] = _WAV_START) -> bool:
    """Return True if another file begins where the samples end, or soon behind the chunks that follow them.

    Args:
        file: the file, open at any position.
        end: where the samples end.
        num_bytes: the file's size.
        start: how files of the format begin.
    """
    if end >= num_bytes:  # a damaged size may be beyond what a file can be asked for
        return False
    file.seek(end)
    return start.search(file.read(_JOINED_BYTES)) is not None


def chunks(
    file: BinaryIO, at: int, header: struct.Struct, alignment: int, own_bytes: int = 0
) -> Iterator[tuple[bytes, int, int]]:
    """Yield the name, the offset of the content and its size of each chunk, with the file at the content.

    Args:
        file: the file.
        at: where the first chunk begins.
        header: of a chunk: its name and its size.
        alignment: of the chunks, in bytes.
        own_bytes: of the header that the size counts.

    Raises:
        struct.error: the file ends.
    """
    for _ in range(MAX_CHUNKS):
        if at >= MAX_OFFSET:
            return
        file.seek(at)
        name, size = header.unpack(file.read(header.size))
        at, size = at + header.size, size - own_bytes
        if size < 0:
            return
        yield name, at, size
        at += size + -size % alignment


def unfinished_of(given_s: float, held_s: float, size_at: int, size: bytes) -> Unfinished | None:
    """Return what is wrong with a file whose header gives less than it holds; None if that is little.

    Args:
        given_s: the length that the header gives; 0: none.
        held_s: the length in the file.
        size_at: offset of the field with the size.
        size: its right content.
    """
    if held_s - given_s <= MISSING_TOLERANCE_S:
        return None
    given = f"gives {given_s:.2f} s" if given_s else "leaves its length out"
    return Unfinished(f"its header {given}: {TO_THE_END}", size_at, size)


def _is_trailing_data(file: BinaryIO, num_bytes: int) -> bool:
    """Return True if a chunk, a tag or padding follows the samples, or nothing. `file` stands there, `num_bytes` from its end.

    A chunk may stand after the byte that makes a size even. Padding repeats one byte, and a chunk or a tag may follow it.
    """
    behind, padding = file.read(PADDING_BYTES), b"\0\xff"
    for at in (0, 1):
        chunk_bytes = 8 + int.from_bytes(behind[at + 4 : at + 8], "little")
        if num_bytes - at - chunk_bytes in (0, 1):  # ends with the file, whatever its name is
            return True
    if is_chunk(behind[1:9], num_bytes - 1):
        return True
    while len(behind) == PADDING_BYTES and not behind.strip(behind[:1]):  # samples may follow a long pause
        padding += behind[:1]
        num_bytes -= len(behind)
        behind = file.read(PADDING_BYTES)
    rest = behind.lstrip(padding)
    is_padding = len(rest) < 4 or not behind.strip(behind[:1])
    return is_padding or rest.startswith(TAGS) or is_chunk(rest[:8], num_bytes)


def is_chunk(head: bytes, num_bytes: int) -> bool:
    """Return True if a chunk begins with these eight bytes, `num_bytes` from the file's end."""
    if head[:4] in _CHUNKS:
        return True
    sizes = (int.from_bytes(head[4:8], order) for order in ("little", "big"))
    may_be_name = head[:4].isascii() and head[:4].decode("ascii").isprintable()
    return len(head) >= 8 and may_be_name and any(8 + size <= num_bytes + 1 for size in sizes)
