"""Skip the tags that may stand before and behind a recording's samples: ID3 and APE. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastscribe.audio.media import Content

ID3V1_BYTES = 128


def after_tags(data: Content, at: int) -> int:
    """Return the offset after the ID3 and APE tags at `at`."""
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
