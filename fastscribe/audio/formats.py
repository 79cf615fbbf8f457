"""Which file names are taken for audio, for a manifest, or for a container that is not read.

Names only decide what is picked out of a folder and how an error is worded; whether a file is audio is decided by
opening it (probe.py). Nothing is opened here.
"""

from __future__ import annotations

import os
from functools import lru_cache

MANIFEST_EXTENSIONS = frozenset({"json", "jsonl"})
CONTAINER_EXTENSIONS = frozenset(
    {"aac", "avi", "m4a", "m4b", "mka", "mkv", "mov", "mp4", "webm", "wma", "wmv", "3gp", "amr"}
)
CONTAINER_ADVICE = "is not read: convert it to wav or flac first, e.g. with ffmpeg"

# libsndfile names formats, not extensions: these are the extensions in use that its format names do not cover.
MORE_EXTENSIONS = frozenset({"aif", "aifc", "bwf", "oga", "opus", "snd", "sph", "wave"})
HEADERLESS = frozenset({"raw"})  # libsndfile would have to be told the rate and the sample type

MISSING_TOLERANCE_S = 0.1  # a header may promise this much more than the file holds: MP3 lengths are estimates


def extension(path: str) -> str:
    """Lower case, without the dot; "" where there is none."""
    return os.path.splitext(path)[1][1:].lower()


@lru_cache(maxsize=1)
def audio_extensions() -> frozenset[str]:
    """What a folder is searched for: the formats of the libsndfile at hand, in lower case."""
    import soundfile

    known = frozenset(name.lower() for name in soundfile.available_formats())
    return (known | MORE_EXTENSIONS) - HEADERLESS


def is_audio_name(path: str) -> bool:
    return extension(path) in audio_extensions()
