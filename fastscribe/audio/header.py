"""What the header of a recording says, whichever module read it."""

from __future__ import annotations

from typing import NamedTuple

HEAD_BYTES = 4096  # of a file, which tell what it is; other chunks may precede a WAV's samples
PLAIN_CHANNELS = 2  # at most, in plain WAV and FLAC; of more, libsndfile says what they are for
# AudioInfo's `reading`: the times of a track are counted, and a file holds more samples than its header gives (data_size.py)
FROM_START, TO_END = "from_start", "to_end"
LINKS = "links "  # how it begins for several recordings in one file (ogg_links.py)
# A header may promise at most the longest silence that fits in the file's bytes, so that memory stays bounded. FLAC has
# frames of 65,535 samples in 11 bytes (flac.py); Ogg Opus, Ogg Vorbis and the rest take 16 bytes a second and more.
MIN_BYTES_A_SECOND = 10
CONVERT = "convert it, e.g. with ffmpeg"


class Unfinished(NamedTuple):
    """A WAV or AU file that holds more than its header gives."""

    note: str
    size_at: int  # offset of the field with the size
    size: bytes  # what it should be


class DataSize(NamedTuple):
    """What a header promises of its samples, and what follows it."""

    promised_bytes: int
    held_bytes: int
    is_joined: bool  # another file of the same format follows the samples, of which only the first would be read
    sample_type: int | None = None  # of a WAV file's format chunk: 1 is PCM; None: another format
    held_s: float = 0.0  # 0: the header does not say
    unfinished: Unfinished | None = None


class Header(NamedTuple):
    """What the header of a recording says, whatever read it."""

    sample_rate: int
    channels: int
    num_samples: int
    is_int16: bool = False
    layout: tuple[str, ...] | None = None  # as AudioInfo's; None: not stated
    num_tracks: int | None = None  # None: libsndfile reads the file, which has one
    reading: str = ""  # as AudioInfo's, and so is the next
    notes: tuple[str, ...] = ()
