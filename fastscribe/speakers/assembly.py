"""A recording's transcript with its speakers: a dialogue of channels, or words given to speakers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastscribe.audio.failures import to_failure
from fastscribe.pipeline.interfaces import PlainTranscripts, Step
from fastscribe.speakers.config import SpeakerModelConfig
from fastscribe.speakers.dialogues import dialogue
from fastscribe.speakers.recordings import HeldSamples
from fastscribe.speakers.rttm import RttmTurns
from fastscribe.speakers.turns import stitched, turns_of
from fastscribe.speakers.word_speakers import with_speakers
from fastscribe.text.transcript import DecodedUtterance
from fastscribe.types import AudioInfo, Failure, Transcript, Turn


@dataclass(frozen=True)
class Dialogues(PlainTranscripts):
    """A recording's channels become a dialogue.

    Args:
        names: Of the speakers (Options.speaker_names).
    """

    names: Sequence[str] | None

    def transcript(self, channels: Sequence[Transcript], understood: Any) -> Step:
        return dialogue(channels, self.names)


@dataclass(frozen=True)
class RttmTranscripts(PlainTranscripts):
    """Words get the speakers of another tool's turns."""

    rttm: RttmTurns

    def transcript(self, channels: Sequence[Transcript], understood: Any) -> Step:
        [whole] = channels
        return _with_turns(whole, self.rttm.of)


@dataclass(frozen=True)
class ModelTranscripts(PlainTranscripts):
    """Words get the speakers that a speaker model finds.

    Args:
        config: The speaker model's.
        names: Of the speakers (Options.speaker_names).
    """

    config: SpeakerModelConfig
    names: Sequence[str] | None

    def understand(self, parts: Sequence[DecodedUtterance]) -> tuple[Turn, ...]:
        """Return the turns that the model found in a recording's windows. Nobody speaks in digital silence."""
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
        return _with_turns(whole, lambda audio: understood)


def _with_turns(whole: Transcript, turns_of: Callable[[AudioInfo], Sequence[Turn]]) -> Transcript | Failure:
    """Return the transcript with the speakers of a recording's turns."""
    try:
        return with_speakers(whole, turns_of(whole.audio))
    except Exception as error:  # one bad file becomes a Failure and the run goes on
        return to_failure(whole.audio, "assemble", error)
