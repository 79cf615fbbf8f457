"""Record what a run's page needs, in memory that does not grow with the number of files.

The speed over time is kept in at most 512 bins of equal length; when the run outgrows them, neighbours are merged. Of the
batches, every 1st, 2nd, 4th .. is kept; of the files, the slowest few and the first failed ones. A file's time is its share
of its batches' time, from one batch's result to the next, divided evenly among the rows, because each row of a batch
costs as much as the longest. For use from the one thread that drives the model.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from fastscribe._system.url_secrets import hide_secrets
from fastscribe.types import Failure, Transcript, Utterance

CONFIDENCE_BINS = 20
_MAX_BINS = 512
_FIRST_BIN_S = 0.05
_MAX_BATCHES = 64
_MAX_LENGTHS = 33  # lengths kept of a batch, at equal distances in the sorted list
_SLOWEST = 20
_FIRST_FAILURES = 100
_MAX_IN_FLIGHT = 200_000  # files in flight; reached only by leftovers of files that failed early
_MAX_CHARACTERS = 500


@dataclass(frozen=True)
class BatchRecord:
    """One batch. `lengths` are frames of rows from the longest to the shortest, or a sample of them at equal distances."""

    number: int  # from 1
    rows: int
    longest_frames: int
    real_frames: int
    lengths: tuple[int, ...]


class TimeBins:
    """Sums over at most `most` time bins."""

    def __init__(self, names: Sequence[str], width_s: float = _FIRST_BIN_S, most: int = _MAX_BINS) -> None:
        self.width_s = width_s
        self.sums: dict[str, list[float]] = {name: [] for name in names}
        self._most = most

    def add(self, name: str, amount: float, start_s: float, end_s: float) -> None:
        """Spread `amount` evenly over the time from start_s to end_s; if they are equal, add it to that bin."""
        self._grow_to(end_s)
        sums = self.sums[name]
        first, last = int(start_s / self.width_s), int(end_s / self.width_s)
        if first >= last:
            sums[last] += amount
            return
        density = amount / (end_s - start_s)
        sums[first] += density * ((first + 1) * self.width_s - start_s)
        for index in range(first + 1, last):
            sums[index] += density * self.width_s
        sums[last] += density * (end_s - last * self.width_s)

    def _grow_to(self, time_s: float) -> None:
        while int(time_s / self.width_s) >= self._most:
            self.width_s *= 2
            self.sums = {name: merge_pairs(sums) for name, sums in self.sums.items()}
        missing = int(time_s / self.width_s) + 1 - len(next(iter(self.sums.values())))
        if missing > 0:
            for sums in self.sums.values():
                sums.extend([0.0] * missing)


def merge_pairs(sums: Sequence[float]) -> list[float]:
    """Merge neighbours; an odd one at the end stays alone.

    >>> merge_pairs([1, 2, 3])
    [3, 3]
    """
    return [sum(sums[index : index + 2]) for index in range(0, len(sums), 2)]


class RunRecorder:
    """The run calls `batch` and `result`; `data` may be called at any time."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._series = TimeBins(("audio_s", "files", "failed"))
        self._batches: list[BatchRecord] = []
        self._num_batches, self._every = 0, 1
        self._spent_s: dict[int, float] = {}  # by index among the inputs, of files in flight
        self._slowest: list[tuple[float, int, str, float]] = []  # a heap: seconds, index, path, audio
        self._failures: list[dict[str, str]] = []
        self._failed_by_stage: dict[str, int] = {}
        self._confidences = [0] * (CONFIDENCE_BINS + 1)  # the last counts values of exactly 1
        self.start()

    def start(self) -> None:
        """Start the clock."""
        self._start = self._clock()
        self._last_s = 0.0

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._start

    def batch(self, utterances: Sequence[Utterance], num_frames: Sequence[int]) -> None:
        """Record that a batch's results have arrived; `num_frames` [rows] are its rows' lengths in encoder frames."""
        now_s, audio_s = self.elapsed_s, 0.0
        share_s = (now_s - self._last_s) / len(utterances)
        for utterance in utterances:
            audio_s += utterance.duration_s
            index = utterance.audio.index
            self._spent_s[index] = self._spent_s.get(index, 0.0) + share_s
        while len(self._spent_s) > _MAX_IN_FLIGHT:
            del self._spent_s[next(iter(self._spent_s))]
        self._series.add("audio_s", audio_s, self._last_s, now_s)
        self._last_s = now_s
        self._record_shape(num_frames)

    def _record_shape(self, num_frames: Sequence[int]) -> None:
        if self._num_batches % self._every == 0:
            ordered = sorted(num_frames, reverse=True)
            lengths = tuple(ordered[index] for index in even_indices(len(ordered), _MAX_LENGTHS))
            seen = BatchRecord(self._num_batches + 1, len(ordered), ordered[0], sum(ordered), lengths)
            self._batches.append(seen)
            if len(self._batches) > _MAX_BATCHES:
                self._batches = self._batches[::2]
                self._every *= 2
        self._num_batches += 1

    def result(self, result: Transcript | Failure) -> None:
        """Record a finished or failed file."""
        now_s = self.elapsed_s
        self._series.add("files", 1, now_s, now_s)
        if isinstance(result, Failure):
            self._spent_s.pop(result.index, None)
            self._series.add("failed", 1, now_s, now_s)
            self._failed(result)
            return
        audio = result.audio
        slow = (self._spent_s.pop(audio.index, 0.0), audio.index, audio.path, audio.duration_s)
        if len(self._slowest) < _SLOWEST:
            heapq.heappush(self._slowest, slow)
        elif slow > self._slowest[0]:
            heapq.heapreplace(self._slowest, slow)
        counts = self._confidences
        for segment in result.segments:
            for word in segment.words:
                confidence = word.confidence
                if 0.0 <= confidence <= 1.0:  # False for NaN, from a model without confidences
                    counts[int(confidence * CONFIDENCE_BINS)] += 1

    def _failed(self, failure: Failure) -> None:
        self._failed_by_stage[failure.stage] = self._failed_by_stage.get(failure.stage, 0) + 1
        if len(self._failures) < _FIRST_FAILURES:
            message = hide_secrets(failure.message)[:_MAX_CHARACTERS]
            self._failures.append({"path": _shorten_left(failure.path), "stage": failure.stage, "message": message})

    def data(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        slowest = sorted(self._slowest, reverse=True)
        *lower, certain = self._confidences
        return {
            "series": {"width_s": self._series.width_s, **self._series.sums},
            "batches": {"count": self._num_batches, "kept": [asdict(batch) for batch in self._batches]},
            "slowest": [
                {"path": _shorten_left(path), "seconds": s, "audio_s": audio_s} for s, _, path, audio_s in slowest
            ],
            "failures": {"by_stage": self._failed_by_stage, "first": self._failures},
            "word_confidences": [*lower[:-1], lower[-1] + certain],
        }


def even_indices(count: int, most: int) -> list[int]:
    """At most `most` indices of a list of `count`, evenly spaced, including the first and the last.

    >>> even_indices(3, 5), even_indices(9, 3)
    ([0, 1, 2], [0, 4, 8])
    """
    if count <= most:
        return list(range(count))
    return [round(index * (count - 1) / (most - 1)) for index in range(most)]


def _shorten_left(path: str) -> str:
    """Hide the secrets of a URL, and shorten a long path from the left, because its end identifies it."""
    path = hide_secrets(path)
    return path if len(path) <= _MAX_CHARACTERS else "..." + path[-_MAX_CHARACTERS:]
