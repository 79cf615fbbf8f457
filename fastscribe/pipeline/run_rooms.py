"""What rooms add to a recogniser: each is built where the options, the checkpoint or a row ask for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from fastscribe._system.jit import made_once
from fastscribe.checkpoint.value import Checkpoint
from fastscribe.config import Options
from fastscribe.pipeline.interfaces import LanguageLock
from fastscribe.pipeline.model_building import prepare

if TYPE_CHECKING:
    from fastscribe.alignment.word_timer import WordTimer
    from fastscribe.context.booster import Constraints
    from fastscribe.decode.decoder import FusedModel
    from fastscribe.speakers.diarizer import Diarizer
    from fastscribe.speakers.side_model import VoicePrinter

Log = Callable[[str], None]
SpeakerModel: TypeAlias = "Diarizer | VoicePrinter"


@dataclass(frozen=True)
class RunRooms:
    """What rooms add to a recogniser.

    Attributes:
        constraints: Returns what the rows of batches may not write, or should rather write; it is built once.
        boosts: The run has phrases; else constraints are of rows with phrases or a language.
        languages: Keeps recordings to a language; None: nothing does.
        word_timer: Times the decoder's words, if the options ask for its times.
        others: By purpose of a batch: models beside the recogniser.
    """

    constraints: Callable[[], Constraints]
    boosts: bool
    languages: LanguageLock | None = None
    word_timer: WordTimer | None = None
    others: Mapping[str, SpeakerModel] = field(default_factory=dict)


def build_rooms(
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: str,
    options: Options,
    say: Log,
    languages: LanguageLock | None,
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

    @made_once  # parts of a batch run side by side
    def constraints() -> Constraints:
        from fastscribe.context.booster import Booster, Constraints
        from fastscribe.context.vocabulary_mask import VocabularyMasks

        masks = None if languages is None else VocabularyMasks(languages, num_labels, device)
        return Constraints(Booster(options.boost, tokenizer, path, device, say, languages), masks)

    if options.boost:
        constraints()
    return RunRooms(constraints, bool(options.boost), languages, timer, others)


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
    from fastscribe.context.fusion import TokenTables

    return TokenTables.of(model)
