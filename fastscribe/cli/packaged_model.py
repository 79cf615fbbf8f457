"""A run's lines about the packaged model, as its part in the run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Literal

from fastscribe.checkpoint.location import CONFIDENCE_LIMIT, LARGE_MODEL, NO_MODEL, PACKAGED_NAME, why_beyond
from fastscribe.cli.run_part import RunPart
from fastscribe.types import Failure, Transcript


class PackagedModel(RunPart):
    """Says which model runs, and counts the recordings that are beyond it, for one line at the end.

    Args:
        says_name: When a line says which model runs; at the end it does if no recording is beyond it. None: never.
        is_usual: The model decodes as it does by itself; the limit holds for no other beam or decoder.
    """

    def __init__(self, says_name: Literal["first", "at the end"] | None, is_usual: bool) -> None:
        super().__init__()
        self._says_name, self.needs_words = says_name, is_usual
        self._num = self._num_done = self._num_beyond = 0
        self._first: tuple[int, str, str] | None = None  # index, path and reason

    @property
    def first_lines(self) -> Sequence[str]:
        return [NO_MODEL] if self._says_name == "first" else []

    def result(self, written: Transcript | Failure) -> None:
        self._num += 1
        if isinstance(written, Failure):
            return
        self._num_done += 1
        if self.needs_words and (why := why_beyond(written)) is not None:
            self._num_beyond += 1
            first = (written.index, written.audio.path, why)
            self._first = first if self._first is None else min(self._first, first)

    @property
    def lines(self) -> Sequence[str]:
        if self._first is None:
            name = f"{PACKAGED_NAME} ran; a large one is more accurate: --model {LARGE_MODEL}"
            return [name] if self._says_name == "at the end" and self._num_done else []
        _, path, why = self._first
        command = f"fastscribe transcribe {shlex.quote(path)} --model {LARGE_MODEL}"
        if self._num == 1:
            return [f"{path} is beyond {PACKAGED_NAME} ({why}); with a large one: {command}"]
        many = "recordings are" if self._num_beyond > 1 else "recording is"
        limit = f"no words in speech, or a mean confidence below {CONFIDENCE_LIMIT:.2f}"
        return [f"{self._num_beyond:,} {many} beyond {PACKAGED_NAME} ({limit}); the first, with a large one: {command}"]
