"""Speech that came out without words: found by its sound, so that the model can decode it again by itself.

Where a recording's words leave a span of MIN_SPAN_S free, the sound of that span and a little around it is read again. Only
clear speech counts: about as loud as the words beside it, well above the floor, MIN_SPEECH_S long in all, and moving as
speech does, which hum and steady noise do not. A detector, where the user asks for one (segmentation/vad.py), judges
instead. Such speech is an utterance of its own. If the model decodes it again and finds words, they join the transcript
(text/transcript.py marks them); else it is one of the transcript's gaps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastscribe.config import Options
from fastscribe.segmentation.loudness import (
    decibels,
    floor_and_level,
    frame_energy,
    frame_length,
    joined,
    quiet_frames,
    runs,
)
from fastscribe.segmentation.segment import LEAD_S, choose_pieces
from fastscribe.segmentation.vad import SPEECH, speech_probability
from fastscribe.types import AudioInfo, BoolArray, Float64Array, Gap, Hypothesis, Transcript, Utterance, Word

MIN_SPAN_S = 2.0
MIN_SPEECH_S = 1.0
_AROUND_S = 10.0  # on either side, for the floor and for how loud words are
_EDGE_S = 0.3  # of words that begin earlier or end later than their times say
_DIP_S = 0.3  # a dip no longer than this does not end a run of speech
_APART_S = 2.0  # speech so far apart is decoded apart
_MIN_RUN_S = 0.4
_ABOVE_FLOOR_DB = 10.0
_BELOW_WORDS_DB = 15.0
_MIN_DB = -60.0  # of full scale
_MIN_MOVEMENT_DB = 6.0  # between a run's quiet and its loud tenth
_SAME_SHARE = 0.9  # of an utterance: decoding so much of it again would say the same again

Span = tuple[float, float]  # begin and end in seconds


def find_untranscribed_spans(transcript: Transcript) -> list[Span]:
    """Return the spans of at least MIN_SPAN_S between words, and before the first and after the last, in order."""
    found, end_s = [], 0.0
    for word in transcript.words:
        if word.start_s - end_s >= MIN_SPAN_S:
            found.append((end_s, word.start_s))
        end_s = max(end_s, word.end_s)
    duration_s = transcript.audio.duration_s
    return [*found, (end_s, duration_s)] if duration_s - end_s >= MIN_SPAN_S else found


def clear_speech(transcript: Transcript, spans: Sequence[Span], options: Options) -> list[Utterance]:
    """Return the clear speech in the spans, as utterances in order.

    Reads the sound of the spans and around them. Raises AudioError like read().
    """
    return [utterance for span in spans for utterance in _speech_in(transcript, span, options)]


def is_new(utterance: Utterance, decoded: Sequence[Utterance]) -> bool:
    """False where one of those that are decoded is nearly the same stretch."""
    end = utterance.start + utterance.num_samples
    return not any(
        min(end, other.start + other.num_samples) - max(utterance.start, other.start) >= _SAME_SHARE * other.num_samples
        for other in decoded
    )


def gaps_of(decoded_again: Sequence[tuple[Utterance, Hypothesis]]) -> tuple[Gap, ...]:
    """Return the utterances that still have no words, in order; neighbours that touch are one gap."""
    found: list[Gap] = []
    for utterance in sorted((u for u, hypothesis in decoded_again if not hypothesis.token_ids), key=lambda u: u.start):
        if found and utterance.start_s <= found[-1].end_s:
            found[-1] = Gap(found[-1].start_s, max(found[-1].end_s, utterance.end_s))
        else:
            found.append(Gap(utterance.start_s, utterance.end_s))
    return tuple(found)


def _speech_in(transcript: Transcript, span: Span, options: Options) -> list[Utterance]:
    audio, (start_s, end_s), rate = transcript.audio, span, transcript.audio.sample_rate
    frame_samples = frame_length(rate)
    frame_s = frame_samples / rate
    origin = max(0, int((start_s - _AROUND_S) * rate)) // frame_samples * frame_samples
    around = origin, min(audio.num_samples, int((end_s + _AROUND_S) * rate)) - origin
    first = round((start_s + (_EDGE_S if start_s > 0 else 0.0)) / frame_s) - origin // frame_samples
    last = round((end_s - (_EDGE_S if end_s < audio.duration_s else 0.0)) / frame_s) - origin // frame_samples
    if options.vad == "silero":
        loudness = speech_probability(audio, frame_samples, options.channel, *around)
        quiet = loudness < SPEECH
        speech = ~quiet[first:last]
    else:
        loudness = frame_energy(audio, frame_samples, options.channel, *around)
        quiet = quiet_frames(loudness, frame_s)
        in_words = _word_frames(transcript.words, len(loudness), origin / rate, frame_s)
        speech = speech_frames(loudness, in_words, slice(first, last), frame_s)
    max_s = options.max_utterance_s or audio.duration_s + 1.0
    return [
        _utterance(audio, origin + (begin + piece_begin) * frame_samples, origin + (begin + piece_end) * frame_samples)
        for begin, end in _spans(speech, first, len(loudness), frame_s)
        for piece_begin, piece_end in choose_pieces(loudness[begin:end], quiet[begin:end], frame_s, max_s)
    ]


def _utterance(audio: AudioInfo, begin: int, end: int) -> Utterance:
    return Utterance(audio, begin, min(end, audio.num_samples) - begin)


def _word_frames(words: Sequence[Word], num_frames: int, origin_s: float, frame_s: float) -> BoolArray:
    in_words = np.zeros(num_frames, dtype=bool)
    for word in words:
        first, last = (word.start_s - origin_s) / frame_s, (word.end_s - origin_s) / frame_s
        in_words[max(0, int(first)) : max(0, int(last) + 1)] = True
    return in_words


def speech_frames(energy: Float64Array, in_words: BoolArray, where: slice, frame_s: float) -> BoolArray:
    """Of the frames `where`, those of runs that are loud and move as speech does.

    Loud is what comes near the frames `in_words`; where these say little, near the loudest that there is.
    """
    floor, level = floor_and_level(energy)
    loudness_db = decibels(energy)
    if in_words.sum() * frame_s >= MIN_SPEECH_S:
        level = float(np.percentile(loudness_db[in_words], 75.0))
    here = loudness_db[where]
    loud = here >= max(floor + _ABOVE_FLOOR_DB, level - _BELOW_WORDS_DB, _MIN_DB)
    speech = np.zeros(len(here), dtype=bool)
    for first, last in runs(joined(loud, round(_DIP_S / frame_s))):
        quieter, louder = np.percentile(here[first:last], (10.0, 90.0))
        if (last - first) * frame_s >= _MIN_RUN_S and louder - quieter >= _MIN_MOVEMENT_DB:
            speech[first:last] = True
    return speech


def _spans(speech: BoolArray, offset: int, num_frames: int, frame_s: float) -> list[tuple[int, int]]:
    """Frames (begin, end), counted from `offset` frames earlier, to be decoded again; none where there is little speech."""
    lead = round(LEAD_S / frame_s)
    return [
        (max(0, offset + first - lead), min(num_frames, offset + last + lead))
        for first, last in runs(joined(speech, round(_APART_S / frame_s)))
        if speech[first:last].sum() * frame_s >= MIN_SPEECH_S
    ]
