"""Split long recordings into utterances at pauses.

A cut lies in a pause, shortly before the next word: models are trained on such utterances, and some write the first word too
early after a longer silence. In a stretch without a pause, neighbouring pieces overlap, and segmentation/seams.py joins their
words. Cuts lie on the encoder's frame grid, so that frames stand for the same samples whether a recording is cut or not.

A model that learnt on short utterances drops words where an utterance holds two sentences. For such a model every clear pause
is a cut, and only the stretches between them are cut to the limit (choose_phrases). Such a model also writes words where there
is nothing to hear, so long silence is left out (segmentation/silence.py); for other models, long digital silence alone.

choose_pieces() and choose_phrases() are pure: their input is the loudness of short frames and which of them are quiet. Both
are computed in one pass in bounded memory, from the energy (segmentation/loudness.py) or from speech probabilities
(segmentation/vad.py).
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect, insort

import numpy as np

from fastscribe.config import VadName
from fastscribe.segmentation.loudness import frame_energy, frame_length, quiet_frames, runs
from fastscribe.segmentation.silence import find_sound, stays_whole, steady_quiet, trim_silence
from fastscribe.types import AudioInfo, BoolArray, Float64Array, Utterance

LEAD_S = 0.24  # silence before an utterance's first word
PAUSE_S = 0.2  # shorter quiet is a stop consonant's closure
OVERLAP_S = 4.0
_LONG_PAUSE_S = 1.0  # longer pauses are equally good
_SMOOTH_S = 0.24
_MIN_SHARE = 0.3  # shortest piece with speech, as a share of the limit
_LATE_SHARE = 0.7  # without a pause, the cut lies in the last 30 % before the limit
_MIN_SILENCE_S = 1.0  # shortest piece of silence
# Chosen on clips joined to recordings (docs/log.md, 2026-11-23): pauses from this length separate phrases, which are this long
# at least.
_PHRASE_PAUSE_S, _MIN_PHRASE_S = 0.5, 3.0
_MIN_STEPS = 20  # encoder frames: shorter pieces are cut off the grid

Span = tuple[int, int]


def split(
    audio: AudioInfo,
    max_utterance_s: float,
    frame_s: float = 0.0,
    vad: VadName = "energy",
    by_phrase: bool = False,
) -> tuple[Utterance, ...]:
    """Split a recording into utterances in order. Neighbours overlap only if there is no pause between them.

    They cover a recording that is no longer than the limit, and a longer one without its long digital silence. With
    `by_phrase` they leave out all long silence: anywhere in a recording longer than the limit, at the beginning and the end
    of a shorter one. A recording of which nothing is left is one utterance without samples.

    Args:
        audio: The recording. Its samples are read, once, only if it is longer than the limit; with `by_phrase`, than 2 s.
        max_utterance_s: Maximum length of an utterance in seconds; 0: no limit, and the whole recording is one.
        frame_s: Length of an encoder frame in seconds; cuts lie at whole frames. 0: cuts lie anywhere.
        vad: How pauses are found.
        by_phrase: Cut at every clear pause, even where the limit would allow longer utterances, and leave out long silence.

    Raises:
        AudioError: As read().
    """
    max_samples = int(max_utterance_s * audio.sample_rate)
    if stays_whole(audio, max_utterance_s, by_phrase):
        return (Utterance(audio, 0, audio.num_samples),)
    frame_samples = max(1, min(frame_length(audio.sample_rate), max_samples // 10))
    unit_s = frame_samples / audio.sample_rate
    grid_s = frame_s if max_utterance_s >= _MIN_STEPS * frame_s else 0.0
    if vad == "silero":
        from fastscribe.segmentation.vad import SILENT, SPEECH, speech_probability

        loudness = speech_probability(audio, frame_samples)
        quiet = loudness < SPEECH
        silent = loudness < SILENT if by_phrase else loudness == 0
    else:
        loudness = frame_energy(audio, frame_samples)
        quiet = quiet_frames(loudness, unit_s)
        silent = steady_quiet(loudness, quiet) if by_phrase else loudness == 0
        silent &= frame_samples > 1  # a single sample has no variance
    if audio.num_samples <= max_samples:
        pieces = trim_silence(silent, unit_s)
    else:
        choose = choose_phrases if by_phrase else choose_pieces
        pieces = [
            (begin + first, begin + last)
            for begin, end in find_sound(silent, unit_s)
            for first, last in choose(loudness[begin:end], quiet[begin:end], unit_s, max_utterance_s - grid_s)
        ]
    places = [
        (
            _on_grid(begin * frame_samples, audio.sample_rate, grid_s),
            _on_grid(end * frame_samples, audio.sample_rate, grid_s),
        )
        for begin, end in pieces
    ]
    if pieces and pieces[-1][1] == len(loudness):
        places[-1] = places[-1][0], audio.num_samples
    return tuple(Utterance(audio, begin, end - begin) for begin, end in places) or (Utterance(audio, 0, 0),)


def _on_grid(sample: int, sample_rate: int, grid_s: float) -> int:
    """Return the sample at which the nearest encoder frame of the whole recording begins, rounded."""
    return round(round(sample / sample_rate / grid_s) * grid_s * sample_rate) if grid_s else sample


def choose_pieces(loudness: Float64Array, quiet: BoolArray, frame_s: float, max_s: float) -> list[Span]:
    """Return the frame ranges (begin, end) of pieces that cover all frames in order, none longer than `max_s`.

    A piece begins in a pause, at the end of the previous piece. Without a pause it begins OVERLAP_S earlier (less if pieces
    are short). Only silent pieces are much shorter than a third of `max_s`.

    Args:
        loudness: Loudness of each frame, in any unit.
        quiet: True for quiet frames.
        frame_s: Length of a frame in seconds.
        max_s: Maximum length of a piece in seconds.
    """
    cutter = _Cutter(loudness, quiet, frame_s, max(1, int(max_s / frame_s + 1e-6)))
    pieces: list[Span] = []
    begin, in_pause = 0, False
    while (cut := cutter.next_cut(begin, in_pause)) is not None:
        position, margin = cut
        pieces.append((begin, position + margin))
        begin, in_pause = position - margin, margin == 0
    return [*pieces, (begin, len(loudness))]


def choose_phrases(loudness: Float64Array, quiet: BoolArray, frame_s: float, max_s: float) -> list[Span]:
    """Return pieces as choose_pieces(), whose arguments these are, of each phrase apart. Phrases end at clear pauses."""
    return [
        (begin + first, begin + last)
        for begin, end in _phrases(quiet, frame_s)
        for first, last in choose_pieces(loudness[begin:end], quiet[begin:end], frame_s, max_s)
    ]


def _phrases(quiet: BoolArray, frame_s: float) -> list[Span]:
    """Cut at the longest pauses first, where both sides stay long enough."""
    least, lead = round(_MIN_PHRASE_S / frame_s), round(LEAD_S / frame_s)
    cuts = [0, len(quiet)]
    pauses = [(first, last) for first, last in runs(quiet) if last - first >= _PHRASE_PAUSE_S / frame_s]
    for first, last in sorted(pauses, key=lambda pause: pause[0] - pause[1]):
        cut = _before_onset(first, last, lead)
        after = bisect(cuts, cut)
        if after < len(cuts) and cut - cuts[after - 1] >= least and cuts[after] - cut >= least:
            insort(cuts, cut)
    return list(itertools.pairwise(cuts))


def _before_onset(first: int, last: int, lead: int) -> int:
    """Return the cut in a pause: `lead` before its end, in its middle if it is short."""
    return max(last - lead, (first + last) // 2)


class _Cutter:
    """Finds one cut after another. All its numbers are frames."""

    def __init__(self, loudness: Float64Array, quiet: BoolArray, frame_s: float, max_frames: int) -> None:
        self._num_frames, self._max_frames = len(loudness), max_frames
        self._loudness = _smoothed(loudness, max(1, round(_SMOOTH_S / frame_s / 2)))
        self._min_frames = math.ceil(_MIN_SHARE * max_frames)
        self._min_silence = min(round(_MIN_SILENCE_S / frame_s), self._min_frames)
        self._lead, self._long_pause = round(LEAD_S / frame_s), max(1, round(_LONG_PAUSE_S / frame_s))
        # Overlaps take at most a quarter of a piece; very short pieces do not overlap.
        self._margin = min(round(OVERLAP_S / 2 / frame_s), max_frames // 8)
        self._pauses = [(first, last) for first, last in runs(quiet) if last - first >= PAUSE_S / frame_s]
        self._next_pause = 0

    def next_cut(self, begin: int, in_pause: bool) -> tuple[int, int] | None:
        """Return (cut, margin) for the piece that begins at `begin`; None: it goes to the end.

        Both pieces extend beyond the cut by `margin`. `in_pause`: the previous cut lies in a pause.
        """
        if in_pause and (onset := self._end_of_silence(begin)) is not None:
            return onset, 0
        left = self._num_frames - begin
        if left <= self._max_frames:
            return None
        low, high = self._min_frames, self._max_frames
        if left <= (1 + _LATE_SHARE) * self._max_frames:  # one cut is enough
            low, high = max(low, left - self._max_frames), min(high, left - self._min_frames)
        best = self._best_pause(begin, begin + low, begin + high)
        return (best, 0) if best is not None else self._cut_in_speech(begin, low, high)

    def _end_of_silence(self, begin: int) -> int | None:
        """Return the end of a piece that begins in a long silence; None if the silence is short or lasts to the end."""
        first, last = next(iter(self._pauses_until(begin, begin + 1)), (begin, begin))
        cut = min(_before_onset(first, last, self._lead), begin + self._max_frames)
        return cut if cut - begin >= self._min_silence and last < self._num_frames else None

    def _best_pause(self, begin: int, low: int, high: int) -> int | None:
        """Return the cut in the longest pause, or in the last of several that are long enough; None without a pause."""
        best: tuple[int, int] | None = None
        for first, last in self._pauses_until(low, high):
            cut = _before_onset(first, last, self._lead)
            if cut > high:  # cut inside the silence; the rest of it becomes a piece of its own
                cut = high if last == self._num_frames else min(high, cut - self._min_silence)
            is_after_last_word = cut - first >= min(self._lead, last - first) // 2 or first <= begin
            if low <= cut <= high and is_after_last_word:
                best = max(best or (0, 0), (min(last - first, self._long_pause), cut))
        return best[1] if best else None

    def _pauses_until(self, low: int, high: int) -> list[Span]:
        """Return the pauses that overlap low..high. `low` never decreases, so the search stays cheap."""
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
        """Return the quietest position and the margin, so that both pieces have every word near the cut whole."""
        margin = self._margin
        if high == self._max_frames and self._num_frames - begin > (1 + _LATE_SHARE) * self._max_frames:
            low = max(low, math.ceil(_LATE_SHARE * high) - margin)
        low, high = low + margin, high - margin
        around = self._loudness[begin + low : begin + max(low, high) + 1]
        return begin + low + _quietest(around), margin


def _smoothed(loudness: Float64Array, half: int) -> Float64Array:
    """Return, for each frame index, the mean over `half` frames before it and `half` from it on; length N + 1."""
    if len(loudness) == 0:
        return np.zeros(1)
    sums = np.convolve(np.pad(loudness, half, mode="edge"), np.ones(2 * half), mode="valid")
    return sums / (2 * half)


def _quietest(loudness: Float64Array) -> int:
    """Return the index of the minimum; of several equal ones, the middle of their last stretch."""
    first, last = runs(loudness == loudness.min())[-1]
    return (first + last) // 2
