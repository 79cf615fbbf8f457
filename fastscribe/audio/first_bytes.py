"""How files begin: those of a format that is read, those that libsndfile reads, and text. Pure."""

from __future__ import annotations

import codecs
import re

HEAD_BYTES = 16  # enough to tell a format

# With a byte that no path begins with: WAV and AVI, FLAC, AIFF, CAF, Ogg, AU, W64, SPHERE, ID3 tags (MP3), MP4 and QuickTime,
# Matroska and WebM, AMR, ASF (WMA), FLV, MPEG, APE, WavPack, TTA, Musepack, RealMedia, MXF, DV, GXF.
_CERTAIN = re.compile(
    rb"(RIF[FX]|RF64|BW64).{4}(WAVE|AVI )|fLaC[\0\x80]|FORM.{4}AIF|caff\0|OggS\0|\.snd\0|dns\..{3}\0|riff\x2e\x91"
    rb"|NIST_1A\n|ID3[\x02-\x04]|\0.{3}(ftyp|styp|moov|moof|mdat|wide|free|skip|pnot)|\x1aE\xdf\xa3|#!AMR(-WB)?(_MC1\.0)?\n"
    rb"|\x30\x26\xb2\x75|FLV\x01|\0\0\x01[\xb3\xba]|MAC .\x0f|wvpk.{3}\0|TTA1[\x01\x02]\0|MPCKSH"
    rb"|MP\+[\x07\x17]|\.RMF\0|\x06\x0e\x2b\x34\x02\x05\x01\x01|\x1f\x07\0[\x3f\xbf]|\0\0\0\0\x01\xbc",
    re.DOTALL,
)
_SYNC = re.compile(rb"\xff[\xe0-\xff]|G[@AP]\0|\x0bw|\x7f\xfe\x80\x01")  # MP3 and ADTS, MPEG-TS, AC-3, DTS
CONTROL = re.compile(rb"[\1-\x08\x0b\x0c\x0e-\x1f\x7f]")  # a NUL may end a path
# MPEG audio has none; a WAV or an Ogg file may hold what libsndfile cannot decode.
LIBSNDFILE_MAGIC = tuple(b"RIFF RIFX RF64 BW64 fLaC FORM caff OggS .snd dns. NIST_1A ID3 riff".split())


def has_known_format(head: bytes) -> bool:
    """Return True if a file begins as those of a format that is read do."""
    return has_certain_format(head) or _SYNC.match(head) is not None


def has_certain_format(head: bytes) -> bool:
    """Return True if it does with more than two bytes or so, with which other data may begin too."""
    return _CERTAIN.match(head) is not None


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
