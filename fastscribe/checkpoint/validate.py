"""Validation of a ModelConfig from any reader: types, ranges, allowed values, and consistency.

The limits of an encoder are in config.py of its family's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from fastscribe.config import (
    LABELS_PER_FRAME_GUARD,
    AedConfig,
    Edges,
    FeatureNorm,
    JointActivation,
    LogGuard,
    MelNorm,
    MelScale,
    ModelConfig,
    PromptForm,
    TransformerActivation,
    Window,
)
from fastscribe.errors import UnsupportedCheckpoint
from fastscribe.families.registry import module_of
from fastscribe.languages import language_tag
from fastscribe.text.tokenizer import MAX_PIECES

_SIZES = {  # smallest, largest
    "features.sample_rate": (1000, 384_000),
    "features.num_mels": (1, 1024),
    "features.n_fft": (2, 1 << 14),
    "features.win_length": (2, 1 << 14),
    "features.hop_length": (1, 1 << 16),
    "features.frame_multiple": (1, 64),
    "encoder.num_mels": (1, 1024),
    "predictor.hidden": (1, 1 << 14),
    "predictor.num_layers": (1, 32),
    "joint.hidden": (1, 1 << 14),
    "joint.max_symbols": (1, LABELS_PER_FRAME_GUARD),
    "transformer.num_layers": (1, 256),
    "transformer.hidden": (2, 1 << 14),
    "transformer.ff_hidden": (1, 1 << 17),
    "transformer.num_heads": (1, 256),
    "aed.num_classes": (1, MAX_PIECES + 64),
    "aed.max_tokens": (2, 1 << 13),
    "aed.max_extra_tokens": (0, 1 << 13),
    "num_labels": (1, MAX_PIECES),
}
_NUMBERS = {
    "features.preemphasis": (0.0, 1.0),
    "features.mag_power": (0.01, 10.0),
    "features.low_hz": (0.0, 192_000.0),
    "features.high_hz": (1.0, 384_000.0),
    "features.log_guard_value": (0.0, 1.0),
    "features.peak_range": (0.0, 100.0),
    "features.dither": (0.0, 1.0),
    "aed.tokens_per_frame": (0.0, 10.0),
    "trained_utterance_s": (1.0, 86_400.0),
}
_NULLABLE = (
    "features.preemphasis",
    "features.peak_range",
    "joint.max_symbols",
    "aed.max_extra_tokens",
    "trained_utterance_s",
)
_WORDS: dict[str, tuple[Any, ...]] = {
    "features.window": get_args(Window),
    "features.mel_norm": (*get_args(MelNorm), None),
    "features.log": (True, False),
    "features.log_guard": get_args(LogGuard),
    "features.normalize": get_args(FeatureNorm),
    "features.mel_scale": get_args(MelScale),
    "features.periodic_window": (True, False),
    "features.edges": get_args(Edges),
    "joint.activation": get_args(JointActivation),
    "transformer.activation": get_args(TransformerActivation),
    "transformer.pre_norm": (True, False),
    "transformer.final_norm": (True, False),
    "aed.prompt": get_args(PromptForm),
    "aed.beam": (True, False),
    "has_ctc": (True, False),
}
_MAX_DURATION, _MAX_DURATIONS = 1000, 100
# Limits of the cost of a second of audio. NeMo has 100 hops and 12 to 50 frames per second, and windows of 2 to 4 hops.
_MAX_HOPS_PER_SECOND, _MAX_FRAMES_PER_SECOND, _MAX_HOPS_PER_FFT = 500, 100, 64
MAX_STRIDE = 64  # mel frames of an encoder's frame


@dataclass(frozen=True)
class Limits:
    """LIMITS of config.py in a family's folder: the values that its encoder's settings may have.

    Attributes:
        sizes: The smallest and the largest value of whole numbers, by key: "encoder." and the field, or a part and its field.
        words: The values of other fields.
        check: Raises UnsupportedCheckpoint if the fields do not fit each other. Takes the settings and the checkpoint's name.
        parts: Name of each part, and the function from the settings to all such parts.
        nullable: Keys of numbers that may be null.
    """

    sizes: Mapping[str, tuple[int, int]]
    words: Mapping[str, tuple[Any, ...]]
    check: Callable[[Any, object], None]
    parts: Mapping[str, Callable[[Any], Iterable[Any]]] = field(default_factory=dict)
    nullable: tuple[str, ...] = ()


def validate(config: ModelConfig, where: object) -> None:
    """Raise UnsupportedCheckpoint for the first key with an unsupported value; `where` names the checkpoint."""
    own: Limits = module_of(config.encoder.family, "config").LIMITS
    for table, kinds in (({**_SIZES, **own.sizes}, (int,)), (_NUMBERS, (int, float))):
        for key, (low, high) in table.items():
            for value in _values(config, key, own):
                fits = type(value) in kinds and low <= value <= high
                if not fits and not (value is None and key in (*_NULLABLE, *own.nullable)):
                    raise UnsupportedCheckpoint(where, key, value, f"{low} to {high}")
    for key, words in {**_WORDS, **own.words}.items():
        for value in _values(config, key, own):
            if not any(type(value) is type(word) and value == word for word in words):
                raise UnsupportedCheckpoint(where, key, value, ", ".join(map(str, words)))
    for tag in (*config.language_heads, *filter(None, (config.language,))):
        if not isinstance(tag, str) or language_tag(tag) != tag:
            raise UnsupportedCheckpoint(where, "language", tag, "a code such as hi")
    if len(config.durations) > _MAX_DURATIONS:
        raise UnsupportedCheckpoint(where, "number of durations", len(config.durations), f"up to {_MAX_DURATIONS}")
    if not all(type(duration) is int and 0 <= duration <= _MAX_DURATION for duration in config.durations):
        raise UnsupportedCheckpoint(where, "durations", list(config.durations), f"whole numbers, 0 to {_MAX_DURATION}")
    _check_fit(config, where)
    own.check(config.encoder, where)
    if config.aed is not None:
        _check_aed(config.aed, config.num_labels, where)


def _values(config: ModelConfig, key: str, own: Limits) -> list[Any]:
    """Return all values of a key; none if the model has no such part."""
    part, _, name = key.rpartition(".")
    return [getattr(owner, name) for owner in _owners(config, part, own) if owner is not None and name in vars(owner)]


def _owners(config: ModelConfig, part: str, own: Limits) -> Iterable[Any]:
    if part in own.parts:
        return own.parts[part](config.encoder)
    if part == "transformer":
        return (config.aed.decoder, config.aed.bridge) if config.aed is not None else ()
    return (getattr(config, part) if part else config,)


def _check_fit(config: ModelConfig, where: object) -> None:
    features, encoder = config.features, config.encoder
    has_transducer = config.joint is not None
    hop, rate = features.hop_length, features.sample_rate
    min_frame_samples = rate / _MAX_FRAMES_PER_SECOND
    for fits, key, value, supported in (
        (encoder.num_mels == features.num_mels, "encoder.num_mels", encoder.num_mels, f"{features.num_mels} mels"),
        (features.win_length <= features.n_fft, "features.win_length", features.win_length, f"up to {features.n_fft}"),
        (
            hop * _MAX_HOPS_PER_SECOND >= rate,
            "features.hop_length",
            hop,
            f"from {rate / _MAX_HOPS_PER_SECOND:g} samples",
        ),
        (
            features.n_fft <= _MAX_HOPS_PER_FFT * hop,
            "features.n_fft",
            features.n_fft,
            f"up to {_MAX_HOPS_PER_FFT} hops",
        ),
        (
            *(hop * encoder.subsampling_factor >= min_frame_samples, "hop_length x subsampling"),
            *(hop * encoder.subsampling_factor, f"from {min_frame_samples:g} samples"),
        ),
        (
            *((features.normalize == "peak") == (features.peak_range is not None), "features.peak_range"),
            *(features.peak_range, 'a number with normalize "peak", else null'),
        ),
        (features.low_hz < features.high_hz, "features.low_hz", features.low_hz, f"below {features.high_hz} Hz"),
        ((config.predictor is not None) == has_transducer, "predictor", config.predictor, "one with a joint"),
        (has_transducer or not config.durations, "durations", list(config.durations), "none without a joint"),
        (not config.durations or max(config.durations) > 0, "durations", list(config.durations), "one above 0"),
        (has_transducer or config.has_ctc or config.aed, "has_ctc", config.has_ctc, "true without another decoder"),
    ):
        if not fits:
            raise UnsupportedCheckpoint(where, key, value, supported)
    if encoder.num_tokens not in (None, config.num_labels + 1):
        raise UnsupportedCheckpoint(where, "encoder.num_tokens", encoder.num_tokens, f"{config.num_labels + 1}")


def _check_aed(aed: AedConfig, num_labels: int, where: object) -> None:
    if aed.num_classes < num_labels:
        raise UnsupportedCheckpoint(where, "aed.num_classes", aed.num_classes, f"the vocabulary's {num_labels} or more")
    for stack in filter(None, (aed.decoder, aed.bridge)):
        if stack.hidden % stack.num_heads or stack.hidden != aed.decoder.hidden:
            supported = f"{aed.decoder.hidden}, a multiple of the heads"
            raise UnsupportedCheckpoint(where, "transformer width", stack.hidden, supported)
