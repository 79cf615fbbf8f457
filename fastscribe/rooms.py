"""The table of the rooms: what fastscribe does beside a plain transcription, each thing in a folder of its own.

A plain run imports none of them. A room is imported when one of its options is set or one of its commands runs; its module
`options` is also imported for help and for what may be a mistyped option.

Some rooms run a model of another kind beside the run's own. A second table says which option names one, and how a checkpoint of
that kind is recognised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from fastscribe.errors import SideModelGiven

# What a path leads to: a file of any kind, a model as the run's own, or one of another kind, which a room runs beside it.
PathKind = Literal["file", "model", "side model"]


@dataclass(frozen=True)
class Room:
    """A folder of the package that a plain run does without.

    Attributes:
        name: The folder.
        commands: The module of each of its commands, by the command's name.
        after: The core's command that they follow in help.
        extras: What its extras of the package are for.
        flags: Options on the command line that its module `options` adds to commands, by the command's name.
    """

    name: str
    commands: Mapping[str, str] = field(default_factory=dict)
    after: str = "schema"
    extras: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


CHANNELS = "channels"  # of Options.speakers: each speaker has a channel of the recording
ROOMS = (
    Room(
        "speakers",
        commands={"speakers": "command"},
        extras={"eval-speakers": "scores of who says what: meeteval and pyannote.metrics (docs/speakers.md)"},
        flags={
            "transcribe": ("--speakers", "--speaker-names", "--speaker-streaming", "--rttm", "--voices"),
            "export": ("--speaker-map", "--speaker-names"),
        },
    ),
    Room(
        "alignment",
        commands={"align": "command"},
        after="transcribe",
        flags={"transcribe": ("--align-with",)},
    ),
    Room(
        "context",
        flags={"transcribe": ("--boost", "--lm", "--lm-weight")},
    ),
    Room(
        "readable",
        extras={"itn": "numbers in figures: --itn"},
        flags={
            "transcribe": ("--remove-fillers", "--itn"),
            "export": ("--remove-fillers", "--itn", "--language", "-l"),
        },
    ),
    Room(
        "training",
        commands={"train": "command"},
        extras={"plots": "plots of training", "train": "fastscribe train", "train-gpu": "fastscribe train on a GPU"},
    ),
    Room("doctor", commands={"doctor": "command"}, after="transcribe"),
    Room(
        "evaluation",
        commands={"evaluate": "command"},
        after="transcribe",
        extras={"eval": "word error rates: fastscribe evaluate"},
    ),
    Room("report", flags={"transcribe": ("--report-html",)}),
    Room("bench", commands={"bench": "command"}),
    Room(
        "ray",
        extras={"ray": "clusters: --engine ray, fastscribe.ray"},
        flags={"transcribe": ("--engine",)},
    ),
)
# Fields of Options that are paths, and of what. A model may also be named as on the Hugging Face hub.
PATHS: Mapping[str, PathKind] = {
    "speakers": "side model",
    "rttm": "file",
    "voices": "side model",
    "align_with": "model",
    "lm": "file",
}
# Their values that are no path. The room itself then says what is wrong with an empty one.
WORDS = {"speakers": CHANNELS}


def paths_in(options: Any, *kinds: PathKind) -> dict[str, str]:
    """Return the paths in the fields of Options, and names on the hub, of these kinds in turn, by field."""
    found = {name: getattr(options, name) for kind in kinds for name, its_kind in PATHS.items() if its_kind == kind}
    return {name: path for name, path in found.items() if path is not None and path != WORDS.get(name)}


# NeMo's classes that also hear the output of a side model; the text says which of their kind are supported.
UNSUPPORTED_CLASSES = {"EncDecMultiTalkerRNNTBPEModel": "models without speaker targets"}


class SideModel(NamedTuple):
    """A kind of models that a room runs beside the run's own."""

    what: str  # a description, for the error if one is given as the run's own model
    example: str  # the name of one on the hub
    part: str  # of NeMo's config, which they alone have, or whose class has a name that ends in `part_class`
    part_class: str = ""
    model_type: str | None = None  # in the config of a Hugging Face folder; None: they have no such folder

    def has(self, config: Mapping[str, Any]) -> bool:
        """Return True if a config, NeMo's or Hugging Face's, is of this kind."""
        if self.part not in config:
            return self.model_type is not None and config.get("model_type") == self.model_type
        part = config[self.part]
        return str(part.get("_target_", "") if isinstance(part, dict) else "").endswith(self.part_class)


_SORTFORMER = "a speaker model (Sortformer): it tells who speaks when", "nvidia/diar_streaming_sortformer_4spk-v2.1"
_VOICE = (
    "a voice model (TitaNet, ECAPA-TDNN): it tells whose voice it is",
    "nvidia/speakerverification_en_titanet_large",
)
# By the field of Options that names one, which is a "side model" of the room's paths.
SIDE_MODELS = {
    "speakers": SideModel(*_SORTFORMER, "sortformer_modules", model_type="nemotron3_diarization"),
    "voices": SideModel(*_VOICE, "decoder", part_class=".SpeakerDecoder"),
}


def option_for(config: Mapping[str, Any]) -> str | None:
    """Return the field of Options that names models with such a config; None: it is of another model."""
    return next((option for option, kind in SIDE_MODELS.items() if kind.has(config)), None)


def refuse_side_model(config: Mapping[str, Any], where: object) -> None:
    """Raise SideModelGiven if a config is of a side model."""
    if (option := option_for(config)) is not None:
        raise SideModelGiven(where, option, SIDE_MODELS[option].what)
