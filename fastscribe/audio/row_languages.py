"""Rows of manifests that name another language than the one that a model writes: counted, for one line at the end of a run."""

from __future__ import annotations

from dataclasses import dataclass

from fastscribe.languages import SPOKEN_KEYS, find_language, language_tag
from fastscribe.types import Failure, Transcript


@dataclass
class OtherLanguages:
    """Rows that name another language than a model's only one.

    Attributes:
        language: Tag of the model's language; None: it has no single one, and no row is counted.
        num: How many such rows were counted.
    """

    language: str | None
    num: int = 0
    _first: tuple[int, str] | None = None  # index of the first row's recording, and what the line shows of the row

    def count(self, result: Transcript | Failure) -> None:
        """Count the result's row if it names another language. Results come in any order."""
        if self.language is None:
            return
        named = result if isinstance(result, Failure) else result.audio
        tags = {key: tag for key in SPOKEN_KEYS if (tag := _tag((named.row or {}).get(key)))}
        other = next((one for one in tags.items() if find_language(one[1], (self.language,)) is None), None)
        if other is None:
            return
        self.num += 1
        if self._first is None or named.index < self._first[0]:
            self._first = named.index, f"{named.path} ({other[0]}: {other[1]})"

    @property
    def lines(self) -> list[str]:
        """A line for the user, if there are any."""
        if self._first is None:
            return []
        rest = f"another language than {self.language}, the run's: {self._first[1]}"
        return [f"1 row names {rest}" if self.num == 1 else f"{self.num:,} rows name {rest} is the first"]


def _tag(value: object) -> str | None:
    return language_tag(value) if isinstance(value, str) else None
