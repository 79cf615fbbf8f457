"""Tell what a file is from its first bytes: a recording, one that libsndfile reads, text, an archive or a table.

Samples without a header, as telephone systems store them, are known by their names alone. Tags may stand before a recording.
They also tell what else lies in folders: pictures, documents, programs, data, fonts.
"""

from __future__ import annotations

import codecs
import os
import re
import shlex
from typing import TYPE_CHECKING

from fastscribe.audio.formats import extension

if TYPE_CHECKING:
    from fastscribe.audio.media import Content

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
# Archives, tables and compressed files that are given as recordings: what each is, and what to do with it.
TEXT = "is text, not audio"
_UNPACK = "unpack it, and give the folder"
_STARTS = {
    b"PAR1": "is a Parquet table, not audio: in Python, give Transcriber.transcribe the audio of its rows"
    " (datasets.load_dataset), or write their paths to a CSV or JSON lines file",
    b"ARROW1": "is an Arrow table, not audio: in Python, give Transcriber.transcribe the audio of its rows",
    b"PK\3\4": f"is a zip archive, not audio: {_UNPACK} (a spreadsheet: save it as CSV)",
    b"PK\5\6": "is an empty zip archive, not audio",
    b"\x1f\x8b": "is compressed with gzip: unpack it with gunzip; a list may stay so, named as it is otherwise"
    " (.jsonl.gz, .csv.gz)",
    b"BZh": "is compressed with bzip2: unpack it",
    b"\xfd7zXZ\0": "is compressed with xz: unpack it",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd: unpack it",
    b"7z\xbc\xaf\x27\x1c": f"is a 7z archive, not audio: {_UNPACK}",
    b"Rar!": f"is a RAR archive, not audio: {_UNPACK}",
    b"\x89HDF": "is an HDF5 file, not audio: write its recordings to files",
}
_TAR_MAGIC = slice(257, 262)
# Samples without a header are not read, because nothing in them says what they are, and a wrong guess is noise.
_SLN = {f"sln{thousands}": f"-f s16le -ar {rate}" for thousands, rate in ((8, 8000), (12, 12000), (16, 16000), (24, 24000),
        (32, 32000), (44, 44100), (48, 48000), (96, 96000), (192, 192000))}  # fmt: skip
_MULAW, _ALAW = "-f mulaw -ar 8000", "-f alaw -ar 8000"
# What ffmpeg has to be told of each, by extension, to make a WAV file of it
TELEPHONE = {
    **dict.fromkeys(("ulaw", "mulaw", "pcmu"), _MULAW),
    **dict.fromkeys(("alaw", "pcma"), _ALAW),
    **dict.fromkeys(("sln", "slin"), "-f s16le -ar 8000"),
    **_SLN,
    "g722": "-f g722",
    **dict.fromkeys(("g723", "g723_1", "g7231"), "-f g723_1"),
    "g726": "-f g726 -code_size 4",
    **{f"g726-{kbits}": f"-f g726 -code_size {kbits // 8}" for kbits in (16, 24, 32, 40)},
    "g729": "-f g729",
    "gsm": "-f gsm",
    "sbc": "-f sbc",
    "msbc": "-f msbc",
    "vox": "-f u8 -ar 8000 -c:a adpcm_ima_oki",
}
# These may be something else, or have any rate.
_OTHERS = {
    "ul": _MULAW,
    "mu": _MULAW,
    "al": _ALAW,
    **dict.fromkeys(("raw", "pcm", "sw", "s16", "s16le"), "-f s16le -ar 16000"),
}
ID3V1_BYTES = 128
# HEIF, AVIF and raw pictures are MP4s by their structure.
_PICTURE = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n|GIF8[79]a|BM.{4}\0\0\0\0|II[\x2a\x2b\xbc][\0\x01]|MM\0[\x2a\x2b]|RIFF.{4}WEBP|8BPS\0"
    rb"|\0\0[\x01\x02]\0.\0|.{4}ftyp(hei[cmsx]|hev[cx]|mif[12]|msf1|avi[fs]|crx |jxl )|\0\0\0\x0c(JXL |jP  )|\xff\x0a",
    re.DOTALL,
)
# Other pictures, documents, archives and packages, programs, fonts, databases,
# arrays, tables and weights, notes, sound fonts, animations and cursors, DVD menus: some lines each.
_OTHER = re.compile(
    rb"\xff\x4f\xff\x51|v/1\x01|DDS |qoif|gimp xcf|SIMPLE  =|P[1-7]\s|FUJIFILMCCD-RAW|AT&TFORM"
    rb"|%PDF-|%!PS|\xc5\xd0\xd3\xc6|\{\\rtf|\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1|bplist0"
    rb"|PK\x03\x04|PK\x05\x06|PK\x07\x08|\x1f[\x8b\x9d\xa0]|BZh[1-9]|\xfd7zXZ\0|7z\xbc\xaf|Rar!\x1a\x07|\x28\xb5\x2f\xfd|\x04\x22\x4d\x18"
    rb"|LZIP|MSCF\0|xar!|!<arch>\n|.{257}ustar|\xed\xab\xee\xdb|PACK\0|DIRC\0"
    rb"|\x7fELF|MZ.{30}|\xfe\xed\xfa[\xce\xcf]|[\xce\xcf]\xfa\xed\xfe|\xca\xfe\xba\xbe|\0asm\x01|dex\n0|..\r\n\0\0\0\0|BC\xc0\xde|Cr24"
    rb"|\0\x01\0\0\0.\0|OTTO\0|ttcf\0|true\0|wOF[F2]"
    rb"|SQLite format 3\0|\x37\x7f\x06[\x82\x83]|\0\x01\0\0Standard (Jet|ACE) DB|.{16}\xde\xc0\xef\xbe"
    rb"|PAR1|ARROW1|\xff\xff\xff\xff.{3}\0\x10\0|Obj\x01|ORC\n|\x89HDF\r\n|CDF[\x01\x02\x05]|MATLAB |\x93NUMPY|\x80[\x02-\x05]"
    rb'|GGUF|.{8}\{"|\S{1,200} \0B'
    rb"|d8:announce|MThd|RIFF.{4}(RMID|sfbk|DLS |ACON|CDR|PAL )|FORM.{4}(ILBM|XDIR)|DVDVIDEO-",
    re.DOTALL,
)


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


def is_plain_text(head: bytes) -> bool:
    """Return True for text that does not begin like a format that libsndfile reads."""
    return is_text(head) and not head.startswith(LIBSNDFILE_MAGIC)


def archive_problem(head: bytes) -> str | None:
    """Return what is wrong with a file that begins so, if it is an archive, a table or a picture; else None."""
    if _PICTURE.match(head):
        return "is a picture, not audio"
    if head[_TAR_MAGIC] == b"ustar":
        return "is a tar archive, not audio: name it so that it ends in .tar, and it is read"
    return next((problem for start, problem in _STARTS.items() if head.startswith(start)), None)


def headerless_problem(head: bytes, path: str) -> str | None:
    """Return what is wrong with a file that has no header by its name, with the command that helps; None for other files."""
    if has_certain_format(head):
        return None
    kind = extension(path)
    options = TELEPHONE.get(kind)
    guess = _OTHERS.get(kind)
    if options is None and guess is None:
        return None
    if is_plain_text(head):
        return TEXT
    wav = os.path.splitext(os.path.basename(path))[0] + ".wav"
    command = f"ffmpeg {options or guess} -i {shlex.quote(path)} {shlex.quote(wav)}"
    unsure = "" if options else " (with its own sample type and rate)"
    return f"samples without a header are not read: make a WAV file of it: {command}{unsure}"


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


def is_something_else(head: bytes) -> bool:
    """Return True for the first bytes of what surely is no recording, as it lies in folders."""
    return has_no_control(head) or (_PICTURE.match(head) or _OTHER.match(head)) is not None


def has_no_control(head: bytes) -> bool:
    """Return True for text without control characters, in any encoding of bytes, or in UTF-16 with a byte order mark."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        try:
            head = head[: len(head) & ~1].decode("utf-16").encode()
        except UnicodeDecodeError:
            return False
        if b" " not in head and b"\n" not in head:
            return False
    return CONTROL.search(head) is None and b"\0" not in head
