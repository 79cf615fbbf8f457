"""The speakers room's door: what the core asks it for (rooms.py). It imports nothing heavy before it is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fastscribe.config import ModelConfig, Options
from fastscribe.pipeline.interfaces import SideModel

if TYPE_CHECKING:
    import torch

    from fastscribe.families.model import Prepare

TURNS, VOICES = "turns", "voices"  # purposes of utterances: for the speaker model, for the voice model


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
