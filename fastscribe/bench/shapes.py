"""Published models' shapes, and how much work they are. No weights and no files; see random_model.py for those.

The 0.6B shapes are parakeet-tdt-0.6b-v2 (1,024 labels) and -v3 (8,192); the 1.1B one is parakeet-rnnt-1.1b. `tiny` and
`tiny-rnnt` have the same parts and are for trying a measurement out on a CPU.
"""

from __future__ import annotations

from dataclasses import replace

from fastscribe.config import EncoderConfig, FeaturesConfig, JointConfig, ModelConfig, PredictorConfig


def _features(num_mels: int) -> FeaturesConfig:
    return FeaturesConfig(
        sample_rate=16000,
        num_mels=num_mels,
        n_fft=512,
        win_length=400,
        hop_length=160,
        window="hann",
        preemphasis=0.97,
        mag_power=2.0,
        low_hz=0.0,
        high_hz=8000.0,
        mel_norm="slaney",
        log=True,
        log_guard="add",
        log_guard_value=2**-24,
        normalize="per_feature",
    )


def _encoder(num_mels: int, num_layers: int, use_bias: bool) -> EncoderConfig:
    return EncoderConfig(
        num_mels=num_mels,
        num_layers=num_layers,
        d_model=1024,
        num_heads=8,
        ff_hidden=4096,
        conv_kernel=9,
        conv_norm="batch_norm",
        use_bias=use_bias,
        xscaling=False,
        subsampling="dw_striding",
        subsampling_factor=8,
        subsampling_channels=256,
    )


_TDT = ModelConfig(
    features=_features(128),
    encoder=_encoder(128, 24, use_bias=False),
    predictor=PredictorConfig(hidden=640, num_layers=2),
    joint=JointConfig(hidden=640, activation="relu", max_symbols=10),
    durations=(0, 1, 2, 3, 4),
    has_ctc=False,
    num_labels=1024,
)
_TINY = replace(
    _TDT,
    features=_features(80),
    encoder=replace(_encoder(80, 2, use_bias=True), d_model=64, num_heads=4, ff_hidden=128, subsampling_channels=16),
    predictor=PredictorConfig(hidden=64, num_layers=2),
    joint=JointConfig(hidden=64, activation="relu", max_symbols=10),
    num_labels=128,
)
SHAPES: dict[str, ModelConfig] = {
    "parakeet-tdt-0.6b": _TDT,
    "parakeet-tdt-0.6b-v3": replace(_TDT, num_labels=8192),
    "parakeet-rnnt-0.6b": replace(_TDT, durations=()),
    "parakeet-rnnt-1.1b": replace(_TDT, features=_features(80), encoder=_encoder(80, 42, use_bias=True), durations=()),
    "parakeet-ctc-0.6b": replace(_TDT, predictor=None, joint=None, durations=(), has_ctc=True),
    "tiny": _TINY,
    "tiny-rnnt": replace(_TINY, durations=()),
    "tiny-ctc": replace(_TINY, predictor=None, joint=None, durations=(), has_ctc=True),
}
