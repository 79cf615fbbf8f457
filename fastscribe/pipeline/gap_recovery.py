"""Gap recovery: a second pass over recordings with long stretches without words.

These stretches (segmentation/spans.py) are searched for speech (segmentation/gaps.py), which is decoded again. Channels of a
recording that are transcribed by themselves stay together. Without recovery, the transcript only lists such speech as gaps.
Speech with few words (segmentation/sparse.py) is listed either way. The recordings in flight wait for both passes
(recordings.py). The searches are imported when a recording has such a stretch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from fastscribe.config import Options
from fastscribe.errors import AudioError
from fastscribe.segmentation import spans as word_gaps
from fastscribe.segmentation.spans import Span
from fastscribe.text.transcript import DecodedUtterance
from fastscribe.types import Failure, Gap, Hypothesis, Transcript, Utterance

if TYPE_CHECKING:
    from fastscribe.segmentation.sparse import SparseSpeech


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
        if not (decoded or self.speech or self.sparse or self.unread):
            return replace(transcript, gaps=())
        from fastscribe.segmentation import gaps

        utterances = [utterance for utterance, _ in decoded]
        not_decoded = [(utterance, Hypothesis()) for utterance in self.speech if utterance not in utterances]
        wordless = self.unread or gaps.remaining_gaps([*not_decoded, *decoded])
        words = transcript.words if self.sparse else ()
        sparse = (Gap(found.start_s, found.end_s) for found in self.sparse if found.still_sparse(words))
        return replace(transcript, gaps=gaps.merge((*wordless, *sparse)))

    @cached_property
    def spans(self) -> tuple[list[Span], list[Span]]:
        """The spans to search: those without words, and those with few."""
        return word_gaps.find_untranscribed_spans(self.transcript), word_gaps.find_sparse_spans(self.transcript)

    def searched(self, options: Options, recovers: bool) -> Candidate:
        """Read the spans. Return the candidate with their speech; with `recovers`, what is new of it is to be decoded."""
        from fastscribe.segmentation import gaps, sparse

        transcript, (spans, sparse_spans) = self.transcript, self.spans
        try:
            surroundings = gaps.Surroundings(transcript, [*spans, *sparse_spans], options)
            speech = tuple(gaps.find_clear_speech(transcript, spans, surroundings))
            decoded = [utterance for utterance, _ in self.parts]
            to_decode = tuple(one for one in speech if recovers and gaps.is_new_stretch(one, decoded))
            few_words = tuple(sparse.find_sparse_speech(transcript, sparse_spans, surroundings))
            return replace(self, speech=speech, to_decode=to_decode, sparse=few_words)
        except AudioError:  # the file has changed or gone, but its words are still right
            return replace(self, unread=tuple(Gap(*span) for span in spans))


@dataclass(frozen=True)
class Recovery:
    """A decoded recording: its channels, and what a room understood of it (interfaces.TranscriptStage)."""

    candidates: tuple[Candidate, ...]
    understood: Any = None

    @property
    def utterances(self) -> tuple[Utterance, ...]:
        """What the model should decode again, of all channels."""
        return tuple(utterance for one in self.candidates for utterance in one.to_decode)


# A step towards a recording's transcript: what became of it, or the call that makes the next step.
TextResult: TypeAlias = Transcript | Failure | Recovery  # a Recovery needs the model again
Step: TypeAlias = "TextResult | Callable[[], Step]"  # a call, which raises nothing, reads audio
