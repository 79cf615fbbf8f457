"""Gap recovery: recordings with long stretches without words, between their first decoding and their transcript.

A thread pool reads the sound of these stretches (segmentation/gaps.py) while another thread drives the model. Each
recording comes back as a Candidate: the clear speech in it that has no words, and what the model should decode again.
Without recovery the model decodes nothing again, and the speech without words is only listed. Timing does not change the
result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue

from fastscribe.audio.failures import to_failure
from fastscribe.config import Options
from fastscribe.errors import AudioError
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.segmentation import gaps
from fastscribe.text.transcript import DecodedUtterance
from fastscribe.types import Failure, Gap, Hypothesis, Transcript, Utterance

_MAX_QUEUED = 1000  # recordings; above that, take() blocks until one is done


@dataclass(frozen=True)
class Candidate:
    """A decoded recording with speech that may lack words.

    `speech` is all clear speech without words; `to_decode` is the part of it that the model should decode again.
    """

    transcript: Transcript
    parts: Sequence[DecodedUtterance]
    speech: tuple[Utterance, ...] = ()
    to_decode: tuple[Utterance, ...] = ()
    unread: tuple[Gap, ...] = ()  # spans without words whose sound could not be read
    failure: Failure | None = None

    def with_gaps(self, transcript: Transcript, decoded: Sequence[DecodedUtterance]) -> Transcript:
        """Return `transcript`, which has the words of `decoded`, with the speech that still has no words as its gaps."""
        utterances = [utterance for utterance, _ in decoded]
        not_decoded = [(utterance, Hypothesis()) for utterance in self.speech if utterance not in utterances]
        return replace(transcript, gaps=self.unread or gaps.gaps_of([*not_decoded, *decoded]))


class GapRecovery:
    """Finds the speech that came out without words. One thread uses it.

    Args:
        options: The channel, the detector and the longest utterance are those of the run.
        recover: False: find speech without words, and give nothing to decode again.
        threads: Number of threads that read audio.
    """

    def __init__(self, options: Options, recover: bool, threads: int) -> None:
        self._options = options
        self._recover = recover
        self._pool = ReplacingThreadPool(threads, "gaps")
        self._done: SimpleQueue[Candidate] = SimpleQueue()
        self._num_waiting = 0

    @property
    def is_waiting(self) -> bool:
        """True while a submitted recording has not been popped."""
        return self._num_waiting > 0

    def submit(self, transcript: Transcript, parts: Sequence[DecodedUtterance]) -> bool:
        """Start to search the recording. Return False if its words leave no span free; then take() does not return it."""
        spans = gaps.find_untranscribed_spans(transcript)
        if spans:
            self._num_waiting += 1
            self._pool.submit(partial(self._search, transcript, parts, spans))
        return bool(spans)

    def pop_searched(self, wait: bool) -> list[Candidate]:
        """Return the recordings that have been searched; with `wait`, all that were submitted."""
        found = []
        while self._num_waiting and (wait or not self._done.empty() or self._num_waiting > _MAX_QUEUED):
            found.append(self._done.get())
            self._num_waiting -= 1
        return found

    def close(self) -> None:
        """Stop the search threads."""
        self._pool.close()

    def _search(self, transcript: Transcript, parts: Sequence[DecodedUtterance], spans: Sequence[gaps.Span]) -> None:
        try:
            speech = tuple(gaps.clear_speech(transcript, spans, self._options))
            decoded = [utterance for utterance, _ in parts]
            to_decode = [utterance for utterance in speech if self._recover and gaps.is_new(utterance, decoded)]
            candidate = Candidate(transcript, parts, speech, tuple(to_decode))
        except AudioError:  # the file has changed or gone, but its words are still right
            candidate = Candidate(transcript, parts, unread=tuple(Gap(*span) for span in spans))
        except BaseException as error:  # even one that would end the thread becomes this file's Failure
            candidate = Candidate(transcript, parts, failure=to_failure(transcript.audio, "load", error))
        self._done.put(candidate)
