"""Long recordings into utterances that a model can take at once, cut where it is quiet.

A cut lies in a pause, a little before speech sets in again: models are trained on utterances that begin so, and one that
has learnt to write its first word at once writes it too early after a longer silence. Where a stretch has no pause at all,
neighbours overlap, and segmentation/seams.py joins their words. Cuts lie on the encoder's frame grid, so that frames stand
for the same samples whether a recording is cut or not. Nothing is dropped: the pieces cover the recording.

The choice (choose_pieces) is pure and sees nothing but how loud short frames are and which of them are quiet. Both are
gathered in one pass in bounded memory, from the energy (segmentation/loudness.py) or from speech probabilities
(segmentation/vad.py).
"""

from __future__ import annotations

import math

import numpy as np

from fastscribe.config import VadName
from fastscribe.segmentation.loudness import frame_energy, frame_length, quiet_frames, runs
from fastscribe.segmentation.vad import SPEECH, speech_probability
from fastscribe.types import AudioInfo, BoolArray, Float64Array, Utterance

LEAD_S = 0.24  # silence before an utterance's first word
PAUSE_S = 0.2  # quiet for less is a stop consonant's closure
OVERLAP_S = 4.0
_LONG_PAUSE_S = 1.0  # beyond this no pause is better than another
_SMOOTH_S = 0.24
_MIN_SHARE = 0.3  # of the limit: no piece with speech in it is shorter
_LATE_SHARE = 0.7  # without a pause, a cut is looked for in the last 30 % before the limit
_MIN_SILENCE_S = 1.0  # a piece of nothing but silence is at least so long
_MIN_STEPS = 20  # encoder frames in a piece, for its cuts to lie on their grid

Span = tuple[int, int]


def split(
    audio: AudioInfo, max_utterance_s: float, channel: int | None, frame_s: float = 0.0, vad: VadName = "energy"
) -> tuple[Utterance, ...]:
    """Utterances of at most `max_utterance_s` (0 = no limit) that cover the recording in order, cut at whole encoder frames
    of `frame_s` (0 = anywhere). Neighbours overlap only where there is no quiet place.

    Reads the samples only of what is longer than that, once, and then raises AudioError like read().
    """
    max_samples = int(max_utterance_s * audio.sample_rate)
    if max_utterance_s <= 0 or audio.num_samples <= max_samples:
        return (Utterance(audio, 0, audio.num_samples),)
    frame_samples = max(1, min(frame_length(audio.sample_rate), max_samples // 10))
    unit_s = frame_samples / audio.sample_rate
    grid_s = frame_s if max_utterance_s >= _MIN_STEPS * frame_s else 0.0
    if vad == "silero":
        loudness = speech_probability(audio, frame_samples, channel)
        quiet = loudness < SPEECH
    else:
        loudness = frame_energy(audio, frame_samples, channel)
        quiet = quiet_frames(loudness, unit_s)
    pieces = choose_pieces(loudness, quiet, unit_s, max_utterance_s - grid_s)
    begins = [_on_grid(begin * frame_samples, audio.sample_rate, grid_s) for begin, _ in pieces]
    ends = [_on_grid(end * frame_samples, audio.sample_rate, grid_s) for _, end in pieces[:-1]]
    return tuple(
        Utterance(audio, begin, end - begin) for begin, end in zip(begins, [*ends, audio.num_samples], strict=True)
    )


def _on_grid(sample: int, sample_rate: int, grid_s: float) -> int:
    """The sample at which the nearest encoder frame of the whole recording begins; exact where such a sample exists."""
    return round(round(sample / sample_rate / grid_s) * grid_s * sample_rate) if grid_s else sample


def choose_pieces(loudness: Float64Array, quiet: BoolArray, frame_s: float, max_s: float) -> list[Span]:
    """Frames (begin, end) of pieces that cover all frames in order, none longer than `max_s`.

    Each begins in a pause, where the one before it ends, or, where there is none, some OVERLAP_S (less if pieces are short)
    before that. None is much shorter than a third of `max_s`, but for what is silent from end to end.
    """
    cutter = _Cutter(loudness, quiet, frame_s, max(1, int(max_s / frame_s + 1e-6)))
    pieces: list[Span] = []
    begin, in_pause = 0, False
    while (cut := cutter.next_cut(begin, in_pause)) is not None:
        position, margin = cut
        pieces.append((begin, position + margin))
        begin, in_pause = position - margin, margin == 0
    return [*pieces, (begin, len(loudness))]


class _Cutter:
    """Finds one cut after another. Everything is counted in frames."""

    def __init__(self, loudness: Float64Array, quiet: BoolArray, frame_s: float, max_frames: int) -> None:
        self._num_frames, self._max_frames = len(loudness), max_frames
        self._loudness = _loudness_around(loudness, max(1, round(_SMOOTH_S / frame_s / 2)))
        self._least_frames = math.ceil(_MIN_SHARE * max_frames)
        self._least_silence = min(round(_MIN_SILENCE_S / frame_s), self._least_frames)
        self._lead, self._long = round(LEAD_S / frame_s), max(1, round(_LONG_PAUSE_S / frame_s))
        # At most a quarter of a piece is heard twice, and nothing of pieces of a few frames.
        self._margin = min(round(OVERLAP_S / 2 / frame_s), max_frames // 8)
        self._pauses = [(first, last) for first, last in runs(quiet) if last - first >= PAUSE_S / frame_s]
        self._next_pause = 0

    def next_cut(self, begin: int, in_pause: bool) -> tuple[int, int] | None:
        """Where the piece that begins at `begin` is cut and how much is heard twice on either side; None: not at all.

        `in_pause`: the cut before it was made in a pause.
        """
        if in_pause and (onset := self._end_of_silence(begin)) is not None:
            return onset, 0
        left = self._num_frames - begin
        if left <= self._max_frames:
            return None
        low, high = self._least_frames, self._max_frames
        if left <= (1 + _LATE_SHARE) * self._max_frames:  # one cut is enough
            low, high = max(low, left - self._max_frames), min(high, left - self._least_frames)
        best = self._best_pause(begin, begin + low, begin + high)
        return (best, 0) if best is not None else self._cut_in_speech(begin, low, high)

    def _end_of_silence(self, begin: int) -> int | None:
        """Where a piece should end that begins in a silence which lasts."""
        first, last = next(iter(self._pauses_until(begin, begin + 1)), (begin, begin))
        cut = min(self._before_onset(first, last), begin + self._max_frames)
        return cut if cut - begin >= self._least_silence and last < self._num_frames else None

    def _best_pause(self, begin: int, low: int, high: int) -> int | None:
        """The cut in the longest pause, or in the last of several that are long enough."""
        best: tuple[int, int] | None = None
        for first, last in self._pauses_until(low, high):
            cut = self._before_onset(first, last)
            if cut > high:  # in the middle of a silence, the rest of which is then a piece by itself
                cut = high if last == self._num_frames else min(high, cut - self._least_silence)
            goes_on = cut - first >= min(self._lead, last - first) // 2 or first <= begin  # after the last word
            if low <= cut <= high and goes_on:
                best = max(best or (0, 0), (min(last - first, self._long), cut))
        return best[1] if best else None

    def _before_onset(self, first: int, last: int) -> int:
        return max(last - self._lead, (first + last) // 2)

    def _pauses_until(self, low: int, high: int) -> list[Span]:
        """Those that reach into low..high. `low` never goes back, so that finding them stays cheap."""
        pauses = self._pauses
        while self._next_pause < len(pauses) and pauses[self._next_pause][1] <= low - self._max_frames:
            self._next_pause += 1
        found = []
        for first, last in pauses[self._next_pause :]:
            if first >= high:
                break
            if last > low:
                found.append((first, last))
        return found

    def _cut_in_speech(self, begin: int, low: int, high: int) -> tuple[int, int]:
        """At the quietest place. Both pieces go on a little, so that each has every word near the cut whole."""
        margin = self._margin
        if high == self._max_frames and self._num_frames - begin > (1 + _LATE_SHARE) * self._max_frames:
            low = max(low, math.ceil(_LATE_SHARE * high) - margin)
        low, high = low + margin, high - margin
        around = self._loudness[begin + low : begin + max(low, high) + 1]
        return begin + low + _quietest(around), margin


def _loudness_around(loudness: Float64Array, half: int) -> Float64Array:
    """For each frame index, the mean over `half` frames before it and `half` from it on; length N + 1."""
    if len(loudness) == 0:
        return np.zeros(1)
    sums = np.convolve(np.pad(loudness, half, mode="edge"), np.ones(2 * half), mode="valid")
    return sums / (2 * half)


def _quietest(loudness: Float64Array) -> int:
    """Index of the minimum; of several equal ones, the middle of their last stretch."""
    first, last = runs(loudness == loudness.min())[-1]
    return (first + last) // 2
