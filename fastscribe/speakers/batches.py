"""Batches of the speaker model and of the voice model, which run beside the recogniser's (SidePlanner)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fastscribe.config import Options
from fastscribe.pipeline import batching
from fastscribe.pipeline.batching import Budget
from fastscribe.speakers.config import TURNS, VOICES, SpeakerModelConfig, VoiceModelConfig
from fastscribe.types import Utterance

# Frames of a speaker model's batch on a CPU: four recordings, two for each of two cores, which read all weights for each chunk.
_SPEAKER_FRAMES = 2500
_LARGEST_CPU_BATCH = 2 * _SPEAKER_FRAMES


@dataclass(frozen=True)
class TurnPlanner:
    """Plans the batches of a speaker model.

    Args:
        config: The speaker model's.
        sample_rate: The recogniser's.
        options: The run's; a size of batches that the user chose is kept.
        max_held_s: Seconds of recordings that the run holds in memory.
    """

    config: SpeakerModelConfig
    sample_rate: int
    options: Options
    max_held_s: float
    purpose: str = TURNS

    def plan(
        self, utterances: Sequence[Utterance], budget: Budget, batch_size: int | None
    ) -> Iterator[tuple[Utterance, ...]]:
        """Yield batches. A speaker cache makes long recordings cost the same, but a batch holds their padded samples."""
        for group in batching.padded_within(utterances, lambda one: one.duration_s, self.max_held_s / 2):
            yield from batching.plan(group, self._num_frames, self._budget(budget), batch_size)

    def _num_frames(self, utterance: Utterance) -> int:
        """Return the most frames that the speaker model sees of an utterance at once."""
        return self.config.num_seen(round(utterance.duration_s * self.sample_rate))

    def _budget(self, budget: Budget) -> Budget:
        chosen = self.options.batch_frames
        is_chosen = self.options.batch_size is not None or chosen not in (None, "auto")
        if is_chosen or budget.frames > _LARGEST_CPU_BATCH:
            return budget
        return replace(budget, frames=_SPEAKER_FRAMES)


@dataclass(frozen=True)
class VoicePlanner:
    """Plans the batches of a voice model.

    Args:
        config: The voice model's.
        sample_rate: The recogniser's.
    """

    config: VoiceModelConfig
    sample_rate: int
    purpose: str = VOICES

    def plan(
        self, utterances: Sequence[Utterance], budget: Budget, batch_size: int | None
    ) -> Iterator[tuple[Utterance, ...]]:
        yield from batching.plan(utterances, self._num_frames, budget, batch_size)

    def _num_frames(self, utterance: Utterance) -> int:
        return self.config.num_frames(round(utterance.duration_s * self.sample_rate))
