"""Dialogues: the transcripts of a recording's channels, each of one speaker, become one transcript.

Merging is quick (merge_channels.py). Only if two channels have the same words at the same time, or one has a gap in the other's
speech, the recording is read again, to find out who is heard in whose channel (crosstalk.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from fastscribe.audio.failures import to_failure
from fastscribe.errors import AudioError
from fastscribe.segmentation.loudness import frame_energy, frame_length
from fastscribe.speakers.crosstalk import Levels, SharedWords, find_shared, is_spoken_elsewhere
from fastscribe.speakers.merge_channels import merge, without_words
from fastscribe.types import AudioInfo, Failure, Gap, Transcript, Word


def check_names(audio: AudioInfo, names: Sequence[str] | None) -> None:
    """Raise AudioError if a recording of several channels has fewer than names."""
    if names is not None and 1 < audio.channels < len(names):
        raise AudioError(audio.path, f"has {audio.channels} channels, but there are {len(names)} names of speakers")


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
