"""What each channel of a file is for, by FFmpeg's names of loudspeakers.

FL and FR are the left and the right one in front, FC is the centre, where films have their dialogue, and LFE the subwoofer.
Imported for a file of more than two channels, and where a channel is asked for.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO

from fastscribe.types import Channel

if TYPE_CHECKING:
    import soundfile

CENTER = "FC"
_SURROUND = ("FL", "FR", "FC", "LFE", "BL", "BR")  # 5.1, as six channels without a stated layout are
# In the order of the bits of a WAVE file's mask.
_WAVE_ORDER = "FL FR FC LFE BL BR FLC FRC BC SL SR TC TFL TFC TFR TBL TBC TBR"
_FLAC_ORDERS = {  # RFC 9639, section 9.1.3
    3: "FL FR FC",
    4: "FL FR BL BR",
    5: "FL FR FC BL BR",
    6: "FL FR FC LFE BL BR",
    7: "FL FR FC LFE BC SL SR",
    8: "FL FR FC LFE BL BR SL SR",
}
_VORBIS_ORDERS = {  # Vorbis I, section 4.3.9; Opus has them too (RFC 7845, section 5.1.1.2)
    3: "FL FC FR",
    4: "FL FR BL BR",
    5: "FL FC FR BL BR",
    6: "FL FC FR BL BR LFE",
    7: "FL FC FR SL SR BC LFE",
    8: "FL FC FR SL SR BL BR LFE",
}
_NAMED = frozenset(_WAVE_ORDER.split()) | {"WL", "WR", "SDL", "SDR", "LFE2", "TSL", "TSR", "BFC", "BFL", "BFR"}
_SNDFILE_NAMES = "- FC FL FR FC FL FR FC BC BL BR LFE FLC FRC SL SR TC TFL TFR TFC TBL TBR TBC"  # by its number, from 0
_GET_CHANNEL_MAP = 0x1100  # SFC_GET_CHANNEL_MAP_INFO
_FLAC_MASK = re.compile(rb"WAVEFORMATEXTENSIBLE_CHANNEL_MASK=0x([0-9a-f]{1,8})", re.IGNORECASE)
_COMMENT_BLOCK, _MAX_BLOCKS = 4, 128
_OPUS_HEAD_BYTES, _FAMILY_AT = 512, 18


def choose(
    wanted: Channel | None, channels: int, layout: Sequence[str] | None
) -> tuple[int | None, Channel | None, tuple[str, ...]]:
    """Return which channel of a file to read.

    Args:
        wanted: The channel that is asked for, from 0, or "center"; None: all of them, mixed.
        channels: How many the file has.
        layout: Their names; None: only their number is known.

    Returns:
        The channel, or None to mix all; `wanted` if the file lacks it; the names of channels that are mixed, none if they are
        all alike.
    """
    if layout is None:
        layout = _SURROUND if channels == len(_SURROUND) else ()
    found = tuple(layout) if _is_known(layout, channels) else ()
    if wanted == "center":
        has_it = channels == 1 or CENTER in found
        channel = None if not has_it else found.index(CENTER) if found else 0
    else:
        channel = wanted if wanted is not None and wanted < channels else None
    return channel, (wanted if channel is None else None), () if channel is not None else found


def _is_known(layout: Sequence[str], channels: int) -> bool:
    return len(layout) == channels > 2 and _NAMED.issuperset(layout) and not {"FL", CENTER}.isdisjoint(layout)


def sound_layout(sound: soundfile.SoundFile, file: BinaryIO) -> tuple[str, ...] | None:
    """Return the layout of a file that libsndfile reads; None if it is not stated, () if the channels have no places.

    Args:
        sound: The open file.
        file: The same, open at any position.
    """
    channels = sound.channels
    if sound.subtype == "OPUS" and not _is_opus_surround(file):
        return ()
    if sound.subtype in ("VORBIS", "OPUS"):
        return tuple(_VORBIS_ORDERS.get(channels, "").split())
    if sound.format == "FLAC" and (mask := _flac_mask(file)) is not None:
        return tuple(name for bit, name in enumerate(_WAVE_ORDER.split()) if mask >> bit & 1)
    if sound.format == "FLAC" or sound.subtype == "FLAC":
        return tuple(_FLAC_ORDERS.get(channels, "").split())
    stated = _stated_layout(sound)
    return () if stated is None and sound.format == "WAVEX" else stated


def _stated_layout(sound: soundfile.SoundFile) -> tuple[str, ...] | None:
    """Return what libsndfile finds in the header; None if it is nothing, or no layout, or soundfile does not let us ask."""
    try:
        from soundfile import _ffi, _snd  # the package has no function for it

        handle = sound._file
    except (ImportError, AttributeError):
        return None
    numbers = _ffi.new("int[]", sound.channels)
    if not _snd.sf_command(handle, _GET_CHANNEL_MAP, numbers, sound.channels * _ffi.sizeof("int")):
        return None
    known = dict(enumerate(_SNDFILE_NAMES.split()))
    names = [known.get(number, "") for number in numbers]
    return tuple(names) if _is_known(names, sound.channels) else None


def _flac_mask(file: BinaryIO) -> int | None:
    """Return the mask that a comment of a FLAC file states; 0: its channels have no places."""
    file.seek(0)
    if file.read(4) != b"fLaC":
        return None
    for _ in range(_MAX_BLOCKS):
        head = file.read(4)
        if len(head) < 4:
            break
        num_bytes = int.from_bytes(head[1:], "big")
        if head[0] & 0x7F == _COMMENT_BLOCK:
            found = _FLAC_MASK.search(file.read(num_bytes))
            return None if found is None else int(found[1], 16)
        if head[0] & 0x80:  # the last one
            break
        file.seek(num_bytes, 1)
    return None


def _is_opus_surround(file: BinaryIO) -> bool:
    """Return True if the channels have the order of Vorbis: neither ambisonics nor channels without places."""
    file.seek(0)
    head = file.read(_OPUS_HEAD_BYTES)
    at = head.find(b"OpusHead")
    return at >= 0 and struct.unpack_from("B", head.ljust(_OPUS_HEAD_BYTES + _FAMILY_AT + 1), at + _FAMILY_AT) == (1,)
