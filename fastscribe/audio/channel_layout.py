"""What each channel of a file is for, by FFmpeg's names of loudspeakers.

FL and FR are the left and the right one in front, FC is the centre, where films have their dialogue, and LFE the subwoofer.
Imported for a file of more than two channels, and where a channel is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastscribe.types import Channel

CENTER = "FC"
_SURROUND = ("FL", "FR", "FC", "LFE", "BL", "BR")  # 5.1, as six channels without a stated layout are
_IN_ROOMS = (
    "FL FR FC LFE BL BR FLC FRC BC SL SR TC TFL TFC TFR TBL TBC TBR"  # in the order of the bits of a WAVE file's mask
)
_NAMED = frozenset(_IN_ROOMS.split()) | {"WL", "WR", "SDL", "SDR", "LFE2", "TSL", "TSR", "BFC", "BFL", "BFR"}


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
