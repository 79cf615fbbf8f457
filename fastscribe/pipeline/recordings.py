"""The recordings in flight: utterances that are decoded in any order become transcripts, and gap recovery adds to them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fastscribe.audio.media import is_held
from fastscribe.pipeline.gap_recovery import Recovery
from fastscribe.pipeline.preparation import PreparedInput, release
from fastscribe.pipeline.stats import Progress
from fastscribe.pipeline.text_stage import TextResult
from fastscribe.pipeline.texts import Texts
from fastscribe.pipeline.windows import num_channels, work_s
from fastscribe.speakers.voice_prints import VoicePrints
from fastscribe.text.transcript import DecodedUtterance
from fastscribe.types import AudioInfo, Failure, Hypothesis, Transcript, Utterance

if TYPE_CHECKING:
    from fastscribe.alignment.text_aligner import TextAligner


class RecordingsInFlight:
    """A recording is here from its plan until its result leaves; nothing is kept of it then.

    Args:
        make_texts: Returns what makes transcripts of utterances and hands them to a function.
        progress: Counts the audio that is done, and times the aligner of texts.
        hears_voices: A voice model makes voice prints of the speakers.

    Attributes:
        aligner: Makes results of known texts instead of the decoder's; None: the texts are the decoder's.
        finished: Results that wait to leave.
        texts: Makes transcripts of utterances.
        voices: Makes voice prints of the speakers.
    """

    def __init__(
        self, make_texts: Callable[[Callable[[TextResult], None]], Texts], progress: Progress, hears_voices: bool
    ) -> None:
        self._progress, self._hears_voices = progress, hears_voices
        self._waiting: dict[int, tuple[int, list[DecodedUtterance]]] = {}  # by index: utterances expected, decoded
        self._undone: dict[int, tuple[float, int]] = {}  # by index: seconds to decode, of all channels; their number
        self._to_align: list[tuple[AudioInfo, Sequence[DecodedUtterance]]] = []  # decoded recordings
        self._to_recover: list[Utterance] = []  # not planned yet
        self._recoveries: dict[int, Recovery] = {}  # by index: of recordings that are decoded again
        self._heard: dict[int, AudioInfo] = {}  # by index: where to hear the voices of a decoded recording
        self.aligner: TextAligner | None = None
        self.finished: deque[Transcript | Failure] = deque()
        self.voices = VoicePrints(self.finished.append, progress.lost_prints)
        self.texts = make_texts(self._take)

    def undone_s(self) -> float:
        """Return the seconds of audio in flight that are not decoded yet, of all channels."""
        return sum(seconds for seconds, _ in self._undone.values())

    def begin(self, items: Sequence[PreparedInput]) -> list[Utterance]:
        """Take in recordings. Return their utterances, which the run decodes; failures are finished."""
        for item in items:
            if isinstance(item, tuple):
                self._undone[item[0].audio.index] = work_s(item), num_channels(item)
        return [utterance for item in items for utterance in self._expect(item)]

    def flush(self) -> None:
        """Begin the texts of what a batch has completed, or align it together."""
        self.texts.flush()
        if self.aligner is not None and self._to_align:
            recordings, self._to_align = self._to_align, []
            with self._progress.stopwatch.time("align"):
                self.finished += self.aligner.align(recordings)

    def take_finished(self) -> Iterator[Transcript | Failure]:
        """Yield the finished recordings, each once."""
        self.texts.collect()
        while self.finished:
            yield _released(self.finished.popleft())

    def utterances_to_recover(self) -> list[Utterance]:
        """Return the utterances to decode again, each once."""
        self.texts.collect()
        found, self._to_recover = self._to_recover, []
        return found

    def add(self, utterance: Utterance, outcome: Hypothesis | Failure) -> None:
        """Add an utterance to its recording. After one that failed, the recording's others are dropped."""
        index = utterance.audio.index
        if utterance.purpose == "voices":
            self.voices.add(utterance, outcome)
            return
        if index not in self._waiting:
            return
        expected, parts = self._waiting[index]
        if not isinstance(outcome, Failure):
            parts.append((utterance, outcome if self.aligner is None or expected == 1 else self.aligner.held(outcome)))
            if len(parts) < expected:
                self._count_done(index, 0.0 if utterance.purpose == "turns" else utterance.duration_s)
                return
        del self._waiting[index]
        self._count_done(index, math.inf)
        recovery, has_failed = self._recoveries.pop(index, None), isinstance(outcome, Failure)
        if has_failed:
            release(utterance.audio.file if utterance.audio.unread is None else utterance.audio.unread.file)
        if recovery is not None:
            self.texts.again(recovery, parts, has_failed)
        elif isinstance(outcome, Failure):
            self.finished.append(outcome)
        else:
            self._complete(parts)

    def _expect(self, item: PreparedInput) -> tuple[Utterance, ...]:
        """Return the utterances to decode; none if the recording has failed or is silent."""
        if isinstance(item, Failure):
            self.finished.append(item)
            return ()
        silent = [(utterance, Hypothesis()) for utterance in item if not utterance.num_samples]
        if len(silent) == len(item):
            self._count_done(item[0].audio.index, math.inf)
            self._complete(silent)
            return ()
        self._waiting[item[0].audio.index] = len(item), silent
        return tuple(utterance for utterance in item if utterance.num_samples) if silent else item

    def _count_done(self, index: int, duration_s: float) -> None:
        """Count audio as done; gap recovery decodes what is counted already."""
        undone_s, num_channels = self._undone.pop(index, (0.0, 1))
        self._progress.done_s += min(duration_s, undone_s) / num_channels
        if duration_s < undone_s:
            self._undone[index] = undone_s - duration_s, num_channels

    def _complete(self, parts: Sequence[DecodedUtterance]) -> None:
        """Take in a recording that was decoded for the first time."""
        audio = parts[0][0].audio
        if self.aligner is not None:
            self._to_align.append((audio, parts))
            return
        if self._hears_voices:
            self._heard[audio.index] = audio
        self.texts.first(parts)

    def _take(self, result: TextResult) -> None:
        """Finish a recording, with a voice model after the prints of its voices; or have its speech without words decoded."""
        if isinstance(result, Recovery):
            to_decode = result.utterances
            self._recoveries[to_decode[0].audio.index] = result
            self._to_recover += self._expect(to_decode)
            return
        audio = self._heard.pop(result.index, None)
        if audio is None or isinstance(result, Failure):
            self.finished.append(result)
            return
        channels = zip(result.speakers, result.speaker_channels, strict=False)
        self.voices.submit(result, {"": audio} | {name: replace(audio, channel=channel) for name, channel in channels})


def _released(result: Transcript | Failure) -> Transcript | Failure:
    """Return the result without the caller's data, which would stay in memory with it."""
    if isinstance(result, Failure):
        return result
    release(result.audio.file)
    return replace(result, audio=replace(result.audio, file="")) if is_held(result.audio.file) else result
