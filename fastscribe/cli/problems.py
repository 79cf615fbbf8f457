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
    """Rows that could not be used: a line on stderr for each problem of a file, up to a point.

    Attributes:
        num: How many rows there are.
    """

    def __init__(self) -> None:
        self.num = 0
        self._rows: dict[tuple[str, str], list[int]] = {}  # the first row's number, and how many there are

    def add(self, problems: Iterable[ManifestError]) -> None:
        """Count problems."""
        for one in problems:
            self.num += 1
            self._rows.setdefault((one.path, one.problem), [one.line_number, 0])[1] += 1

    def without_problems(self, rows: Iterable[_Row | ManifestError]) -> Iterator[_Row]:
        """Yield the rows that can be used, and count the others."""
        for row in rows:
            if isinstance(row, ManifestError):
                self.add([row])
            else:
                yield row

    def report(self) -> None:
        """Print each problem once, with its first row and the number of others."""
        for (path, problem), (first, number) in list(self._rows.items())[:_MAX_SHOWN]:
            others = f" (and {count_of(number - 1, 'more row')})" if number > 1 else ""
            say(f"{path}: line {first}{others}: {problem}")
        if rest := sum(number for _, number in list(self._rows.values())[_MAX_SHOWN:]):
            say(f"and {count_of(rest, 'more row')} that cannot be used")
