"""What rooms add to a recogniser: each is built where the options, the checkpoint or a row ask for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

import torch

from fastscribe import rooms
from fastscribe.checkpoint.value import Checkpoint
from fastscribe.config import Options
from fastscribe.errors import AudioError, UsageError
from fastscribe.pipeline.interfaces import Constraints, SideModel, WordTimer
from fastscribe.pipeline.language_lock import LanguageLock
from fastscribe.pipeline.model_building import prepare
from fastscribe.types import AudioInfo, Batch, Frames

if TYPE_CHECKING:
    from fastscribe.decode.scorer import FusedModel

Log = Callable[[str], None]


class LazyConstraints:
    """The constraints of a run, which are built for the run's phrases, or for the first row with phrases or a language.

    Args:
        build: Builds them; its argument is what the user asked for. Raises UsageError.
        at_once: Build them now.
    """

    def __init__(self, build: Callable[[str], Constraints], at_once: bool) -> None:
        self._build, self._mutex = build, Lock()
        self._built = build("--boost") if at_once else None

    def constrain(self, frames: Frames, batch: Batch) -> Frames:
        """Return the batch's frames with what constrains them. As interfaces.Constraints."""
        if self._built is None:
            named = next((one.audio for one in batch.utterances if one.audio.boost or one.audio.language), None)
            if named is None:
                return frames
            with self._mutex:  # parts of a batch run side by side
                self._built = self._built or self._built_for(named)
        return self._built.constrain(frames, batch)

    def _built_for(self, audio: AudioInfo) -> Constraints:
        """Build the constraints for a row's recording. Raises AudioError, because one row does not end a run."""
        try:
            return self._build("a row's boost or language")
        except UsageError as error:
            raise AudioError(audio.path, str(error)) from error


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
    others: Mapping[str, SideModel] = field(default_factory=dict)


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
        UsageError: This installation lacks a room, or the model cannot do what an option asks for.
        CheckpointError: A model cannot be used.
        WeightsMismatch: The weights of one do not fit its config.
    """
    timer: WordTimer | None = None
    if checkpoint.aligner is not None and (options.timestamps or options.align_with):
        door = rooms.enter("alignment", "room", "--align-with" if options.align_with else "--timestamps")
        features = checkpoint.config.features
        timer = door.build_word_timer(checkpoint.aligner, features, device, dtype, options, say)
    others: dict[str, SideModel] = {}
    for build_models in rooms.offered("build_models", options):
        others |= build_models(checkpoint.others, device, prepare, dtype)
    tokenizer, path, num_labels = checkpoint.tokenizer, checkpoint.path, checkpoint.config.blank_id

    def constraints(wanted_by: str) -> Constraints:
        rules = None if languages is None else languages.rules(wanted_by)
        build = rooms.enter("context", "room", wanted_by).build_constraints
        found: Constraints = build(options.boost, tokenizer, path, device, say, rules, num_labels)
        return found

    return RunRooms(LazyConstraints(constraints, at_once=bool(options.boost)), languages, timer, others)


def fused_model(checkpoint: Checkpoint, beam: int) -> FusedModel | None:
    """Return the language model that a search with this beam fuses; None: there is none, or it does not count."""
    if beam == 1 or checkpoint.fused_model is None:
        return None
    wanted_by = "--lm" if checkpoint.other_language_model is not None else f"{checkpoint.path}: its language model"
    found: FusedModel | None = rooms.enter("context", "room", wanted_by).fused_model(checkpoint.fused_model)
    return found
