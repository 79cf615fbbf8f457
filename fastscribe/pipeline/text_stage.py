"""The text of a recording: its decoded utterances become a transcript, step by step.

A step is made at once, or it is a call that reads audio, which threads make. The stage keeps nothing of a recording, and it
and its steps can be pickled, so any process can make them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from fastscribe.audio.failures import to_failure
from fastscribe.config import Options
from fastscribe.pipeline.gap_recovery import Candidate, Recovery, Step, TextResult
from fastscribe.pipeline.interfaces import PLAIN_TRANSCRIPTS, TranscriptStage
from fastscribe.pipeline.model_facts import ModelFacts
from fastscribe.text import transcript
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.text.transcript import DecodedUtterance
from fastscribe.types import WORDS, AudioInfo, Failure, Transcript


def finished(step: Step) -> TextResult:
    """Make a step's calls, and those that follow from them."""
    while not isinstance(step, Transcript | Failure | Recovery):
        step = step()
    return step


@dataclass(frozen=True)
class TextStage:
    """Makes the steps of a run's recordings.

    Attributes:
        options: The run's options.
        recovers_gaps: Decode speech without words again.
        tokenizer: The model's tokenizer.
        facts: What the executor says of the model.
        room: Takes part.
    """

    options: Options
    recovers_gaps: bool
    tokenizer: Tokenizer
    facts: ModelFacts
    room: TranscriptStage = PLAIN_TRANSCRIPTS

    def first(self, parts: Sequence[DecodedUtterance]) -> Step:
        """Return the first step of a recording from all its decoded utterances, in any order."""
        understood = self.room.understand([one for one in parts if one[0].purpose != WORDS])
        candidates = []
        for own in _by_channel([one for one in parts if one[0].purpose == WORDS]).values():
            made = self._assemble(own[0][0].audio, own)
            if isinstance(made, Failure):
                return made
            candidates.append(Candidate(made, own))
        recovery = Recovery(tuple(candidates), understood)
        return partial(self._search, recovery) if any(any(one.spans) for one in candidates) else self.give_up(recovery)

    def again(self, recovery: Recovery, parts: Sequence[DecodedUtterance]) -> Step:
        """Return the next step of a recording from its utterances that were decoded again, in any order."""
        decoded, channels = _by_channel(parts), []
        for one in recovery.candidates:
            own = decoded.get(one.transcript.audio.channel, ())
            made = self._assemble(one.transcript.audio, one.parts, own)
            if isinstance(made, Failure):
                return made
            channels.append(one.with_gaps(made, own))
        return self.room.transcript(channels, recovery.understood)

    def give_up(self, recovery: Recovery) -> Step:
        """Return the next step of a recording of which nothing is decoded again: it has its words, and gaps."""
        channels = [one.with_gaps(one.transcript) for one in recovery.candidates]
        return self.room.transcript(channels, recovery.understood)

    def _search(self, recovery: Recovery) -> Step:
        try:
            searched = tuple(one.searched(self.options, self.recovers_gaps) for one in recovery.candidates)
            recovery = replace(recovery, candidates=searched)
            return recovery if recovery.utterances else self.give_up(recovery)
        except BaseException as error:  # even one that would end the thread becomes this file's Failure
            return to_failure(recovery.candidates[0].transcript.audio, "load", error)

    def _assemble(
        self, audio: AudioInfo, parts: Sequence[DecodedUtterance], recovered: Sequence[DecodedUtterance] = ()
    ) -> Transcript | Failure:
        no_time, frame_s = self.facts.zero_duration_punctuation, self.facts.token_frame_s
        try:
            result = transcript.assemble(audio, parts, self.tokenizer, frame_s, no_time, recovered)
            if self.options.nbest is None:
                return result
            from fastscribe.text.nbest import nbest

            return replace(result, nbest=nbest(parts, self.options.nbest, self.tokenizer, frame_s, no_time))
        except Exception as error:  # one bad file becomes a Failure and the run goes on
            return to_failure(audio, "assemble", error)


def _by_channel(parts: Sequence[DecodedUtterance]) -> dict[int | None, list[DecodedUtterance]]:
    """Return the parts of each channel, in the order of the channels."""
    ordered = sorted(parts, key=lambda part: part[0].audio.channel or 0)
    return {channel: list(own) for channel, own in groupby(ordered, lambda part: part[0].audio.channel)}
