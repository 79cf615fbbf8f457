"""Settings that the checkpoint fixes (ModelConfig and its parts, no defaults) and those of the user (Options, with defaults).

The readers of checkpoint/ and families/ fill a ModelConfig from NeMo's YAML, Hugging Face's JSON or fastscribe's own JSON. The
latter is `asdict` of these classes, so a field added here is a field stored there. The encoder's settings are in config.py of
its family's folder.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import os
import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar, get_args

from fastscribe import rooms
from fastscribe.errors import OptionError
from fastscribe.languages import AUTO, language_tag
from fastscribe.rooms import CHANNELS as CHANNELS
from fastscribe.types import Channel, Phrase

if TYPE_CHECKING:
    import torch

Size = TypeVar("Size", int, "torch.Tensor")

DecoderName = Literal["rnnt", "tdt", "ctc", "aed"]
# How a GPU decodes: "full" is one graph with a loop inside, "chunked" replays a graph of a few steps, "off" has no graphs.
# "auto" takes the first of these that the machine supports.
GraphMode = Literal["auto", "full", "chunked", "off"]
VadName = Literal["energy", "silero"]
FloatDtypeName = Literal["fp32", "bf16"]
EightBitDtypeName = Literal["int8", "fp8"]  # the encoder's large matrices: int8 on CPUs, fp8 on GPUs
DtypeName = Literal[FloatDtypeName, EightBitDtypeName]
DtypePolicy = Literal["auto", "fastest"]  # what else the device decides; pipeline/dtype_choice.py has the rules
DtypeChoice = Literal[DtypePolicy, DtypeName]
TrainDtypeChoice = Literal["auto", FloatDtypeName]
ExportFormat = Literal["nemo", "hf"]  # model formats of other projects: NeMo's file, Hugging Face's folder
OutputFormat = Literal[
    "jsonl",
    "json",
    "srt",
    "vtt",
    "ass",
    "txt",
    "md",
    "tsv",
    "ctm",
    "rttm",
    "textgrid",
]
OUTPUT_FORMATS: tuple[OutputFormat, ...] = get_args(OutputFormat)
FILE_FORMATS = tuple(format for format in OUTPUT_FORMATS if format != "jsonl")  # of a file for each recording
# Values in a checkpoint's config.
Window = Literal["hann", "hamming", "blackman", "bartlett", "none"]
MelNorm = Literal["slaney"]
LogGuard = Literal["add", "clamp"]
# "peak": base-10 logarithms, floored at a distance from the recording's largest, divided by 4, plus 1.
FeatureNorm = Literal["per_feature", "all_features", "peak", "none"]
MelScale = Literal["slaney", "htk"]
Edges = Literal["zeros", "reflect"]
JointActivation = Literal["relu", "tanh", "sigmoid"]
TransformerActivation = Literal["relu", "gelu"]
PromptForm = Literal["canary", "canary2", "cohere"]
DEFAULT_MAX_UTTERANCE_S = 40.0
MIN_UTTERANCE_S = 1.0  # of the limit: shorter pieces hold no words
MIN_LINE_WIDTH = 2  # columns, of one wide character
# Beyond these a typing error would take all memory, or more threads than a system starts.
MAX_BEAM = 1024
MAX_BATCH_SIZE = 4096
MAX_BOOST_WEIGHT = 10.0  # heavier phrases are written again and again where they are not spoken (docs/boost.md)
MAX_LM_WEIGHT = 10.0
MAX_THREADS = 1024
# Without max_symbols nothing else ends a frame at which some label is always likelier than blank.
LABELS_PER_FRAME_GUARD = 1000
MAX_PIECES = 1 << 16  # of a vocabulary; NeMo's have up to 16,384, and logits take memory for each piece
CHANGES_OF_TEXT = ("remove_fillers", "itn")  # options that change the text after decoding
MAX_STRIDE = 64  # mel frames of an encoder's frame


class Within(NamedTuple):
    """The least and the greatest value of a checkpoint's number, which checkpoint/validate.py reads at the field."""

    least: float
    greatest: float


@dataclass(frozen=True)
class FeaturesConfig:
    """Log-mel front end. Lengths are in samples, frequencies in Hz."""

    sample_rate: Annotated[int, Within(1000, 384_000)]
    num_mels: Annotated[int, Within(1, 1024)]
    n_fft: Annotated[int, Within(2, 1 << 14)]
    win_length: Annotated[int, Within(2, 1 << 14)]
    hop_length: Annotated[int, Within(1, 1 << 16)]
    window: Window
    preemphasis: Annotated[float, Within(0.0, 1.0)] | None
    mag_power: Annotated[float, Within(0.01, 10.0)]
    low_hz: Annotated[float, Within(0.0, 192_000.0)]
    high_hz: Annotated[float, Within(1.0, 384_000.0)]
    mel_norm: MelNorm | None
    log: bool
    log_guard: LogGuard
    log_guard_value: Annotated[float, Within(0.0, 1.0)]
    normalize: FeatureNorm
    mel_scale: MelScale = "slaney"
    periodic_window: bool = False
    edges: Edges = "zeros"  # what the frames at a recording's ends see beyond it
    # Powers of ten between the largest value and the floor, with normalize "peak".
    peak_range: Annotated[float, Within(0.0, 100.0)] | None = None
    # Amplitude of the noise that is added to the samples, seeded by their number.
    dither: Annotated[float, Within(0.0, 1.0)] = 0.0
    frame_multiple: Annotated[int, Within(1, 64)] = 1  # silence after a recording fills its frames up to a multiple

    def num_frames(self, num_samples: Size) -> Size:
        """Return the number of mel frames of a recording."""
        return -(-(num_samples // self.hop_length) // self.frame_multiple) * self.frame_multiple


@dataclass(frozen=True)
class LocalAttention:
    """Each encoder frame attends to `left` frames before it, itself, and `right` after it.

    With one global frame the first frame attends to all, and all to it, regardless of distance. More than one is refused:
    NeMo mixes up their heads, so there is no right answer to match.

    Raises:
        ValueError: a number is negative or no integer, left and right are both 0, or num_global exceeds 1.
    """

    left: int
    right: int
    num_global: int = 0  # 0 or 1

    def __post_init__(self) -> None:
        numbers = dataclasses.astuple(self)
        if not all(type(number) is int and number >= 0 for number in numbers) or max(self.left, self.right) == 0:
            raise ValueError(f"attention to {self.left!r}, {self.right!r} frames: not whole numbers with one above 0")
        if self.num_global > 1:
            raise ValueError(f"attention with {self.num_global} global frames: not 0 or 1")

    def __str__(self) -> str:
        """Return the text that parse_attention reads."""
        return f"local:{self.left},{self.right}" + (f",{self.num_global}" if self.num_global else "")


@dataclass(frozen=True)
class ChunkedAttention:
    """Each encoder frame attends to its chunk, of `right` + 1 frames, and to `left` frames before the chunk.

    A streaming model learns in this way. -1 is no limit: on the left every earlier frame is visible; on the right there are
    no chunks, and a frame attends to `left` frames before it and all after it.

    Raises:
        ValueError: a number is less than -1 or no integer, both are -1, or left is not a whole number of chunks.
    """

    left: int
    right: int
    kind: str = "chunked"

    def __post_init__(self) -> None:
        sides = (self.left, self.right)
        if not all(type(number) is int and number >= -1 for number in sides) or max(sides) < 0:
            raise ValueError(
                f"attention in chunks with {self.left!r}, {self.right!r} frames: not whole numbers from -1"
            )
        if self.left >= 0 and self.left % self.chunk:
            raise ValueError(f"attention in chunks of {self.chunk} frames: {self.left} before a chunk, not a multiple")

    @property
    def chunk(self) -> int:
        """Frames of a chunk; 1 without chunks."""
        return max(1, self.right + 1)

    def __str__(self) -> str:
        """Return the text that parse_attention reads."""
        return f"{self.left},{self.right}"


AttentionConfigs = LocalAttention | ChunkedAttention
# By the stored `kind`, which a local window lacks.
ATTENTION_KINDS: dict[str, type[AttentionConfigs]] = {"local": LocalAttention, "chunked": ChunkedAttention}


class EncoderSettings(Protocol):
    """What the encoder config of every family has. It is a frozen dataclass in config.py of the family's folder.

    Attributes:
        family: Name of the folder in families/. Stored configs have it as `kind` (checkpoint/native.py).
        has_matrices: It has linear layers, which int8 and fp8 quantise.
        separates_words: Spaces alone separate the words of its models' texts, also before punctuation.
    """

    family: ClassVar[str]
    has_matrices: ClassVar[bool]
    separates_words: ClassVar[bool]

    @property
    def num_mels(self) -> int:
        """Mel bins of its input."""

    @property
    def d_model(self) -> int:
        """Width of its output."""

    @property
    def subsampling_factor(self) -> int:
        """Mel frames for each output frame."""

    @property
    def num_tokens(self) -> int | None:
        """Labels and blank of a head inside it; None: it has none."""

    @property
    def attends(self) -> str:
        """The text that parse_attention reads, "blocks:N", or "none" for an encoder without attention."""

    @property
    def has_loops(self) -> bool:
        """True if it is so wide that loops between its products pay on a CPU, for which numba is imported."""

    @property
    def largest_matrix(self) -> tuple[int, int]:
        """Inputs and outputs of its largest matrices; of a convolutional one, channels in its middle."""

    def num_frames(self, mel_frames: int, /) -> int:
        """Return the number of output frames."""

    def check_fit(self, where: object, /) -> None:
        """Raise UnsupportedCheckpoint, which names the checkpoint, if the settings do not fit each other."""


@dataclass(frozen=True)
class PredictorConfig:
    hidden: Annotated[int, Within(1, 1 << 14)]
    num_layers: Annotated[int, Within(1, 32)]


@dataclass(frozen=True)
class JointConfig:
    hidden: Annotated[int, Within(1, 1 << 14)]
    activation: JointActivation
    # Labels at one frame before greedy decoding moves on; None = no limit.
    max_symbols: Annotated[int, Within(1, LABELS_PER_FRAME_GUARD)] | None


@dataclass(frozen=True)
class TransformerConfig:
    """A stack of Transformer layers (Vaswani et al. 2017)."""

    num_layers: Annotated[int, Within(1, 256)]
    hidden: Annotated[int, Within(2, 1 << 14)]
    ff_hidden: Annotated[int, Within(1, 1 << 17)]
    num_heads: Annotated[int, Within(1, 256)]
    activation: TransformerActivation
    pre_norm: bool  # False: a norm after each sum
    final_norm: bool  # a norm after the last layer, with pre_norm


@dataclass(frozen=True)
class AedConfig:
    """Attention encoder-decoder (Canary: Puvvada et al. 2024): a Transformer decoder that attends to encoder frames."""

    decoder: TransformerConfig
    bridge: TransformerConfig | None  # layers between encoder and decoder
    # Rows of the embedding; ids beyond the vocabulary are never emitted.
    num_classes: Annotated[int, Within(1, MAX_PIECES + 64)]
    max_tokens: Annotated[int, Within(2, 1 << 13)]  # including the prompt
    # Limit beyond tokens_per_frame x frames, including the prompt; None: no limit.
    max_extra_tokens: Annotated[int, Within(0, 1 << 13)] | None
    prompt: PromptForm
    # True: as NeMo's beam search of width 1, which allows one token more, ends at a pad too, and ignores the first token.
    beam: bool = False
    tokens_per_frame: Annotated[float, Within(0.0, 10.0)] = (
        1.0  # stops an untrained model, which never emits an end token
    )


@dataclass(frozen=True)
class ModelConfig:
    """Everything the checkpoint decides. `predictor` and `joint` are None for a model without transducer.

    `num_labels` excludes the blank, whose id is `num_labels`. `durations` is empty unless the transducer is TDT.
    """

    features: FeaturesConfig
    encoder: EncoderSettings
    predictor: PredictorConfig | None
    joint: JointConfig | None
    durations: tuple[int, ...]
    has_ctc: bool
    num_labels: Annotated[int, Within(1, MAX_PIECES)]
    aed: AedConfig | None = None
    # Nearly all utterances that the model learnt from (99 %) were at most this long. None: not stated.
    trained_utterance_s: Annotated[float, Within(1.0, 86_400.0)] | None = None
    # Tags of the languages of an IndicConformer, in the order of their equal parts of the vocabulary. Each has outputs of its
    # own, so a run takes one of them (families/indic.py). Empty for a model that runs.
    language_heads: tuple[str, ...] = ()
    language: str | None = None  # tag of the language that was taken

    @property
    def blank_id(self) -> int:
        return self.num_labels

    @property
    def labels_per_language(self) -> int:
        """Vocabulary size of one of `language_heads`; without these, of all languages together."""
        return self.num_labels // max(1, len(self.language_heads))

    @property
    def decoders(self) -> tuple[DecoderName, ...]:
        """The decoders that this checkpoint has heads for, its default first."""
        transducer: tuple[DecoderName, ...] = ()
        if self.joint is not None:
            transducer = ("tdt",) if self.durations else ("rnnt",)
        return transducer + (("ctc",) if self.has_ctc else ()) + (("aed",) if self.aed is not None else ())

    @property
    def attention(self) -> str:
        """How the encoder attends (EncoderSettings.attends)."""
        return self.encoder.attends

    @property
    def family(self) -> str:
        return "hybrid " + "+".join(self.decoders) if len(self.decoders) > 1 else self.decoders[0]

    @property
    def frame_s(self) -> float:
        """Seconds of audio per encoder frame."""
        return self.features.hop_length * self.encoder.subsampling_factor / self.features.sample_rate

    @property
    def max_utterance_s(self) -> float:
        """Limit for utterances unless the user gives one."""
        return min(self.trained_utterance_s or DEFAULT_MAX_UTTERANCE_S, DEFAULT_MAX_UTTERANCE_S)

    @property
    def learnt_on_short(self) -> bool:
        """True if the utterances that the model learnt from were shorter than the usual limit."""
        return self.max_utterance_s < DEFAULT_MAX_UTTERANCE_S

    def num_frames(self, duration_s: float) -> int:
        """Number of encoder frames of `duration_s` seconds, the unit of a batch's budget."""
        frames = math.floor(duration_s * self.features.sample_rate) // self.features.hop_length
        return max(1, self.encoder.num_frames(frames))

    def to_json(self) -> dict[str, Any]:
        """Return what checkpoint/native.py reads."""
        return dataclasses.asdict(self)


# The least and the greatest value of each number in Options.
_LIMITS: dict[str, tuple[int, int | None]] = {
    "beam": (1, MAX_BEAM),
    "nbest": (1, MAX_BEAM),
    "batch_frames": (1, None),
    "batch_size": (1, MAX_BATCH_SIZE),
    "window": (1, None),
    "threads": (0, MAX_THREADS),
    "track": (0, None),
}


@dataclass(frozen=True)
class Options:
    """The user's settings for a run, except device and dtype. The command line has the same defaults. Raises UsageError.

    Paths may be os.PathLike, and tuples any iterable; they are kept as str and tuples.
    """

    decoder: DecoderName | None = None  # None: the checkpoint's default
    # Beam width of a transducer, up to MAX_BEAM; 1: greedy decoding. None: the width that the checkpoint's language model
    # names, or 1.
    beam: int | None = None
    nbest: int | None = None  # hypotheses of each utterance to return, up to the beam width; None: the best alone
    cuda_graphs: GraphMode = "auto"
    # Encoder frames in a batch, rows x longest. "auto": the most efficient size that fits in the device's memory. None: the
    # same, unless batch_size is given, which then alone limits the batch.
    batch_frames: int | Literal["auto"] | None = None
    batch_size: int | None = None  # maximum number of utterances in a batch
    max_utterance_s: float | None = None  # longer audio is cut at a pause; 0 = never; None: ModelConfig.max_utterance_s
    vad: VadName = "energy"  # finds the pauses, and speech that the model left without words
    # From 0, or "center" of surround sound; None, and a recording without this channel: a mix of all (audio/mixing.py).
    channel: Channel | None = None
    # CHANNELS: transcribe each by itself, and merge them into a dialogue. Else the path of a speaker model (Sortformer).
    speakers: str | None = None
    # Of the channels, in order, or of a speaker model's speakers, in the order in which they begin to speak. None: "channel 1"
    # or "speaker 1" and so on.
    speaker_names: tuple[str, ...] | None = None
    # Settings of a streaming speaker model in place of its checkpoint's, by NeMo's names (speakers/settings.py). A mapping is
    # kept as pairs in the order of the names. What is not named stays.
    speaker_streaming: tuple[tuple[str, int], ...] | None = None
    rttm: str | None = (
        None  # path of speakers' turns from elsewhere: a file, or a folder with a file for each recording
    )
    voices: str | None = None  # path of a voice model (TitaNet, ECAPA-TDNN), which makes a voice print of each speaker
    track: int | None = None  # audio track of files that have several, from 0; None: the first
    # Maximum number of inputs that are probed and sorted together. Fewer wait up to 1 s for a slow source; 1 never waits.
    window: int = 20_000
    # Threads that read audio, or helper processes; None: by the number of processors; 0: likewise, but no helper processes.
    threads: int | None = None
    attention: str | None = None  # text for parse_attention; None: the checkpoint's own
    # Codes or English names of languages, kept as tags (fastscribe/languages.py). A model that takes a prompt follows them.
    # None: English with AedConfig, the checkpoint's default with LanguagePromptConfig, an error with language_heads. A model
    # that writes several languages with one vocabulary is kept to it (context/language_filter.py). Others only check it.
    language: str | None = None  # spoken; AUTO: as None, for models that find the language
    target_language: str | None = None  # written; it differs from the spoken one in a translation
    # For models that take a prompt. None there: True. Others allow None only.
    pnc: bool | None = None  # punctuation and capitals
    timestamps: bool = False  # times of words, from a model that can emit them
    align_with: str | None = None  # a second model, with a CTC head, whose forced alignment times the words
    # What is changed in the text, in this order (readable/edits.py). Each needs the language, from `language` or the model.
    remove_fillers: bool = False  # "um", "uh"; Transcript.removed_words has them
    itn: bool = False  # numbers in figures; Word.original has the words that were said
    # Phrases that the decoder prefers to others that sound alike; context.phrases.read_phrases() reads them from a file.
    boost: tuple[Phrase, ...] = ()
    # Path of an n-gram language model for the beam of RNN-T and TDT, in place of the checkpoint's own.
    lm: str | None = None
    lm_weight: float | None = (
        None  # factor of the language model's log-probabilities; None: what the model names, or a default
    )

    def __post_init__(self) -> None:
        self._convert()
        for name, choices in (
            ("decoder", (None, *get_args(DecoderName))),
            ("cuda_graphs", get_args(GraphMode)),
            ("vad", get_args(VadName)),
        ):
            if not isinstance(getattr(self, name), str | None) or getattr(self, name) not in choices:
                raise OptionError(name, getattr(self, name), f"not one of {', '.join(filter(None, choices))}")
        for name, (least, most) in _LIMITS.items():
            _check_number(name, getattr(self, name), least, most)
        if not (self.channel is None or (isinstance(self.channel, str) and self.channel == "center")):
            _check_number("channel", self.channel, 0, None, ', nor "center"')
        length_s = self.max_utterance_s
        if length_s is not None and not (length_s == 0 or MIN_UTTERANCE_S <= length_s < math.inf):
            raise OptionError(
                "max_utterance_s", length_s, f"not a number of seconds from {MIN_UTTERANCE_S:g}, nor 0 for never"
            )
        if self.attention is not None:
            parse_attention(self.attention)
        if self.lm_weight is not None and not 0 <= self.lm_weight <= MAX_LM_WEIGHT:
            raise OptionError("lm_weight", self.lm_weight, f"not a number from 0 to {MAX_LM_WEIGHT:g}")
        object.__setattr__(self, "boost", _phrases(self.boost))
        for name in ("language", "target_language"):
            if (text := getattr(self, name)) is not None:
                object.__setattr__(self, name, _tag(name, text))
        if self.has_speakers:
            from fastscribe.speakers.settings import check_options

            check_options(self)

    def _convert(self) -> None:
        """Check the types, and set each value to the one type of its field."""
        for name in rooms.PATHS:
            object.__setattr__(self, name, _path(name, getattr(self, name)))
        for name in ("attention", "language", "target_language"):
            if not isinstance(getattr(self, name), str | None):
                raise OptionError(name, getattr(self, name), "not a str")
        for name in ("timestamps", "remove_fillers", "itn"):
            _check_bool(name, getattr(self, name))
        if self.pnc is not None and type(self.pnc) is not bool:
            raise OptionError("pnc", self.pnc, "not True, False or None")
        for name, unit in (("max_utterance_s", " of seconds"), ("lm_weight", "")):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _real_number(name, value, unit))
        for name in (*_LIMITS, "channel"):
            object.__setattr__(self, name, whole_number(getattr(self, name)))
        if self.speaker_names is not None:
            object.__setattr__(self, "speaker_names", _names("speaker_names", self.speaker_names))

    @property
    def has_speakers(self) -> bool:
        """True if an option is about speakers."""
        given = self.speakers, self.speaker_names, self.speaker_streaming, self.rttm, self.voices
        return any(one is not None for one in given)

    @property
    def needs_whole_recordings(self) -> bool:
        """True if a model or turns from elsewhere see whole recordings, which the process that plans prepares."""
        return self.voices is not None or self.rttm is not None or self.speakers not in (None, CHANNELS)

    @property
    def changes_text(self) -> bool:
        """True if the text is changed after decoding, for which its language must be known."""
        return any(getattr(self, name) for name in CHANGES_OF_TEXT)


def streaming_text(pairs: Iterable[tuple[str, object]]) -> str:
    """Write settings of a streaming speaker model as the command line takes them."""
    return ",".join(f"{name}={value}" for name, value in pairs)


def _path(name: str, value: Any) -> str | None:
    """Return a path as str; one that is no str as an absolute one, so that it is never taken for a name on the hub."""
    try:
        path = None if value is None else os.fsdecode(value)
    except TypeError:
        raise OptionError(name, value, "not a path: give a str or an os.PathLike") from None
    if path == "" and (name not in rooms.WORDS or not isinstance(value, str)):
        raise OptionError(name, value, "an empty path")
    return path if path is None or isinstance(value, str) else os.path.abspath(path)


def check_kind(name: str, value: object, kind: type) -> None:
    """Raise OptionError for a value that is not of this public class."""
    if not isinstance(value, kind):
        raise OptionError(name, value, f"not a fastscribe.{kind.__name__}")


def _check_bool(name: str, value: object) -> None:
    if type(value) is not bool:
        raise OptionError(name, value, "not True or False")


def _real_number(name: str, value: Any, unit: str = "") -> float:
    """Return a number of any library, such as NumPy, as float: the digest of a resumed run tells 2 from 2.0."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise OptionError(name, value, f"not a number{unit}")
    try:
        return float(value)
    except OverflowError:
        raise OptionError(name, value, f"not a number{unit}: it is too large") from None


def whole_number(value: Any) -> Any:
    """Return an integer of another library, such as NumPy, as int; anything else as it is."""
    return operator.index(value) if isinstance(value, Integral) and not isinstance(value, bool) else value


def _names(name: str, value: Any) -> tuple[str, ...]:
    found = None if isinstance(value, str | bytes) or not isinstance(value, Iterable) else tuple(value)
    has_order = name != "speaker_names" or not isinstance(value, Set)
    if found is None or not has_order or not all(isinstance(one, str) for one in found):
        raise OptionError(name, value, "not a tuple of names")
    return found


def _check_number(name: str, value: object, least: int, most: int | None, other: str = "") -> None:
    if value is None or (name == "batch_frames" and isinstance(value, str) and value == "auto"):
        return
    if type(value) is not int or value < least or (most is not None and value > most):
        whole = "whole " if isinstance(value, float) else ""
        to = f" to {most:,}" if most is not None else other
        raise OptionError(name, value, f"not a {whole}number from {least}{to}")


def _phrases(given: Iterable[str | tuple[Any, ...]]) -> tuple[Phrase, ...]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise OptionError("boost", given, "not a tuple of phrases")
    return tuple(_phrase(one) for one in given)


def _phrase(given: str | tuple[Any, ...]) -> Phrase:
    try:
        phrase = Phrase(given) if isinstance(given, str) else Phrase(*given)
    except TypeError:
        raise OptionError("boost", given, "not a phrase, nor a phrase and its weight") from None
    if not isinstance(phrase.text, str) or not phrase.text.strip():
        raise OptionError("boost", phrase.text, "not a phrase")
    if (
        isinstance(phrase.weight, bool)
        or not isinstance(phrase.weight, Real)
        or not 0 < phrase.weight <= MAX_BOOST_WEIGHT
    ):
        raise OptionError("boost", phrase.weight, f"{phrase.text}: a weight is above 0, up to {MAX_BOOST_WEIGHT:g}")
    return Phrase(phrase.text, float(phrase.weight))  # the digest of a resumed run tells 2 from 2.0


def _tag(name: str, text: str) -> str:
    tag = AUTO if name == "language" and text.strip().lower() == AUTO else language_tag(text)
    if tag is None:
        raise OptionError(name, text, "not a language: give a code such as en, or a name such as English")
    return tag


def parse_attention(text: str) -> AttentionConfigs | None:
    """Parse the --attention option.

    Args:
        text: "full", "local:LEFT,RIGHT" in encoder frames, "local:LEFT,RIGHT,1" with a global frame, or "LEFT,RIGHT", one
            of a streaming model's contexts.

    Returns:
        The attention, or None for "full".

    Raises:
        UsageError: text is none of these.
    """
    kind, _, numbers = text.partition(":")
    if text == "full":
        return None
    if re.fullmatch(r"(-1|[0-9]{1,9}),(-1|[0-9]{1,9})", text):
        try:
            left, right = map(int, text.split(","))
            return ChunkedAttention(left, right)
        except ValueError as error:
            raise OptionError("attention", text, str(error)) from error
    if kind != "local" or not re.fullmatch(r"[0-9]{1,9},[0-9]{1,9}(,[01])?", numbers):
        choices = "full, local:LEFT,RIGHT, local:LEFT,RIGHT,1 or LEFT,RIGHT of a streaming model (in encoder frames)"
        raise OptionError("attention", text, f"not {choices}")
    try:
        return LocalAttention(*map(int, numbers.split(",")))
    except ValueError as error:
        raise OptionError("attention", text, "LEFT and RIGHT cannot both be 0") from error


@dataclass(frozen=True)
class SubtitleStyle:
    """Limits on the look of subtitles. Raises UsageError.

    Widths and speeds count columns: one a character (spaces too), two a wide one (Chinese, Japanese, Korean).
    """

    max_line_width: int = 42  # columns
    max_lines: int = 2
    max_cue_s: float = 7.0
    min_cue_s: float = 1.0  # unless the next cue starts sooner
    # Columns a second. A cue stays this long unless the next one starts sooner, so fast talkers may exceed it.
    max_chars_per_second: float | None = 20.0  # None: no limit
    highlight_words: bool = False  # VTT only: underline each word as it is spoken

    def __post_init__(self) -> None:
        for name in ("max_cue_s", "min_cue_s"):
            object.__setattr__(self, name, _real_number(name, getattr(self, name), " of seconds"))
        if (rate := self.max_chars_per_second) is not None:
            object.__setattr__(self, "max_chars_per_second", _real_number("max_chars_per_second", rate))
        for name, least in (("max_line_width", MIN_LINE_WIDTH), ("max_lines", 1)):
            _real_number(name, getattr(self, name))
            object.__setattr__(self, name, whole_number(getattr(self, name)))
            _check_number(name, getattr(self, name), least, None)
        _check_bool("highlight_words", self.highlight_words)
        if not 0.001 <= self.max_cue_s <= 3600:
            raise OptionError("max_cue_s", self.max_cue_s, "not a number of seconds from 0.001 to 3600")
        if not 0 <= self.min_cue_s <= self.max_cue_s:
            problem = f"not a number of seconds from 0 to max_cue_s, {self.max_cue_s!r}"
            raise OptionError("min_cue_s", self.min_cue_s, problem)
        speed = self.max_chars_per_second
        if speed is not None and not 0.1 <= speed < math.inf:
            raise OptionError("max_chars_per_second", speed, "not a number from 0.1")


@dataclass(frozen=True)
class SpeakerNames:
    """Names that files of results have in place of the labels of speakers, which rows keep.

    Attributes:
        in_order: Names in the order of the channels, or of the speakers.
        of_labels: Each has a recording (its id, its path, or the end of its path; "": all), a label, and a name.
    """

    in_order: tuple[str, ...] = ()
    of_labels: tuple[tuple[str, str, str], ...] = ()

    @cached_property
    def by_file(self) -> dict[str, list[tuple[str, str, str]]]:
        """What `of_labels` has, by the last part of the recording: a map may name thousands of them."""
        found: dict[str, list[tuple[str, str, str]]] = {}
        for one in self.of_labels:
            found.setdefault(one[0].rpartition("/")[2], []).append(one)
        return found

    def after(self, earlier: SpeakerNames) -> SpeakerNames:
        """Return these names with the earlier ones, except for recordings that these name. Without any names, none stays."""
        if self == SpeakerNames():
            return self
        is_for_all = bool(self.in_order) or "" in self.by_file

        def is_named(place: str) -> bool:
            others = (other for other, *_ in self.by_file.get(place.rpartition("/")[2], ()))
            return any(f"/{place}".endswith(f"/{other}") or f"/{other}".endswith(f"/{place}") for other in others)

        kept = (one for one in earlier.of_labels if not (is_named(one[0]) if one[0] else is_for_all))
        return SpeakerNames(self.in_order if is_for_all else earlier.in_order, (*kept, *self.of_labels))


@dataclass(frozen=True)
class OutputStyle:
    """The formats and the details to write."""

    formats: tuple[OutputFormat, ...] = ("jsonl",)  # none: those that the folder's results have, else jsonl
    tokens: bool = False  # add every token to the JSON
    subtitles: SubtitleStyle = SubtitleStyle()
    speaker_names: SpeakerNames | None = None  # None: those that the folder was last given; no names: the rows' labels

    def __post_init__(self) -> None:
        formats: Any = _names("formats", self.formats)
        if not set(formats) <= set(OUTPUT_FORMATS):
            raise OptionError("formats", formats, f"not a tuple of formats: {', '.join(OUTPUT_FORMATS)}")
        object.__setattr__(self, "formats", formats)
        _check_bool("tokens", self.tokens)
        check_kind("subtitles", self.subtitles, SubtitleStyle)
        if self.speaker_names is not None:
            check_kind("speaker_names", self.speaker_names, SpeakerNames)


def check_load(model: Any, device: Any, dtype: Any, options: Any, devices: Any = "all", say: Any = print) -> str | Path:
    """Check the types of what a model is loaded with.

    Args:
        model: A name or path, or an os.PathLike.
        device: Name of a device.
        dtype: Name of a dtype.
        options: Of its runs.
        devices: Names of devices.
        say: Takes lines for the user.

    Returns:
        The model: a str as it is, anything else as a Path.

    Raises:
        OptionError: A type is wrong.
    """
    given = (("device", device, "cpu or cuda:0"), ("devices", devices, "all or 0,1"), ("dtype", dtype, "auto or bf16"))
    for name, value, example in given:
        if not isinstance(value, str):
            raise OptionError(name, value, f"not a str such as {example}")
    check_kind("options", options, Options)
    if not callable(say):
        raise OptionError("say", say, "not a function that takes a line")
    try:
        return model if isinstance(model, str) else Path(os.fsdecode(model))
    except TypeError:
        raise OptionError("model", model, "not a model: give a str or an os.PathLike") from None
