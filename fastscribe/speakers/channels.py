"""The channels of a recording that differ. A stereo file often has the same sound in both."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from fastscribe.audio.read import channel_blocks
from fastscribe.segmentation.loudness import SILENCE
from fastscribe.types import AudioInfo, Float32Array

# Largest energy of what differs in two channels that are the same, as a share of the louder one's: -40 dB. Encoders may
# change the copies a little; speech that leaks from one channel into the other leaves a difference of nearly its own energy.
_SAME = 1e-4
_MAX_LOUDER = 4.0  # ratio of their energies: a copy may be up to 6 dB softer, a voice that leaks is softer still
_ROUNDING = 2e-10  # energy of what rounding to 16 bits changes in two channels


def distinct_channels(audio: AudioInfo) -> tuple[int, ...]:
    """Return the channels from 0 that are no copy of an earlier one; of silent channels the first.

    Reads the recording up to the first second in which all channels differ. Raises AudioError like read().
    """
    alike = set(combinations(range(audio.channels), 2))
    if alike:
        for block_SC in channel_blocks(audio, audio.sample_rate):
            energy_C = (block_SC * block_SC).mean(axis=0, dtype=np.float64).tolist()
            alike = {pair for pair in alike if _are_alike(block_SC, energy_C, pair)}
            if not alike:
                break
    copies = {second for _, second in alike}
    return tuple(channel for channel in range(audio.channels) if channel not in copies)


def _are_alike(block_SC: Float32Array, energy_C: list[float], pair: tuple[int, int]) -> bool:
    energy = max(energy_C[channel] for channel in pair)
    if energy <= SILENCE:
        return True
    softer = min(energy_C[channel] for channel in pair)
    product = float((block_SC[:, pair[0]] * block_SC[:, pair[1]]).mean(dtype=np.float64))
    # What the best multiple of the louder one, of either sign, leaves of the softer one.
    left = softer - product * product / energy
    return softer * _MAX_LOUDER >= energy and left <= _SAME * energy + _ROUNDING
