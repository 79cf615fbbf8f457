"""The table of the rooms: what fastscribe does beside a plain transcription, each thing in a folder of its own.

A plain run imports none of them. A room is imported when an option that it has is set, or when one of its commands runs. The
core imports rooms through enter() alone, so that adding a room, or deleting one, changes this table and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

from fastscribe.errors import UsageError


@dataclass(frozen=True)
class Room:
    """A folder of the package that a plain run does without.

    Attributes:
        name: The folder.
        options: Fields of Options that need it, if they are set.
        commands: The module of each of its commands, by the command's name.
    """

    name: str
    options: tuple[str, ...] = ()
    commands: Mapping[str, str] = field(default_factory=dict)


ROOMS = (
    Room(
        "speakers",
        ("speakers", "speaker_names", "speaker_streaming", "rttm", "voices"),
        {"speakers": "command"},
    ),
    Room("alignment", ("align_with",), {"align": "command"}),
    Room("context", ("boost", "lm", "lm_weight")),
    Room("readable", ("remove_fillers", "itn", "redact", "redact_names")),
    Room("training", (), {"train": "command"}),
    Room("evaluation", (), {"evaluate": "command"}),
    Room("report"),
    Room("bench", (), {"bench": "commands"}),
    Room("doctor", (), {"doctor": "command"}),
    Room("ray"),
)


def needed(options: Any) -> tuple[str, ...]:
    """Return the names of the rooms that a run with these options needs, in the order of the table.

    Args:
        options: The run's Options; a field that is None, False or empty is not set.
    """
    return tuple(room.name for room in ROOMS if any(getattr(options, name) for name in room.options))


def enter(room: str, module: str, wanted_by: str) -> ModuleType:
    """Import a module of a room.

    Args:
        room: Name of the room.
        module: Name of the module in it.
        wanted_by: What the user asked for, for the error.

    Raises:
        UsageError: This installation lacks the room.
    """
    name = f"fastscribe.{room}"
    try:
        return import_module(f"{name}.{module}")
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise UsageError(f"{wanted_by}: this installation lacks {name}, which has it") from error
