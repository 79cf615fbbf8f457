"""What libsndfile noticed about a file that it opens all the same: some headers promise more than there is.

Its log is text for people, and may hold a file's own comments: only lines known from truncated files count.
"""

from __future__ import annotations

import re

from fastscribe.audio.wav_header import STREAMED_BYTES

CHUNK_FORMATS = frozenset({"AIFF", "AU", "SVX", "W64"})  # WAV has a check of its own
CHUNK = re.compile(r"^ *(?:BODY|Data Size|SSND|riff) *: (\d+) \(should be (\d+)\)$", re.MULTILINE)
VOC_CUT = re.compile(r"^Seems to be a truncated file\.$", re.MULTILINE)
VOC_CHUNK = re.compile(r"^ *(?:Extended II|Sound Data) *: (\d+)$", re.MULTILINE)
FILE_BYTES = re.compile(r"^Length *: (\d+)$", re.MULTILINE)


def promised_share(sound_format: str, log: str) -> float:
    """How many times the bytes that it holds a file's header promises; 1.0 where nothing is missing or known."""
    if sound_format in CHUNK_FORMATS:
        sizes = [(int(stated), int(held)) for stated, held in CHUNK.findall(log)]
    elif sound_format == "VOC" and VOC_CUT.search(log):
        stated_bytes, file_bytes = VOC_CHUNK.search(log), FILE_BYTES.search(log)
        sizes = [(int(stated_bytes[1]), int(file_bytes[1]))] if stated_bytes and file_bytes else []
    else:
        sizes = []
    return max((stated / held for stated, held in sizes if held and held < stated < STREAMED_BYTES), default=1.0)
