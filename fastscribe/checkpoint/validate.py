"""Validation of a ModelConfig from any reader: types, ranges, allowed values, and consistency."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, get_args

from fastscribe.config import (
    LABELS_PER_FRAME_GUARD,
    SUBSAMPLING_FACTORS,
    AedConfig,
    ConvNorm,
    Edges,
    EncoderConfig,
    FeatureNorm,
    GraniteConfig,
    JasperActivation,
    JasperBlockConfig,
    JasperConfig,
    JasperResidual,
    JointActivation,
    LogGuard,
    MelNorm,
    MelScale,
    ModelConfig,
    PromptForm,
    Subsampling,
    TransformerActivation,
    Window,
)
from fastscribe.errors import UnsupportedCheckpoint
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
    "encoder.num_layers": (1, 256),
    "encoder.d_model": (2, 1 << 14),
    "encoder.num_heads": (1, 256),
    "encoder.ff_hidden": (1, 1 << 17),
    "encoder.conv_kernel": (1, 1023),
    "encoder.subsampling_channels": (1, 1 << 14),
    "encoder.conv_width": (1, 1 << 16),
    "encoder.block": (1, 1 << 12),
    "encoder.max_distance": (1, 1 << 14),
    "encoder.num_tokens": (2, MAX_PIECES + 1),
    "language_prompt.num_prompts": (1, 1 << 12),
    "language_prompt.hidden": (1, 1 << 15),
    "language_prompt.index": (0, 1 << 12),
    "blocks.filters": (2, 1 << 14),
    "blocks.repeat": (1, 64),
    "blocks.kernel": (1, 1023),
    "blocks.stride": (1, 8),
    "blocks.dilation": (1, 256),
    "blocks.groups": (1, 1 << 14),
    "blocks.heads": (1, 1 << 14),
    "blocks.se_hidden": (1, 1 << 14),
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
    "blocks.heads",
    "blocks.se_hidden",
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
    "encoder.conv_norm": get_args(ConvNorm),
    "encoder.use_bias": (True, False),
    "encoder.xscaling": (True, False),
    "encoder.subsampling": get_args(Subsampling),
    "encoder.subsampling_factor": SUBSAMPLING_FACTORS,
    "encoder.causal_subsampling": (True, False),
    "encoder.causal_conv": (True, False),
    "encoder.activation": get_args(JasperActivation),
    "encoder.masked": (True, False),
    "blocks.stride_last": (True, False),
    "blocks.separable": (True, False),
    "blocks.residual": ("none", *get_args(JasperResidual)),
    "blocks.dense": (True, False),
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
_MAX_BLOCKS, _MAX_CONVOLUTIONS, _MAX_STRIDE = (
    256,
    4000,
    64,
)  # of a Jasper encoder; convolutions include those of residuals


def validate(config: ModelConfig, where: object) -> None:
    """Raise UnsupportedCheckpoint for the first key with an unsupported value; `where` names the checkpoint."""
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
    for tag in (*config.language_heads, *filter(None, (config.language,))):
        if not isinstance(tag, str) or language_tag(tag) != tag:
            raise UnsupportedCheckpoint(where, "language", tag, "a code such as hi")
    if len(config.durations) > _MAX_DURATIONS:
        raise UnsupportedCheckpoint(where, "number of durations", len(config.durations), f"up to {_MAX_DURATIONS}")
    if not all(type(duration) is int and 0 <= duration <= _MAX_DURATION for duration in config.durations):
        raise UnsupportedCheckpoint(where, "durations", list(config.durations), f"whole numbers, 0 to {_MAX_DURATION}")
    _check_fit(config, where)


def _values(config: ModelConfig, key: str) -> list[Any]:
    """Return all values of a key; none if the model has no such part."""
    part, _, name = key.rpartition(".")
    return [getattr(owner, name) for owner in _owners(config, part) if owner is not None and name in vars(owner)]


def _owners(config: ModelConfig, part: str) -> Iterable[Any]:
    if part == "blocks":
        return config.encoder.blocks if isinstance(config.encoder, JasperConfig) else ()
    if part == "language_prompt":
        return (config.encoder.language_prompt,) if isinstance(config.encoder, EncoderConfig) else ()
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
    if isinstance(encoder, GraniteConfig) and encoder.num_tokens != config.num_labels + 1:
        raise UnsupportedCheckpoint(where, "encoder.num_tokens", encoder.num_tokens, f"{config.num_labels + 1}")
    _CHECKS[type(encoder)](encoder, where)
    if config.aed is not None:
        _check_aed(config.aed, config.num_labels, where)


def _check_aed(aed: AedConfig, num_labels: int, where: object) -> None:
    if aed.num_classes < num_labels:
        raise UnsupportedCheckpoint(where, "aed.num_classes", aed.num_classes, f"the vocabulary's {num_labels} or more")
    for stack in filter(None, (aed.decoder, aed.bridge)):
        if stack.hidden % stack.num_heads or stack.hidden != aed.decoder.hidden:
            supported = f"{aed.decoder.hidden}, a multiple of the heads"
            raise UnsupportedCheckpoint(where, "transformer width", stack.hidden, supported)


def _check_conformer(encoder: EncoderConfig, where: object) -> None:
    if encoder.d_model % encoder.num_heads or encoder.d_model % 2:
        supported = f"even multiples of {encoder.num_heads} heads"
        raise UnsupportedCheckpoint(where, "encoder width", encoder.d_model, supported)
    if encoder.conv_kernel % 2 == 0:
        raise UnsupportedCheckpoint(where, "encoder.conv_kernel", encoder.conv_kernel, "odd numbers")
    if encoder.contexts and encoder.attention != encoder.contexts[0]:
        supported = f"the first context, {encoder.contexts[0]}"
        raise UnsupportedCheckpoint(where, "encoder.attention", str(encoder.attention), supported)
    if (prompt := encoder.language_prompt) is not None:
        for index in (prompt.index, *prompt.languages.values()):
            if type(index) is not int or not 0 <= index < prompt.num_prompts:
                supported = f"0 to {prompt.num_prompts - 1}"
                raise UnsupportedCheckpoint(where, "language_prompt.languages", index, supported)


def _check_jasper(encoder: JasperConfig, where: object) -> None:
    """Check each block, and that residuals match the channels and frames that they are added to."""
    if not 0 < len(encoder.blocks) <= _MAX_BLOCKS:
        raise UnsupportedCheckpoint(where, "encoder.blocks", len(encoder.blocks), f"1 to {_MAX_BLOCKS} blocks")
    channels, inputs, dense, convolutions = encoder.num_mels, [encoder.num_mels], [], 0
    for number, block in enumerate(encoder.blocks):
        dense += [channels] * block.dense
        residuals = [] if block.residual == "none" else list(dense) if block.dense else [channels]
        is_strided = block.total_stride > 1
        own_stride = block.stride if block.residual == "stride_add" else 1
        convolutions += block.repeat + len(residuals)
        for fits, name, value, supported in (
            (block.kernel % 2 == 1, "kernel", block.kernel, "odd numbers"),
            (block.stride == 1 or block.dilation == 1, "dilation", block.dilation, "1 with a stride"),
            (all(n % block.groups == 0 for n in (block.filters, channels)), "groups", block.groups, "divisors"),
            (block.heads is None or block.separable, "heads", block.heads, "null without separable"),
            (not any(n % (block.heads or 1) for n in _widths(block, channels)), "heads", block.heads, "divisors"),
            (not residuals or residuals == inputs, "residual", block.residual, "of the blocks just before"),
            (not residuals or own_stride == block.total_stride, "stride", block.stride, "the residual's"),
            (not (block.dense and is_strided), "stride", block.stride, "1 in dense blocks"),
            (convolutions <= _MAX_CONVOLUTIONS, "repeat", block.repeat, f"{_MAX_CONVOLUTIONS} convolutions in all"),
        ):
            if not fits:
                raise UnsupportedCheckpoint(where, f"encoder.blocks.{number}.{name}", value, supported)
        channels = block.filters
        inputs = [*inputs, channels] if block.dense and residuals else [channels]
    if encoder.subsampling_factor > _MAX_STRIDE:
        raise UnsupportedCheckpoint(where, "encoder stride", encoder.subsampling_factor, f"up to {_MAX_STRIDE}")


def _check_granite(encoder: GraniteConfig, where: object) -> None:
    strided, layers = encoder.strided_layers, range(encoder.num_layers)
    for fits, name, value, supported in (
        (encoder.d_model % encoder.num_heads == 0, "width", encoder.d_model, f"multiples of {encoder.num_heads} heads"),
        (encoder.conv_kernel % 2 == 1, "conv_kernel", encoder.conv_kernel, "odd numbers"),
        (encoder.block <= encoder.max_distance, "block", encoder.block, f"up to {encoder.max_distance}, the positions"),
        (encoder.subsampling_factor <= _MAX_STRIDE, "stride", encoder.subsampling_factor, f"up to {_MAX_STRIDE}"),
        (
            *(strided == tuple(sorted(set(strided))) and all(type(n) is int and n in layers for n in strided),),
            *("strided_layers", list(strided), "numbers of layers, in order"),
        ),
    ):
        if not fits:
            raise UnsupportedCheckpoint(where, f"encoder.{name}", value, supported)


def _widths(block: JasperBlockConfig, in_channels: int) -> tuple[int, ...]:
    """Return the channels of the block's depthwise convolutions."""
    return (in_channels, block.filters) if block.repeat > 1 else (in_channels,)


_CHECKS: dict[type, Callable[[Any, object], None]] = {
    EncoderConfig: _check_conformer,
    JasperConfig: _check_jasper,
    GraniteConfig: _check_granite,
}
