"""A recording on stdin: `curl ... | fastscribe transcribe -`. It is kept in memory as it arrives, because reading seeks."""

from __future__ import annotations

import codecs
import hashlib
import itertools
import re
from collections.abc import Iterable

from fastscribe.audio.failures import input_failure
from fastscribe.audio.media import EncodedBytes
from fastscribe.types import Failure, Source

STDIN = "-"
MAX_BYTES = 1 << 30  # 9 hours of 16-bit mono at 16 kHz, 18 hours of MP3 at 128 kbit/s
HEAD_BYTES = 16  # enough to tell a format

# How files begin, with a byte that no path begins with: WAV and AVI, FLAC, AIFF, CAF, Ogg, AU, W64, SPHERE, MP3 and ADTS, MP4
# and QuickTime, Matroska and WebM, AMR, ASF (WMA), FLV, MPEG, AC-3, DTS, APE, WavPack, TTA, Musepack, RealMedia.
_AUDIO = re.compile(
    rb"(RIF[FX]|RF64|BW64).{4}(WAVE|AVI )|fLaC[\0\x80]|FORM.{4}AIF|caff\0|OggS\0|\.snd\0|dns\..{3}\0|riff\x2e\x91"
    rb"|NIST_1A\n|ID3[\2-\4]|\xff[\xe0-\xff]|\0.{3}(ftyp|moov|mdat|wide|free|skip)|\x1aE\xdf\xa3|#!AMR(-WB)?(_MC1\.0)?\n"
    rb"|\x30\x26\xb2\x75|FLV\1|\0\0\1[\xb3\xba]|G[@AP]\0|\x0bw|\x7f\xfe\x80\1|MAC .\x0f|wvpk.{3}\0|TTA1[\1\2]\0|MPCKSH"
    rb"|MP\+[\7\x17]|\.RMF\0",
    re.DOTALL,
)
_CONTROL = re.compile(rb"[\1-\x08\x0b\x0c\x0e-\x1f\x7f]")  # a NUL may end a path


def has_known_format(head: bytes) -> bool:
    """Return True if a file begins as those of a format that is read do."""
    return _AUDIO.match(head) is not None


def is_audio(head: bytes) -> bool:
    """Return True if a stream begins like a recording, or at least not like a list of paths."""
    return has_known_format(head) or _CONTROL.search(head) is not None


def is_text(head: bytes) -> bool:
    """Return True if a file begins with printable text in UTF-8; the last character may be cut."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return b"\0" not in head and _CONTROL.search(head) is None


def split_head(blocks: Iterable[bytes]) -> tuple[bytes, Iterable[bytes]]:
    """Read until the kind of a stream is clear, and no further: a list may be typed.

    Returns:
        What was read, and all blocks of the stream.
    """
    rest, head = iter(blocks), b""
    for block in rest:
        head += block
        if len(head) >= HEAD_BYTES or b"\n" in head:
            break
    return head, itertools.chain([head], rest)


def recording(blocks: Iterable[bytes]) -> Source | Failure:
    """Return the recording that a stream holds. Its content gives its id and its key in a journal.

    So a second recording from stdin is another input, and the same one again is done already.
    """
    kept, num_bytes = [], 0
    for block in blocks:
        kept.append(block)
        num_bytes += len(block)
        if num_bytes > MAX_BYTES:
            return input_failure(
                STDIN, f"holds more than {MAX_BYTES >> 30} GiB, the most that stdin may: save it to a file"
            )
    content = b"".join(kept)
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    return Source(path=STDIN, file=EncodedBytes(content, f"stdin:{digest}"), id=f"stdin-{digest[:8]}")
