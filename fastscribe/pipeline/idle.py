"""What a stage yields instead of an item while it has none ready: the next stage finishes what it holds."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, Literal


class Idle(Enum):
    """The type of IDLE."""

    IDLE = auto()


IDLE: Final[Literal[Idle.IDLE]] = Idle.IDLE
