"""Gap recovery: a second pass over recordings with long stretches without words.

Threads search these stretches for speech (segmentation/gaps.py) while the model works on. A recording with nothing to decode
again leaves as soon as it is searched. Speech without words is decoded again together with the next window; a last pass
decodes the rest. Without recovery, the transcript only lists it as gaps. Speech with few words (segmentation/sparse.py) is
listed either way. Timing does not change the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue

from fastscribe.audio.failures import to_failure
from fastscribe.config import Options
from fastscribe.errors import AudioError
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.segmentation import gaps, sparse
from fastscribe.segmentation.sparse import SparseSpeech
from fastscribe.text.transcript import DecodedUtterance
from fastscribe.types import Failure, Gap, Hypothesis, Transcript, Utterance

MAX_QUEUED = 1000  # recordings to be searched


@dataclass(frozen=True)
class Candidate:
    """A decoded recording with speech that may lack words.

    `speech` is all clear speech without words; `to_decode` is the part of it that the model should decode again.
    """

    transcript: Transcript
    parts: Sequence[DecodedUtterance]
    speech: tuple[Utterance, ...] = ()
    to_decode: tuple[Utterance, ...] = ()
    sparse: tuple[SparseSpeech, ...] = ()
    unread: tuple[Gap, ...] = ()  # spans without words whose sound could not be read
    failure: Failure | None = None

    def with_gaps(self, transcript: Transcript, decoded: Sequence[DecodedUtterance] = ()) -> Transcript:
        """Return `transcript`, which has the words of `decoded`, with the speech that still has no or few words as its gaps."""
        utterances = [utterance for utterance, _ in decoded]
        not_decoded = [(utterance, Hypothesis()) for utterance in self.speech if utterance not in utterances]
        wordless = self.unread or gaps.remaining_gaps([*not_decoded, *decoded])
        words = transcript.words if self.sparse else ()
        sparse = (Gap(found.start_s, found.end_s) for found in self.sparse if found.still_sparse(words))
        return replace(transcript, gaps=gaps.merge((*wordless, *sparse)))


class GapRecovery:
    """The recordings of a run with long stretches without words. One thread uses it.

    Args:
        options: The run's channel, detector and longest utterance.
        recover: False: find speech without words, but decode nothing again.
        pool: Reads audio.
        finish: Called with each recording that has nothing to decode again.
    """

    def __init__(
        self,
        options: Options,
        recover: bool,
        pool: ReplacingThreadPool,
        finish: Callable[[Transcript | Failure], None],
    ) -> None:
        self._options, self._recover, self._pool, self._finish = options, recover, pool, finish
        self._searched: SimpleQueue[Candidate] = SimpleQueue()
        self._num_searching = 0
        self._to_decode: list[tuple[Utterance, ...]] = []
        self._candidates: dict[int, Candidate] = {}  # to be decoded again, by the recording's index

    def submit(self, transcript: Transcript, parts: Sequence[DecodedUtterance]) -> None:
        """Search a decoded recording, or finish it if no long stretch lacks words. Blocks while the queue is full."""
        spans, sparse_spans = gaps.find_untranscribed_spans(transcript), sparse.find_sparse_spans(transcript)
        if not spans and not sparse_spans:
            self._finish(transcript)
            return
        self._num_searching += 1
        self._pool.submit(partial(self._search, transcript, parts, spans, sparse_spans))
        while self._num_searching > MAX_QUEUED:
            self._take_searched()

    def wait_for_search(self) -> bool:
        """Wait until one more recording is searched. Return False if none is being searched."""
        if self._num_searching:
            self._take_searched()
            return True
        return False

    def take_utterances(self) -> list[tuple[Utterance, ...]]:
        """Return the utterances to decode again, by recording, of all recordings that are searched."""
        self.collect_searched()
        to_decode, self._to_decode = self._to_decode, []
        return to_decode

    def collect_searched(self) -> None:
        """Finish the searched recordings that have nothing to decode again. Does not wait."""
        while not self._searched.empty():
            self._take_searched()

    def pop_candidate(self, index: int) -> Candidate | None:
        """Return the recording if its utterances were decoded again, else None."""
        return self._candidates.pop(index, None)

    def _take_searched(self) -> None:
        candidate = self._searched.get()
        self._num_searching -= 1
        if candidate.failure is not None:
            self._finish(candidate.failure)
        elif candidate.to_decode:
            self._candidates[candidate.transcript.audio.index] = candidate
            self._to_decode.append(candidate.to_decode)
        else:
            self._finish(candidate.with_gaps(candidate.transcript))

    def _search(
        self,
        transcript: Transcript,
        parts: Sequence[DecodedUtterance],
        spans: Sequence[gaps.Span],
        sparse_spans: Sequence[gaps.Span],
    ) -> None:
        try:
            speech = tuple(gaps.find_clear_speech(transcript, spans, self._options))
            decoded = [utterance for utterance, _ in parts]
            to_decode = [utterance for utterance in speech if self._recover and gaps.is_new_stretch(utterance, decoded)]
            few_words = tuple(sparse.find_sparse_speech(transcript, sparse_spans, self._options))
            candidate = Candidate(transcript, parts, speech, tuple(to_decode), few_words)
        except AudioError:  # the file has changed or gone, but its words are still right
            candidate = Candidate(transcript, parts, unread=tuple(Gap(*span) for span in spans))
        except BaseException as error:  # even one that would end the thread becomes this file's Failure
            candidate = Candidate(transcript, parts, failure=to_failure(transcript.audio, "load", error))
        self._searched.put(candidate)
