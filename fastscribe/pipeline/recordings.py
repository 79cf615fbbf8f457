"""The recordings in flight: utterances that are decoded in any order become transcripts."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from fastscribe.audio.media import is_held
from fastscribe.pipeline.interfaces import Texts
from fastscribe.pipeline.preparation import PreparedInput, release
from fastscribe.pipeline.stats import Progress
from fastscribe.pipeline.windows import num_channels, work_s
from fastscribe.text.transcript import DecodedUtterance
from fastscribe.types import WORDS, AudioInfo, Failure, Hypothesis, Transcript, Utterance

if TYPE_CHECKING:
    from fastscribe.speakers.voice_prints import VoicePrints


class RecordingsInFlight:
    """A recording is here from its plan until its result leaves; nothing is kept of it then.

    Args:
        texts: Makes transcripts of utterances.
        progress: Counts the audio that is done.
        follow_up: Has the voices of a transcript's speakers heard; None: every transcript is finished.

    Attributes:
        finished: Results that wait to leave.
        texts: As given.
    """

    def __init__(self, texts: Texts, progress: Progress, follow_up: VoicePrints | None) -> None:
        self.texts, self._progress, self._follow_up = texts, progress, follow_up
        # By index: a recording's utterances, and those that are decoded.
        self._waiting: dict[int, tuple[tuple[Utterance, ...], list[DecodedUtterance]]] = {}
        self._undone: dict[int, tuple[float, int]] = {}  # by index: seconds to decode, of all channels; their number
        self._audios: dict[int, AudioInfo] = {}  # by index: decoded recordings as a follow-up reads them
        self.finished: deque[Transcript | Failure] = deque()

    def begin(self, items: Sequence[PreparedInput]) -> list[Utterance]:
        """Take in recordings. Return their utterances, which the run decodes; failures are finished."""
        for item in items:
            if isinstance(item, tuple):
                self._undone[item[0].audio.index] = work_s(item), num_channels(item)
        return [utterance for item in items for utterance in self._expect(item)]

    def take_undecoded(self) -> list[tuple[Utterance, ...]]:
        """Return the recordings that are not decoded, without what is decoded of them. begin() takes them in again."""
        items = [item for item, _ in self._waiting.values()]
        self._waiting.clear()
        for item in items:
            undone_s, _ = self._undone[item[0].audio.index]
            self._progress.done_s -= (work_s(item) - undone_s) / num_channels(item)
        return items

    def collect(self, wait: bool = False) -> bool:
        """Take in the texts that are made; with `wait`, wait for one. Return False if there were none."""
        results = self.texts.collect(wait)
        self._take(results)
        return bool(results)

    def take_finished(self) -> Iterator[Transcript | Failure]:
        """Yield the finished recordings, each once."""
        self.collect()
        while self.finished:
            yield _released(self.finished.popleft())

    def utterances_to_follow_up(self, batch_frames: float = 0.0, max_held_s: float = math.inf) -> list[Utterance]:
        """Return the utterances that another model reads of finished transcripts, each once. As VoicePrints.take()."""
        return [] if self._follow_up is None else self._follow_up.take(batch_frames, max_held_s)

    def add(self, utterance: Utterance, outcome: Hypothesis | Failure) -> None:
        """Add an utterance to its recording. After one that failed, the recording's others are dropped."""
        index = utterance.audio.index
        if self._follow_up is not None and utterance.purpose == self._follow_up.purpose:
            transcript = self._follow_up.add(utterance, outcome)
            self.finished += () if transcript is None else (transcript,)
            return
        if index not in self._waiting:
            return
        item, parts = self._waiting[index]
        if not isinstance(outcome, Failure):
            parts.append((utterance, outcome if len(item) == 1 else self.texts.kept(outcome)))
            if len(parts) < len(item):
                self._count_done(index, utterance.duration_s if utterance.purpose == WORDS else 0.0)
                return
        del self._waiting[index]
        self._count_done(index, math.inf)
        if isinstance(outcome, Failure):
            release(utterance.audio.file if utterance.audio.unread is None else utterance.audio.unread.file)
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
        self._waiting[item[0].audio.index] = item, silent
        return tuple(utterance for utterance in item if utterance.num_samples) if silent else item

    def _count_done(self, index: int, duration_s: float) -> None:
        """Count audio as done."""
        undone_s, num_channels = self._undone.pop(index, (0.0, 1))
        self._progress.done_s += min(duration_s, undone_s) / num_channels
        if duration_s < undone_s:
            self._undone[index] = undone_s - duration_s, num_channels

    def _complete(self, parts: Sequence[DecodedUtterance]) -> None:
        """Take in a recording that was decoded."""
        if mixed := [utterance.audio for utterance, _ in parts if utterance.audio.alone_s]:
            from fastscribe.audio.mixing import joined

            spans = joined({span for one in mixed for span in one.opposite_phase}, mixed[0].duration_s)
            alone_s = tuple(map(sum, zip(*(one.alone_s for one in mixed), strict=True)))
            noted = partial(replace, opposite_phase=spans, alone_s=alone_s)
            parts = [(replace(one, audio=noted(one.audio)), found) for one, found in parts]
        audio = parts[0][0].audio
        if self._follow_up is not None:
            self._audios[audio.index] = audio
        self._take(self.texts.first(parts))

    def _take(self, results: Sequence[Transcript | Failure]) -> None:
        """Finish recordings, after what another model finds in them."""
        for result in results:
            audio = self._audios.pop(result.index, None)
            if audio is None or self._follow_up is None or isinstance(result, Failure):
                self.finished.append(result)
            elif (transcript := self._follow_up.begin(result, audio)) is not None:
                self.finished.append(transcript)


def _released(result: Transcript | Failure) -> Transcript | Failure:
    """Return the result without the caller's data, which would stay in memory with it."""
    if isinstance(result, Failure):
        return result
    release(result.audio.file)
    return replace(result, audio=replace(result.audio, file="")) if is_held(result.audio.file) else result
