"""The table of the rooms: what fastscribe does beside a plain transcription, each thing in a folder of its own.

A plain run imports none of them. A room is imported when one of its options is set, when one of its commands runs, or for a
result with one of its columns; its module `options` is also imported for help and for what may be a mistyped option. The core
imports rooms through enter() alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Literal

from fastscribe.errors import UsageError

# What a path leads to: a file of any kind, a model as the run's own, or one of another kind, which a room runs beside it.
PathKind = Literal["file", "model", "side model"]


@dataclass(frozen=True)
class Room:
    """A folder of the package that a plain run does without.

    Attributes:
        name: The folder.
        options: Fields of Options that need it, if they are set.
        paths: Those of them that are paths, and of what. A model may also be named as on the Hugging Face hub.
        words: For a path: a value that is not a path. The room itself then says what is wrong with an empty one.
        commands: The module of each of its commands, by the command's name.
        after: The core's command that they follow in help.
        extras: What its extras of the package are for.
        offers: Functions of its module `room`, which runs with these options call; offered() names their callers.
        flags: Options on the command line that its module `options` adds to commands, by the command's name.
        columns: Fields of Transcript that its module `columns` writes into rows and reads back (results.columns), with the
            names that a manifest's row has, by the core's field that follows them. Elsewhere the names have no `pred_`.
    """

    name: str
    options: tuple[str, ...] = ()
    paths: Mapping[str, PathKind] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    after: str = "schema"
    extras: Mapping[str, str] = field(default_factory=dict)
    offers: tuple[str, ...] = ()
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


CHANNELS = "channels"  # of Options.speakers: each speaker has a channel of the recording
ROOMS = (
    Room(
        "speakers",
        options=("speakers", "speaker_names", "speaker_streaming", "rttm", "voices"),
        paths={"speakers": "side model", "rttm": "file", "voices": "side model"},
        words={"speakers": CHANNELS},
        commands={"speakers": "command"},
        extras={"eval-speakers": "scores of who says what: meeteval and pyannote.metrics (docs/speakers.md)"},
        offers=(
            "check_options",
            "check_known_texts",
            "open_stage",
            "read_models",
            "build_models",
            "needs_whole_recordings",
        ),
        flags={
            "transcribe": ("--speakers", "--speaker-names", "--speaker-streaming", "--rttm", "--voices"),
            "export": ("--speaker-map",),
        },
        columns={"missing_channel": ("pred_speakers", "speaker_channels"), "segments": ("pred_turns", "pred_voices")},
    ),
    Room(
        "alignment",
        options=("align_with",),
        paths={"align_with": "model"},
        commands={"align": "command"},
        after="transcribe",
        flags={"transcribe": ("--align-with",)},
    ),
    Room(
        "context",
        options=("boost", "lm", "lm_weight"),
        paths={"lm": "file"},
        flags={"transcribe": ("--boost", "--lm", "--lm-weight")},
    ),
    Room(
        "readable",
        options=("remove_fillers", "itn"),
        extras={"itn": "numbers in figures: --itn"},
        offers=("open_edits",),
        flags={
            "transcribe": ("--remove-fillers", "--itn"),
            "export": ("--remove-fillers", "--itn", "--language", "-l"),
        },
        columns={"nbest": ("removed_words",)},
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
PATHS = {name: kind for room in ROOMS for name, kind in room.paths.items()}
WORDS = {name: word for room in ROOMS for name, word in room.words.items()}
# The name of each result column in a manifest's row, by the field of Transcript.
COLUMNS = {name.removeprefix("pred_"): name for room in ROOMS for names in room.columns.values() for name in names}


def paths_in(options: Any, *kinds: PathKind) -> dict[str, str]:
    """Return the paths in the fields of Options, and names on the hub, of these kinds in turn, by field."""
    found = {name: getattr(options, name) for kind in kinds for name, its_kind in PATHS.items() if its_kind == kind}
    return {name: path for name, path in found.items() if path is not None and path != WORDS.get(name)}


def is_here(room: str) -> bool:
    """Return True if this installation has the room's folder. Nothing of it is imported."""
    try:
        found = find_spec(f"fastscribe.{room}")
        return found is not None and found.origin is not None  # a folder that only has caches left has no origin
    except ModuleNotFoundError:
        return False


def _is_set(options: Any, name: str) -> bool:
    value, default = getattr(options, name), getattr(type(options), name)
    return value is not default and (default is None or bool(value != default))


def offered(function: str, options: Any) -> list[Callable[..., Any]]:
    """Return a function of the door (the module `room`) of each room that these options need and that has it.

    check_options(options): config.Options has the room's options checked.
    check_known_texts(options): alignment.aligner has the options refused that are for no text that is known.
    open_stage(options): transcriber asks for what the room does in every run (pipeline.interfaces.RoomStage).
    open_edits(options, known, says_language): transcriber asks for what changes the texts (pipeline.interfaces.Edits).
    needs_whole_recordings(options): cli.run asks before it starts helpers, which see parts of recordings.
    read_models(options, config): checkpoint.reader asks for the models that run beside the recogniser, by purpose.
    build_models(checkpoints, device, prepare, dtype): pipeline.recognizer asks for them on its device, by purpose.

    Raises:
        UsageError: This installation lacks a room.
    """
    found = []
    for room in ROOMS:
        first = next((name for name in room.options if _is_set(options, name)), None)
        if first is not None and function in room.offers:
            found.append(getattr(enter(room.name, "room", "--" + first.replace("_", "-")), function))
    return found


def enter(room: str, module: str, wanted_by: str) -> ModuleType:
    """Import a module of a room.

    Args:
        room: Name of the room.
        module: Name of the module in it.
        wanted_by: What the user asked for, for the error.

    Raises:
        UsageError: This installation lacks the room, or another one that it needs.
    """
    try:
        return import_module(f"fastscribe.{room}.{module}")
    except ModuleNotFoundError as error:
        missing = next((one.name for one in ROOMS if f"{error.name}.".startswith(f"fastscribe.{one.name}.")), None)
        if missing is None or is_here(missing):
            raise
        why = "which has it" if missing == room else f"which fastscribe.{room} needs"
        raise UsageError(f"{wanted_by}: this installation lacks fastscribe.{missing}, {why}") from error
