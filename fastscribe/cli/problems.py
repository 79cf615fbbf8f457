"""Rows of stored results that a command cannot use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from fastscribe._system.text_layout import count_of
from fastscribe.cli.terminal import say
from fastscribe.errors import ManifestError

_MAX_SHOWN = 20
_Row = TypeVar("_Row")


class Problems:
    """Rows that could not be used: a line each on stderr, up to a point.

    Attributes:
        num: How many there are.
    """

    def __init__(self) -> None:
        self.num = 0

    def add(self, problems: Iterable[ManifestError]) -> None:
        """Count problems, and print the first ones."""
        for problem in problems:
            self.num += 1
            if self.num <= _MAX_SHOWN:
                say(str(problem))

    def without_problems(self, rows: Iterable[_Row | ManifestError]) -> Iterator[_Row]:
        """Yield the rows that can be used, and count the others."""
        for row in rows:
            if isinstance(row, ManifestError):
                self.add([row])
            else:
                yield row

    def report_rest(self) -> None:
        """Print how many problems were not printed."""
        if self.num > _MAX_SHOWN:
            say(f"and {count_of(self.num - _MAX_SHOWN, 'more row')} that cannot be used")
