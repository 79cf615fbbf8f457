"""What speakers add to a run, as its options ask (transcriber.py calls it).

Batches of the speaker model and of the voice model run beside the recogniser's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from fastscribe.config import CHANNELS, ModelConfig, Options
from fastscribe.pipeline import batching
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.interfaces import Additions, ModelFacts
from fastscribe.speakers.config import TURNS, VOICES, SpeakerModelConfig, VoiceModelConfig
from fastscribe.speakers.recordings import ByChannel, ByModel, ByRttm
from fastscribe.speakers.turns import RttmTurns
from fastscribe.speakers.voice_prints import VoicePrints
from fastscribe.types import Utterance

_MAX_HELD_BYTES, _BYTES_PER_SAMPLE = 2 << 30, 4  # of recordings that a speaker model sees, which are held as a whole


# Frames of a speaker model's batch on a CPU: four recordings, two for each of two cores, which read all weights for each chunk.
_SPEAKER_FRAMES = 2500
_LARGEST_CPU_BATCH = 2 * _SPEAKER_FRAMES


def plan_turns(
    config: SpeakerModelConfig,
    sample_rate: int,
    options: Options,
    max_held_s: float,
    utterances: Sequence[Utterance],
    budget: Budget,
) -> Iterator[tuple[Utterance, ...]]:
    """Yield the batches of a speaker model. A speaker cache makes long recordings cost the same, but their samples are padded.

    Args:
        config: The speaker model's.
        sample_rate: The recogniser's.
        options: The run's; a size of batches that the user chose is kept.
        max_held_s: Seconds of recordings that the run holds in memory.
        utterances: What to plan.
        budget: The run's.
    """
    is_chosen = options.batch_size is not None or options.batch_frames not in (None, "auto")
    if not is_chosen and budget.frames <= _LARGEST_CPU_BATCH:
        budget = replace(budget, frames=_SPEAKER_FRAMES)
    for group in batching.padded_within(utterances, lambda one: one.duration_s, max_held_s / 2):
        yield from batching.plan(group, lambda one: config.num_seen(round(one.duration_s * sample_rate)), budget)


def plan_voices(
    config: VoiceModelConfig, sample_rate: int, utterances: Sequence[Utterance], budget: Budget
) -> Iterator[tuple[Utterance, ...]]:
    """Return the batches of a voice model, whose utterances have the recogniser's sample rate."""
    return batching.plan(utterances, lambda one: config.num_frames(round(one.duration_s * sample_rate)), budget)


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
            by_channel = ByChannel(names)
            run = replace(run, inputs=by_channel, transcripts=by_channel)
        elif self._rttm is not None:
            by_rttm = ByRttm(self._rttm)
            run = replace(run, inputs=by_rttm, transcripts=by_rttm)
        if (speaker_model := facts.others.get(TURNS)) is not None:
            max_held_s = _MAX_HELD_BYTES / _BYTES_PER_SAMPLE / rate
            by_model = ByModel(speaker_model, rate, names)
            run = replace(
                run,
                inputs=by_model,
                transcripts=by_model,
                plans={**run.plans, TURNS: partial(plan_turns, speaker_model, rate, options, max_held_s)},
                max_held_s=max_held_s,
            )
        if (voice_model := facts.others.get(VOICES)) is not None:
            prints = VoicePrints(voice_model, options.batch_size)
            run = replace(
                run,
                plans={**run.plans, VOICES: partial(plan_voices, voice_model, rate)},
                follow_up=prints,
                reports=(*run.reports, prints.lines),
            )
        return run
