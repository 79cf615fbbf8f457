"""The values that the pipeline's stages pass on, from a file's name to its transcript.

    path -probe-> AudioInfo -split-> Utterance.. -plan-> (Utterance..) -load-> Batch -features-> Features
         -encode-> Frames -decode-> Hypothesis.. -assemble-> Transcript -write-> JSONL, SRT ..

All are frozen. A stage that fails on a file makes a Failure instead. This module imports nothing heavy, so that planning,
writing and their tests run without torch. Seconds are floats on the file's own clock. Positions inside a file are integer
samples at the file's own rate, so that they do not drift.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, Protocol, TypeAlias

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


Channel: TypeAlias = "int | Literal['center']"  # of a recording, from 0, or the centre of surround sound


class Medium(Protocol):
    """Where an encoded recording's bytes are (audio/media.py). Used by several threads at once.

    Its methods raise OSError with a message of one line, which does not name the recording.
    """

    @property
    def local_path(self) -> str | None:
        """The path of a local file, which libraries open by themselves; None for other media."""

    @property
    def identity(self) -> str:
        """What names the recording in a journal."""

    def __hash__(self) -> int:
        """Equal media have the same bytes."""

    def version(self) -> str:
        """Return what changes with the content."""

    def num_bytes(self) -> int:
        """Return the size."""

    def open(self) -> BinaryIO:
        """Return a new file that can seek, at its beginning, for one thread at a time."""


@dataclass(frozen=True, eq=False)
class Samples:
    """A recording in memory, decoded: samples_SC is int16, or float32 in [-1, 1]."""

    samples_SC: SampleArray
    sample_rate: int
    identity: str

    @property
    def is_int16(self) -> bool:
        return self.samples_SC.dtype == "int16"


File: TypeAlias = str | Medium | Samples  # a str is the path of a local file
# What an utterance is read for: "words" by the transcription model, anything else by a model that a room runs beside it.
Purpose: TypeAlias = str
WORDS: Purpose = "words"
UtteranceKey: TypeAlias = tuple[int, int | None, int, Purpose]  # recording's index, channel, start, purpose


class Phrase(NamedTuple):
    """A phrase to boost.

    Attributes:
        text: The phrase.
        weight: Factor of the usual boost, above 0.
    """

    text: str
    weight: float = 1.0


class _Keyed:
    path: str
    given_key: Any

    @property
    def key(self) -> Any:
        """The caller's key of the recording; where none was given, a file's path, or the position of other data."""
        return self.path if self.given_key is None else self.given_key


@dataclass(frozen=True)
class Source(_Keyed):
    """One recording to transcribe, or the part of one that a manifest row names. A Ledger is asked about it.

    `path`, `key`, `row`, `offset_s`, `duration_s` and `index` are for programs; the other fields are the run's own.
    """

    path: str  # as the user gave it, for reports
    file: File  # what to open
    id: str  # the base of output names; never opened
    row: Mapping[str, Any] | None = None
    offset_s: float | None = None
    duration_s: float | None = None  # None: to the end of the file
    index: int = 0  # position among the inputs of a run, from 0
    track: int | None = None  # audio track of a container, from 0; None: the first
    channel: Channel | None = None  # channel to read; None: a mix of all
    given_key: Any = field(default=None, compare=False)  # the caller's name for the recording; None: its path
    listed: str = field(default="", compare=False)  # line of the list that names it, for messages
    boost: tuple[Phrase, ...] = ()  # phrases of this recording, beside those of the run
    # Tag of the language that the text is kept to (context/language_filter.py); None: of none.
    language: str | None = None


class MixNotes(NamedTuple):
    """What reading adds of a mix of channels (audio/mixing.py), in samples of the file."""

    opposite: list[tuple[int, int]]  # spans in which one channel replaces another that would cancel it
    alone: Counter[int]  # by channel: in which it alone has sound


@dataclass(frozen=True)
class AudioInfo(_Keyed):
    """One recording (or the part that a manifest row names), as its header describes it.

    `start` and `num_samples` are in samples at `sample_rate`; a plain file starts at 0.
    """

    path: str  # as the user gave it
    id: str  # path below the given root with "/", plus "@offset" for a manifest row with one; the base of output names
    sample_rate: int
    channels: int
    num_samples: int
    start: int = 0
    row: Mapping[str, Any] | None = None  # every field of the manifest row; None outside manifests
    file: File = ""  # what to open if it is not `path` (a manifest row's path is relative to the manifest)
    is_int16: bool = field(default=False, compare=False)  # the samples are 16-bit integers
    index: int = 0  # position among the inputs of a run, from 0
    track: int | None = None  # audio track that FFmpeg's libraries decode, from 0; None: libsndfile reads the file
    num_tracks: int = 1  # audio tracks in the file
    # "to_end": beyond the size that its header gives; "from_start": decoded from the start; "links": of chained Ogg
    reading: str = ""
    notes: tuple[str, ...] = ()  # what its reader did that its header does not say
    channel: int | None = None  # channel to read, from 0; None: a mix of all (audio/mixing.py)
    layout: tuple[str, ...] = ()  # what each channel of surround sound is for: "FL"; (): they are all alike
    missing_channel: Channel | None = None  # that was asked for
    # Spans in seconds in which channels would cancel each other, so that one replaced the other; known once they are read.
    opposite_phase: tuple[tuple[float, float], ...] = field(default=(), compare=False)
    # Time in seconds in which a channel alone has sound, by channel; known once they are read and mixed.
    alone_s: tuple[float, ...] = field(default=(), compare=False)
    unread: Source | None = None  # set: the values come from the manifest, and the loader has yet to open the file
    given_key: Any = field(default=None, compare=False)  # as Source's
    listed: str = field(default="", compare=False)  # as Source's
    boost: tuple[Phrase, ...] = ()  # as Source's
    language: str | None = None  # as Source's

    @property
    def duration_s(self) -> float:
        return self.num_samples / self.sample_rate

    @property
    def last_s(self) -> float:
        """Latest time of its results: its length; in whole milliseconds if its row states it, perhaps more exactly."""
        is_stated = self.row is not None and "duration" in self.row
        return self.num_samples * 1000 // self.sample_rate / 1000 if is_stated else self.duration_s

    @property
    def native_channels(self) -> int:
        """Channels that a device mixes: all, or 1 where the reader picks or mixes them."""
        return self.channels if self.channel is None and not self.layout else 1

    @property
    def is_notable(self) -> bool:
        """True if there is something to say of its tracks or channels."""
        return self.num_tracks > 1 or self.missing_channel is not None or bool(self.opposite_phase or self.notes)

    def part(self, start: int, num_samples: int) -> AudioInfo:
        """Return a part of the recording as a recording; `start` counts samples from this one's start."""
        return replace(self, start=self.start + start, num_samples=num_samples)


@dataclass(frozen=True)
class Utterance:
    """A span of one recording that the model sees at once. Positions count from `audio.start`."""

    audio: AudioInfo
    start: int
    num_samples: int
    purpose: Purpose = WORDS

    @property
    def key(self) -> UtteranceKey:
        """What tells it from the other utterances of a run that are in flight."""
        return self.audio.index, self.audio.channel, self.start, self.purpose

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
    """Rows of a batch as their files hold them (several channels or another rate), which the device resamples.

    Each row's utterance begins at native sample `begin`, a whole number of samples at the model's rate. Its neighbourhood
    in the recording surrounds it, and zeros beyond that. samples_BSC is int16 if all its files are, else float32.
    """

    rate: int
    rows: tuple[int, ...]  # the batch row of each row of samples_BSC
    begin: int
    samples_BSC: SampleArray

    def select(self, kept: Sequence[int]) -> NativeRows:
        """Return the part for the batch rows `kept`, renumbered in that order.

        Adjacent rows stay a view of this memory, which may be pinned; others are copied.
        """
        places = {row: index for index, row in enumerate(self.rows)}
        rows = tuple(new for new, row in enumerate(kept) if row in places)
        picked = [places[kept[new]] for new in rows]
        together = range(picked[0], picked[0] + len(picked)) if picked else range(0)
        is_view = picked == list(together)
        samples_BSC = self.samples_BSC[together.start : together.stop] if is_view else self.samples_BSC[picked]
        return NativeRows(self.rate, rows, self.begin, samples_BSC)


class Cut(NamedTuple):
    """Digital silence that a row of a batch lacks (has, if below 0): `duration_s`, `at_s` seconds after the row's start."""

    at_s: float
    duration_s: float


@dataclass(frozen=True)
class Batch:
    """Utterances with their waveforms at the model's rate, zero-padded to the longest.

    samples_BS is int16 if every file is 16-bit at the model's rate, else float32 in [-1, 1]. Rows in `native` are zero
    until resample.fill() has run, but lengths_B already counts them at the model's rate.
    """

    utterances: tuple[Utterance, ...]
    samples_BS: SampleArray
    lengths_B: Int64Array
    native: tuple[NativeRows, ...] = ()
    cuts: tuple[tuple[Cut, ...], ...] = ()  # of each row, in order; empty if no row has any

    @property
    def audio_s(self) -> float:
        return sum(utterance.duration_s for utterance in self.utterances)

    @property
    def purpose(self) -> Purpose:
        """What its utterances are read for."""
        return self.utterances[0].purpose


@dataclass(frozen=True)
class Features:
    """Normalised log-mel, zero beyond each row's length."""

    mel_BMT: torch.Tensor
    lengths_B: torch.Tensor
    aligner: Features | None = None  # features of the same recordings for a timestamps aligner; None without one


@dataclass(frozen=True)
class Frames:
    """Encoder output. Rows are undefined beyond their length."""

    frames_BTD: torch.Tensor
    lengths_B: torch.Tensor
    mel_lengths_B: torch.Tensor | None = None  # lengths of the features, for a limit that counts them
    aligner: Frames | None = None  # the timestamps aligner's output; None without one
    # False: the row's features or frames hold NaN or infinite numbers, and its length is 0. None: not checked.
    is_finite_B: torch.Tensor | None = None
    boost: Any = field(default=None, compare=False, repr=False)  # context.boosting.Boost; None: no phrases are boosted
    # context.vocabulary_mask.VocabularyMask; None: every row may have every token.
    mask: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Hypothesis:
    """A decoder's output for one utterance; the four sequences have one entry a token.

    token_frames counts encoder frames from the utterance's start. token_durations is the predicted duration (TDT),
    1 (RNN-T) or the length of the token's run (CTC). logprobs are natural logs over labels and blank.
    """

    token_ids: tuple[int, ...] = ()
    token_frames: tuple[int, ...] = ()
    token_durations: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    is_timed: bool = True  # False: the model gives no times, and tokens are spread evenly over the utterance
    problem: str = ""  # why the output is no transcript; there are no tokens then
    # Beam search: natural log of the probability of the tokens, summed over the paths that the search kept, plus the language
    # model's share.
    score: float = 0.0
    nbest: tuple[Hypothesis, ...] = ()  # with Options.nbest: all hypotheses of the beam, this one first; else empty
    # Natural-log probabilities of the labels with blank, of every frame, for forced alignment; None elsewhere.
    emissions_TV: Float32Array | None = field(default=None, compare=False, repr=False)
    # Of an utterance with another purpose than "words": what its room's model finds. There are no tokens.
    found: Float32Array | None = field(default=None, compare=False, repr=False)


class Token(NamedTuple):
    """One token. A tuple, because there are several a second and frozen dataclasses take three times as long to make."""

    id: int
    piece: str
    start_s: float
    end_s: float
    confidence: float
    speaker: str | None = None


@dataclass(frozen=True)
class Word:
    """A word with its place in the recording.

    Attributes:
        text: The word, with its punctuation.
        start_s: Its begin on the recording's clock, in seconds.
        end_s: Its end.
        confidence: Mean probability of its tokens, from 0 to 1; NaN if the model computed no number.
        missing: True for a word of a known text that forced alignment did not hear.
        speaker: With Options.speakers, who says it.
        original: With Options.itn, the words that were said; None if `text` is what was said.
    """

    text: str
    start_s: float
    end_s: float
    confidence: float
    missing: bool = False
    speaker: str | None = None
    original: str | None = None


@dataclass(frozen=True)
class Segment:
    """A stretch of speech; with Options.speakers, of one speaker.

    Attributes:
        text: Its text.
        start_s: Its begin on the recording's clock, in seconds.
        end_s: Its end.
        confidence: Mean probability of its tokens, from 0 to 1; NaN if the model computed no number.
        words: Its words in order.
        line: Number of the line of a known text, from 1; subtitles keep its words together.
        speaker: With Options.speakers, who speaks.
    """

    text: str
    start_s: float
    end_s: float
    confidence: float
    words: tuple[Word, ...]
    line: int | None = None
    speaker: str | None = None

    @property
    def is_missing(self) -> bool:
        """True for a line of a known text none of whose words was heard."""
        return self.line is not None and bool(self.words) and all(word.missing for word in self.words)


@dataclass(frozen=True)
class Alternative:
    """One of the N best hypotheses of an utterance (Options.nbest).

    Attributes:
        text: Text of the utterance.
        score: Natural log of the text's probability, as the beam search scores it; higher is better.
        start_s: Begin of the utterance on the recording's clock, in seconds.
        end_s: Its end.
        words: Words with times and confidences.
        speaker: With Options.speakers, who speaks.
    """

    text: str
    score: float
    start_s: float
    end_s: float
    words: tuple[Word, ...]
    speaker: str | None = None


class Gap(NamedTuple):
    """Detected speech that has no words, or far fewer than the recording's own pace would give.

    After forced alignment, speech that is not in the text.

    Attributes:
        start_s: Its begin on the recording's clock, in seconds.
        end_s: Its end.
        speaker: With Options.speakers, who speaks; None: not known.
    """

    start_s: float
    end_s: float
    speaker: str | None = None


class Turn(NamedTuple):
    """A span in which a speaker speaks, in seconds on the recording's clock."""

    start_s: float
    end_s: float
    speaker: str


@dataclass(frozen=True)
class Voice:
    """A speaker's voice print.

    Attributes:
        speaker: The speaker's name in the recording.
        speech_s: Seconds in which the speaker alone speaks.
        start_s: Begin of a stretch of that to listen to, the longest, on the recording's clock.
        end_s: Its end.
        embedding_E: Vector of length 1; two of one person are similar. None: there is too little speech for one.
    """

    speaker: str
    speech_s: float
    start_s: float
    end_s: float
    embedding_E: Float32Array | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Transcript:
    """One recording's text. Times are seconds on the recording's clock; a manifest row's clock starts at its offset.

    With Options.speakers, segments are in the order in which they begin, and those of different speakers may overlap.
    """

    audio: AudioInfo
    text: str
    segments: tuple[Segment, ...]
    tokens: tuple[Token, ...]
    gaps: tuple[Gap, ...] = ()
    nbest: tuple[Alternative, ...] = ()  # with Options.nbest: by utterance, the best first
    # The tag that the model wrote most often, such as "hi-IN", or that of its only language; None: not known.
    language: str | None = None
    speakers: tuple[str, ...] = ()  # with Options.speakers: all of the recording, also those without words
    turns: tuple[Turn, ...] = ()  # who speaks when, also where no words are: of a speaker model or Options.rttm
    removed_words: tuple[Word, ...] = ()  # with Options.remove_fillers: the fillers, as the model wrote them
    is_timed: bool = True  # False: words of a model that gives no times, spread evenly; stored rows do not tell
    # With Options.speakers "channels": the channel of each of `speakers`, from 0.
    speaker_channels: tuple[int, ...] = ()
    voices: tuple[Voice, ...] = ()  # with Options.voices: one of each speaker

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= 80 else self.text[:77] + "..."
        return f"{type(self).__name__}({self.audio.path!r}, {self.audio.duration_s:.2f} s, {len(self.words)} words: {shown!r})"

    @property
    def key(self) -> Any:
        """The caller's key of the recording; where none was given, a file's path, or the position of other data."""
        return self.audio.key

    @property
    def index(self) -> int:
        """The recording's position among all recordings of the inputs, from 0."""
        return self.audio.index

    @property
    def row(self) -> Mapping[str, Any] | None:
        """Every field of the manifest's row; None outside manifests."""
        return self.audio.row

    @property
    def words(self) -> tuple[Word, ...]:
        """The words of all segments."""
        return tuple(word for segment in self.segments for word in segment.words)


@dataclass(frozen=True, repr=False)
class RenderedTranscript(Transcript):
    """A Transcript that is rendered, in a helper process if there are any, without words and tokens.

    Attributes:
        contents: Its row (`jsonl`) and its files, by format, in the style of the run: UTF-8.
    """

    contents: Mapping[str, bytes] = field(default_factory=dict)

    def set_audio(self, audio: AudioInfo) -> None:
        """Set the recording, which does not travel with a text, because the receiver has it."""
        object.__setattr__(self, "audio", audio)


@dataclass(frozen=True)
class Failure(_Keyed):
    """A recording that could not be transcribed, and the stage that failed.

    Attributes:
        path: The recording as the caller gave it; data in memory have a name.
        id: The base of its output names.
        stage: What failed: "input", "probe", "split", "load", "model", "assemble" or "align".
        error_type: The name of the exception's class: "AudioError" if the recording or its path cannot be used.
        message: What is wrong, in one line that does not name the recording.
        row: Every field of the manifest's row; None outside manifests.
        index: Its position among the inputs of the run, from 0.
        may_pass: A store, the network or memory was short, or a recording has fewer channels than names were given: a later
            run tries it again.
    """

    path: str
    id: str
    stage: str
    error_type: str
    message: str
    row: Mapping[str, Any] | None = None
    index: int = 0
    given_key: Any = field(default=None, compare=False)  # as Source's
    listed: str = field(default="", compare=False)  # as Source's
    may_pass: bool = field(default=False, compare=False)

    if not TYPE_CHECKING:  # where results are checked as a union, and Failure has no such attributes

        def __getattr__(self, name: str) -> Any:
            problem = (
                f"{self.path}: {self.message}"
                if name in ("text", "words", "segments", "tokens")
                else "no such attribute"
            )
            raise AttributeError(f"a Failure has no {name}: {problem}")
