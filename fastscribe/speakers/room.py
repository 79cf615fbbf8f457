"""The speakers room's door: what the core asks it for (rooms.py). It imports nothing heavy before it is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from fastscribe.config import CHANNELS, ModelConfig, Options
from fastscribe.errors import UsageError
from fastscribe.pipeline.interfaces import RoomStage, SideModel
from fastscribe.speakers.config import TURNS, VOICES
from fastscribe.speakers.settings import check_options as check_options

if TYPE_CHECKING:
    import torch

    from fastscribe.families.model import Prepare


def check_known_texts(options: Options) -> NoReturn:
    """Raise UsageError: options of speakers are for recordings whose words are found."""
    raise UsageError("Options.speakers is for Transcriber: a text to align does not say who speaks")


def needs_whole_recordings(options: Options) -> bool:
    """Return True if a model or turns from elsewhere see whole recordings, which stay in the process that plans."""
    return options.voices is not None or options.rttm is not None or options.speakers not in (None, CHANNELS)


def open_stage(options: Options) -> RoomStage:
    """Return what speakers add to runs with these options. Raises UsageError if the file of `rttm` cannot be used."""
    from fastscribe.speakers.stage import SpeakerStage

    return SpeakerStage(options)


def read_models(options: Options, config: ModelConfig) -> Mapping[str, Any]:
    """Return the checkpoints of the models that the options name, by purpose. As readers.read_models()."""
    from fastscribe.speakers import readers

    return readers.read_models(options, config)


def build_models(
    checkpoints: Mapping[str, Any],
    device: torch.device,
    prepare: Callable[[torch.device, str], Prepare],
    dtype: str,
) -> Mapping[str, SideModel]:
    """Return the models on a device, by purpose.

    Args:
        checkpoints: From read_models().
        device: The recogniser's.
        prepare: Returns what converts a model's parts for a device and a dtype.
        dtype: The recogniser's.

    Raises:
        WeightsMismatch: The weights of one do not fit its config.
    """
    found: dict[str, SideModel] = {}
    if TURNS in checkpoints:
        from fastscribe.speakers.diarizer import Diarizer

        found[TURNS] = Diarizer.build(checkpoints[TURNS], device, prepare, dtype)
    if VOICES in checkpoints:
        from fastscribe.speakers.voice_printer import VoicePrinter

        found[VOICES] = VoicePrinter.build(checkpoints[VOICES], device, prepare)
    return found
