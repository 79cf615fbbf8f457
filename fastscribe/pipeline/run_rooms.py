"""What rooms add to a recogniser: each is built where the options, the checkpoint or a row ask for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from fastscribe.checkpoint.value import Checkpoint
from fastscribe.config import Options
from fastscribe.pipeline.language_lock import LanguageLock
from fastscribe.pipeline.model_building import prepare
from fastscribe.types import Batch, Frames

if TYPE_CHECKING:
    from fastscribe.alignment.word_timer import WordTimer
    from fastscribe.context.booster import Constraints
    from fastscribe.decode.decoder import FusedModel
    from fastscribe.speakers.diarizer import Diarizer
    from fastscribe.speakers.side_model import VoicePrinter

Log = Callable[[str], None]
SpeakerModel: TypeAlias = "Diarizer | VoicePrinter"


class LazyConstraints:
    """The constraints of a run, which are built for the run's phrases, or for the first row with phrases or a language.

    Args:
        build: Builds them. Raises UsageError.
        at_once: Build them now.
    """

    def __init__(self, build: Callable[[], Constraints], at_once: bool) -> None:
        self._build, self._mutex = build, Lock()
        self._built = build() if at_once else None

    def constrain(self, frames: Frames, batch: Batch) -> Frames:
        """Return the batch's frames with its phrases to boost and the tokens that are left out, if there are any."""
        if self._built is None:
            if not any(one.audio.boost or one.audio.language for one in batch.utterances):
                return frames
            with self._mutex:  # parts of a batch run side by side
                self._built = self._built or self._build()
        return self._built.constrain(frames, batch)


@dataclass(frozen=True)
class RunRooms:
    """What rooms add to a recogniser.

    Attributes:
        constraints: What the rows of a batch may not write, or should rather write.
        languages: Keeps recordings to a language; None: nothing does.
        word_timer: Times the decoder's words, if the options ask for its times.
        others: By purpose of a batch: models beside the recogniser.
    """

    constraints: LazyConstraints
    languages: LanguageLock | None = None
    word_timer: WordTimer | None = None
    others: Mapping[str, SpeakerModel] = field(default_factory=dict)


def build_rooms(
    checkpoint: Checkpoint, device: torch.device, dtype: str, options: Options, say: Log, languages: LanguageLock | None
) -> RunRooms:
    """Build what the rooms of a run add to its recogniser.

    Args:
        checkpoint: The model.
        device: Its device.
        dtype: Its dtype.
        options: The run's.
        say: Called with each line for the user.
        languages: Keeps recordings to a language; None: nothing does.

    Raises:
        UsageError: The model cannot do what an option asks for.
        CheckpointError: A model cannot be used.
        WeightsMismatch: The weights of one do not fit its config.
    """
    timer: WordTimer | None = None
    if checkpoint.aligner is not None and (options.timestamps or options.align_with):
        from fastscribe.alignment.word_timer import WordTimer

        features = checkpoint.config.features
        timer = WordTimer.build(checkpoint.aligner, features, device, dtype, options, say)
    others = _speaker_models(checkpoint.others, device, dtype) if options.has_speakers else {}
    tokenizer, path, num_labels = checkpoint.tokenizer, checkpoint.path, checkpoint.config.blank_id

    def constraints() -> Constraints:
        from fastscribe.context.booster import Booster, Constraints
        from fastscribe.context.vocabulary_mask import VocabularyMasks

        rules = None if languages is None else languages.rules()
        masks = None if rules is None else VocabularyMasks(rules, num_labels, device)
        return Constraints(Booster(options.boost, tokenizer, path, device, say, rules), masks)

    return RunRooms(LazyConstraints(constraints, at_once=bool(options.boost)), languages, timer, others)


def _speaker_models(checkpoints: Mapping[str, Any], device: torch.device, dtype: str) -> dict[str, SpeakerModel]:
    """Return the models of speakers on the recogniser's device, by purpose of a batch. Raises WeightsMismatch."""
    from fastscribe.speakers.config import TURNS, VOICES

    found: dict[str, SpeakerModel] = {}
    if TURNS in checkpoints:
        from fastscribe.speakers.diarizer import Diarizer

        found[TURNS] = Diarizer.build(checkpoints[TURNS], device, prepare, dtype)
    if VOICES in checkpoints:
        from fastscribe.speakers.side_model import VoicePrinter

        found[VOICES] = VoicePrinter.build(checkpoints[VOICES], device, prepare)
    return found


def fused_model(model: Any, beam: int) -> FusedModel | None:
    """Return the tables of Checkpoint.fused_model for a search with this beam, on the CPU; None: it does not count."""
    if beam == 1 or model is None or model.fusion.weight == model.fusion.bonus == 0:
        return None
    from fastscribe.context.language_model import LanguageModel, LazyTables

    if isinstance(model, LanguageModel):
        return LazyTables(model)
    from fastscribe.context.fusion import tables_of

    return tables_of(model)
