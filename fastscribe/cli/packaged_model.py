"""A run's lines about the packaged model, as its part in the run."""

from __future__ import annotations

import shlex

from fastscribe.checkpoint.packaged_model import CONFIDENCE_LIMIT, LARGE_MODEL, NAME, low_confidence
from fastscribe.cli.run_part import RunPart
from fastscribe.types import Failure, Transcript


class PackagedModel(RunPart):
    """Counts the recordings that are beyond the packaged model, for one line at the end.

    Args:
        says_name: If there are none, the line says which model ran.
        is_usual: The model decodes as it does by itself; the limit holds for no other beam or decoder.
    """

    def __init__(self, says_name: bool, is_usual: bool) -> None:
        super().__init__()
        self._says_name, self.needs_words = says_name, is_usual
        self._num = self._num_beyond = 0
        self._first: tuple[int, str, float] | None = None  # index, path and mean confidence

    def result(self, written: Transcript | Failure) -> None:
        self._num += 1
        mean = low_confidence(written) if self.needs_words else None
        if mean is None or isinstance(written, Failure):
            return
        self._num_beyond += 1
        first = (written.index, written.audio.path, mean)
        self._first = first if self._first is None else min(self._first, first)

    @property
    def lines(self) -> list[str]:
        if self._first is None:
            name = f"{NAME} ran; a large one is more accurate: --model {LARGE_MODEL}"
            return [name] if self._says_name and self._num else []
        _, path, mean = self._first
        command = f"fastscribe transcribe {shlex.quote(path)} --model {LARGE_MODEL}"
        if self._num == 1:
            return [f"{path} is beyond {NAME} (mean confidence {mean:.2f}); with a large one: {command}"]
        many = "recordings are" if self._num_beyond > 1 else "recording is"
        what = f"{self._num_beyond:,} {many} beyond {NAME} (mean confidence below {CONFIDENCE_LIMIT:.2f})"
        return [f"{what}; the first, with a large one: {command}"]
