"""What the core asks of rooms: the interfaces, each with the one place that calls it. rooms.py has the table of the rooms.

An object of a room satisfies one by having its methods. A room's door makes them, and RoomStage.add_to() puts them into a run's
Additions; a run without rooms has those of this file, which do nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from fastscribe.types import (
    AnyArray,
    AudioInfo,
    Batch,
    Failure,
    Features,
    Frames,
    Hypothesis,
    Source,
    Transcript,
    Utterance,
)

if TYPE_CHECKING:
    import torch

    from fastscribe.config import ModelConfig, Options
    from fastscribe.decode.decoder import Decoder
    from fastscribe.families.model import Model
    from fastscribe.pipeline.batching import Budget
    from fastscribe.pipeline.model_facts import ModelFacts
    from fastscribe.pipeline.stats import Stopwatch
    from fastscribe.pipeline.thread_pool import ReplacingThreadPool
    from fastscribe.text.tokenizer import Tokenizer
    from fastscribe.text.transcript import DecodedUtterance

# A step towards a recording's transcript: what became of it, or the call that makes the next step, which reads audio and raises
# nothing.
Step: TypeAlias = "Transcript | Failure | Callable[[], Step]"


class RoomStage(Protocol):
    """What a room does in the runs of a transcriber, which makes it before a model is loaded (Transcriber calls it)."""

    def refresh(self) -> None:
        """Read files again that have changed since they were read."""

    def digests(self) -> Mapping[str, str]:
        """Return digests of the files that the room has read, by the option's name. Raises OSError."""

    def add_to(self, run: Additions, config: ModelConfig, options: Options, facts: ModelFacts) -> Additions:
        """Return a run's additions with those of the room."""


class InputStage(Protocol):
    """What a room does when an input is prepared (Preparation calls it, in any thread or process; it can be pickled).

    Attributes:
        needs_file: The duration that a manifest states does not do: the file is opened.
        holds: The recording is read as a whole, because several models see it.
    """

    @property
    def needs_file(self) -> bool: ...

    @property
    def holds(self) -> bool: ...

    def check(self, audio: AudioInfo) -> None:
        """Raise AudioError for a recording that the room cannot work on."""

    def hold(self, audio: AudioInfo) -> AudioInfo:
        """Return the recording with its samples in memory. Raises AudioError."""

    def channels(self, audio: AudioInfo) -> Sequence[AudioInfo]:
        """Return what is transcribed by itself: the recording, or its channels. Raises AudioError."""

    def utterances(self, audio: AudioInfo) -> Iterable[Utterance]:
        """Return what other models read of the recording."""


class TranscriptStage(Protocol):
    """What a room makes of a decoded recording (TextStage calls it, in any process; it can be pickled)."""

    def understand(self, parts: Sequence[DecodedUtterance]) -> Any:
        """Return what the utterances mean that other models have read; None if nothing."""

    def transcript(self, channels: Sequence[Transcript], understood: Any) -> Step:
        """Return the recording's transcript from those of what was transcribed by itself, or the call that makes it."""


class FollowUp(Protocol):
    """Further utterances of finished transcripts, for another model (RecordingsInFlight calls it, in one thread).

    Attributes:
        purpose: That of its utterances.
    """

    purpose: str

    def begin(self, transcript: Transcript, audio: AudioInfo) -> Transcript | None:
        """Take in a transcript, of `audio` as it was decoded. Return it finished; None: utterances of it come first."""

    def take(self, batch_frames: float = 0.0, max_held_s: float = math.inf) -> list[Utterance]:
        """Return the utterances that wait if they fill a batch of this many frames, or if more seconds of recordings wait."""

    def add(self, utterance: Utterance, outcome: Hypothesis | Failure) -> Transcript | None:
        """Take in an utterance's result. Return the transcript that it finishes."""


class SidePlanner(Protocol):
    """Plans the batches of a model beside the recogniser (Run.plan calls it).

    Attributes:
        purpose: That of its utterances.
    """

    @property
    def purpose(self) -> str: ...

    def plan(
        self, utterances: Sequence[Utterance], budget: Budget, batch_size: int | None
    ) -> Iterator[tuple[Utterance, ...]]:
        """Yield batches of the utterances; `budget` and `batch_size` are those of the recogniser."""


class SideModel(Protocol):
    """A model beside the recogniser, on its device: stages of batches with another purpose (Recognizer.stages calls them).

    Attributes:
        config: The model's config, for its room.
        runs_in_parts: On a CPU, rows of a batch may run side by side.
    """

    @property
    def config(self) -> Any: ...

    @property
    def runs_in_parts(self) -> bool: ...

    def features(self, samples_BS: torch.Tensor, lengths_B: torch.Tensor) -> Features:
        """Return the features of samples at the recogniser's rate."""

    def encode(self, features: Features) -> Frames:
        """Return the model's output."""

    def submit(self, frames: Frames) -> torch.Tensor:
        """Return what read() needs a host copy of."""

    def read(self, packed: AnyArray, frames: Frames) -> Sequence[Hypothesis]:
        """Return a result for each row from the host copy; its room knows what Hypothesis.found means."""


class WordTimer(Protocol):
    """A second model that times the decoder's words (Recognizer calls it)."""

    @property
    def model(self) -> Model:
        """The model, on the recogniser's device."""

    @property
    def encoder(self) -> Callable[[Features], Frames]:
        """The model's encoder, or the same captured in graphs."""

    def features(self, features: Features, samples_BS: torch.Tensor, lengths_B: torch.Tensor) -> Features:
        """Return this model's features of a batch; `features` are the recogniser's."""

    def decoder(self, inner: Decoder, tokenizer: Tokenizer) -> Decoder:
        """Wrap a decoder so that this model times its words; `tokenizer` is the decoder's."""


class Constraints(Protocol):
    """What the rows of batches may not write, and what they should rather write (run_rooms.LazyConstraints calls it)."""

    def constrain(self, frames: Frames, batch: Batch) -> Frames:
        """Return the batch's frames with its phrases to boost and the tokens that are left out, if there are any."""


class LanguageRules(Protocol):
    """Which recordings of a run are kept to a language (language_lock.LanguageLock calls it).

    Attributes:
        language: Tag of the language that the run is kept to; None: of none.
        num_excluded: Number of tokens that it leaves out; None: there is no language, or its letters are not known.
    """

    language: str | None
    num_excluded: int | None

    @property
    def lines(self) -> list[str]:
        """Lines for the user about rows that named a language and phrases without effect, if there were any."""

    def apply(self, source: Source) -> Source | Failure:
        """Return the source with the language that it is kept to, or the Failure of a row whose language is unusable."""

    def take_lines(self) -> list[str]:
        """Return `lines`, and count from zero again."""


class SourceFilter(Protocol):
    """Decides on each input of a run that is not done yet (InputWindows calls it, in several threads)."""

    def apply(self, source: Source) -> Source | Failure:
        """Return the source, which it may change, or the Failure of one that cannot be used."""


class Edits(Protocol):
    """Changes the texts of results (Run calls it, or the helper that makes a text; it can be pickled).

    Attributes:
        left_alone: Numbers of transcripts that an option left as they were, by the option and the language ("": not known).
    """

    left_alone: Counter[tuple[str, str]]

    @property
    def language(self) -> str | None:
        """Code of the language of all texts; None: each transcript says its own."""

    @property
    def lines(self) -> list[str]:
        """Lines for the user about `left_alone`."""

    def apply(self, transcript: Transcript) -> Transcript:
        """Return a transcript with its text changed."""


class Texts(Protocol):
    """Makes results of decoded utterances. One thread uses it (RecordingsInFlight).

    Attributes:
        is_finished: Transcripts come edited as the options ask.
    """

    is_finished: bool

    def rows(self, results: Sequence[Hypothesis | Failure]) -> Sequence[Hypothesis | Failure]:
        """Return a batch's results as the other methods take them."""

    def kept(self, result: Hypothesis) -> Hypothesis:
        """Return a row as it waits for the others of its recording."""

    def first(self, parts: Sequence[DecodedUtterance]) -> Sequence[Transcript | Failure]:
        """Take in all utterances of a recording. Return the results that are there at once; collect() returns the others."""

    def flush(self) -> None:
        """Begin what is gathered. The run calls it after each batch."""

    def collect(self, wait: bool = False) -> Sequence[Transcript | Failure]:
        """Return the results that are there, each once; with `wait`, wait for one: none are returned if nothing is left."""


# Returns what makes the texts of a run (Run calls it): the pool makes calls that read audio, the stopwatch times the work.
MakeTexts: TypeAlias = "Callable[[ReplacingThreadPool, Stopwatch], Texts]"


class PlainInputs:
    """The InputStage of a run without rooms."""

    needs_file = holds = False

    def check(self, audio: AudioInfo) -> None:
        """Accept every recording."""

    def hold(self, audio: AudioInfo) -> AudioInfo:
        return audio

    def channels(self, audio: AudioInfo) -> Sequence[AudioInfo]:
        return (audio,)

    def utterances(self, audio: AudioInfo) -> Iterable[Utterance]:
        return ()


class PlainTranscripts:
    """The TranscriptStage of a run without rooms: a recording is transcribed as a whole."""

    def understand(self, parts: Sequence[DecodedUtterance]) -> None:
        """Return None: no other model reads anything."""

    def transcript(self, channels: Sequence[Transcript], understood: Any) -> Step:
        [whole] = channels
        return whole


PLAIN_INPUTS, PLAIN_TRANSCRIPTS = PlainInputs(), PlainTranscripts()


@dataclass(frozen=True)
class Additions:
    """What rooms add to a run; nothing in a plain one.

    Attributes:
        inputs: Takes part where inputs are prepared.
        transcripts: Takes part where transcripts are made.
        planners: Plan batches for models beside the recogniser.
        follow_up: Has more decoded after a transcript.
        filter: Decides on inputs that are not done.
        edits: Changes the texts of results.
        attach: Gives an input what its result is made of, before it is known whether it is done; None: it needs nothing.
        make_texts: Makes results in place of text_stage.py's.
        reports: Return lines for the end of the run.
        max_held_s: Seconds of recordings that the run holds in memory.
        needs_whole_recordings: A room sees recordings as a whole, so only the process that plans prepares them and makes texts.
    """

    inputs: InputStage = PLAIN_INPUTS
    transcripts: TranscriptStage = PLAIN_TRANSCRIPTS
    planners: tuple[SidePlanner, ...] = ()
    follow_up: FollowUp | None = None
    filter: SourceFilter | None = None
    edits: Edits | None = None
    attach: Callable[[Source | Failure], Source | Failure] | None = None
    make_texts: MakeTexts | None = None
    reports: tuple[Callable[[], list[str]], ...] = ()
    max_held_s: float = math.inf
    needs_whole_recordings: bool = False
