"""The table of the models that rooms run beside the run's own (rooms.py): which option names one, and how they are recognised.

It is imported when a checkpoint may be one of them, and when an option names one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fastscribe.errors import SideModelGiven

# NeMo's classes that also hear the output of a side model; the text says which of their kind are supported.
UNSUPPORTED_CLASSES = {"EncDecMultiTalkerRNNTBPEModel": "models without speaker targets"}


class SideModel(NamedTuple):
    """A kind of models."""

    what: str  # a description, for the error if one is given as the run's own model
    part: str  # of NeMo's config, which they alone have, or whose class has a name that ends in `part_class`
    part_class: str = ""
    model_type: str | None = None  # in the config of a Hugging Face folder; None: they have no such folder

    def has(self, config: Mapping[str, Any]) -> bool:
        """Return True if a config, NeMo's or Hugging Face's, is of this kind."""
        if self.part not in config:
            return self.model_type is not None and config.get("model_type") == self.model_type
        part = config[self.part]
        return str(part.get("_target_", "") if isinstance(part, dict) else "").endswith(self.part_class)


_SORTFORMER = "a speaker model (Sortformer): it tells who speaks when"
_VOICE = "a voice model (TitaNet, ECAPA-TDNN): it tells whose voice it is"
# By the field of Options that names one, which is a "side model" of the room's paths.
SIDE_MODELS = {
    "speakers": SideModel(_SORTFORMER, "sortformer_modules", model_type="nemotron3_diarization"),
    "voices": SideModel(_VOICE, "decoder", part_class=".SpeakerDecoder"),
}


def option_for(config: Mapping[str, Any]) -> str | None:
    """Return the field of Options that names models with such a config; None: it is of another model."""
    return next((option for option, kind in SIDE_MODELS.items() if kind.has(config)), None)


def refuse_side_model(config: Mapping[str, Any], where: object) -> None:
    """Raise SideModelGiven if a config is of a side model."""
    if (option := option_for(config)) is not None:
        raise SideModelGiven(where, option, SIDE_MODELS[option].what)
