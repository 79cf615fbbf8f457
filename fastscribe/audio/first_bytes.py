"""How files begin: those of a format that is read, those that libsndfile reads, and text. Pure."""

from __future__ import annotations

import codecs
import re

HEAD_BYTES = 16  # enough to tell a format

# With a byte that no path begins with: WAV and AVI, FLAC, AIFF, CAF, Ogg, AU, W64, SPHERE, MP3 and ADTS, MP4
# and QuickTime, Matroska and WebM, AMR, ASF (WMA), FLV, MPEG, AC-3, DTS, APE, WavPack, TTA, Musepack, RealMedia.
_AUDIO = re.compile(
    rb"(RIF[FX]|RF64|BW64).{4}(WAVE|AVI )|fLaC[\0\x80]|FORM.{4}AIF|caff\0|OggS\0|\.snd\0|dns\..{3}\0|riff\x2e\x91"
    rb"|NIST_1A\n|ID3[\2-\4]|\xff[\xe0-\xff]|\0.{3}(ftyp|moov|mdat|wide|free|skip)|\x1aE\xdf\xa3|#!AMR(-WB)?(_MC1\.0)?\n"
    rb"|\x30\x26\xb2\x75|FLV\1|\0\0\1[\xb3\xba]|G[@AP]\0|\x0bw|\x7f\xfe\x80\1|MAC .\x0f|wvpk.{3}\0|TTA1[\1\2]\0|MPCKSH"
    rb"|MP\+[\7\x17]|\.RMF\0",
    re.DOTALL,
)
CONTROL = re.compile(rb"[\1-\x08\x0b\x0c\x0e-\x1f\x7f]")  # a NUL may end a path
# MPEG audio has none; a WAV or an Ogg file may hold what libsndfile cannot decode.
LIBSNDFILE_MAGIC = (
    b"RIFF",
    b"RIFX",
    b"RF64",
    b"BW64",
    b"fLaC",
    b"FORM",
    b"caff",
    b"OggS",
    b".snd",
    b"dns.",
    b"NIST_1A",
    b"ID3",
    b"riff",
)


def has_known_format(head: bytes) -> bool:
    """Return True if a file begins as those of a format that is read do."""
    return _AUDIO.match(head) is not None


def is_for_libsndfile(head: bytes) -> bool:
    """Return True if a file begins like a format that libsndfile reads, which is faster and checks more than FFmpeg."""
    is_mpeg_audio = head[:1] == b"\xff" and len(head) > 1 and head[1] & 0xE0 == 0xE0 and head[1] & 0x06 != 0
    return is_mpeg_audio or head.startswith(LIBSNDFILE_MAGIC)  # other bytes of this kind begin ADTS


def is_text(head: bytes) -> bool:
    """Return True if a file begins with printable text in UTF-8; the last character may be cut."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return b"\0" not in head and CONTROL.search(head) is None
