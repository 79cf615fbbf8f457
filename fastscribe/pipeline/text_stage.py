"""The text of a recording: its decoded utterances become a transcript, step by step.

A step is made at once, or it is a call that reads audio, which threads make. The stage keeps nothing of a recording, and it
and its steps can be pickled, so any process can make them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from queue import SimpleQueue
from typing import Any

from fastscribe.audio.failures import to_failure
from fastscribe.config import Options, OutputStyle
from fastscribe.errors import AudioError
from fastscribe.pipeline.interfaces import (
    PLAIN_TRANSCRIPTS,
    Additions,
    MakeTexts,
    ModelFacts,
    PlainTranscripts,
    Step,
    Texts,
)
from fastscribe.pipeline.stats import Stopwatch
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.results.formats.writers import rendered
from fastscribe.segmentation.spans import Span, find_doubtful_spans, find_sparse_spans, find_untranscribed_spans
from fastscribe.text import transcript
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.text.transcript import DecodedUtterance
from fastscribe.types import WORDS, AudioInfo, Failure, RenderedTranscript, Transcript


def finished(step: Step) -> Transcript | Failure:
    """Make a step's calls, and those that follow from them."""
    while not isinstance(step, Transcript | Failure):
        step = step()
    return step


def edited(
    result: Transcript | Failure, change: Callable[[Transcript], Transcript] | None, style: OutputStyle | None
) -> Transcript | Failure:
    """Return a result with its text changed, if a run does that, and rendered, if there is a style."""
    if isinstance(result, (Failure, RenderedTranscript)):
        return result
    try:
        changed = result if change is None else change(result)
        if style is None:
            return changed
        made = rendered(changed, style)
    except Exception as error:  # one bad file becomes a Failure and the run goes on
        return to_failure(result.audio, "assemble", error)
    made.set_audio(result.audio)
    return made


@dataclass(frozen=True)
class TextStage:
    """Makes the steps of a run's recordings.

    Attributes:
        options: The run's options.
        tokenizer: The model's tokenizer.
        facts: What the executor says of the model.
        room: Takes part.
    """

    options: Options
    tokenizer: Tokenizer
    facts: ModelFacts
    room: PlainTranscripts = PLAIN_TRANSCRIPTS

    def first(self, parts: Sequence[DecodedUtterance]) -> Step:
        """Return the first step of a recording from all its decoded utterances, in any order."""
        understood = self.room.understand([one for one in parts if one[0].purpose != WORDS])
        spoken = list(_by_channel([one for one in parts if one[0].purpose == WORDS]).values())
        channels = []
        for own in spoken:
            made = self._assemble(own[0][0].audio, own)
            if isinstance(made, Failure):
                return made
            channels.append(made)
        if any(find_untranscribed_spans(one) or find_sparse_spans(one) or find_doubtful_spans(one) for one in channels):
            return partial(self._search, channels, spoken, understood)
        return self.room.transcript(channels, understood)

    def _search(
        self, channels: Sequence[Transcript], spoken: Sequence[Sequence[DecodedUtterance]], understood: Any
    ) -> Step:
        """Remove words that are no speech, and find the gaps of each channel in its spans without words and with few."""
        try:
            from fastscribe.segmentation.gap_search import with_gaps

            found = []
            for one, own in zip(channels, spoken, strict=True):
                heard = self._without_sounds(one, own)
                if isinstance(heard, Failure):
                    return heard
                found.append(with_gaps(heard, find_untranscribed_spans(heard), find_sparse_spans(heard), self.options))
            return self.room.transcript(found, understood)
        except BaseException as error:  # even one that would end the thread becomes this file's Failure
            return to_failure(channels[0].audio, "load", error)

    def _without_sounds(self, transcript: Transcript, parts: Sequence[DecodedUtterance]) -> Transcript | Failure:
        """Return the transcript without doubtful words where there are tones, noise or clicks alone."""
        from fastscribe.segmentation.gap_search import has_speech

        try:
            spans = [span for span in find_doubtful_spans(transcript) if not has_speech(transcript.audio, span)]
        except AudioError:  # the file has changed or gone, but its words are still right
            spans = []
        if not spans:
            return transcript
        starts_s = [*(word.start_s for word in transcript.words), math.inf]
        until = [(begin_s, min(start_s for start_s in starts_s if start_s > end_s)) for begin_s, end_s in spans]
        return self._assemble(transcript.audio, [_outside(one, until, self.facts.token_frame_s) for one in parts])

    def _assemble(self, audio: AudioInfo, parts: Sequence[DecodedUtterance]) -> Transcript | Failure:
        no_time, frame_s = self.facts.zero_duration_punctuation, self.facts.token_frame_s
        try:
            result = transcript.assemble(audio, parts, self.tokenizer, frame_s, no_time)
            if self.options.nbest is None:
                return result
            return replace(result, nbest=transcript.nbest(parts, self.options.nbest, self.tokenizer, frame_s, no_time))
        except Exception as error:  # one bad file becomes a Failure and the run goes on
            return to_failure(audio, "assemble", error)


def _outside(part: DecodedUtterance, spans: Sequence[Span], frame_s: float) -> DecodedUtterance:
    """Return an utterance without the tokens that begin within spans."""
    utterance, hypothesis = part
    starts_s = [utterance.start_s + frame * frame_s for frame in hypothesis.token_frames]
    kept = [place for place, start_s in enumerate(starts_s) if not any(begin <= start_s < end for begin, end in spans)]
    return utterance, replace(
        hypothesis,
        token_ids=tuple(hypothesis.token_ids[place] for place in kept),
        token_frames=tuple(hypothesis.token_frames[place] for place in kept),
        token_durations=tuple(hypothesis.token_durations[place] for place in kept),
        logprobs=tuple(hypothesis.logprobs[place] for place in kept),
        nbest=hypothesis.nbest if len(kept) == len(starts_s) else (),
    )


def _by_channel(parts: Sequence[DecodedUtterance]) -> dict[int | None, list[DecodedUtterance]]:
    """Return the parts of each channel, in the order of the channels."""
    ordered = sorted(parts, key=lambda part: part[0].audio.channel or 0)
    return {channel: list(own) for channel, own in groupby(ordered, lambda part: part[0].audio.channel)}


# Where a run's recordings become text: in this process, whose threads make the calls that read audio.
#
# The run collects the results of what makes texts. Nothing here calls back into the run.


MAX_CALLS = 1000  # that threads make; then the thread that drives the model waits for them


def local_texts(stage: TextStage, rooms: Additions) -> MakeTexts:
    """Return what makes the texts of a run in this process: a room's, if it has its own."""
    return rooms.make_texts or partial(LocalTexts, stage)


class LocalTexts(Texts):
    """Texts that the thread that drives the model makes, with the threads of a pool.

    Args:
        stage: Makes the steps.
        pool: Makes the calls that read audio.
        stopwatch: Times the steps.
    """

    def __init__(self, stage: TextStage, pool: ReplacingThreadPool, stopwatch: Stopwatch) -> None:
        self._stage, self._pool, self._stopwatch = stage, pool, stopwatch
        self._called: SimpleQueue[Transcript | Failure] = SimpleQueue()  # by the threads
        self._num_calls = 0  # whose results are not taken

    def first(self, parts: Sequence[DecodedUtterance]) -> Sequence[Transcript | Failure]:
        with self._stopwatch.time("assemble"):
            step = self._stage.first(parts)
        if isinstance(step, Transcript | Failure):
            return (step,)
        self._num_calls += 1
        self._pool.submit(lambda: self._called.put(finished(step)))
        return [self._next_called() for _ in range(self._num_calls - MAX_CALLS)]

    def collect(self, wait: bool = False) -> Sequence[Transcript | Failure]:
        found = []
        while not self._called.empty():
            found.append(self._next_called())
        if wait and self._num_calls and not found:
            found.append(self._next_called())
        return found

    def _next_called(self) -> Transcript | Failure:
        self._num_calls -= 1
        return self._called.get()
