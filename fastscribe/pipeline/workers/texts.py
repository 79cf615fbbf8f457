"""Texts that helpers make; this process makes those of recordings whose data it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, NamedTuple, cast

from fastscribe.audio.failures import to_failure
from fastscribe.audio.media import is_held
from fastscribe.errors import DeviceFailed
from fastscribe.pipeline.batching import in_turn
from fastscribe.pipeline.interfaces import Texts
from fastscribe.pipeline.stats import Stopwatch
from fastscribe.pipeline.text_stage import LocalTexts
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.pipeline.workers.helpers import HelperPool, Job
from fastscribe.pipeline.workers.stages import MakeTextStage, TextItem
from fastscribe.text.hypothesis_columns import HypothesisColumns
from fastscribe.text.transcript import DecodedUtterance
from fastscribe.types import AudioInfo, Failure, Hypothesis, RenderedTranscript, Transcript, Utterance

_RECORDING, _PART = 1 / 64, 1 / 512  # of a job; a whole one is about 30 ms of work


class Row(NamedTuple):
    """A hypothesis that stays in its columns."""

    columns: HypothesisColumns
    row: int


class _Gathered(NamedTuple):
    audio: AudioInfo
    utterances: Sequence[Utterance]
    hypotheses: Sequence[Hypothesis | Row]


class HelperTexts(Texts):
    """See Texts. Results come edited and rendered.

    Args:
        stage: What helpers do.
        helpers: They do it.
        wake: Wakes the thread that drives the run. Called in any thread.
        pool: Makes the calls that read audio, of texts that this process makes.
        stopwatch: Times the steps of this process and of the helpers.
    """

    is_finished = True

    def __init__(
        self,
        stage: MakeTextStage,
        helpers: HelperPool,
        wake: Callable[[], None],
        pool: ReplacingThreadPool,
        stopwatch: Stopwatch,
    ) -> None:
        self._stage, self._helpers, self._wake = stage, helpers, wake
        self._local = LocalTexts(stage.stage, pool, stopwatch)
        self._gathered: list[_Gathered] = []
        self._num_in_flight = 0
        self._results: SimpleQueue[tuple[_Gathered, Any]] = SimpleQueue()  # of helpers

    def rows(self, results: Sequence[Hypothesis | Failure]) -> Sequence[Any]:
        """Return a batch's results one a row, without making objects of columns."""
        if not isinstance(results, HypothesisColumns):
            return results
        return [Row(results, row) for row in range(len(results))]

    def first(self, parts: Sequence[DecodedUtterance]) -> Sequence[Transcript | Failure]:
        audio, given = parts[0][0].audio, cast("Sequence[tuple[Utterance, Hypothesis | Row]]", parts)
        utterances, hypotheses = zip(*given, strict=True)
        gathered = _Gathered(audio, utterances, hypotheses)
        if is_held(audio.file):
            return self._made_here(gathered)
        self._gathered.append(gathered)
        return ()

    def flush(self) -> None:
        """Submit what is gathered."""
        gathered, self._gathered = self._gathered, []
        homes = [self._helpers.homes.get(one.audio.index) for one in gathered]
        for one, home in zip(gathered, homes, strict=True):
            if home is not None:  # it may be read again
                self._submit([one], home)
        anywhere = [one for one, home in zip(gathered, homes, strict=True) if home is None]
        for job in in_turn(anywhere, lambda one: max(_RECORDING, _PART * len(one.utterances)), 1.0):
            self._submit(job)

    def collect(self, wait: bool = False) -> Sequence[Transcript | Failure]:
        made = self._edited(self._local.collect())
        while not self._results.empty() or (wait and not made and self._num_in_flight):
            made += self._next()
        return self._edited(self._local.collect(wait=True)) if wait and not made else made

    def _made_here(self, gathered: _Gathered) -> list[Transcript | Failure]:
        """Take in a recording whose text this process makes. Return its result, if it is there at once."""
        hypotheses = map(_hypothesis, gathered.hypotheses)
        return self._edited(self._local.first(list(zip(gathered.utterances, hypotheses, strict=True))))

    def _edited(self, results: Sequence[Transcript | Failure]) -> list[Transcript | Failure]:
        return list(map(self._stage.edited, results))

    def _submit(self, gathered: Sequence[_Gathered], home: int | None = None) -> None:
        items: dict[int, TextItem] = {}
        hypotheses: list[Hypothesis | Row] = []
        for number, one in enumerate(gathered):
            items[number] = one.utterances, len(hypotheses)
            hypotheses += one.hypotheses
        self._num_in_flight += len(items)

        def done(number: int, result: Any) -> None:
            self._results.put((gathered[number], result))
            self._wake()

        self._helpers.submit(Job("text", _together(hypotheses), items, done, is_remote=home is not None, prefers=home))

    def _next(self) -> list[Transcript | Failure]:
        """Take in the next result of a helper. Return it; nothing yet, if threads of this process make it now."""
        gathered, result = self._results.get()
        audio = gathered.audio
        self._num_in_flight -= 1
        if isinstance(result, DeviceFailed):  # no helper is left
            return self._made_here(gathered)
        if isinstance(result, BaseException):
            return [to_failure(audio, "assemble", result)]
        made = result.result
        if self._stage.edits is not None:
            self._stage.edits.left_alone.update(result.left_alone)
        if isinstance(made, RenderedTranscript):
            made.set_audio(audio)
        elif isinstance(made, Transcript):
            audio = replace(audio, channel=made.audio.channel)  # of a dialogue: all channels
            made = replace(made, audio=audio)
        return [made]


def _hypothesis(given: Hypothesis | Row) -> Hypothesis:
    return given.columns[given.row] if isinstance(given, Row) else given


def _together(hypotheses: Sequence[Hypothesis | Row]) -> Sequence[Hypothesis]:
    """Return hypotheses as columns if all of them are, so that they travel fast."""
    rows = [one for one in hypotheses if isinstance(one, Row)]
    if len(rows) < len(hypotheses) or not rows:
        return [_hypothesis(one) for one in hypotheses]
    parts: list[HypothesisColumns] = []
    begin = 0
    for index in range(1, len(rows) + 1):
        if index == len(rows) or rows[index].columns is not rows[begin].columns:
            parts.append(rows[begin].columns.take([one.row for one in rows[begin:index]]))
            begin = index
    return HypothesisColumns.concat(parts)
