"""The values that travel along the straight path, from a file's name to its transcript.

    path -probe-> AudioInfo -split-> Utterance.. -plan-> (Utterance..) -load-> Batch -features-> Features
         -encode-> Frames -decode-> Hypothesis.. -assemble-> Transcript -write-> JSONL, SRT ..

All are frozen. A stage that fails on a file makes a Failure instead. This module imports nothing heavy: whoever plans,
writes or tests should not need torch. Seconds are floats on the file's own clock; positions inside a file are integer
samples at the file's own rate, so that nothing drifts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

# NumPy arrays by element type. They are strings, so that this module runs without NumPy.
AnyArray: TypeAlias = "NDArray[Any]"
BoolArray: TypeAlias = "NDArray[np.bool_]"
Float32Array: TypeAlias = "NDArray[np.float32]"
Float64Array: TypeAlias = "NDArray[np.float64]"
Int16Array: TypeAlias = "NDArray[np.int16]"
Int32Array: TypeAlias = "NDArray[np.int32]"
Int64Array: TypeAlias = "NDArray[np.int64]"
UInt64Array: TypeAlias = "NDArray[np.uint64]"
RecordArray: TypeAlias = "NDArray[np.void]"  # a structured dtype, such as the journal's
SampleArray: TypeAlias = "NDArray[np.int16 | np.float32]"  # audio: int16, or float32 in [-1, 1]


@dataclass(frozen=True)
class Source:
    """One recording to transcribe, or one manifest row's cut of it."""

    path: str  # as the user gave it; what is reported
    file: str  # what is opened
    id: str  # names outputs, never opened
    row: Mapping[str, Any] | None = None
    offset_s: float | None = None
    duration_s: float | None = None  # None: to the end
    index: int = 0  # its place among the inputs of a run, from 0


@dataclass(frozen=True)
class AudioInfo:
    """One recording (or one manifest row's cut of it), as its header describes it.

    `start` and `num_samples` are in samples at `sample_rate`; a plain file starts at 0.
    """

    path: str  # as the user gave it
    id: str  # path below the given root with "/", plus "@offset" for a cut; names outputs, never opened
    sample_rate: int
    channels: int
    num_samples: int
    start: int = 0
    row: Mapping[str, Any] | None = None  # the manifest row with every field; None outside manifests
    file: str = ""  # what is opened where that is not `path` (a manifest row's path below the manifest's folder)
    is_int16: bool = field(default=False, compare=False)  # its samples are 16-bit integers
    index: int = 0  # its place among the inputs of a run, from 0
    unread: Source | None = None  # its file has not been opened, all this is what its manifest says; the loader looks

    @property
    def duration_s(self) -> float:
        return self.num_samples / self.sample_rate


@dataclass(frozen=True)
class Utterance:
    """A stretch of one recording that the model sees at once. Positions count from `audio.start`."""

    audio: AudioInfo
    start: int
    num_samples: int

    @property
    def start_s(self) -> float:
        return self.start / self.audio.sample_rate

    @property
    def end_s(self) -> float:
        return (self.start + self.num_samples) / self.audio.sample_rate

    @property
    def duration_s(self) -> float:
        return self.num_samples / self.audio.sample_rate


@dataclass(frozen=True)
class NativeRows:
    """Rows of a batch as their files hold them, several channels or another rate, for the device to resample.

    Each row's stretch begins at native sample `begin` (a whole number of samples at the model's rate); around it lies its
    neighbourhood in the recording, and zeros. samples_BSC is int16 where all its files are, else float32.
    """

    rate: int
    rows: tuple[int, ...]  # of the batch, one for each of samples_BSC
    begin: int
    samples_BSC: SampleArray

    def select(self, kept: Sequence[int]) -> NativeRows:
        """What belongs to the rows `kept` of the batch, which are numbered anew in that order; a copy only where it must be.

        Rows that lie together stay in this memory, which may be pinned.
        """
        places = {row: index for index, row in enumerate(self.rows)}
        rows = tuple(new for new, row in enumerate(kept) if row in places)
        picked = [places[kept[new]] for new in rows]
        together = range(picked[0], picked[0] + len(picked)) if picked else range(0)
        is_view = picked == list(together)
        samples_BSC = self.samples_BSC[together.start : together.stop] if is_view else self.samples_BSC[picked]
        return NativeRows(self.rate, rows, self.begin, samples_BSC)


@dataclass(frozen=True)
class Batch:
    """Utterances with their waveforms at the model's rate, zero-padded to the longest.

    samples_BS is int16 where every file is 16-bit at the model's rate, else float32 in [-1, 1]. Rows in `native` are zero
    until resample.fill() has run; lengths_B are theirs at the model's rate all the same.
    """

    utterances: tuple[Utterance, ...]
    samples_BS: SampleArray
    lengths_B: Int64Array
    native: tuple[NativeRows, ...] = ()


@dataclass(frozen=True)
class Features:
    """Normalised log-mel, zero beyond each row's length."""

    mel_BMT: torch.Tensor
    lengths_B: torch.Tensor
    aligner: Features | None = None  # of the same recordings for a timestamps aligner; None without one


@dataclass(frozen=True)
class Frames:
    """Encoder output. Rows are undefined beyond their length."""

    frames_BTD: torch.Tensor
    lengths_B: torch.Tensor
    mel_lengths_B: torch.Tensor | None = None  # of the features that they were made of, where a limit asks
    aligner: Frames | None = None  # the timestamps aligner's output; None without one
    # False: the row's features or frames hold NaN or infinite numbers; its length is 0 then. None: not checked.
    is_finite_B: torch.Tensor | None = None


@dataclass(frozen=True)
class Hypothesis:
    """What a decoder emitted for one utterance; the four sequences have one entry a token.

    token_frames counts encoder frames from the utterance's start; token_durations is what the model predicted (TDT),
    1 (RNN-T) or the length of the token's run (CTC); logprobs are natural logs over labels and blank.
    """

    token_ids: tuple[int, ...] = ()
    token_frames: tuple[int, ...] = ()
    token_durations: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    is_timed: bool = True  # False: the model gives no times, and tokens are spread evenly over the utterance
    problem: str = ""  # why what the model made is no transcript; there are no tokens then


class Token(NamedTuple):
    """A tuple, because there are several a second of audio, and frozen dataclasses take three times as long to make."""

    id: int
    piece: str
    start_s: float
    end_s: float
    confidence: float


@dataclass(frozen=True)
class Word:
    text: str
    start_s: float
    end_s: float
    confidence: float


@dataclass(frozen=True)
class Segment:
    text: str
    start_s: float
    end_s: float
    confidence: float
    words: tuple[Word, ...]
    recovered: bool = False  # True: gap recovery added these words; the model's first pass left them out


class Gap(NamedTuple):
    """Speech, by its sound, that has no words; with gap recovery, not even when the model decoded it again by itself."""

    start_s: float
    end_s: float


@dataclass(frozen=True)
class Transcript:
    """One recording's text; times are seconds on the recording's own clock (a manifest cut's clock starts at its offset)."""

    audio: AudioInfo
    text: str
    segments: tuple[Segment, ...]
    tokens: tuple[Token, ...]
    gaps: tuple[Gap, ...] = ()

    @property
    def words(self) -> tuple[Word, ...]:
        return tuple(word for segment in self.segments for word in segment.words)


@dataclass(frozen=True)
class Failure:
    """A recording that could not be transcribed, and the stage that gave up on it."""

    path: str
    id: str
    stage: str  # "input", "probe", "split", "load", "model", "assemble", "write"
    error_type: str
    message: str
    row: Mapping[str, Any] | None = None
    index: int = 0  # its place among the inputs of a run, from 0
