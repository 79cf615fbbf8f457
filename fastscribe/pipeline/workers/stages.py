"""What helpers do with the items of a job: prepare an input, read a row of a batch, make the text of a recording.

Each stage opens a job, and returns a function that takes one item after another and never raises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fastscribe.audio.failures import to_failure
from fastscribe.audio.media import RemoteMedium
from fastscribe.config import OutputStyle
from fastscribe.pipeline.batch_layout import BatchLayout, ReadRow
from fastscribe.pipeline.preparation import Preparation, PreparedInput
from fastscribe.pipeline.text_stage import TextStage, edited, finished
from fastscribe.pipeline.workers.arena import SharedMemory
from fastscribe.types import AudioInfo, Failure, Hypothesis, RenderedTranscript, Source, Transcript, Utterance

if TYPE_CHECKING:
    from fastscribe.readable.edits import TextEdits

# By the recording's index: what this process has of remote recordings that are in flight, so that they are fetched once.
kept_files: dict[int, RemoteMedium] = {}
_NO_AUDIO = AudioInfo("", "", 1, 1, 0)
# A recording's utterances, and the place of the first one's hypothesis among the job's.
TextItem: TypeAlias = tuple[Sequence[Utterance], int]


@dataclass(frozen=True)
class PrepareStage:
    """Prepares inputs."""

    preparation: Preparation

    def opened(self, memory: SharedMemory, shared: None) -> Callable[[Source], PreparedInput]:
        def prepare(source: Source) -> PreparedInput:
            if isinstance(source.file, RemoteMedium):
                kept_files[source.index] = source.file
            prepared = self.preparation.prepare(source)
            if isinstance(source.file, RemoteMedium):
                source.file.share()
            return prepared

        return prepare


@dataclass(frozen=True)
class ReadStage:
    """Reads rows of a batch. A job's rows have the place and the layout of their batch in common."""

    def opened(
        self, memory: SharedMemory, shared: tuple[int, BatchLayout]
    ) -> Callable[[tuple[int, Utterance]], ReadRow | Failure]:
        place, layout = shared
        arrays = layout.placed(memory.view(place, layout.num_bytes))

        def read(item: tuple[int, Utterance]) -> ReadRow | Failure:
            row, utterance = item
            try:
                return arrays.read(row, utterance)
            except BaseException as error:  # one bad file must not stop the rest, whatever is wrong with it
                return to_failure(utterance.audio, "load", error)

        return read


@dataclass(frozen=True)
class TextResults:
    """What became of a recording, and the transcripts that an option left as they were (TextEdits.left_alone)."""

    result: Transcript | Failure
    left_alone: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class MakeTextStage:
    """Makes texts. A job's recordings have their hypotheses in common, one behind the other.

    Args:
        stage: Makes the steps.
        edits: Changes the texts; None: the run does that.
        style: Transcripts come rendered for it, without their words; None: whole.
    """

    stage: TextStage
    edits: TextEdits | None
    style: OutputStyle | None

    def opened(self, memory: SharedMemory, shared: Sequence[Hypothesis]) -> Callable[[TextItem], TextResults]:
        hypotheses = list(shared)

        def make(item: TextItem) -> TextResults:
            utterances, begin = item
            parts = list(zip(utterances, hypotheses[begin : begin + len(utterances)], strict=True))
            try:
                made = self.edited(finished(self.stage.first(parts)))
            except BaseException as error:  # one bad file becomes a Failure and the run goes on
                return TextResults(to_failure(utterances[0].audio, "assemble", error))
            if isinstance(made, RenderedTranscript):
                made.set_audio(_NO_AUDIO)
            if self.edits is None:
                return TextResults(made)
            counted, self.edits.left_alone = self.edits.left_alone, Counter()
            return TextResults(made, tuple(counted.elements()))

        return make

    def edited(self, result: Transcript | Failure) -> Transcript | Failure:
        """Return a result; a transcript's text is changed as the options ask, and rendered."""
        return edited(result, None if self.edits is None else self.edits.apply, self.style)
