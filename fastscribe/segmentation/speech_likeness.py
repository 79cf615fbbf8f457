"""Tell speech from tones, noise, chords and clicks by how its sound changes. Pure.

Of the bands from 200 to 4,000 Hz, speech differs from each other sound in one way that can be counted:

    its loudness rises with each syllable, twice a second and more    steady tones and noise do not; chords and beeps seldom
    it rises nearly as often as it falls, and not much faster         strings and drums are struck, and then fade
    its spectrum drifts: it differs more after 100 ms than after 20   noise differs as much at once
    it differs a little after 20 ms too                               tones that follow each other do not (DTMF)
    its sounds last                                                   clicks are loud for less than 50 ms (typing)

docs/bench/tones.json has these for made signals and for speech.

Shapes: S samples, T frames, F bins, B bands.
"""

from __future__ import annotations

import numpy as np

from fastscribe.segmentation.loudness import decibels, runs
from fastscribe.types import BoolArray, Float32Array, Float64Array

PIECE_S, _MIN_PIECE_S = 3.0, 0.4  # to be judged at once
_WINDOW_S, _HOP_S = 0.032, 0.01
_BAND_HZ, _NUM_BANDS = (200.0, 4000.0), 12
_SOON, _LATER = 2, 10  # frames
_LOUD_DB = 12.0  # below the loudest frames
_BAND_RANGE_DB = 25.0  # below a frame's loudest band all is silence
# Change after 100 ms over that after 20 ms: noise has 1, and 98 % of speech 1.4 to 3.8.
_MIN_DRIFT, _MAX_DRIFT = 1.2, 5.5
_MIN_CHANGE_DB = 0.45  # after 100 ms: a tone's changes are those of faint noise
_MIN_RISES_PER_S, _RISE_DB = 1.5, 4.0
# The least share of rises among changes within 20 ms, also over how much faster rises are; 99 % of speech of 2 s has both.
_MIN_RISING_SHARE, _MIN_SLOW_SHARE, _MIN_RISING_S = 0.26, 0.16, 2.0
# A sound of speech lasts as long; the least share of loud frames in such sounds.
_SOUND_FRAMES, _MIN_SOUND_SHARE = 5, 0.4


def sounds_like_speech(samples_S: Float32Array, rate: int) -> bool:
    """Return False for a piece of tones, noise, chords or clicks. What is too short to tell sounds like speech."""
    if len(samples_S) < _MIN_PIECE_S * rate:
        return True
    levels_TB = _band_levels(samples_S, rate)
    loudness_T = decibels(np.power(10.0, levels_TB / 10).sum(axis=1))
    loud_T = loudness_T >= np.percentile(loudness_T, 95.0) - _LOUD_DB
    lengths = [end - first for first, end in runs(loud_T)]
    lasting = sum(length for length in lengths if length >= _SOUND_FRAMES)
    num_rises = _num_rises(loudness_T)
    if num_rises < int(_MIN_RISES_PER_S * len(samples_S) / rate) or lasting < _MIN_SOUND_SHARE * sum(lengths):
        return False
    if len(samples_S) >= _MIN_RISING_S * rate and _is_struck(loudness_T, loud_T):
        return False
    levels_TB = np.maximum(levels_TB, levels_TB.max(axis=1, keepdims=True) - _BAND_RANGE_DB)
    levels_TB -= levels_TB.mean(axis=1, keepdims=True)
    soon_db, later_db = (_change_db(levels_TB, loud_T, step) for step in (_SOON, _LATER))
    if soon_db is None or later_db is None:
        return True
    return later_db >= _MIN_CHANGE_DB and _MIN_DRIFT * soon_db <= later_db <= _MAX_DRIFT * soon_db


def _band_levels(samples_S: Float32Array, rate: int) -> Float64Array:
    """Return the levels of the bands of each frame in dB [T, B]."""
    window, hop = round(_WINDOW_S * rate), round(_HOP_S * rate)
    padded_S = np.pad(samples_S, (0, max(0, window - len(samples_S)))).astype(np.float32, copy=False)
    frames_TS = np.lib.stride_tricks.sliding_window_view(padded_S, window)[::hop] * np.hanning(window).astype(
        np.float32
    )
    power_TF = np.square(np.abs(np.fft.rfft(frames_TS, axis=1))).astype(np.float64)
    low_hz, high_hz = _BAND_HZ
    edges = np.round(np.geomspace(low_hz, min(high_hz, rate / 2), _NUM_BANDS + 1) * window / rate).astype(int)
    return decibels(np.add.reduceat(power_TF[:, : edges[-1]], edges[:-1], axis=1) / window**2)


def _num_rises(loudness_T: Float64Array) -> int:
    """Return how often the loudness, a mean over 50 ms, rises by _RISE_DB after it has fallen as much. The begin is a rise."""
    smooth_T = _mean_loudness(loudness_T, 5)
    lowest_db = float(np.percentile(smooth_T, 95.0)) - _BAND_RANGE_DB
    count, is_up, turn_db = 0, False, lowest_db
    for now_db in np.maximum(smooth_T, lowest_db).tolist():
        turn_db = max(turn_db, now_db) if is_up else min(turn_db, now_db)
        if abs(now_db - turn_db) > _RISE_DB:
            is_up, turn_db = not is_up, now_db
            count += is_up
    return count


def _mean_loudness(loudness_T: Float64Array, num_frames: int) -> Float64Array:
    """Return the loudness of the mean power around each frame in dB [T]."""
    return decibels(np.convolve(np.power(10.0, loudness_T / 10), np.full(num_frames, 1 / num_frames), "same"))


def _is_struck(loudness_T: Float64Array, loud_T: BoolArray) -> bool:
    """Return True for loudness, here a mean over 30 ms, that seldom rises among loud frames, or rises fast and falls slowly."""
    smooth_T = _mean_loudness(loudness_T, 3)
    changes_T = (smooth_T[_SOON:] - smooth_T[:-_SOON])[loud_T[_SOON:] & loud_T[:-_SOON]]
    rises, falls = changes_T[changes_T > 0], -changes_T[changes_T < 0]
    if not len(rises) or not len(falls):
        return True
    share = len(rises) / (len(rises) + len(falls))
    return share < _MIN_RISING_SHARE or share * falls.mean() < _MIN_SLOW_SHARE * max(falls.mean(), rises.mean())


def _change_db(levels_TB: Float64Array, loud_T: BoolArray, step: int) -> float | None:
    """Return the median change of the bands' levels from loud frames to loud ones `step` later; None without any."""
    both_T = loud_T[step:] & loud_T[:-step]
    changes_TB = np.abs(levels_TB[step:] - levels_TB[:-step])[both_T]
    return float(np.median(changes_TB.mean(axis=1))) if len(changes_TB) else None
