"""Where a run's recordings become text (text_stage.py): in this process, whose threads make the calls that read audio.

The run collects the results of what makes texts. Nothing here calls back into the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from queue import SimpleQueue

from fastscribe.pipeline.interfaces import Additions, MakeTexts
from fastscribe.pipeline.stats import Stopwatch
from fastscribe.pipeline.text_stage import TextStage, finished
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.text.transcript import DecodedUtterance
from fastscribe.types import Failure, Hypothesis, Transcript

MAX_CALLS = 1000  # that threads make; then the thread that drives the model waits for them


def local_texts(stage: TextStage, rooms: Additions) -> MakeTexts:
    """Return what makes the texts of a run in this process: a room's, if it has its own."""
    return rooms.make_texts or partial(LocalTexts, stage)


class LocalTexts:
    """Texts that the thread that drives the model makes, with the threads of a pool.

    Args:
        stage: Makes the steps.
        pool: Makes the calls that read audio.
        stopwatch: Times the steps.
    """

    is_finished = False

    def __init__(self, stage: TextStage, pool: ReplacingThreadPool, stopwatch: Stopwatch) -> None:
        self._stage, self._pool, self._stopwatch = stage, pool, stopwatch
        self._called: SimpleQueue[Transcript | Failure] = SimpleQueue()  # by the threads
        self._num_calls = 0  # whose results are not taken

    def rows(self, results: Sequence[Hypothesis | Failure]) -> Sequence[Hypothesis | Failure]:
        return results

    def kept(self, result: Hypothesis) -> Hypothesis:
        return result

    def first(self, parts: Sequence[DecodedUtterance]) -> Sequence[Transcript | Failure]:
        with self._stopwatch.time("assemble"):
            step = self._stage.first(parts)
        if isinstance(step, Transcript | Failure):
            return (step,)
        self._num_calls += 1
        self._pool.submit(lambda: self._called.put(finished(step)))
        return [self._next_called() for _ in range(self._num_calls - MAX_CALLS)]

    def flush(self) -> None:
        """Do nothing: every step is made at once."""

    def collect(self, wait: bool = False) -> Sequence[Transcript | Failure]:
        found = []
        while not self._called.empty():
            found.append(self._next_called())
        if wait and self._num_calls and not found:
            found.append(self._next_called())
        return found

    def _next_called(self) -> Transcript | Failure:
        self._num_calls -= 1
        return self._called.get()
