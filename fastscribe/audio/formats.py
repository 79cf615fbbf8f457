"""Names of inputs that are taken for audio or for a manifest, and the formats that are read.

Names say which files of a folder need not be opened to tell (folders.py opens the others), and word the errors. Opening a
file decides whether it is audio (probe.py). Nothing is opened here.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from fastscribe._system.urls import is_url, name_of
from fastscribe.audio.failures import input_failure, is_utf8, not_utf8, relative_id
from fastscribe.config import OUTPUT_FORMATS
from fastscribe.types import Failure, Source

STDIN = "-"
MAGIC = re.compile(r"[*?\[]")  # a pattern has one of these
MANIFEST_EXTENSIONS = frozenset({"json", "jsonl", "manifest"})
# Those that list_rows.py reads.
LIST_EXTENSIONS = MANIFEST_EXTENSIONS | {
    "csv",
    "list",
    "lst",
    "m3u",
    "m3u8",
    "scp",
    "tar",
    "tsv",
    "txt",
}
# Files that FFmpeg's libraries read (containers.py). Those that are video in most cases may have no audio track.
_CONTAINERS = (
    "3g2 3ga 3gp 3gp2 3gpp aac ac3 adts amr ape asf avi awb divx dts dtshd dv eac3 ec3 f4a f4b f4v flv gxf m1a m2a m2t m2ts "
    "m4a m4b m4p m4r m4v mk3d mka mkv mlp mov mp2 mp4 mp4v mpa mpc mpeg mpg mts mxf nut ogm ogv ogx oma qt qta ra rm rmvb "
    "spx thd tod ts tta vob voc weba webm wma wmv wtv wv"
)
CONTAINER_EXTENSIONS = frozenset(_CONTAINERS.split())

# libsndfile's formats that are read. Each has a check that a truncated file fails. The formats left out either have headers
# without a length or are too rare to be worth a check.
FORMATS = frozenset({"AIFF", "AU", "CAF", "FLAC", "MP3", "NIST", "OGG", "RF64", "W64", "WAV", "WAVEX"})
# libsndfile cannot seek in the last two; containers.py reads all but DWVW.
UNSUPPORTED_SUBTYPES = ("ALAC", "DWVW", "GSM610")
_AUDIO = "aif aifc aiff au bwf caf flac mp3 mpga nist oga ogg opus rf64 snd sph w64 wav wave wavex"
AUDIO_EXTENSIONS = frozenset(_AUDIO.split())
# Never opened in a folder: texts, results, pictures, documents, archives and data, which may be beside each recording.
_OTHERS = (
    "ass bmp bup bz2 cfg conf css csv ctm doc docx eaf epub exe gif gz heic htm html ico idx ifo ini jpeg jpg js kar lab "
    "log lrc lst m3u md mid nemo nfo npy npz odt parquet pdf phn png ppt pptx pt py rar rst rtf rttm safetensors sh "
    "srt ssa stm sub svg tar textgrid tgz tif tiff toml trn trs tsv ttml txt vtt webp wrd xls xlsx xml yaml yml zip zst"
)
_UNFINISHED = "part crdownload download opdownload partial tmp filepart fdmdownload !qb !ut bc! aria2 ytdl"
_UNFINISHED_EXTENSIONS = frozenset(_UNFINISHED.split())
_OTHER_EXTENSIONS = LIST_EXTENSIONS | frozenset((*_OTHERS.split(), *OUTPUT_FORMATS))
UNFINISHED = "unfinished downloads"
MAY_BE_TEXT = frozenset({"au", "mts", "ts"})  # TypeScript, and Audacity's notes
UNKNOWN_CONTENT, NOT_OPENED = " (unknown content)", " (not opened)"  # of kinds left out that may be audio

# What a run writes into its output folder beside the results' files, with the suffix of a shard (results/paths.py).
_RUN_FILE = re.compile(r"(transcripts|journal)(\.shard-\d+-of-\d+)?\.jsonl|report(\.shard-\d+-of-\d+)?\.json", re.ASCII)
_MAX_EXTENSION = 8  # characters
MISSING_TOLERANCE_S = 0.1  # a header may promise this much more than the file holds: MP3 lengths are estimates


class Manifest(NamedTuple):
    """A manifest or another list among the inputs, not read yet."""

    path: str


Found: TypeAlias = Source | Failure | Manifest  # what an input names


def missing_problem(promised_s: float, held_s: float) -> str | None:
    """Return the problem of a file that holds less than its header promises; None within the tolerance."""
    if promised_s - held_s <= MISSING_TOLERANCE_S:
        return None
    return f"truncated: header promises {promised_s:.2f} s, file holds {held_s:.2f} s"


def extension(path: str) -> str:
    """Return the extension in lower case, without the dot; "" if there is none."""
    return os.path.splitext(name_of(path) if is_url(path) else path)[1][1:].lower()


def list_kind(path: str) -> str:
    """Return the extension of a list's name, before that of gzip; "" if it is the name of no list."""
    kind = extension(os.path.splitext(name_of(path) if is_url(path) else path)[0] if extension(path) == "gz" else path)
    return kind if kind in LIST_EXTENSIONS else ""


def is_audio_name(path: str) -> bool:
    return extension(path) in AUDIO_EXTENSIONS or extension(path) in CONTAINER_EXTENSIONS


def is_other_name(path: str) -> bool:
    """Return True for a name of something else than audio: its file is not opened to tell."""
    return extension(path) in _OTHER_EXTENSIONS or is_unfinished(path)


def is_unfinished(path: str) -> bool:
    """Return True for a download that goes on: by its name, or in the folder that Safari makes for it."""
    kind = extension(path).partition("-frag")[0]  # of a fragment: show.f251.webm.part-Frag3
    return kind in _UNFINISHED_EXTENSIONS or os.path.dirname(path).lower().endswith(".download")


def kind_of(name: str) -> str:
    """Return a file's kind for the count of those left out. Endings that are no usual extension share one name."""
    kind = extension(name)
    if is_unfinished(name):
        return UNFINISHED
    if not kind:
        return "no extension"
    is_usual = len(kind) <= _MAX_EXTENSION and kind.isascii() and kind.isalnum() and not kind.isdigit()
    return f".{kind}" if is_usual else "other"


def count_left_out(left_out: Counter[str], path: str, why: str = "") -> None:
    """Count a file that is not audio, unless it is one that a run writes: results may lie beside recordings.

    Args:
        left_out: The counts, by kind.
        path: The file.
        why: UNKNOWN_CONTENT or NOT_OPENED for one that may be audio.
    """
    if not _RUN_FILE.fullmatch(path.replace(os.sep, "/").rpartition("/")[2]):
        left_out[kind_of(path) + why] += 1


def left_out_line(left_out: Mapping[str, int], is_quiet: bool = False) -> str:
    """Return a line that counts the files left out, the most frequent kind first; "" for none.

    Args:
        left_out: The counts, by kind.
        is_quiet: Only if some of them may be audio, or become it.

    >>> left_out_line({".jpg": 1, ".docx": 3})
    '4 files left out: .docx 3, .jpg 1'
    """
    num_files = sum(left_out.values())
    if not num_files or (is_quiet and not any(kind.endswith((")", UNFINISHED)) for kind in left_out)):
        return ""
    kinds = sorted(left_out.items(), key=lambda item: (-item[1], item[0]))
    return f"{num_files} file{'s' if num_files > 1 else ''} left out: {', '.join(f'{kind} {count}' for kind, count in kinds)}"


def file_source(path: str, name: str) -> Source | Failure:
    """Return the source of a file; `name` is the base of its id."""
    if not is_utf8(path):
        return input_failure(path, f"path is {not_utf8(path)}")
    return Source(path=path, file=path, id=relative_id(name))
