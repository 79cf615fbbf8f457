"""The text of a recording: its decoded utterances become a transcript, step by step.

A step is made at once, or it is a call that reads audio, which threads make. The stage keeps nothing of a recording, and it
and its steps can be pickled, so any process can make them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TypeAlias

import numpy as np

from fastscribe.audio.failures import to_failure
from fastscribe.config import CHANNELS, Options
from fastscribe.pipeline.gap_recovery import Candidate, Recovery
from fastscribe.pipeline.model_facts import ModelFacts
from fastscribe.speakers.dialogues import dialogue
from fastscribe.speakers.rttm import RttmTurns
from fastscribe.speakers.turns import stitched, turns_of
from fastscribe.speakers.word_speakers import with_speakers
from fastscribe.text import transcript
from fastscribe.text.nbest import nbest
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.text.transcript import DecodedUtterance
from fastscribe.types import AudioInfo, Failure, HeldSamples, Transcript, Turn

TextResult: TypeAlias = Transcript | Failure | Recovery  # a Recovery needs the model again
Step: TypeAlias = "TextResult | Callable[[], Step]"  # a call, which raises nothing, reads audio


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
        rttm: Has the turns of each recording's speakers; None: they come from elsewhere.
    """

    options: Options
    recovers_gaps: bool
    tokenizer: Tokenizer
    facts: ModelFacts
    rttm: RttmTurns | None = None

    def first(self, parts: Sequence[DecodedUtterance]) -> Step:
        """Return the first step of a recording from all its decoded utterances, in any order."""
        turns, candidates = self._turns([one for one in parts if one[0].purpose == "turns"]), []
        for own in _by_channel([one for one in parts if one[0].purpose == "words"]).values():
            made = self._assemble(own[0][0].audio, own)
            if isinstance(made, Failure):
                return made
            candidates.append(Candidate(made, own))
        recovery = Recovery(tuple(candidates), turns)
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
        return self._finish(channels, recovery.turns)

    def give_up(self, recovery: Recovery) -> Step:
        """Return the next step of a recording of which nothing is decoded again: it has its words, and gaps."""
        return self._finish([one.with_gaps(one.transcript) for one in recovery.candidates], recovery.turns)

    def _turns(self, parts: Sequence[DecodedUtterance]) -> tuple[Turn, ...]:
        """Return the turns that a speaker model found in a recording's windows. Nobody speaks in digital silence."""
        config, found = self.facts.others.get("turns"), []
        if config is None:
            return ()
        frame_samples = round(config.frame_s * config.features.sample_rate)
        for utterance, hypothesis in sorted(parts, key=lambda part: part[0].start):
            speakers_TN = hypothesis.found
            if speakers_TN is None:
                speakers_TN = np.zeros((config.num_frames(utterance.num_samples), config.num_speakers), np.float32)
            found.append((utterance.start // frame_samples, speakers_TN))
        return turns_of(stitched(found), config.frame_s, parts[0][0].audio.duration_s, self.options.speaker_names)

    def _search(self, recovery: Recovery) -> Step:
        try:
            searched = tuple(one.searched(self.options, self.recovers_gaps) for one in recovery.candidates)
            recovery = replace(recovery, candidates=searched)
            return recovery if recovery.utterances else self.give_up(recovery)
        except BaseException as error:  # even one that would end the thread becomes this file's Failure
            return to_failure(recovery.candidates[0].transcript.audio, "load", error)

    def _finish(self, channels: Sequence[Transcript], turns: Sequence[Turn]) -> Step:
        """Return the transcript with the speakers that are known: of several channels, the dialogue."""
        if self.options.speakers == CHANNELS:
            return dialogue(channels, self.options.speaker_names)
        [whole] = channels
        if isinstance(whole.audio.file, HeldSamples):
            whole = replace(whole, audio=whole.audio.file.audio)
        try:
            return with_speakers(whole, turns if self.rttm is None else self.rttm.of(whole.audio))
        except Exception as error:  # one bad file becomes a Failure and the run goes on
            return to_failure(whole.audio, "assemble", error)

    def _assemble(
        self, audio: AudioInfo, parts: Sequence[DecodedUtterance], recovered: Sequence[DecodedUtterance] = ()
    ) -> Transcript | Failure:
        no_time, frame_s = self.facts.zero_duration_punctuation, self.facts.token_frame_s
        try:
            result = transcript.assemble(audio, parts, self.tokenizer, frame_s, no_time, recovered)
            if self.options.nbest is None:
                return result
            return replace(result, nbest=nbest(parts, self.options.nbest, self.tokenizer, frame_s, no_time))
        except Exception as error:  # one bad file becomes a Failure and the run goes on
            return to_failure(audio, "assemble", error)


def _by_channel(parts: Sequence[DecodedUtterance]) -> dict[int | None, list[DecodedUtterance]]:
    """Return the parts of each channel, in the order of the channels."""
    ordered = sorted(parts, key=lambda part: part[0].audio.channel or 0)
    return {channel: list(own) for channel, own in groupby(ordered, lambda part: part[0].audio.channel)}
