"""Silence that an utterance has too much of, or too little.

A model that learnt on short utterances writes words for long silence, so it is not given any.

Soft speech must stay, so silence is more than quiet. It is long, steady throughout and near the floor of its surroundings:
digital silence, or noise that does not vary as speech does. What is in doubt is decoded. Pure.

Long digital silence within an utterance is given to no model. It is cut out, and the frames of what follows are moved back to
their place in the recording.

A row that is shorter than its model takes lies in the middle of silence. NeMo's loader does so for Canary: an utterance below
1 s gets zeros on both sides. Two cuts of negative length say where it lies, and the times of its tokens count from its own
beginning again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from fastscribe.segmentation.loudness import decibels, runs
from fastscribe.types import AnyArray, AudioInfo, BoolArray, Cut, Float64Array, Hypothesis, SampleArray

MIN_TRIMMED_S = 2.0  # at the edges of a recording that is one utterance; a shorter recording is never trimmed
_MIN_S = 2.0
_MIN_EDGE_S = 1.0  # at the beginning and the end of a recording
_BEFORE_S, _AFTER_S = 0.24, 0.5  # silence that stays before and after sound
_MAX_VARIATION_DB = 6.0  # between the 5th and the 95th percentile; that of speech is larger

_CUT_UNIT_S = 0.16  # cuts are multiples of it: whole frames of every encoder, and whole samples of every usual rate
_PROBE_S, _BLOCK_S = 0.1, 0.02  # steps of a first look and of a close one

Span = tuple[int, int]


def stays_whole(audio: AudioInfo, max_utterance_s: float, by_phrase: bool) -> bool:
    """Return True if a recording is one utterance as it is, so that nothing of it need be read to know. See segment.split()."""
    if max_utterance_s <= 0:
        return True
    may_trim = by_phrase and audio.num_samples >= MIN_TRIMMED_S * audio.sample_rate
    return audio.num_samples <= int(max_utterance_s * audio.sample_rate) and not may_trim


def steady_quiet(energy: Float64Array, quiet: BoolArray) -> BoolArray:
    """Return True for each frame in a stretch of quiet frames whose energy does not vary as that of speech does.

    Args:
        energy: Energy of each frame.
        quiet: True for quiet frames.
    """
    steady = np.zeros(len(quiet), dtype=bool)
    for first, last in runs(quiet):
        level = decibels(energy[first:last])
        for begin, end in runs(level <= np.median(level) + _MAX_VARIATION_DB):  # without soft sound at the edges
            softer, louder = np.percentile(level[begin:end], (5.0, 95.0))
            steady[first + begin : first + end] = louder - softer <= _MAX_VARIATION_DB
    return steady


def find_sound(silent: BoolArray, frame_s: float, min_s: float = _MIN_S, min_edge_s: float = _MIN_EDGE_S) -> list[Span]:
    """Return the frame ranges (begin, end) of a recording without its long silence, in order; none if all is silent.

    Args:
        silent: True for each frame that certainly is no speech.
        frame_s: Length of a frame in seconds.
        min_s: Shortest silence in seconds that is left out within the recording.
        min_edge_s: Shortest silence in seconds that is left out at its beginning and at its end.
    """
    num_frames = len(silent)
    edges = [0]  # where sound begins and ends, in turn
    for first, last in runs(silent):
        is_first, is_last = first == 0, last == num_frames
        if (last - first) * frame_s >= (min_edge_s if is_first or is_last else min_s):
            edges.append(0 if is_first else first + round(_AFTER_S / frame_s))
            edges.append(num_frames if is_last else last - round(_BEFORE_S / frame_s))
    spans = zip(edges[::2], [*edges[1:], num_frames][::2], strict=True)
    return [(begin, end) for begin, end in spans if end > begin]


def trim_silence(silent: BoolArray, frame_s: float) -> list[Span]:
    """Return the frame range of a short recording without long silence at its edges; none if all is silent.

    Silence within it stays: the pieces would be shorter than what the model learnt on. Arguments are those of find_sound().
    """
    return find_sound(silent, frame_s, math.inf, MIN_TRIMMED_S)


def mono_zeros(samples: SampleArray) -> BoolArray:
    """Return True where all channels together are 0, as in their average: [S] of samples [S] or [S, C]."""
    if samples.ndim == 2:
        samples = samples.sum(axis=1, dtype=np.int32 if samples.dtype == np.int16 else np.float32)
    zeros: BoolArray = np.equal(samples, 0)
    return zeros


def find_zeros(samples: SampleArray, rate: int) -> list[Span]:
    """Return the ranges (begin, end) of samples to cut out of an utterance: its long digital silence, without margins.

    The length of each is a multiple of _CUT_UNIT_S. A look at every tenth of a second spares nearly all utterances more.

    Args:
        samples: [S], or [S, C] at the recording's own rate.
        rate: Their rate in Hz; at one of which _CUT_UNIT_S is not a whole number of samples, nothing is found.
    """
    unit, fraction = divmod(round(_CUT_UNIT_S * 100) * rate, 100)
    step, block = round(_PROBE_S * rate), round(_BLOCK_S * rate)
    if fraction or len(samples) < _MIN_S * rate:
        return []
    certain = math.floor(_MIN_S / _PROBE_S) - 1  # looks that fall into any silence that is long enough
    looks = mono_zeros(samples[::step])
    if np.count_nonzero(looks) < certain or not any(last - first >= certain for first, last in runs(looks)):
        return []
    num_blocks = -(-len(samples) // block)
    silent = np.ones(num_blocks * block, dtype=bool)
    silent[: len(samples)] = mono_zeros(samples)
    silent_blocks: BoolArray = np.all(silent.reshape(num_blocks, block), axis=1)
    sound = find_sound(silent_blocks, block / rate, min_edge_s=_MIN_S)
    edges = [0, *(min(edge * block, len(samples)) for span in sound for edge in span), len(samples)]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    return [(begin, begin + (end - begin) // unit * unit) for begin, end in gaps if end - begin >= unit]


def cut_out(samples: AnyArray, spans: Sequence[Span], rate: int) -> tuple[Cut, ...]:
    """Remove the ranges of find_zeros() from samples [S] or [S, C], in place: what follows moves up, and zeros fill the end."""
    pieces_end, length = list[float](), 0
    edges = [0, *(edge for span in spans for edge in span), len(samples)]
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        samples[length : length + end - begin] = samples[begin:end]
        length += end - begin
        pieces_end.append(length / rate)
    samples[length:] = 0
    return tuple(Cut(at_s, (end - begin) / rate) for at_s, (begin, end) in zip(pieces_end, spans, strict=False))


def with_cuts(hypothesis: Hypothesis, cuts: Sequence[Cut], frame_s: float, marks: Collection[int] = ()) -> Hypothesis:
    """Return an utterance's hypothesis with its frames counted in the whole utterance.

    Args:
        hypothesis: Of the utterance without its long digital silence. Its emissions within silence are repeated.
        cuts: What the utterance lacks.
        frame_s: Length of a frame in seconds.
        marks: Ids of punctuation. Models write it anywhere before the next word, so it stays before a cut if its word does;
            else the word would last as long as the silence.
    """
    if not cuts:
        return hypothesis
    if cuts[0].duration_s < 0 or cuts[-1].duration_s < 0:
        return uncentred(hypothesis, cuts, frame_s)
    at = [round(cut.at_s / frame_s) for cut in cuts]
    shifts = np.cumsum([0, *(round(cut.duration_s / frame_s) for cut in cuts)])
    frames = np.array(hypothesis.token_frames, np.int64)
    places = np.searchsorted(at, frames, side="right").tolist()
    for index in range(1, len(places)):
        if hypothesis.token_ids[index] in marks:
            places[index] = places[index - 1]
    moved = (frames + shifts[places]).tolist()
    emissions_TV = hypothesis.emissions_TV
    if emissions_TV is not None:
        counts = np.ones(len(emissions_TV), np.int64)
        np.add.at(counts, np.minimum(at, len(counts) - 1), np.diff(shifts))
        emissions_TV = np.repeat(emissions_TV, counts, axis=0)
    nbest = tuple(with_cuts(one, cuts, frame_s, marks) for one in hypothesis.nbest)
    return replace(hypothesis, token_frames=tuple(moved), emissions_TV=emissions_TV, nbest=nbest)


def centre(row_S: SampleArray, length: int, least: int, rate: int) -> tuple[Cut, Cut]:
    """Move the first `length` samples of a row into the middle of its first `least`, with zeros around them.

    Returns:
        The silence before and after them, as cuts of negative length.
    """
    before = (least - length + 1) // 2  # of an odd number of zeros the most are before, as there
    row_S[before : before + length] = row_S[:length].copy()
    row_S[:before] = row_S[before + length : least] = 0
    return Cut(0.0, -before / rate), Cut((before + length) / rate, (before + length - least) / rate)


def uncentred(hypothesis: Hypothesis, cuts: Sequence[Cut], frame_s: float) -> Hypothesis:
    """Return the hypothesis of a row that centre() made with its frames counted in the utterance.

    Times in the silence become the nearest ones of the utterance. Tokens that are spread evenly are spread over it.
    """
    before, after = cuts
    first = round(-before.duration_s / frame_s)
    count = max(1, math.ceil((after.at_s + before.duration_s) / frame_s))
    starts = hypothesis.token_frames
    ends = [start + duration for start, duration in zip(starts, hypothesis.token_durations, strict=True)]
    if hypothesis.is_timed:
        moved = [
            (min(max(start - first, 0), count), min(max(end - first, 0), count))
            for start, end in zip(starts, ends, strict=True)
        ]
    else:
        whole = max(ends, default=1)
        moved = [(start * count // whole, end * count // whole) for start, end in zip(starts, ends, strict=True)]
    return replace(
        hypothesis,
        token_frames=tuple(start for start, _ in moved),
        token_durations=tuple(end - start for start, end in moved),
        nbest=tuple(uncentred(one, cuts, frame_s) for one in hypothesis.nbest),
    )
