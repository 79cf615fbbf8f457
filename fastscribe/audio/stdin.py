"""A recording on stdin: `curl ... | fastscribe transcribe -`. It is kept in memory as it arrives, because reading seeks."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable

from fastscribe.audio.failures import input_failure
from fastscribe.audio.first_bytes import CONTROL, HEAD_BYTES, has_known_format
from fastscribe.audio.formats import STDIN
from fastscribe.audio.media import EncodedBytes
from fastscribe.types import Failure, Source

MAX_BYTES = 1 << 30  # 9 hours of 16-bit mono at 16 kHz, 18 hours of MP3 at 128 kbit/s


def is_audio(head: bytes) -> bool:
    """Return True if a stream begins like a recording, or at least not like a list of paths."""
    return has_known_format(head) or CONTROL.search(head) is not None


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
