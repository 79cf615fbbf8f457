"""Recordings that were decoded and have long stretches without words, on their way through gaps.py.

Their sound is looked at in threads, not in the one that drives the model. Those with clear speech come back with what to
decode once more. What is found does not depend on when it is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue

from fastscribe.audio.source import to_failure
from fastscribe.config import Options
from fastscribe.crew import Crew
from fastscribe.errors import AudioError
from fastscribe.long_audio import gaps
from fastscribe.transcript import Part
from fastscribe.types import Failure, Gap, Hypothesis, Transcript, Utterance

_MOST_WAITING = 1000  # recordings; beyond that, whoever asks waits for one


@dataclass(frozen=True)
class Look:
    """A recording with what it was made of. `speech` lies where no words do; of these, `to_decode` may yet have some."""

    transcript: Transcript
    parts: Sequence[Part]
    speech: tuple[Utterance, ...] = ()
    to_decode: tuple[Utterance, ...] = ()
    unseen: tuple[Gap, ...] = ()  # stretches that could not be read once more
    failure: Failure | None = None

    def with_gaps(self, transcript: Transcript, decoded: Sequence[Part]) -> Transcript:
        """The transcript, which has the words of `decoded` in it, with the stretches of speech that have none."""
        heard = [utterance for utterance, _ in decoded]
        as_before = [(utterance, Hypothesis()) for utterance in self.speech if utterance not in heard]
        return replace(transcript, gaps=self.unseen or gaps.gaps_of([*as_before, *decoded]))


class SecondLooks:
    """Used by one thread."""

    def __init__(self, options: Options, threads: int) -> None:
        self._options = options
        self._crew = Crew(threads, "look")
        self._done: SimpleQueue[Look] = SimpleQueue()
        self._num_waiting = 0

    @property
    def are_waiting(self) -> bool:
        return self._num_waiting > 0

    def begin(self, transcript: Transcript, parts: Sequence[Part]) -> bool:
        """False: there is nothing to look for. Else the recording is among those that take() gives, in time."""
        stretches = gaps.wordless(transcript)
        if stretches:
            self._num_waiting += 1
            self._crew.submit(partial(self._look, transcript, parts, stretches))
        return bool(stretches)

    def take(self, wait: bool) -> list[Look]:
        """The looks that have ended; with `wait` all that have begun."""
        found = []
        while self._num_waiting and (wait or not self._done.empty() or self._num_waiting > _MOST_WAITING):
            found.append(self._done.get())
            self._num_waiting -= 1
        return found

    def close(self) -> None:
        self._crew.close()

    def _look(self, transcript: Transcript, parts: Sequence[Part], stretches: Sequence[gaps.Stretch]) -> None:
        try:
            speech = tuple(gaps.clear_speech(transcript, stretches, self._options))
            decoded = [utterance for utterance, _ in parts]
            to_decode = tuple(utterance for utterance in speech if gaps.is_new(utterance, decoded))
            look = Look(transcript, parts, speech, to_decode)
        except AudioError:  # the file has changed or gone, but its words stand
            look = Look(transcript, parts, unseen=tuple(Gap(*stretch) for stretch in stretches))
        except BaseException as error:  # even one that would end the thread becomes this file's Failure
            look = Look(transcript, parts, failure=to_failure(transcript.audio, "load", error))
        self._done.put(look)
