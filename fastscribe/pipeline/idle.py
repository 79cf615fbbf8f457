"""What a stage yields instead of an item while it has none ready.

IDLE: the next item may take long, so the next stage finishes what it holds. LATER: the next stage does one step of what it
holds and asks again.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, Literal


class Idle(Enum):
    """The type of IDLE."""

    IDLE = auto()


class Later(Enum):
    """The type of LATER."""

    LATER = auto()


IDLE: Final[Literal[Idle.IDLE]] = Idle.IDLE
LATER: Final[Literal[Later.LATER]] = Later.LATER
