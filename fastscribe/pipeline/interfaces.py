"""What takes part in a run beside its stages: the Additions of rooms, each with the one place that calls it.

A run without rooms has the objects of this file, which do nothing. lock_of() decides whether a run keeps recordings to a
language. The room context has the rules, for a run or a row that names one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from fastscribe.checkpoint.value import Checkpoint
from fastscribe.config import DecoderName, Options
from fastscribe.families.conformer.config import language_prompt_of
from fastscribe.languages import AUTO
from fastscribe.types import AudioInfo, Failure, Hypothesis, Source, Transcript, Utterance

if TYPE_CHECKING:
    from fastscribe.context.language_filter import LanguageFilter
    from fastscribe.pipeline.batching import Budget
    from fastscribe.pipeline.stats import Stopwatch
    from fastscribe.pipeline.thread_pool import ReplacingThreadPool
    from fastscribe.readable.edits import TextEdits
    from fastscribe.speakers.voice_prints import VoicePrints
    from fastscribe.text.transcript import DecodedUtterance

# A step towards a recording's transcript: what became of it, or the call that makes the next step, which reads audio and raises
# nothing.
Step: TypeAlias = "Transcript | Failure | Callable[[], Step]"
# Returns batches of utterances for a model beside the recogniser, whose budget this is.
SidePlan: TypeAlias = "Callable[[Sequence[Utterance], Budget], Iterator[tuple[Utterance, ...]]]"
LanguageLock: TypeAlias = "LanguageFilter"  # for those who only hand it on


class Texts:
    """Makes results of decoded utterances. One thread uses it (RecordingsInFlight).

    Attributes:
        is_finished: Transcripts come edited as the options ask.
    """

    is_finished = False

    def rows(self, results: Sequence[Hypothesis | Failure]) -> Sequence[Hypothesis | Failure]:
        """Return a batch's results as the other methods take them."""
        return results

    def kept(self, result: Hypothesis) -> Hypothesis:
        """Return a row as it waits for the others of its recording."""
        return result

    def first(self, parts: Sequence[DecodedUtterance]) -> Sequence[Transcript | Failure]:
        """Take in all utterances of a recording. Return the results that are there at once; collect() returns the others."""
        raise NotImplementedError

    def flush(self) -> None:
        """Begin what is gathered. The run calls it after each batch."""

    def collect(self, wait: bool = False) -> Sequence[Transcript | Failure]:
        """Return the results that are there, each once; with `wait`, wait for one: none are returned if nothing is left."""
        raise NotImplementedError


# Returns what makes the texts of a run (Run calls it): the pool makes calls that read audio, the stopwatch times the work.
MakeTexts: TypeAlias = "Callable[[ReplacingThreadPool, Stopwatch], Texts]"


class PlainInputs:
    """What a run does when an input is prepared (Preparation calls it, in any thread or process; it can be pickled).

    This does nothing: a run without rooms has it, and those of rooms are derived from it.

    Attributes:
        needs_file: The duration that a manifest states does not do: the file is opened.
        holds: The recording is read as a whole, because several models see it.
    """

    needs_file = holds = False

    def check(self, audio: AudioInfo) -> None:
        """Raise AudioError for a recording that the room cannot work on."""

    def hold(self, audio: AudioInfo) -> AudioInfo:
        """Return the recording with its samples in memory, if `holds` is set. Raises AudioError."""
        return audio

    def channels(self, audio: AudioInfo) -> Sequence[AudioInfo]:
        """Return what is transcribed by itself: the recording, or its channels. Raises AudioError."""
        return (audio,)

    def utterances(self, audio: AudioInfo) -> Iterable[Utterance]:
        """Return what other models read of the recording."""
        return ()


class PlainTranscripts:
    """What a run makes of a decoded recording (TextStage calls it, in any process; it can be pickled).

    Here a recording is transcribed as a whole, as in a run without rooms; those of rooms are derived from it.
    """

    def understand(self, parts: Sequence[DecodedUtterance]) -> Any:
        """Return what the utterances mean that other models have read; None if nothing."""
        return None

    def transcript(self, channels: Sequence[Transcript], understood: Any) -> Step:
        """Return the recording's transcript from those of what was transcribed by itself, or the call that makes it."""
        [whole] = channels
        return whole


PLAIN_INPUTS, PLAIN_TRANSCRIPTS = PlainInputs(), PlainTranscripts()


@dataclass(frozen=True)
class Additions:
    """What rooms add to a run; nothing in a plain one.

    Attributes:
        inputs: Takes part where inputs are prepared.
        transcripts: Takes part where transcripts are made.
        plans: Plan the batches of models beside the recogniser, by the purpose of their utterances.
        follow_up: Has the voices of a transcript's speakers heard.
        filter: Decides on inputs that are not done.
        edits: Changes the texts of results.
        attach: Gives an input what its result is made of, before it is known whether it is done, or leaves it out (None); None:
            it needs nothing.
        make_texts: Makes results in place of text_stage.py's.
        reports: Return lines for the end of the run.
        max_held_s: Seconds of recordings that the run holds in memory.
    """

    inputs: PlainInputs = PLAIN_INPUTS
    transcripts: PlainTranscripts = PLAIN_TRANSCRIPTS
    plans: Mapping[str, SidePlan] = field(default_factory=dict)
    follow_up: VoicePrints | None = None
    filter: LanguageLock | None = None
    edits: TextEdits | None = None
    attach: Callable[[Source | Failure], Source | Failure | None] | None = None
    make_texts: MakeTexts | None = None
    reports: tuple[Callable[[], list[str]], ...] = ()
    max_held_s: float = math.inf


def lock_of(checkpoint: Checkpoint, options: Options, has_prompt: bool) -> LanguageLock | None:
    """Return what keeps recordings to a language; None for models with one language or with a prompt for it.

    None also if the option names the language of the aligner, or if neither it nor the model names a language.

    Args:
        checkpoint: The model.
        options: The run's language and phrases.
        has_prompt: The decoder has a prompt for the language.

    Raises:
        UsageError: No token of the model has letters of the language.
    """
    is_told = has_prompt or language_prompt_of(checkpoint.config) is not None
    names_none = not checkpoint.languages and options.language in (None, AUTO)
    if is_told or checkpoint.has_aligner_of_a_language or len(checkpoint.languages) == 1 or names_none:
        return None
    from fastscribe.context.language_filter import LanguageFilter

    return LanguageFilter(checkpoint.tokenizer, checkpoint.languages, options.language, options.boost)


# What a loaded model is, for those that have none in their process.


@dataclass(frozen=True)
class ModelFacts:
    """What runs and reports need to know of a loaded model.

    Attributes:
        device_name: Name of the GPU or the processor.
        dtype: The dtype in use.
        decoder_name: The decoder in use.
        beam: Its beam width; 1 is greedy.
        attention: Attention of the encoder, as ModelConfig.attention names it.
        token_frame_s: Length in seconds of a frame of Hypothesis.token_frames.
        zero_duration_punctuation: The decoder's timestamps give punctuation no time.
        language: Tag of the one language that the run writes, by the model, its aligner or the options; None: not known.
        others: Configs of the models that rooms run beside this one, by purpose (Utterance.purpose).
        marks: Ids of the tokens of punctuation that begin no word.
        has_prompt: The decoder follows Options.language, target_language, pnc and timestamps.
        is_gpu: The device is a GPU.
        torch_version: Version of torch in the process that decodes.
        least_samples: Samples at the model's rate that a row of words has at least. A shorter utterance gets silence around it.
    """

    device_name: str
    dtype: str
    decoder_name: DecoderName
    beam: int
    attention: str
    token_frame_s: float
    zero_duration_punctuation: bool
    language: str | None = None
    others: Mapping[str, Any] = field(default_factory=dict)
    marks: frozenset[int] = frozenset()
    has_prompt: bool = False
    is_gpu: bool = False
    torch_version: str = ""
    least_samples: int = 0


# What a stage yields instead of an item while it has none ready: the next stage finishes what it holds.


class Idle(Enum):
    """The type of IDLE."""

    IDLE = auto()


IDLE: Final[Literal[Idle.IDLE]] = Idle.IDLE
