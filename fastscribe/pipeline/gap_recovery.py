"""Gap recovery: a second pass over recordings with long stretches without words.

Threads search these stretches for speech (segmentation/gaps.py) while the model works on. A recording with nothing to decode
again leaves as soon as it is searched. Speech without words is decoded again together with the next window; a last pass
decodes the rest. Channels of a recording that are transcribed by themselves stay together. Without recovery, the transcript
only lists such speech as gaps. Speech with few words (segmentation/sparse.py) is listed either way. Timing does not change
the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fastscribe.audio.failures import to_failure
from fastscribe.config import Options
from fastscribe.errors import AudioError
from fastscribe.pipeline.offload import Offload
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.segmentation import gaps, sparse
from fastscribe.segmentation.sparse import SparseSpeech
from fastscribe.text.transcript import DecodedUtterance
from fastscribe.types import Failure, Gap, Hypothesis, Transcript, Utterance

Decoded = tuple[Transcript, Sequence[DecodedUtterance]]  # a channel's transcript and what it is made of


@dataclass(frozen=True)
class Candidate:
    """A decoded channel of a recording, with speech that may lack words.

    `speech` is all clear speech without words; `to_decode` is the part of it that the model should decode again.
    """

    transcript: Transcript
    parts: Sequence[DecodedUtterance]
    speech: tuple[Utterance, ...] = ()
    to_decode: tuple[Utterance, ...] = ()
    sparse: tuple[SparseSpeech, ...] = ()
    unread: tuple[Gap, ...] = ()  # spans without words whose sound could not be read

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
        options: The run's detector and longest utterance.
        recover: False: find speech without words, but decode nothing again.
        pool: Reads audio.
        finish: Called with the transcripts of the channels of each recording that has nothing to decode again.
    """

    def __init__(
        self,
        options: Options,
        recover: bool,
        pool: ReplacingThreadPool,
        finish: Callable[[Sequence[Transcript] | Failure], None],
    ) -> None:
        self._options, self._recover, self._finish = options, recover, finish
        self._searching: Offload[tuple[Candidate, ...] | Failure] = Offload(pool, self._take)
        self.collect_searched, self.wait_for_search = self._searching.collect, self._searching.wait
        self._to_decode: list[tuple[Utterance, ...]] = []
        self._candidates: dict[int, tuple[Candidate, ...]] = {}  # to be decoded again, by the recording's index

    def submit(self, channels: Sequence[Decoded]) -> None:
        """Search a decoded recording, or finish it if no long stretch lacks words. Blocks while too many are searched."""
        searches = [_Search(*channel) for channel in channels]
        if any(one.is_needed for one in searches):
            self._searching.submit(partial(self._search, searches))
        else:
            self._finish([transcript for transcript, _ in channels])

    def take_utterances(self) -> list[tuple[Utterance, ...]]:
        """Return the utterances to decode again, by recording, of all recordings that are searched."""
        self.collect_searched()
        to_decode, self._to_decode = self._to_decode, []
        return to_decode

    def pop_candidates(self, index: int) -> tuple[Candidate, ...]:
        """Return the channels of a recording if utterances of it were decoded again, else nothing."""
        return self._candidates.pop(index, ())

    def _take(self, searched: tuple[Candidate, ...] | Failure) -> None:
        if isinstance(searched, Failure):
            self._finish(searched)
        elif to_decode := tuple(utterance for channel in searched for utterance in channel.to_decode):
            self._candidates[to_decode[0].audio.index] = searched
            self._to_decode.append(to_decode)
        else:
            self._finish([channel.with_gaps(channel.transcript) for channel in searched])

    def _search(self, searches: Sequence[_Search]) -> tuple[Candidate, ...] | Failure:
        try:
            return tuple(self._candidate(one) for one in searches)
        except BaseException as error:  # even one that would end the thread becomes this file's Failure
            return to_failure(searches[0].transcript.audio, "load", error)

    def _candidate(self, search: _Search) -> Candidate:
        transcript, parts = search.transcript, search.parts
        try:
            spans = [*search.spans, *search.sparse_spans]
            surroundings = gaps.Surroundings(transcript, spans, self._options)
            speech = tuple(gaps.find_clear_speech(transcript, search.spans, surroundings))
            decoded = [utterance for utterance, _ in parts]
            to_decode = [utterance for utterance in speech if self._recover and gaps.is_new_stretch(utterance, decoded)]
            few_words = tuple(sparse.find_sparse_speech(transcript, search.sparse_spans, surroundings))
            return Candidate(transcript, parts, speech, tuple(to_decode), few_words)
        except AudioError:  # the file has changed or gone, but its words are still right
            return Candidate(transcript, parts, unread=tuple(Gap(*span) for span in search.spans))


class _Search:
    """The stretches of a decoded channel to search."""

    def __init__(self, transcript: Transcript, parts: Sequence[DecodedUtterance]) -> None:
        self.transcript, self.parts = transcript, parts
        self.spans, self.sparse_spans = gaps.find_untranscribed_spans(transcript), sparse.find_sparse_spans(transcript)

    @property
    def is_needed(self) -> bool:
        return bool(self.spans or self.sparse_spans)
