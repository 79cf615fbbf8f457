"""Which file names are taken for audio, for a manifest, or for a container that is not read; which formats are read.

Names only decide what is picked out of a folder and how an error is worded; whether a file is audio is decided by
opening it (probe.py). Nothing is opened here.
"""

from __future__ import annotations

import os

MANIFEST_EXTENSIONS = frozenset({"json", "jsonl"})
CONTAINER_EXTENSIONS = frozenset(
    {"aac", "avi", "m4a", "m4b", "mka", "mkv", "mov", "mp4", "webm", "wma", "wmv", "3gp", "amr"}
)
CONTAINER_ADVICE = "is not read: convert it to wav or flac first, e.g. with ffmpeg"

# Formats of libsndfile that are read. Each has a check that a truncated file does not pass. libsndfile reads others as well,
# but some of their headers do not say how long the recording is, and the others are too rare to be worth a check.
FORMATS = frozenset({"AIFF", "AU", "CAF", "FLAC", "MP3", "NIST", "OGG", "RF64", "W64", "WAV", "WAVEX"})
# Of AIFF, libsndfile cannot seek in DWVW; of CAF, its files of ALAC end after the samples that the header promises.
UNREAD_SUBTYPES = ("ALAC", "DWVW")
AUDIO_EXTENSIONS = frozenset(
    {
        "aif",
        "aifc",
        "aiff",
        "au",
        "bwf",
        "caf",
        "flac",
        "mp3",
        "nist",
        "oga",
        "ogg",
        "opus",
        "rf64",
        "snd",
        "sph",
        "w64",
    }
    | {"wav", "wave", "wavex"}
)
HEADERLESS = frozenset({"raw"})  # libsndfile would have to be told the rate and the sample type

MISSING_TOLERANCE_S = 0.1  # a header may promise this much more than the file holds: MP3 lengths are estimates


def extension(path: str) -> str:
    """Lower case, without the dot; "" where there is none."""
    return os.path.splitext(path)[1][1:].lower()


def is_audio_name(path: str) -> bool:
    return extension(path) in AUDIO_EXTENSIONS
