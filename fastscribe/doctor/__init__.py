"""What this machine and this installation can do, for `fastscribe doctor`: a Check is one line of the examination."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# missing: something that runs do without. problem: something that is needed, or is there, and does not work.
Status = Literal["ok", "missing", "problem"]


@dataclass(frozen=True)
class Check:
    """What a part can do.

    Attributes:
        name: The part.
        finding: One line for people.
        fix: The command that adds what is missing, or in words what to do; None if nothing can be done.
        facts: Values for programs, with units in their keys.
        refused: Fast paths that this machine should have and refuses, with the reason of each.
    """

    name: str
    status: Status
    finding: str
    fix: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
