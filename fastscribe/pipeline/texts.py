"""Where a run's recordings become text (text_stage.py): in this process, whose threads make the calls that read audio."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Protocol

from fastscribe.pipeline.gap_recovery import Recovery
from fastscribe.pipeline.stats import Stopwatch
from fastscribe.pipeline.text_stage import Step, TextResult, TextStage, finished
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.text.transcript import DecodedUtterance
from fastscribe.types import Failure, Hypothesis

MAX_CALLS = 1000  # that threads make; then the thread that drives the model waits for them


class Texts(Protocol):
    """Makes results of decoded utterances and hands each to a function in the thread that uses this object.

    Attributes:
        is_finished: Transcripts come edited as the options ask; failures never do.
    """

    is_finished: bool

    def rows(self, results: Sequence[Hypothesis | Failure]) -> Sequence[Hypothesis | Failure]:
        """Return a batch's results as the other methods take them."""

    def first(self, parts: Sequence[DecodedUtterance]) -> None:
        """Take in all utterances of a recording."""

    def again(self, recovery: Recovery, parts: Sequence[DecodedUtterance], failed: bool) -> None:
        """Take in the utterances that were decoded again. If one has `failed`, the words of the first decoding stay."""

    def flush(self) -> None:
        """Begin what is gathered. The run calls it after each batch."""

    def collect(self) -> None:
        """Hand over what is there. Does not wait."""

    def wait(self) -> bool:
        """Wait for one result and hand it over. Return False if there is nothing to wait for."""


class LocalTexts:
    """Texts that the thread that drives the model makes, with the threads of a pool.

    Args:
        stage: Makes the steps.
        pool: Makes the calls that read audio.
        stopwatch: Times the steps.
        take: Receives each result.
    """

    is_finished = False

    def __init__(
        self, stage: TextStage, pool: ReplacingThreadPool, stopwatch: Stopwatch, take: Callable[[TextResult], None]
    ) -> None:
        self._stage, self._pool, self._stopwatch, self._take = stage, pool, stopwatch, take
        self._results: SimpleQueue[TextResult] = SimpleQueue()
        self._num_calls = 0  # without a result

    def rows(self, results: Sequence[Hypothesis | Failure]) -> Sequence[Hypothesis | Failure]:
        return results

    def first(self, parts: Sequence[DecodedUtterance]) -> None:
        self._make(partial(self._stage.first, parts))

    def again(self, recovery: Recovery, parts: Sequence[DecodedUtterance], failed: bool) -> None:
        stage = self._stage
        self._make(partial(stage.give_up, recovery) if failed else partial(stage.again, recovery, parts))

    def flush(self) -> None:
        """Do nothing: every step is made at once."""

    def _make(self, make: Callable[[], Step]) -> None:
        with self._stopwatch.time("assemble"):
            step = make()
        if isinstance(step, TextResult):
            self._take(step)
            return
        self._num_calls += 1
        self._pool.submit(lambda: self._results.put(finished(step)))
        while self._num_calls > MAX_CALLS:
            self.wait()

    def collect(self) -> None:
        while not self._results.empty():
            self.wait()

    def wait(self) -> bool:
        if not self._num_calls:
            return False
        result = self._results.get()
        self._num_calls -= 1
        self._take(result)
        return True
