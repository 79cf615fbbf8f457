"""Sample counts before and after resampling. Pure arithmetic: what to read, what comes out, where an utterance begins.

An utterance is resampled together with some of its neighbourhood, so that a cut leaves no audible seam. The part before it
is a whole number of samples at either rate, so that positions do not drift.
"""

from __future__ import annotations

import math

from fastscribe.types import AudioInfo

CONTEXT_S = 0.05  # several times the length of the resampling filters
_MAX_PHASES = 1280  # in the filter bank on a GPU; 11,025 Hz to 16,000 Hz has 640


def output_length(num_samples: int, native_rate: int, sample_rate: int) -> int:
    """Return the number of samples after resampling, by librosa's rule with its rounding."""
    return math.ceil(num_samples * (float(sample_rate) / native_rate))


def ratio(native_rate: int, sample_rate: int) -> tuple[int, int]:
    """Return (up, down) in lowest terms: `up` new samples last as long as `down` native ones."""
    common = math.gcd(native_rate, sample_rate)
    return sample_rate // common, native_rate // common


def is_plain_ratio(native_rate: int, sample_rate: int) -> bool:
    """Return False for odd rates (44,099 Hz), which would need too many filters, one for each phase."""
    return max(ratio(native_rate, sample_rate)) <= _MAX_PHASES


def context_samples(native_rate: int, sample_rate: int) -> int:
    """Return the native samples of context on either side, a whole number of new samples; 0 for equal rates."""
    if native_rate == sample_rate:
        return 0
    _, down = ratio(native_rate, sample_rate)
    return math.ceil(CONTEXT_S * native_rate / down) * down


def context(audio: AudioInfo, start: int, num_samples: int, sample_rate: int) -> tuple[int, int]:
    """Return the native samples to read before and after an utterance, fewer at the recording's ends."""
    margin = context_samples(audio.sample_rate, sample_rate)
    if margin == 0:
        return 0, 0
    _, down = ratio(audio.sample_rate, sample_rate)
    return min(margin, start // down * down), min(margin, audio.num_samples - start - num_samples)
