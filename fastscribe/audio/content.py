"""Tell from its content whether a file of a folder is a recording, where its name does not say.

The first bytes tell recordings, and what else lies in folders: texts, pictures, documents, archives, programs, data, fonts. Of
the rest, such as an MP3 without tags, FFmpeg is asked.
"""

from __future__ import annotations

import os
import re
import stat

from fastscribe.audio.first_bytes import CONTROL, TELEPHONE, has_certain_format, is_text
from fastscribe.audio.formats import UNKNOWN_CONTENT, extension

_HEAD_BYTES = 4096
_MIN_BYTES = 16  # no recording is as short
# Pictures (HEIF, AVIF and raw ones are MP4s by their structure), documents, archives and packages, programs, fonts, databases,
# arrays, tables and weights, notes, sound fonts, animations and cursors, DVD menus: some lines each.
_OTHER = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n|GIF8[79]a|BM.{4}\0\0\0\0|II[\x2a\x2b\xbc][\0\x01]|MM\0[\x2a\x2b]|RIFF.{4}WEBP|8BPS\0"
    rb"|\0\0[\x01\x02]\0.\0|.{4}ftyp(hei[cmsx]|hev[cx]|mif[12]|msf1|avi[fs]|crx |jxl )|\0\0\0\x0c(JXL |jP  )|\xff\x0a"
    rb"|\xff\x4f\xff\x51|v/1\x01|DDS |qoif|gimp xcf|SIMPLE  =|P[1-7]\s|FUJIFILMCCD-RAW|AT&TFORM"
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


def why_left_out(path: str) -> str | None:
    """Look into a file whose name does not say what it is.

    Args:
        path: A file in a folder.

    Returns:
        None for a recording; "" for something else; UNKNOWN_CONTENT if it cannot be told.
    """
    try:
        head = _head(path)
    except OSError:
        return UNKNOWN_CONTENT
    if len(head) < _MIN_BYTES:
        return ""
    if extension(path) in TELEPHONE:  # each is an error with its cure; .sln is Visual Studio's too
        return "" if is_text(head) else None
    if _is_text(head) or _OTHER.match(head):
        return ""
    if has_certain_format(head):
        return None
    from fastscribe.audio.containers import holds_track

    return None if holds_track(path) else UNKNOWN_CONTENT


def holds_text(path: str) -> bool:
    """Return True for a file of text; an empty one is none."""
    try:
        head = _head(path)
    except OSError:
        return False
    return bool(head) and _is_text(head)


def _head(path: str) -> bytes:
    """Return a file's first bytes; none of what is no file. Raises OSError."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would block
        return b""
    with open(path, "rb", buffering=0) as file:
        return file.read(_HEAD_BYTES)


def _is_text(head: bytes) -> bool:
    """Return True for text without control characters, in any encoding of bytes, or in UTF-16 with a byte order mark."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        try:
            head = head[: len(head) & ~1].decode("utf-16").encode()
        except UnicodeDecodeError:
            return False
        if b" " not in head and b"\n" not in head:
            return False
    return CONTROL.search(head) is None and b"\0" not in head
