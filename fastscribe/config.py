"""What the checkpoint decides (ModelConfig and its parts, no defaults) and what the user decides (Options, one default each).

Readers in checkpoint/ fill a ModelConfig from NeMo's YAML, Hugging Face's JSON or fastscribe's own JSON. The own JSON is
`asdict` of these classes and nothing else, so a field added here is a field stored there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fastscribe.errors import UsageError

DecoderName = Literal["rnnt", "tdt", "ctc"]
# How a GPU is told to decode: "full" is one graph with a loop inside, "chunked" replays a graph of a few steps, "off" has
# no graphs; "auto" takes the first of these that the machine has.
GraphMode = Literal["auto", "full", "chunked", "off"]
OUTPUT_FORMATS = ("jsonl", "json", "srt", "vtt", "txt", "tsv", "ctm")


@dataclass(frozen=True)
class FeaturesConfig:
    """Log-mel front end. Lengths are in samples, frequencies in Hz."""

    sample_rate: int
    num_mels: int
    n_fft: int
    win_length: int
    hop_length: int
    window: str  # hann, hamming, blackman, bartlett or none
    preemphasis: float | None
    mag_power: float
    low_hz: float
    high_hz: float
    mel_norm: str | None  # "slaney" or None
    log: bool
    log_guard: str  # "add" or "clamp"
    log_guard_value: float
    normalize: str  # "per_feature", "all_features" or "none"


@dataclass(frozen=True)
class EncoderConfig:
    """FastConformer encoder (Rekesh et al. 2023)."""

    num_mels: int
    num_layers: int
    d_model: int
    num_heads: int
    ff_hidden: int
    conv_kernel: int
    conv_norm: str  # "batch_norm" or "layer_norm"
    use_bias: bool
    xscaling: bool
    subsampling: str  # "dw_striding" or "striding"
    subsampling_factor: int
    subsampling_channels: int


@dataclass(frozen=True)
class PredictorConfig:
    hidden: int
    num_layers: int


@dataclass(frozen=True)
class JointConfig:
    hidden: int
    activation: str  # "relu", "tanh" or "sigmoid"
    max_symbols: int | None  # labels at one frame before greedy decoding moves on; None = no limit


@dataclass(frozen=True)
class ModelConfig:
    """Everything the checkpoint decides. `predictor` and `joint` are None for a pure CTC model.

    `num_labels` leaves the blank out; the blank's id is `num_labels`. `durations` is empty unless the transducer is TDT.
    """

    features: FeaturesConfig
    encoder: EncoderConfig
    predictor: PredictorConfig | None
    joint: JointConfig | None
    durations: tuple[int, ...]
    has_ctc: bool
    num_labels: int

    @property
    def blank_id(self) -> int:
        return self.num_labels

    @property
    def decoders(self) -> tuple[DecoderName, ...]:
        """The decoders this checkpoint has heads for, its own default first."""
        transducer: tuple[DecoderName, ...] = ()
        if self.joint is not None:
            transducer = ("tdt",) if self.durations else ("rnnt",)
        return transducer + (("ctc",) if self.has_ctc else ())

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


def _from_mapping(cls: type, data: Mapping[str, Any], where: str) -> Any:
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}: not a JSON object")
    fields = {field.name: str(field.type) for field in dataclasses.fields(cls)}
    missing, unknown = fields.keys() - data.keys(), data.keys() - fields.keys()
    if missing or unknown:
        raise ValueError(f"{where}: missing keys {sorted(missing)}, unknown keys {sorted(unknown)}")
    values = dict(data)
    for name, annotation in fields.items():
        part = globals().get(annotation.removesuffix(" | None"))
        if dataclasses.is_dataclass(part) and values[name] is not None:
            values[name] = _from_mapping(part, values[name], f"{where}.{name}")  # type: ignore[arg-type]
    if "durations" in values:
        values["durations"] = tuple(values["durations"])
    return cls(**values)


@dataclass(frozen=True)
class Options:
    """What the user chooses for a run, device and dtype aside. The CLI's defaults are these. Raises UsageError."""

    decoder: DecoderName | None = None  # None: the checkpoint's own first one
    cuda_graphs: GraphMode = "auto"
    # Encoder frames in a batch, rows x longest. "auto": what pays on the device and fits in its memory; None: the same,
    # unless batch_size is given, which then counts alone.
    batch_frames: int | Literal["auto"] | None = None
    batch_size: int | None = None  # at most so many utterances
    max_utterance_s: float = 40.0  # longer audio is cut at a quiet place; 0 = never
    channel: int | None = None  # None: mean of all channels
    window: int = 20_000  # inputs probed and sorted together, at most
    threads: int | None = None  # that read audio; None: by the number of processors

    def __post_init__(self) -> None:
        if self.decoder not in (None, *get_args(DecoderName)):
            raise UsageError(f"decoder {self.decoder!r}: not one of {', '.join(get_args(DecoderName))}")
        if self.cuda_graphs not in get_args(GraphMode):
            raise UsageError(f"cuda_graphs {self.cuda_graphs!r}: not one of {', '.join(get_args(GraphMode))}")
        for name, least in (("batch_frames", 1), ("batch_size", 1), ("window", 1), ("threads", 1), ("channel", 0)):
            value = getattr(self, name)
            if value is not None and value != "auto" and not (isinstance(value, int) and value >= least):
                raise UsageError(f"{name} {value!r}: not a number from {least}")
        if not 0 <= self.max_utterance_s < math.inf:
            raise UsageError(f"max_utterance_s {self.max_utterance_s!r}: not a number of seconds from 0")
