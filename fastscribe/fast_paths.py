"""Fast paths that this machine refuses: one line for the user each, and one entry in the report.

A fast path never ends a run. What refuses it goes on in a slower way with the same results, and says so with a RefusedPath.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

PathName = Literal["triton", "graphs", "pinning", "helpers", "fp8", "int8"]


class RefusedPath(str):
    """A line for the user about a fast path that was refused. It may cross to another process.

    Args:
        path: The fast path.
        reason: Why it was refused, as whatever refused it says.
        line: The line; what the run does instead is part of it.
    """

    path: PathName
    reason: str

    def __new__(cls, path: PathName, reason: str, line: str) -> RefusedPath:
        made = super().__new__(cls, line)
        made.path, made.reason = path, reason
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.reason, str(self))


class RefusedPaths:
    """Takes the place of `say`: passes each line on, and remembers the fast paths that were refused.

    Args:
        say: Called with each line.

    Attributes:
        reasons: The first reason of each refused path, by its name.
    """

    @classmethod
    def around(cls, say: Callable[[str], None]) -> RefusedPaths:
        """Return `say` if it remembers already, so that what a caller says counts too; else put this around it."""
        return say if isinstance(say, cls) else cls(say)

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.reasons: dict[str, str] = {}

    def __call__(self, line: str) -> None:
        if isinstance(line, RefusedPath):
            self.reasons.setdefault(line.path, line.reason)
        self._say(line)


def first_reasons(found: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the first reason of each path in the field "refused" of several reports, which may be absent."""
    reasons: dict[str, str] = {}
    for report in found:
        for path, reason in report.get("refused", {}).items():
            reasons.setdefault(path, reason)
    return reasons
