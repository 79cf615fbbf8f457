"""The recordings in flight: utterances that are decoded in any order become transcripts, and gap recovery adds to them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fastscribe.audio.failures import to_failure
from fastscribe.audio.media import is_held
from fastscribe.config import Options
from fastscribe.pipeline.executor import ModelFacts
from fastscribe.pipeline.gap_recovery import GapRecovery
from fastscribe.pipeline.stats import Progress
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.pipeline.windows import PreparedInput, duration_s, release
from fastscribe.text import transcript
from fastscribe.text.nbest import nbest
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.text.transcript import DecodedUtterance
from fastscribe.types import AudioInfo, Failure, Hypothesis, Transcript, Utterance

if TYPE_CHECKING:
    from fastscribe.pipeline.alignment import TextAligner


class RecordingsInFlight:
    """A recording is here from its plan until its result leaves; nothing is kept of it then.

    Args:
        options: The run's options.
        recover_gaps: Decode speech without words again.
        searchers: Threads that search gaps.
        tokenizer: The model's tokenizer.
        facts: What the executor says of the model.
        progress: Counts the audio that is done, and times the assembly.

    Attributes:
        aligner: Makes results of known texts instead of the decoder's; None: the texts are the decoder's.
        finished: Results that wait to leave.
        recovery: Decodes speech without words again.
    """

    def __init__(
        self,
        options: Options,
        recover_gaps: bool,
        searchers: ReplacingThreadPool,
        tokenizer: Tokenizer,
        facts: ModelFacts,
        progress: Progress,
    ) -> None:
        self._nbest, self._tokenizer, self._facts, self._progress = options.nbest, tokenizer, facts, progress
        self._waiting: dict[int, tuple[int, list[DecodedUtterance]]] = {}  # by index: utterances expected, decoded
        self._undone_s: dict[int, float] = {}  # by index: audio of a recording in flight that is not decoded yet
        self._to_align: list[tuple[AudioInfo, Sequence[DecodedUtterance]]] = []  # decoded recordings
        self.aligner: TextAligner | None = None
        self.finished: deque[Transcript | Failure] = deque()
        self.recovery = GapRecovery(options, recover_gaps, searchers, self.finished.append)

    def undone_s(self) -> float:
        """Return the seconds of audio in flight that are not decoded yet."""
        return sum(self._undone_s.values())

    def begin(self, items: Sequence[PreparedInput]) -> list[Utterance]:
        """Take in recordings. Return their utterances, which the run decodes; failures are finished."""
        self._undone_s |= {item[0].audio.index: duration_s(item) for item in items if isinstance(item, tuple)}
        return [utterance for item in items for utterance in self._expect(item)]

    def align(self) -> None:
        """Align the recordings that wait for the aligner of texts, together."""
        if self.aligner is not None and self._to_align:
            recordings, self._to_align = self._to_align, []
            with self._progress.stopwatch.time("align"):
                self.finished += self.aligner.align(recordings)

    def take_finished(self) -> Iterator[Transcript | Failure]:
        """Yield the finished recordings, each once."""
        self.recovery.collect_searched()
        while self.finished:
            yield _released(self.finished.popleft())

    def utterances_to_recover(self) -> list[Utterance]:
        found = self.recovery.take_utterances()
        return [utterance for utterances in found for utterance in self._expect(utterances)]

    def add(self, utterance: Utterance, outcome: Hypothesis | Failure) -> None:
        """Add an utterance to its recording. After one that failed, the recording's others are dropped."""
        index = utterance.audio.index
        if index not in self._waiting:
            return
        expected, parts = self._waiting[index]
        if not isinstance(outcome, Failure):
            parts.append((utterance, outcome if self.aligner is None or expected == 1 else self.aligner.held(outcome)))
            if len(parts) < expected:
                self._count_done(index, utterance.duration_s)
                return
        del self._waiting[index]
        self._count_done(index, math.inf)
        candidate = self.recovery.pop_candidate(index)
        if isinstance(outcome, Failure):  # if the second decoding fails, the words of the first stay
            release(utterance.audio.file if utterance.audio.unread is None else utterance.audio.unread.file)
            self.finished.append(outcome if candidate is None else candidate.with_gaps(candidate.transcript))
        elif candidate is None:
            self._complete(parts)
        else:
            result = self._assemble(candidate.transcript.audio, candidate.parts, parts)
            self.finished.append(result if isinstance(result, Failure) else candidate.with_gaps(result, parts))

    def _expect(self, item: PreparedInput) -> tuple[Utterance, ...]:
        """Return the utterances to decode; none if the recording has failed or is silent."""
        if isinstance(item, Failure):
            self.finished.append(item)
            return ()
        if not item[0].num_samples:
            self._count_done(item[0].audio.index, math.inf)
            self._complete([(item[0], Hypothesis())])
            return ()
        self._waiting[item[0].audio.index] = len(item), []
        return item

    def _count_done(self, index: int, duration_s: float) -> None:
        """Count audio as done; gap recovery decodes what is counted already."""
        undone_s = self._undone_s.pop(index, 0.0)
        self._progress.done_s += min(duration_s, undone_s)
        if duration_s < undone_s:
            self._undone_s[index] = undone_s - duration_s

    def _complete(self, parts: Sequence[DecodedUtterance]) -> None:
        """Assemble a recording that was decoded for the first time; gap recovery finishes it, or the aligner of texts."""
        if self.aligner is not None:
            self._to_align.append((parts[0][0].audio, parts))
            return
        result = self._assemble(parts[0][0].audio, parts)
        if isinstance(result, Failure):
            self.finished.append(result)
        else:
            self.recovery.submit(result, parts)

    def _assemble(
        self, audio: AudioInfo, parts: Sequence[DecodedUtterance], recovered: Sequence[DecodedUtterance] = ()
    ) -> Transcript | Failure:
        no_time, frame_s = self._facts.zero_duration_punctuation, self._facts.token_frame_s
        try:
            with self._progress.stopwatch.time("assemble"):
                result = transcript.assemble(audio, parts, self._tokenizer, frame_s, no_time, recovered)
                if self._nbest is None:
                    return result
                return replace(result, nbest=nbest(parts, self._nbest, self._tokenizer, frame_s, no_time))
        except Exception as error:  # one bad file becomes a Failure and the run goes on
            return to_failure(audio, "assemble", error)


def _released(result: Transcript | Failure) -> Transcript | Failure:
    """Return the result without the caller's data, which would stay in memory with it."""
    if isinstance(result, Failure):
        return result
    release(result.audio.file)
    return replace(result, audio=replace(result.audio, file="")) if is_held(result.audio.file) else result
