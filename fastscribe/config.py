"""What the checkpoint decides (ModelConfig and its parts, no defaults) and what the user decides (Options, one default each).

Readers in checkpoint/ fill a ModelConfig from NeMo's YAML, Hugging Face's JSON or fastscribe's own JSON. The own JSON is
`asdict` of these classes and nothing else, so a field added here is a field stored there.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from fastscribe.errors import UsageError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Part = TypeVar("_Part", bound="DataclassInstance")

DecoderName = Literal["rnnt", "tdt", "ctc", "aed"]
# How a GPU is told to decode: "full" is one graph with a loop inside, "chunked" replays a graph of a few steps, "off" has
# no graphs; "auto" takes the first of these that the machine has.
GraphMode = Literal["auto", "full", "chunked", "off"]
VadName = Literal["energy", "silero"]
FloatDtypeName = Literal["fp32", "bf16"]
EightBitDtypeName = Literal["int8", "fp8"]  # the encoder's large matrices: int8 on CPUs, fp8 on GPUs
DtypeName = Literal[FloatDtypeName, EightBitDtypeName]
DtypeChoice = Literal["auto", DtypeName]
TrainDtypeChoice = Literal["auto", FloatDtypeName]
LossDtypeName = Literal[FloatDtypeName, "fp16"]  # of the logits
OutputFormat = Literal["jsonl", "json", "srt", "vtt", "txt", "tsv", "ctm"]
OUTPUT_FORMATS: tuple[OutputFormat, ...] = get_args(OutputFormat)
# Words of a checkpoint's config.
Window = Literal["hann", "hamming", "blackman", "bartlett", "none"]
MelNorm = Literal["slaney"]
LogGuard = Literal["add", "clamp"]
FeatureNorm = Literal["per_feature", "all_features", "none"]
ConvNorm = Literal["batch_norm", "layer_norm"]
Subsampling = Literal["dw_striding", "striding"]
JasperActivation = Literal["relu", "hardtanh", "selu", "silu", "gelu", "identity"]
JasperResidual = Literal["add", "stride_add", "max"]  # "stride_add": the input, with the block's strides
JointActivation = Literal["relu", "tanh", "sigmoid"]
TransformerActivation = Literal["relu", "gelu"]
PromptForm = Literal["canary", "canary2"]
SUBSAMPLING_FACTORS = (2, 4, 8, 16, 32)
# With max_symbols null nothing else ends a frame at which a label is always likelier than blank.
LABELS_PER_FRAME_GUARD = 1000


@dataclass(frozen=True)
class FeaturesConfig:
    """Log-mel front end. Lengths are in samples, frequencies in Hz."""

    sample_rate: int
    num_mels: int
    n_fft: int
    win_length: int
    hop_length: int
    window: Window
    preemphasis: float | None
    mag_power: float
    low_hz: float
    high_hz: float
    mel_norm: MelNorm | None
    log: bool
    log_guard: LogGuard
    log_guard_value: float
    normalize: FeatureNorm


@dataclass(frozen=True)
class LocalAttention:
    """Each encoder frame attends to `left` frames before it, itself, and `right` after it. Raises ValueError.

    With one global frame the first frame attends to all, and all to it, regardless of distance. More than one has no
    meaning to follow: NeMo mixes up the heads of several.
    """

    left: int
    right: int
    num_global: int = 0  # or 1

    def __post_init__(self) -> None:
        numbers = dataclasses.astuple(self)
        if not all(type(number) is int and number >= 0 for number in numbers) or max(self.left, self.right) == 0:
            raise ValueError(f"attention to {self.left!r}, {self.right!r} frames: not whole numbers with one above 0")
        if self.num_global > 1:
            raise ValueError(f"attention with {self.num_global} global frames: not 0 or 1")

    def __str__(self) -> str:
        """What parse_attention reads."""
        return f"local:{self.left},{self.right}" + (f",{self.num_global}" if self.num_global else "")


@dataclass(frozen=True)
class EncoderConfig:
    """FastConformer encoder (Rekesh et al. 2023)."""

    num_mels: int
    num_layers: int
    d_model: int
    num_heads: int
    ff_hidden: int
    conv_kernel: int
    conv_norm: ConvNorm
    use_bias: bool
    xscaling: bool
    subsampling: Subsampling
    subsampling_factor: int
    subsampling_channels: int
    # None: every frame attends to all. Folders that were written before there was a choice lack it.
    attention: LocalAttention | None = None


@dataclass(frozen=True)
class JasperBlockConfig:
    """`repeat` convolutions in a row, and what came before the first of them added to what the last makes."""

    filters: int
    repeat: int
    kernel: int
    stride: int  # of each convolution, or of the last alone
    stride_last: bool
    dilation: int
    separable: bool  # each convolution is a depthwise and a pointwise one
    groups: int  # of the pointwise ones, or of those that are not separable; their outputs are shuffled
    heads: int | None  # a depthwise convolution has so many filters, which its channels take in turn; None: one each
    residual: JasperResidual | Literal["none"]
    dense: bool  # the residual is of this block's input and of those of all dense blocks before

    @property
    def total_stride(self) -> int:
        return int(self.stride ** (1 if self.stride_last else self.repeat))


@dataclass(frozen=True)
class JasperConfig:
    """Convolutional encoder: Jasper (Li et al. 2019), QuartzNet (Kriman et al. 2019) and what lies between."""

    num_mels: int
    blocks: tuple[JasperBlockConfig, ...]
    activation: JasperActivation
    masked: bool  # False: the masked frame that the STFT makes beyond a recording's end is one of its own
    kind: str = "jasper"

    @property
    def d_model(self) -> int:
        return self.blocks[-1].filters

    @property
    def subsampling_factor(self) -> int:
        return math.prod(block.total_stride for block in self.blocks)


EncoderConfigs = EncoderConfig | JasperConfig
# By the `kind` that a stored config gives; folders that were written before there were kinds have conformers.
ENCODER_KINDS: dict[str, type[EncoderConfigs]] = {"conformer": EncoderConfig, "jasper": JasperConfig}


@dataclass(frozen=True)
class PredictorConfig:
    hidden: int
    num_layers: int


@dataclass(frozen=True)
class JointConfig:
    hidden: int
    activation: JointActivation
    max_symbols: int | None  # labels at one frame before greedy decoding moves on; None = no limit


@dataclass(frozen=True)
class TransformerConfig:
    """A stack of Transformer layers (Vaswani et al. 2017)."""

    num_layers: int
    hidden: int
    ff_hidden: int
    num_heads: int
    activation: TransformerActivation
    pre_norm: bool  # False: a norm after each sum
    final_norm: bool  # of pre_norm ones


@dataclass(frozen=True)
class AedConfig:
    """Attention encoder-decoder (Canary: Puvvada et al. 2024): a Transformer that writes tokens, looking at the frames."""

    decoder: TransformerConfig
    bridge: TransformerConfig | None  # layers between encoder and decoder
    num_classes: int  # rows of the embedding; those beyond the vocabulary are never written
    max_tokens: int  # the prompt's included
    max_extra_tokens: int | None  # how many more than `tokens_per_frame` says, the prompt's included; None: any number
    prompt: PromptForm
    beam: bool = (
        False  # as NeMo's beam of one: a token more than that, a pad is an end too, and the first token is none
    )
    tokens_per_frame: float = 1.0  # a random model is stopped by it, as it never comes to an end by itself


@dataclass(frozen=True)
class ModelConfig:
    """Everything the checkpoint decides. `predictor` and `joint` are None for a model without transducer.

    `num_labels` leaves the blank out; the blank's id is `num_labels`. `durations` is empty unless the transducer is TDT.
    """

    features: FeaturesConfig
    encoder: EncoderConfigs
    predictor: PredictorConfig | None
    joint: JointConfig | None
    durations: tuple[int, ...]
    has_ctc: bool
    num_labels: int
    aed: AedConfig | None = None  # folders that were written before there was one lack it

    @property
    def blank_id(self) -> int:
        return self.num_labels

    @property
    def decoders(self) -> tuple[DecoderName, ...]:
        """The decoders this checkpoint has heads for, its own default first."""
        transducer: tuple[DecoderName, ...] = ()
        if self.joint is not None:
            transducer = ("tdt",) if self.durations else ("rnnt",)
        return transducer + (("ctc",) if self.has_ctc else ()) + (("aed",) if self.aed is not None else ())

    @property
    def attention(self) -> str:
        """What parse_attention reads, or "none" where the encoder has no attention."""
        return str(self.encoder.attention or "full") if isinstance(self.encoder, EncoderConfig) else "none"

    @property
    def family(self) -> str:
        return "hybrid " + "+".join(self.decoders) if len(self.decoders) > 1 else self.decoders[0]

    @property
    def frame_s(self) -> float:
        """Seconds of audio an encoder frame stands for."""
        return self.features.hop_length * self.encoder.subsampling_factor / self.features.sample_rate

    def num_frames(self, duration_s: float) -> int:
        """Encoder frames for so many seconds: what a batch is budgeted in."""
        frames = math.floor(duration_s * self.features.sample_rate) // self.features.hop_length
        return max(1, math.ceil(frames / self.encoder.subsampling_factor))

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ModelConfig:
        """Inverse of to_json. Raises ValueError that names missing or unknown keys."""
        return _from_mapping(cls, data, "config")


def _from_mapping(cls: type[_Part], data: Mapping[str, Any], where: str) -> _Part:
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}: not a JSON object")
    fields = {field.name: str(field.type) for field in dataclasses.fields(cls)}
    required = {field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING}
    missing, unknown = required - data.keys(), data.keys() - fields.keys()
    if missing or unknown:
        raise ValueError(f"{where}: missing keys {sorted(missing)}, unknown keys {sorted(unknown)}")
    values = dict(data)
    for name, annotation in fields.items():
        part = globals().get(annotation.removesuffix(" | None"))
        if annotation == "EncoderConfigs":
            part = _encoder_kind(values[name], f"{where}.{name}")
        if isinstance(part, type) and dataclasses.is_dataclass(part) and values.get(name) is not None:
            values[name] = _from_mapping(part, values[name], f"{where}.{name}")
    if "durations" in values:
        values["durations"] = tuple(values["durations"])
    if "blocks" in values:
        blocks = enumerate(values["blocks"])
        values["blocks"] = tuple(_from_mapping(JasperBlockConfig, block, f"{where}.blocks.{i}") for i, block in blocks)
    return cls(**values)


def _encoder_kind(data: Any, where: str) -> type[EncoderConfigs]:
    kind = data.get("kind", "conformer") if isinstance(data, Mapping) else "conformer"
    if kind not in ENCODER_KINDS:
        raise ValueError(f"{where}: kind {kind!r}, not one of {', '.join(ENCODER_KINDS)}")
    return ENCODER_KINDS[kind]


@dataclass(frozen=True)
class Options:
    """What the user chooses for a run, device and dtype aside. The CLI's defaults are these. Raises UsageError."""

    decoder: DecoderName | None = None  # None: the checkpoint's own first one
    # Hypotheses that a transducer keeps in view; 1: greedy decoding. None: as the checkpoint's language model has it, or 1.
    beam: int | None = None
    cuda_graphs: GraphMode = "auto"
    # Encoder frames in a batch, rows x longest. "auto": what pays on the device and fits in its memory; None: the same,
    # unless batch_size is given, which then counts alone.
    batch_frames: int | Literal["auto"] | None = None
    batch_size: int | None = None  # at most so many utterances
    max_utterance_s: float = 40.0  # longer audio is cut at a quiet place; 0 = never
    vad: VadName = "energy"  # what says where it is quiet, and where speech has been left without words
    channel: int | None = None  # None: mean of all channels
    window: int = 20_000  # inputs probed and sorted together, at most
    # Decode speech that came out without words again, and add the words found. None: as the decoder's family (DECODERS).
    recover_gaps: bool | None = None
    threads: int | None = None  # that read audio; None: by the number of processors
    attention: str | None = None  # parse_attention's; None: what the checkpoint says
    # For models that are told what to write (AedConfig); None elsewhere, and there: English, the same, yes.
    language: str | None = None  # spoken
    target_language: str | None = None  # written; another than the spoken one is a translation
    pnc: bool | None = None  # punctuation and capitals
    timestamps: bool = False  # words with their times, where the model can write them

    def __post_init__(self) -> None:
        if self.decoder not in (None, *get_args(DecoderName)):
            raise UsageError(f"decoder {self.decoder!r}: not one of {', '.join(get_args(DecoderName))}")
        if self.cuda_graphs not in get_args(GraphMode):
            raise UsageError(f"cuda_graphs {self.cuda_graphs!r}: not one of {', '.join(get_args(GraphMode))}")
        if self.vad not in get_args(VadName):
            raise UsageError(f"vad {self.vad!r}: not one of {', '.join(get_args(VadName))}")
        if self.beam is not None and (type(self.beam) is not int or self.beam < 1):
            raise UsageError(f"beam {self.beam!r}: not a number from 1")
        if self.recover_gaps is not None and type(self.recover_gaps) is not bool:
            raise UsageError(f"recover_gaps {self.recover_gaps!r}: not True, False or None")
        for name, least in (("batch_frames", 1), ("batch_size", 1), ("window", 1), ("threads", 1), ("channel", 0)):
            value = getattr(self, name)
            if value is not None and value != "auto" and not (isinstance(value, int) and value >= least):
                raise UsageError(f"{name} {value!r}: not a number from {least}")
        if not 0 <= self.max_utterance_s < math.inf:
            raise UsageError(f"max_utterance_s {self.max_utterance_s!r}: not a number of seconds from 0")
        if self.attention is not None:
            parse_attention(self.attention)


def parse_attention(text: str) -> LocalAttention | None:
    """ "full" -> None; "local:LEFT,RIGHT" in encoder frames, "local:LEFT,RIGHT,1" with a global frame. Raises UsageError."""
    kind, _, numbers = text.partition(":")
    if text == "full":
        return None
    if kind != "local" or not re.fullmatch(r"[0-9]{1,9},[0-9]{1,9}(,[01])?", numbers):
        raise UsageError(f"attention {text!r}: not full, local:LEFT,RIGHT or local:LEFT,RIGHT,1 (in encoder frames)")
    try:
        return LocalAttention(*map(int, numbers.split(",")))
    except ValueError as error:
        raise UsageError(f"attention {text!r}: LEFT and RIGHT cannot both be 0") from error


@dataclass(frozen=True)
class SubtitleStyle:
    """What subtitles may look like. Raises UsageError.

    Widths and speeds count columns: one a character (spaces too), two a wide one (Chinese, Japanese, Korean).
    """

    max_line_width: int = 42  # columns
    max_lines: int = 2
    max_cue_s: float = 7.0
    min_cue_s: float = 1.0  # where the next cue leaves so much room
    # Columns a second. A wish: cues stay until they are read where the next one leaves room, but people may talk faster.
    max_chars_per_second: float | None = 20.0  # None: no matter how fast
    highlight_words: bool = False  # VTT only: underline each word while it is spoken

    def __post_init__(self) -> None:
        for name, least in (("max_line_width", 2), ("max_lines", 1)):  # one wide character is two columns
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= least):
                raise UsageError(f"{name} {value!r}: not a number from {least}")
        if not 0.001 <= self.max_cue_s <= 3600:
            raise UsageError(f"max_cue_s {self.max_cue_s!r}: not a number of seconds from 0.001 to 3600")
        if not 0 <= self.min_cue_s <= self.max_cue_s:
            problem = f"not a number of seconds from 0 to max_cue_s, {self.max_cue_s!r}"
            raise UsageError(f"min_cue_s {self.min_cue_s!r}: {problem}")
        speed = self.max_chars_per_second
        if speed is not None and not 0.1 <= speed < math.inf:
            raise UsageError(f"max_chars_per_second {speed!r}: not a number from 0.1")


@dataclass(frozen=True)
class OutputStyle:
    """What is written of a transcript."""

    formats: tuple[OutputFormat, ...] = ("jsonl",)
    tokens: bool = False  # in JSON, every token too
    subtitles: SubtitleStyle = SubtitleStyle()
