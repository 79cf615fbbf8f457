"""Speakers of a run who have no voice print although they speak enough."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class LostPrints:
    """Speakers without a voice print because a stretch of theirs could not be read or heard."""

    num: int = 0
    first: str = ""  # what happened to the first of them

    def add(self, path: str, speaker: str, message: str) -> None:
        self.num += 1
        self.first = self.first or f"{path}, {speaker}: {message}"

    def lines(self) -> list[str]:
        """A line for the user, if there are any."""
        speakers = "1 speaker has" if self.num == 1 else f"{self.num:,} speakers have"
        first = self.first if self.num == 1 else f"the first is {self.first}"
        return [f"--voices: {speakers} no print, because a stretch could not be heard: {first}"] if self.num else []
