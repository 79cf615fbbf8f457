"""Results of known texts in place of the decoder's (pipeline.interfaces.Texts): what a batch completes is aligned together."""

from __future__ import annotations

from collections.abc import Sequence

from fastscribe.alignment.text_aligner import Recording, TextAligner
from fastscribe.pipeline.stats import Stopwatch
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.text.transcript import DecodedUtterance
from fastscribe.types import Failure, Hypothesis, Transcript


class KnownTexts:
    """Aligns the recordings of a run with their texts.

    Args:
        aligner: Does it; the decoder gives it emissions.
        pool: Not used: nothing is read.
        stopwatch: Times the alignment.
    """

    is_finished = False

    def __init__(self, aligner: TextAligner, pool: ReplacingThreadPool, stopwatch: Stopwatch) -> None:
        self._aligner, self._stopwatch = aligner, stopwatch
        self._waiting: list[Recording] = []
        self._made: list[Transcript | Failure] = []

    def rows(self, results: Sequence[Hypothesis | Failure]) -> Sequence[Hypothesis | Failure]:
        return results

    def kept(self, result: Hypothesis) -> Hypothesis:
        return self._aligner.held(result)

    def first(self, parts: Sequence[DecodedUtterance]) -> Sequence[Transcript | Failure]:
        self._waiting.append((parts[0][0].audio, parts))
        return ()

    def flush(self) -> None:
        """Align what a batch has completed."""
        recordings, self._waiting = self._waiting, []
        if recordings:
            with self._stopwatch.time("align"):
                self._made += self._aligner.align(recordings)

    def collect(self, wait: bool = False) -> Sequence[Transcript | Failure]:
        made, self._made = self._made, []
        return made
