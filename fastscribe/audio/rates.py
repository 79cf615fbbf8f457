"""Sample counts on either side of a change of rate. Pure: what is read, what comes out, where a stretch begins.

A stretch of a recording is resampled together with some of its neighbourhood, so that no seam is audible where a
recording was split; the part before it is a whole number of samples at either rate, so that nothing drifts.
"""

from __future__ import annotations

import math

from fastscribe.types import AudioInfo

CONTEXT_S = 0.05  # several times the length of the resampling filters
_MAX_PHASES = 1280  # of a device's filter bank; 11,025 Hz to 16,000 Hz has 640


def output_length(num_samples: int, native_rate: int, sample_rate: int) -> int:
    """librosa's rule, rounding included."""
    return math.ceil(num_samples * (float(sample_rate) / native_rate))


def ratio(native_rate: int, sample_rate: int) -> tuple[int, int]:
    """(up, down) in lowest terms: so many new samples last as long as so many native ones."""
    common = math.gcd(native_rate, sample_rate)
    return sample_rate // common, native_rate // common


def is_plain_ratio(native_rate: int, sample_rate: int) -> bool:
    """False for odd rates (44,099 Hz), which would need a filter of their own for each of too many positions."""
    return max(ratio(native_rate, sample_rate)) <= _MAX_PHASES


def context_samples(native_rate: int, sample_rate: int) -> int:
    """Native samples of neighbourhood, a whole number of new samples; 0 where the rates are the same."""
    if native_rate == sample_rate:
        return 0
    _, down = ratio(native_rate, sample_rate)
    return math.ceil(CONTEXT_S * native_rate / down) * down


def context(audio: AudioInfo, start: int, num_samples: int, sample_rate: int) -> tuple[int, int]:
    """Native samples to read before and after a stretch, fewer where the recording begins or ends."""
    margin = context_samples(audio.sample_rate, sample_rate)
    if margin == 0:
        return 0, 0
    _, down = ratio(audio.sample_rate, sample_rate)
    return min(margin, start // down * down), min(margin, audio.num_samples - start - num_samples)
