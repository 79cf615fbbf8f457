"""The table of the rooms: what fastscribe does beside a plain transcription, each thing in a folder of its own.

A plain run imports none of them. A room is imported when one of its options is set or one of its commands runs; its module
`options` is also imported for help and for what may be a mistyped option.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

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
