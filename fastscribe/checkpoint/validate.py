"""One check of a ModelConfig, whichever reader made it: types, sane sizes, allowed words, and parts that fit together."""

from __future__ import annotations

from typing import Any

from fastscribe.config import ModelConfig
from fastscribe.errors import UnsupportedCheckpoint

_SIZES = {  # smallest, largest
    "features.sample_rate": (1000, 384_000),
    "features.num_mels": (1, 1024),
    "features.n_fft": (2, 1 << 16),
    "features.win_length": (2, 1 << 16),
    "features.hop_length": (1, 1 << 16),
    "encoder.num_mels": (1, 1024),
    "encoder.num_layers": (1, 256),
    "encoder.d_model": (2, 1 << 14),
    "encoder.num_heads": (1, 256),
    "encoder.ff_hidden": (1, 1 << 17),
    "encoder.conv_kernel": (1, 1023),
    "encoder.subsampling_channels": (1, 1 << 14),
    "predictor.hidden": (1, 1 << 14),
    "predictor.num_layers": (1, 32),
    "joint.hidden": (1, 1 << 14),
    "joint.max_symbols": (1, 1 << 20),
    "num_labels": (1, 1 << 20),
}
_NUMBERS = {
    "features.preemphasis": (0.0, 1.0),
    "features.mag_power": (0.01, 10.0),
    "features.low_hz": (0.0, 192_000.0),
    "features.high_hz": (1.0, 384_000.0),
    "features.log_guard_value": (0.0, 1.0),
}
_NULLABLE = ("features.preemphasis", "joint.max_symbols")
_WORDS: dict[str, tuple[Any, ...]] = {
    "features.window": ("hann", "hamming", "blackman", "bartlett", "none"),
    "features.mel_norm": ("slaney", None),
    "features.log": (True, False),
    "features.log_guard": ("add", "clamp"),
    "features.normalize": ("per_feature", "all_features", "none"),
    "encoder.conv_norm": ("batch_norm", "layer_norm"),
    "encoder.use_bias": (True, False),
    "encoder.xscaling": (True, False),
    "encoder.subsampling": ("dw_striding", "striding"),
    "encoder.subsampling_factor": (2, 4, 8, 16, 32),
    "joint.activation": ("relu", "tanh", "sigmoid"),
    "has_ctc": (True, False),
}
_MAX_DURATION = 1000


def validate(config: ModelConfig, where: object) -> None:
    """Raises UnsupportedCheckpoint naming the first key whose value cannot be used."""
    for table, kinds in ((_SIZES, (int,)), (_NUMBERS, (int, float))):
        for key, (low, high) in table.items():
            for value in _values(config, key):
                fits = type(value) in kinds and low <= value <= high
                if not fits and not (value is None and key in _NULLABLE):
                    raise UnsupportedCheckpoint(where, key, value, f"{low} to {high}")
    for key, words in _WORDS.items():
        for value in _values(config, key):
            if not any(type(value) is type(word) and value == word for word in words):
                raise UnsupportedCheckpoint(where, key, value, ", ".join(map(str, words)))
    if not all(type(duration) is int and 0 <= duration <= _MAX_DURATION for duration in config.durations):
        raise UnsupportedCheckpoint(where, "durations", list(config.durations), f"whole numbers, 0 to {_MAX_DURATION}")
    _check_fit(config, where)


def _values(config: ModelConfig, key: str) -> list[Any]:
    """The key's value, or nothing where the model has no such part."""
    part, _, name = key.rpartition(".")
    owner = getattr(config, part) if part else config
    return [] if owner is None and part in ("predictor", "joint") else [getattr(owner, name)]


def _check_fit(config: ModelConfig, where: object) -> None:
    features, encoder = config.features, config.encoder
    has_transducer = config.joint is not None
    for fits, key, value, supported in (
        (encoder.num_mels == features.num_mels, "encoder.num_mels", encoder.num_mels, f"{features.num_mels} mels"),
        (features.win_length <= features.n_fft, "features.win_length", features.win_length, f"up to {features.n_fft}"),
        (features.low_hz < features.high_hz, "features.low_hz", features.low_hz, f"below {features.high_hz} Hz"),
        (
            encoder.d_model % encoder.num_heads == 0 and encoder.d_model % 2 == 0,
            "encoder width",
            encoder.d_model,
            f"even multiples of {encoder.num_heads} heads",
        ),
        (encoder.conv_kernel % 2 == 1, "encoder.conv_kernel", encoder.conv_kernel, "odd numbers"),
        ((config.predictor is not None) == has_transducer, "predictor", config.predictor, "one with a joint"),
        (has_transducer or not config.durations, "durations", list(config.durations), "none without a joint"),
        (not config.durations or max(config.durations) > 0, "durations", list(config.durations), "one above 0"),
        (has_transducer or config.has_ctc, "has_ctc", config.has_ctc, "true without a joint"),
    ):
        if not fits:
            raise UnsupportedCheckpoint(where, key, value, supported)
