"""Validation of a ModelConfig from any reader: types, ranges, allowed values, and consistency.

A field's annotation says which values it may have: Within for a number's range, a Literal or a tuple for single values.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from fastscribe.config import AedConfig, ModelConfig, Within
from fastscribe.errors import UnsupportedCheckpoint
from fastscribe.languages import language_tag

_MAX_DURATION, _MAX_DURATIONS = 1000, 100
# Limits of the cost of a second of audio. NeMo has 100 hops and 12 to 50 frames per second, and windows of 2 to 4 hops.
_MAX_HOPS_PER_SECOND, _MAX_FRAMES_PER_SECOND, _MAX_HOPS_PER_FFT = 500, 100, 64
_SECTIONS = {"decoder": "transformer", "bridge": "transformer"}  # what messages call the parts in these fields


def validate(config: ModelConfig, where: object) -> None:
    """Raise UnsupportedCheckpoint for the first key with an unsupported value; `where` names the checkpoint."""
    _check_fields(config, "", where)
    for tag in (*config.language_heads, *filter(None, (config.language,))):
        if not isinstance(tag, str) or language_tag(tag) != tag:
            raise UnsupportedCheckpoint(where, "language", tag, "a code such as hi")
    if len(config.durations) > _MAX_DURATIONS:
        raise UnsupportedCheckpoint(where, "number of durations", len(config.durations), f"up to {_MAX_DURATIONS}")
    if not all(type(duration) is int and 0 <= duration <= _MAX_DURATION for duration in config.durations):
        raise UnsupportedCheckpoint(where, "durations", list(config.durations), f"whole numbers, 0 to {_MAX_DURATION}")
    _check_fit(config, where)
    config.encoder.check_fit(where)
    if config.aed is not None:
        _check_aed(config.aed, config.num_labels, where)


def _check_fields(part: Any, section: str, where: object) -> None:
    """Check the fields of a config, and of the configs inside it."""
    annotations = _annotations(part.__class__)
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        _check_value(annotations[field.name], value, section + field.name, where)
        for inner in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(inner):
                _check_fields(inner, f"{_SECTIONS.get(field.name, field.name)}.", where)


@cache
def _annotations(kind: type) -> dict[str, Any]:
    """Return the annotation of each field. A model may have thousands of blocks of one kind."""
    return get_type_hints(kind, include_extras=True)


def _check_value(annotation: Any, value: Any, key: str, where: object) -> None:
    is_nullable = NoneType in get_args(annotation)
    if is_nullable and value is None:
        return
    annotation = get_args(annotation)[0] if is_nullable else annotation
    words: tuple[Any, ...] = (True, False)
    if get_origin(annotation) is Annotated:
        kind, words = get_args(annotation)
    elif get_origin(annotation) is Literal:
        words = get_args(annotation)
    elif annotation is not bool:
        return
    if isinstance(words, Within):
        kinds = (int, float) if kind is float else (int,)
        if not (type(value) in kinds and words.least <= value <= words.greatest):
            raise UnsupportedCheckpoint(where, key, value, f"{words.least} to {words.greatest}")
    elif not any(type(value) is type(word) and value == word for word in words):
        supported = (*words, None) if is_nullable else words
        raise UnsupportedCheckpoint(where, key, value, ", ".join(map(str, supported)))


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
