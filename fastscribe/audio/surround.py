"""How surround sound is read: the centre alone, or the front channels mixed. Imported when such a recording is probed.

Films have their dialogue on the centre, and all else around it. Stereo sound that was made into surround sound may have nothing
there. So short spots all over the file are read, and the centre is read alone, unless it is much softer than the left and the
right channel. If those in front are much softer than the others, all are mixed, as all are where there is no centre. That is
decided for a file as a whole: in the pauses of a dialogue, the words of a crowd on other channels are no part of it
(docs/log.md).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fastscribe.audio.channel_layout import CENTER
from fastscribe.audio.mixing import FRONT_WEIGHTS, LOW
from fastscribe.audio.read import channel_blocks
from fastscribe.errors import AudioError
from fastscribe.types import AudioInfo, Float64Array

SILENT_DB = 10.0  # a centre that is softer than the left and the right by more than this, or these than all behind them
SURROUND = "taken for surround sound"  # a row's note begins with this
_SPOTS, _SPOT_S = 40, 0.5
_SIDES = ("FL", "FR")


def as_heard(audio: AudioInfo, file_samples: int) -> AudioInfo:
    """Return a recording of surround sound with what is read of it, and a note that says so: others may speak elsewhere.

    Args:
        audio: The recording, all of whose channels would be mixed.
        file_samples: The samples of its whole file.
    """
    mixed = replace(audio, is_int16=False)  # a mix is not
    if CENTER not in audio.layout:
        return mixed
    centre = audio.layout.index(CENTER)
    energy_C = _energy(replace(audio, start=0, num_samples=file_samples))

    def energy(*names: str) -> float:
        return sum(float(energy_C[number]) for number, name in enumerate(audio.layout) if name in names)

    share = 10 ** (-SILENT_DB / 10)
    if energy_C[centre] > 0 and energy_C[centre] >= energy(*_SIDES) * share:
        return _noted(replace(audio, channel=centre, layout=()), audio, f"its centre, channel {centre}, is read")
    behind = set(audio.layout) - set(FRONT_WEIGHTS) - {LOW}
    if energy(*FRONT_WEIGHTS) < energy(*behind) * share:
        alike = tuple(name if name == LOW else "" for name in audio.layout)
        return _noted(replace(mixed, layout=alike), audio, "all channels but the subwoofer are mixed")
    return _noted(mixed, audio, "its front channels are mixed")


def _noted(heard: AudioInfo, audio: AudioInfo, what: str) -> AudioInfo:
    return replace(heard, notes=(*audio.notes, f"{SURROUND} ({' '.join(audio.layout)}): {what}"))


def _energy(audio: AudioInfo) -> Float64Array:
    """Return the energy of each channel in spots of a file [C], without those that cannot be read."""
    spot, total_C = round(_SPOT_S * audio.sample_rate), np.zeros(audio.channels)
    if audio.num_samples <= _SPOTS * spot:
        spans = [(0, audio.num_samples)]
    else:
        spans = [(number * (audio.num_samples - spot) // (_SPOTS - 1), spot) for number in range(_SPOTS)]
    for start, num_samples in spans:
        try:
            for block_SC in channel_blocks(audio.part(start, num_samples), spot):
                total_C += np.nan_to_num(block_SC.var(axis=0, dtype=np.float64))
        except AudioError:
            continue
    return total_C
