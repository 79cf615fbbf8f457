"""Record what a run's page needs, in memory that does not grow with the number of files.

The audio that is done is kept with its time after every 1st, 2nd, 4th .. batch; of the files, the first failed ones and those
that deserve a look: with the least confidence, with the most speech without words, and without any word. For use from the one
thread that drives the model.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from fastscribe._system.url_secrets import hide_secrets
from fastscribe.types import Failure, Transcript, Utterance

_MAX_POINTS = 256  # of the audio over time
_MAX_TO_LOOK_AT = 8  # files of a kind
_FIRST_FAILURES = 100
_MAX_CHARACTERS = 500


class RunRecorder:
    """The run calls `batch` and `result`; `data` may be called at any time."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._points = [(0.0, 0.0)]  # time and audio done by then, in seconds
        self._num_batches, self._every = 0, 1
        self._audio_s = self._last_s = 0.0
        self._uncertain: list[tuple[float, int, str, int]] = []  # confidence, index among the inputs, path, words
        self._wordless: list[tuple[float, int, str]] = []  # minus the seconds, index, path
        self._silent: list[tuple[int, str, float]] = []  # index, path, seconds
        self._failures: list[tuple[str, str, str]] = []
        self._failed_by_stage: Counter[str] = Counter()
        self._start = self._clock()

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._start

    def batch(self, utterances: Sequence[Utterance]) -> None:
        """Record that a batch's results have arrived."""
        self._last_s = self.elapsed_s
        self._audio_s += sum(utterance.duration_s for utterance in utterances)
        self._num_batches += 1
        if self._num_batches % self._every == 0:
            self._points.append((self._last_s, self._audio_s))
        if len(self._points) > _MAX_POINTS:
            self._points = self._points[::2]
            self._every *= 2

    def result(self, result: Transcript | Failure) -> None:
        """Record a finished or failed file."""
        if isinstance(result, Failure):
            self._failed_by_stage[result.stage] += 1
            if len(self._failures) < _FIRST_FAILURES:
                message = hide_secrets(result.message)[:_MAX_CHARACTERS]
                self._failures.append((_shorten_left(result.path), result.stage, message))
            return
        index, path = result.audio.index, result.audio.path
        gap_s = sum(gap.end_s - gap.start_s for gap in result.gaps)
        if gap_s > 0:
            insort(self._wordless, (-gap_s, index, path))
        elif not result.text:
            insort(self._silent, (index, path, result.audio.duration_s))
        known = [word.confidence for word in result.words if 0.0 <= word.confidence <= 1.0]  # False for NaN
        if known:
            insort(self._uncertain, (sum(known) / len(known), index, path, len(known)))
        for kind in (self._wordless, self._silent, self._uncertain):
            del kind[_MAX_TO_LOOK_AT:]

    def data(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "audio_over_time": [*self._points, (self._last_s, self._audio_s)],
            "uncertain": [(_shorten_left(path), confidence, num) for confidence, _, path, num in self._uncertain],
            "wordless": [(_shorten_left(path), -negative_s) for negative_s, _, path in self._wordless],
            "silent": [(_shorten_left(path), duration_s) for _, path, duration_s in self._silent],
            "failures": {"by_stage": dict(self._failed_by_stage), "first": self._failures},
        }


def _shorten_left(path: str) -> str:
    """Hide the secrets of a URL, and shorten a long path from the left, because its end identifies it."""
    path = hide_secrets(path)
    return path if len(path) <= _MAX_CHARACTERS else "..." + path[-_MAX_CHARACTERS:]
