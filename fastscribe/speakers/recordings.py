"""What speakers add before a recording is transcribed and after: each way to tell who speaks reads its channels, its turns or
all of its samples, and makes a dialogue of its channels or gives its words to speakers (pipeline.interfaces).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from fastscribe.audio.failures import to_failure
from fastscribe.audio.mixing import noted
from fastscribe.audio.read import channel_blocks, read
from fastscribe.audio.surround import SURROUND
from fastscribe.pipeline.interfaces import PlainInputs, PlainTranscripts, Step
from fastscribe.segmentation.loudness import SILENCE
from fastscribe.speakers.assembly import with_speakers
from fastscribe.speakers.config import TURNS, SpeakerModelConfig
from fastscribe.speakers.dialogues import check_names, dialogue
from fastscribe.speakers.turns import RttmTurns, stitched, turns_of, windows
from fastscribe.text.transcript import DecodedUtterance
from fastscribe.types import AudioInfo, Float32Array, MixNotes, Samples, Transcript, Turn, Utterance


@dataclass(frozen=True, eq=False)
class HeldSamples(Samples):
    """The samples of a recording that was read as a whole, because several models see it. `audio` is the recording itself."""

    audio: AudioInfo


@dataclass(frozen=True)
class ByChannel(PlainInputs, PlainTranscripts):
    """Each channel that differs is transcribed by itself, or the one that a recording's row names. They become a dialogue.

    Args:
        names: Of the speakers (Options.speaker_names).
    """

    names: Sequence[str] | None
    needs_file = True  # which has the number of channels

    def channels(self, audio: AudioInfo) -> Sequence[AudioInfo]:
        check_names(audio, self.names)
        notes = tuple(note for note in audio.notes if not note.startswith(SURROUND))
        if audio.channel is not None and notes == audio.notes:  # its row names it
            return [audio]
        return [replace(audio, channel=channel, notes=notes) for channel in distinct_channels(audio)]

    def transcript(self, channels: Sequence[Transcript], understood: Any) -> Step:
        return dialogue(channels, self.names)


@dataclass(frozen=True)
class ByRttm(PlainInputs, PlainTranscripts):
    """Words get the speakers of another tool's turns. A recording without turns fails before a model sees it."""

    rttm: RttmTurns
    needs_file = True  # which says where a row's part begins

    def check(self, audio: AudioInfo) -> None:
        self.rttm.of(audio)

    def transcript(self, channels: Sequence[Transcript], understood: Any) -> Step:
        [whole] = channels
        try:
            return with_speakers(whole, self.rttm.of(whole.audio))
        except Exception as error:  # one bad file becomes a Failure and the run goes on
            return to_failure(whole.audio, "assemble", error)


@dataclass(frozen=True)
class ByModel(PlainInputs, PlainTranscripts):
    """A speaker model reads each recording, which is held in memory for both models. Words get the speakers that it finds.

    Args:
        config: The speaker model's.
        sample_rate: The recogniser's.
        names: Of the speakers (Options.speaker_names).
    """

    config: SpeakerModelConfig
    sample_rate: int
    names: Sequence[str] | None
    needs_file = holds = True

    def hold(self, audio: AudioInfo) -> AudioInfo:
        """Read a recording. Return one of its samples in memory, mono at the recogniser's rate. Raises AudioError."""
        notes = MixNotes([], Counter())
        samples_S = read(audio, 0, audio.num_samples, sample_rate=self.sample_rate, notes=notes)
        held = HeldSamples(samples_S[:, None], self.sample_rate, audio.id, audio)
        return replace(
            noted(audio, notes),
            sample_rate=self.sample_rate,
            channels=1,
            num_samples=len(samples_S),
            start=0,
            file=held,
            is_int16=held.is_int16,
            track=None,
            channel=None,
            layout=(),
        )

    def utterances(self, audio: AudioInfo) -> Iterator[Utterance]:
        """Yield what the speaker model sees of a recording: all, or overlapping windows as long as what it learnt from."""
        if self.config.cache is not None:
            yield Utterance(audio, 0, audio.num_samples, TURNS)
            return
        frame_samples = round(self.config.frame_s * audio.sample_rate)
        num_frames = math.ceil(audio.num_samples / frame_samples)
        for begin, end in windows(num_frames, round(self.config.trained_s / self.config.frame_s)):
            start = begin * frame_samples
            num_samples = min(end * frame_samples, audio.num_samples) - start
            yield Utterance(audio, start, num_samples, TURNS)

    def understand(self, parts: Sequence[DecodedUtterance]) -> tuple[Turn, ...]:
        """Return the turns that the model found in a recording's windows. Digital silence has no turns."""
        config, found = self.config, []
        frame_samples = round(config.frame_s * config.features.sample_rate)
        for utterance, hypothesis in sorted(parts, key=lambda part: part[0].start):
            speakers_TN = hypothesis.found
            if speakers_TN is None:
                speakers_TN = np.zeros((config.num_frames(utterance.num_samples), config.num_speakers), np.float32)
            found.append((utterance.start // frame_samples, speakers_TN))
        return turns_of(stitched(found), config.frame_s, parts[0][0].audio.duration_s, self.names)

    def transcript(self, channels: Sequence[Transcript], understood: Any) -> Step:
        [whole] = channels
        if isinstance(whole.audio.file, HeldSamples):
            whole = replace(whole, audio=whole.audio.file.audio)
        try:
            return with_speakers(whole, understood)
        except Exception as error:  # one bad file becomes a Failure and the run goes on
            return to_failure(whole.audio, "assemble", error)


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
