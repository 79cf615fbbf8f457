"""Recordings that end before their manifest's duration does: a cut MP3 or AAC seldom says so itself."""

from __future__ import annotations

from fastscribe.types import Failure, Transcript

_MIN_MISSING_S = 0.5  # manifests round, and decoders differ in the silence that an encoder adds


class ShortFiles:
    """Counts recordings that are shorter than their row of a manifest says."""

    def __init__(self) -> None:
        self._num, self._first = 0, ""

    def count(self, result: Transcript | Failure) -> None:
        """Count a result if its recording is too short."""
        if not isinstance(result, Transcript) or result.audio.row is None:
            return
        stated_s = result.audio.row.get("duration") or 0.0  # the manifest's reader took numbers alone
        held_s = result.audio.duration_s
        if stated_s - held_s > _MIN_MISSING_S:
            self._num += 1
            self._first = self._first or f"{result.audio.path}: {held_s:.2f} s of {stated_s:.2f} s"

    @property
    def lines(self) -> list[str]:
        """A line for the user, if there are any."""
        if not self._num:
            return []
        many = f"{self._num:,} recordings end before their manifest's durations; the first is "
        return [(many if self._num > 1 else "1 recording ends before its manifest's duration: ") + self._first]
