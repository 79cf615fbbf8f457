"""Dialogues: the transcripts of a recording's channels, each of one speaker, become one transcript.

A speaker's segments end with sentences, and may last while another speaker says something. So they are cut where another
speaker begins to speak, and all parts are put in the order in which they begin. Speech at the same time stays: parts may
overlap, and no word is lost. Parts of a segment that nobody came between are one segment again.

Merging is quick. Only if two channels have the same words at the same time, or one has a gap in the other's
speech, the recording is read again, to find out who is heard in whose channel (crosstalk.py).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from typing import NamedTuple

from fastscribe._system.text_layout import join_texts
from fastscribe.audio.failures import to_failure
from fastscribe.errors import AudioError
from fastscribe.segmentation.loudness import frame_energy, frame_length
from fastscribe.speakers.crosstalk import Levels, SharedWords, find_shared, is_spoken_elsewhere
from fastscribe.text.transcript import make_segment
from fastscribe.types import AudioInfo, Failure, Gap, Segment, Token, Transcript, Word


def check_names(audio: AudioInfo, names: Sequence[str] | None) -> None:
    """Raise AudioError if a recording of several channels has fewer than names."""
    if names is not None and 1 < audio.channels < len(names):
        problem = f"has {audio.channels} channels, but there are {len(names)} names of speakers"
        raise AudioError(audio.path, problem, may_pass=True)


def speakers_of(channels: Sequence[int], names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the speakers of a recording's channels.

    A name of one of several speakers would be wrong for the only channel, which has all of them.

    Args:
        channels: The channels that are transcribed, from 0.
        names: Options.speaker_names.
    """
    given = names or ()
    if len(channels) == 1 and len(given) > 1:
        given = ()
    return tuple(given[one] if one < len(given) else f"channel {one + 1}" for one in channels)


def dialogue(
    channels: Sequence[Transcript], names: Sequence[str] | None
) -> Transcript | Callable[[], Transcript | Failure]:
    """Return the dialogue of a recording's channels, in order, or the call that reads audio to make it."""
    speakers = speakers_of([one.audio.channel or 0 for one in channels], names)
    words = [one.words for one in channels]
    shared = find_shared(words)
    doubtful = [_gaps_in_speech(channel, one.gaps, words) for channel, one in enumerate(channels)]
    if shared or any(doubtful):
        return partial(_merge_cleaned, channels, speakers, shared, doubtful)
    return merge(channels, speakers)


def _gaps_in_speech(channel: int, gaps: Sequence[Gap], words: Sequence[Sequence[Word]]) -> list[tuple[Gap, int]]:
    """Return the gaps of a channel in which another one has words, with that channel."""
    others = [other for other in range(len(words)) if other != channel]
    return [(gap, other) for gap in gaps for other in others if is_spoken_elsewhere(gap, words[other])]


def _merge_cleaned(
    channels: Sequence[Transcript],
    speakers: Sequence[str],
    shared: Sequence[SharedWords],
    doubtful: Sequence[Sequence[tuple[Gap, int]]],
) -> Transcript | Failure:
    """Return the dialogue without words and gaps that are another speaker's speech."""
    audio = channels[0].audio
    try:
        frame_samples = frame_length(audio.sample_rate)
        energies = [frame_energy(one.audio, frame_samples) for one in channels]
        levels = Levels(energies, frame_samples / audio.sample_rate, [one.words for one in channels], shared)
        leaked = levels.find_leaked(shared)
        cleaned = []
        for channel, transcript in enumerate(channels):
            heard = {gap for gap, other in doubtful[channel] if levels.is_leaked(channel, other, gap[:2])}
            own = without_words(transcript, leaked[channel]) if leaked[channel] else transcript
            cleaned.append(replace(own, gaps=tuple(gap for gap in own.gaps if gap not in heard)))
        return merge(cleaned, speakers)
    except BaseException as error:  # even one that would end the thread becomes this file's Failure
        return to_failure(audio, "load", error)


_PAUSE_S = 0.6  # a longer pause within a segment ends a phrase
_MIN_PART_S = (
    0.5  # others begin this long after a phrase's begin and before its end, or do not cut it: they only overlap
)


class _Part(NamedTuple):
    """Consecutive words of one segment."""

    start_s: float  # never before an earlier part's of the speaker
    speaker: int
    segment: int
    is_rest: bool  # of a phrase, or no later than one: it comes after who begins at the same time
    words: tuple[Word, ...]


def merge(channels: Sequence[Transcript], speakers: Sequence[str]) -> Transcript:
    """Return the dialogue of the transcripts of a recording's channels.

    Args:
        channels: A transcript for each speaker, with times on the same clock.
        speakers: Their names, in the same order.

    Returns:
        The transcript, with a speaker for each segment, word, token, gap and alternative. Its language is that of the speaker
        with the most words.
    """
    phrases = [_phrases(transcript) for transcript in channels]
    begins = [_begins(transcript.words) for transcript in channels]
    parts: list[_Part] = []
    for number, found in enumerate(phrases):
        others = sorted(time_s for other, times in enumerate(begins) if other != number for time_s in times)
        parts += _parts(number, found, others)
    parts.sort(key=lambda part: (part.start_s, part.is_rest, part.speaker))
    segments = tuple(
        _joined(channels[speaker].segments[segment], speakers[speaker], list(group))
        for (speaker, segment), group in groupby(parts, lambda part: (part.speaker, part.segment))
    )
    named = list(zip(channels, speakers, strict=True))
    tokens = [token._replace(speaker=name) for transcript, name in named for token in transcript.tokens]
    nbest = [replace(one, speaker=name) for transcript, name in named for one in transcript.nbest]
    gaps = [gap._replace(speaker=name) for transcript, name in named for gap in transcript.gaps]
    most_words = max(channels, key=lambda transcript: len(transcript.words))
    return Transcript(
        replace(channels[0].audio, channel=None),
        channels[0].text if len(channels) == 1 else join_texts(segment.text for segment in segments),
        segments,
        tuple(sorted(tokens, key=lambda token: token.start_s)),
        tuple(sorted(gaps, key=lambda gap: gap[:2])),
        tuple(nbest),
        most_words.language,
        tuple(speakers),
        is_timed=all(transcript.is_timed for transcript in channels),
        speaker_channels=tuple(transcript.audio.channel or 0 for transcript in channels),
    )


def without_words(transcript: Transcript, numbers: set[int]) -> Transcript:
    """Return a channel's transcript without some of its words, by their positions among all, and without their tokens."""
    segments, number = [], 0
    for segment in transcript.segments:
        kept = [word for at, word in enumerate(segment.words, number) if at not in numbers]
        number += len(segment.words)
        if len(kept) == len(segment.words):
            segments.append(segment)
        elif kept:
            segments.append(make_segment(kept))
    removed = sorted((word.start_s, word.end_s) for at, word in enumerate(transcript.words) if at in numbers)
    tokens = tuple(token for token in transcript.tokens if not _is_within(token, removed))
    return replace(transcript, text=join_texts(one.text for one in segments), segments=tuple(segments), tokens=tokens)


def _is_within(token: Token, spans: Sequence[tuple[float, float]]) -> bool:
    at = bisect_right(spans, (token.start_s, math.inf)) - 1
    return at >= 0 and token.end_s <= spans[at][1]


def _phrases(transcript: Transcript) -> list[tuple[int, list[Word]]]:
    """Return the words between long pauses, with the number of their segment."""
    phrases: list[tuple[int, list[Word]]] = []
    for number, segment in enumerate(transcript.segments):
        for word in segment.words:
            if not phrases or phrases[-1][0] != number or word.start_s - phrases[-1][1][-1].end_s >= _PAUSE_S:
                phrases.append((number, []))
            phrases[-1][1].append(word)
    return phrases


def _begins(words: Sequence[Word]) -> list[float]:
    """Return the times in seconds at which a speaker begins to speak after a pause."""
    after_pauses = (word.start_s for before, word in pairwise(words) if word.start_s - before.end_s >= _PAUSE_S)
    return [*(word.start_s for word in words[:1]), *after_pauses]


def _parts(speaker: int, phrases: Sequence[tuple[int, list[Word]]], others: Sequence[float]) -> Iterator[_Part]:
    """Yield a speaker's phrases, cut where others begin."""
    latest_s, is_rest = 0.0, False
    for segment, words in phrases:
        for number, part in enumerate(_cut(words, others)):
            # What begins no later than a rest comes after it.
            is_rest = number > 0 or (is_rest and part[0].start_s <= latest_s)
            latest_s = max(latest_s, part[0].start_s)
            yield _Part(latest_s, speaker, segment, is_rest, tuple(part))


def _cut(words: Sequence[Word], others: Sequence[float]) -> Iterator[Sequence[Word]]:
    """Yield the parts of a phrase: a new one begins with the first word after another speaker's begin."""
    first, begin_s, end_s = 0, words[0].start_s, words[-1].end_s
    for time_s in others[bisect_left(others, begin_s + _MIN_PART_S) : bisect_right(others, end_s - _MIN_PART_S)]:
        if time_s < begin_s + _MIN_PART_S:  # another one began shortly before
            continue
        cut = next((at for at in range(first, len(words)) if words[at].start_s >= time_s), len(words))
        if first < cut < len(words):
            yield words[first:cut]
            first, begin_s = cut, time_s
    yield words[first:]


def _joined(segment: Segment, speaker: str, parts: Sequence[_Part]) -> Segment:
    words = [replace(word, speaker=speaker) for part in parts for word in part.words]
    found = segment if len(words) == len(segment.words) else make_segment(words)
    return replace(found, words=tuple(words), speaker=speaker)
