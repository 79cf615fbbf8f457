"""Recordings of a run with --speakers channels whose channels do not tell speakers apart."""

from __future__ import annotations

from collections import Counter

from fastscribe.types import Failure, Transcript

_REASONS = {
    "mono": ("has one channel", "have one channel"),
    "copies": ("has the same sound in all channels", "have the same sound in all channels"),
}


class LoneSpeakers:
    """Counts dialogues of one speaker, by the reason."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def count(self, result: Transcript | Failure) -> None:
        """Count a result if it is a dialogue of one speaker."""
        if isinstance(result, Transcript) and len(result.speakers) == 1:
            self._counts["mono" if result.audio.channels == 1 else "copies"] += 1

    @property
    def lines(self) -> list[str]:
        """A line for each reason that was met."""
        return [_line(self._counts[reason], *texts) for reason, texts in _REASONS.items() if self._counts[reason]]


def _line(num: int, singular: str, plural: str) -> str:
    recordings = f"1 recording {singular}, so it has" if num == 1 else f"{num:,} recordings {plural}, so each has"
    return f"{recordings} one speaker: --speakers channels takes a speaker for each channel"
