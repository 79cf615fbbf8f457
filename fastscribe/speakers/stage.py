"""What speakers add to a run, as its options ask (transcriber.py calls it)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fastscribe.config import CHANNELS, ModelConfig, Options
from fastscribe.pipeline.interfaces import Additions
from fastscribe.pipeline.model_facts import ModelFacts
from fastscribe.speakers.assembly import Dialogues, ModelTranscripts, RttmTranscripts
from fastscribe.speakers.batches import TurnPlanner, VoicePlanner
from fastscribe.speakers.config import TURNS, VOICES
from fastscribe.speakers.recordings import ChannelInputs, ModelInputs, RttmInputs
from fastscribe.speakers.rttm import RttmTurns
from fastscribe.speakers.voice_prints import LostPrints, VoicePrints

_MAX_HELD_BYTES, _BYTES_PER_SAMPLE = 2 << 30, 4  # of recordings that a speaker model sees, which are held as a whole


class SpeakerStage:
    """Speakers in the runs of a transcriber.

    Args:
        options: The runs' options. The turns of `rttm` are read here, once.

    Raises:
        UsageError: The file of `rttm` is missing, cannot be read, or holds a line that is no RTTM.
    """

    def __init__(self, options: Options) -> None:
        self._rttm = None if options.rttm is None else RttmTurns(options.rttm)

    def refresh(self) -> None:
        """Read files again that have changed since they were read."""
        if self._rttm is not None and self._rttm.has_changed:
            self._rttm = RttmTurns(self._rttm.path)

    def digests(self) -> Mapping[str, str]:
        """Return digests of the files that were read, by the option's name. Raises OSError."""
        return {} if self._rttm is None else {"rttm": self._rttm.digest()}

    def add_to(self, run: Additions, config: ModelConfig, options: Options, facts: ModelFacts) -> Additions:
        """Return a run's additions with those of speakers."""
        rate, names = config.features.sample_rate, options.speaker_names
        if options.speakers == CHANNELS:
            run = replace(run, inputs=ChannelInputs(names), transcripts=Dialogues(names))
        elif self._rttm is not None:
            turns = self._rttm
            run = replace(
                run, inputs=RttmInputs(turns), transcripts=RttmTranscripts(turns), needs_whole_recordings=True
            )
        if (speaker_model := facts.others.get(TURNS)) is not None:
            max_held_s = _MAX_HELD_BYTES / _BYTES_PER_SAMPLE / rate
            run = replace(
                run,
                inputs=ModelInputs(speaker_model, rate),
                transcripts=ModelTranscripts(speaker_model, names),
                planners=(*run.planners, TurnPlanner(speaker_model, rate, options, max_held_s)),
                max_held_s=max_held_s,
                needs_whole_recordings=True,
            )
        if (voice_model := facts.others.get(VOICES)) is not None:
            lost = LostPrints()
            run = replace(
                run,
                planners=(*run.planners, VoicePlanner(voice_model, rate)),
                follow_up=VoicePrints(voice_model, options.batch_size, lost),
                reports=(*run.reports, lost.lines),
                needs_whole_recordings=True,
            )
        return run
