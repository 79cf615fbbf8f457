"""How much work a second of audio is, counted from a model's shape: operations by part, and bytes that must move. Pure.

Two operations a multiply-add; matrix products and convolutions only, as torch's FlopCounterMode counts them. Work is what
the result needs, so neither padding nor anything that an implementation does twice is in it; projected positions, which
depend on no input and are kept between batches, are counted apart.

Bytes are those of a fused implementation: each layer reads its input and writes its output, a norm and an activation cost
what they read and write and nothing is transposed or copied. Weights are read once a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from fastscribe.config import (
    AedConfig,
    ChunkedAttention,
    EightBitDtypeName,
    EncoderSettings,
    ModelConfig,
    TransformerConfig,
)
from fastscribe.families.conformer.config import EncoderConfig, subsampled
from fastscribe.families.granite.config import GRANITE_STACKED, GraniteConfig
from fastscribe.families.jasper.config import JasperConfig

LABELS_PER_S = 3.5  # of speech, about
PROMPT_TOKENS = 9  # of an attention decoder
_ON_CHIP = ("scores",)


@dataclass(frozen=True)
class Work:
    """Work per second of audio, by part. `bytes` is the least that must move."""

    flops: dict[str, float]
    bytes: dict[str, float]
    weights_bytes: (
        float  # that are read for a batch: the encoder's once, an attention decoder's for each token of a row
    )

    @property
    def gflop(self) -> float:
        return sum(self.flops.values()) / 1e9

    @property
    def mb(self) -> float:
        return sum(self.bytes.values()) / 1e6

    def mb_in_batches_of(self, batch_audio_s: float) -> float:
        """Megabytes a second of audio, weights included."""
        return self.mb + self.weights_bytes / 1e6 / batch_audio_s


def per_audio_s(
    config: ModelConfig, lengths_s: Sequence[float], dtype: str, activation_bytes: int, beam: int = 1
) -> Work:
    """Mean over recordings of these lengths, each one utterance, that say LABELS_PER_S. dtype: fp32, bf16, int8 or fp8.

    The 8-bit forms only multiply in 8 bits: `activation_bytes` are those of a number between layers, which the machine
    decides (a CPU without bf16 of its own runs int8 models in float32).
    """
    total_s = math.fsum(lengths_s)
    flops: dict[str, float] = {}
    moved: dict[str, float] = {}
    for length_s in lengths_s:
        for name, count in (*encoder_flops(config, length_s).items(), *_other_flops(config, length_s, beam).items()):
            flops[name] = flops.get(name, 0.0) + count / total_s
        for name, count in encoder_elements(config, length_s).items():
            if name not in _ON_CHIP:
                moved[name] = moved.get(name, 0.0) + activation_bytes * count / total_s
        if config.aed is not None:
            moved["decoder"] = moved.get("decoder", 0.0) + activation_bytes * aed_elements(config, length_s) / total_s
    weights_bytes = (1 if dtype in get_args(EightBitDtypeName) else activation_bytes) * float(
        encoder_parameters(config.encoder)
    )
    if config.aed is not None:
        steps = 1 + LABELS_PER_S * total_s / len(lengths_s)
        weights_bytes += activation_bytes * steps * aed_parameters(config.aed)
    return Work(flops, moved, weights_bytes)


def encoder_flops(config: ModelConfig, length_s: float) -> dict[str, float]:
    """Operations of one recording in the encoder, by part."""
    return _COUNTS[type(config.encoder)].flops(config.encoder, _mel_frames(config, length_s))


def _conformer_flops(encoder: EncoderConfig, mel_frames: int) -> dict[str, float]:
    frames = _stages(encoder, mel_frames)[-1][0]
    width, (seen, distances) = encoder.d_model, _window(encoder, frames)
    per_layer = {
        "feed_forward": 4 * frames * width * encoder.ff_hidden,
        "projections": 4 * frames * width * width,
        "scores": frames * seen * width,
        "position_scores": frames * distances * width,
        "weighted_sums": frames * seen * width,
        "convolution": 3 * frames * width * width + frames * width * encoder.conv_kernel,
    }
    layers = {name: 2.0 * encoder.num_layers * macs for name, macs in per_layer.items()}
    prompt = encoder.language_prompt
    prompted = {} if prompt is None else {"language_prompt": 4.0 * frames * width * prompt.hidden}
    return {"subsampling": 2.0 * _subsampling_macs(encoder, mel_frames), **layers, **prompted}


def _window(encoder: EncoderConfig, frames: int) -> tuple[int, int]:
    """Return the frames that a frame attends to, and the distances between them in blocks of queries."""
    attention = encoder.attention
    if attention is None:
        return frames, 2 * frames - 1
    left, right = (frames if side < 0 else side for side in (attention.left, attention.right))
    in_chunk = attention.chunk - 1 if isinstance(attention, ChunkedAttention) else 0
    return min(frames, left + right + 1), min(2 * frames - 1, left + right + in_chunk + 1)


def encoder_gflop_per_audio_s(config: ModelConfig, lengths_s: Sequence[float]) -> float:
    """Encoder work of recordings of these lengths, each one utterance."""
    flops = math.fsum(count for length_s in lengths_s for count in encoder_flops(config, length_s).values())
    return 1e-9 * flops / math.fsum(lengths_s)


def features_flops(config: ModelConfig, length_s: float) -> float:
    """Of the log-mel front end: Fourier transforms as the usual 5 N log2 N, and the mel filters."""
    features = config.features
    transform = 5.0 * features.n_fft * math.log2(features.n_fft)
    filters = 2.0 * (features.n_fft // 2 + 1) * features.num_mels
    return _mel_frames(config, length_s) * (transform + filters)


def decoder_flops(config: ModelConfig, length_s: float, num_labels: float, beam: int = 1) -> float:
    """Operations of decoding `num_labels` labels: a transducer that visits every frame (with a beam, `beam` hypotheses do),
    a CTC head, or an attention decoder with a cache."""
    frames, width, num_tokens = _frames(config, length_s), config.encoder.d_model, config.num_labels + 1
    if config.aed is not None:
        return _aed_flops(config.aed, width, frames, PROMPT_TOKENS + num_labels)
    if config.predictor is None or config.joint is None:
        return 2.0 * frames * width * num_tokens
    hidden, joint = config.predictor.hidden, config.joint.hidden
    a_label = config.predictor.num_layers * 8 * hidden * hidden + hidden * joint
    a_look = joint * (num_tokens + len(config.durations))
    return 2.0 * (frames * width * joint + beam * (num_labels * a_label + (frames + num_labels) * a_look))


def _aed_flops(aed: AedConfig, width: int, frames: int, tokens: float) -> float:
    """A token is read once by each matrix, and looks at all frames and, on average, half of the tokens."""
    decoder, hidden = aed.decoder, aed.decoder.hidden
    seen = decoder.num_layers * 2 * hidden * (frames + tokens / 2)
    frames_macs = frames * hidden * ((width if width != hidden else 0) + decoder.num_layers * 2 * hidden)
    for_bridge = (
        0.0
        if aed.bridge is None
        else frames * (_layers_of(aed.bridge, 4) + 2.0 * aed.bridge.num_layers * frames * hidden)
    )
    return 2.0 * (tokens * (_layers_of(decoder, 6) + aed.num_classes * hidden + seen) + frames_macs + for_bridge)


def _layers_of(stack: TransformerConfig, squares: int) -> int:
    """Weights of a stack of layers with this number of square matrices besides the feed-forward ones."""
    return stack.num_layers * (squares * stack.hidden**2 + 2 * stack.hidden * stack.ff_hidden)


def aed_parameters(aed: AedConfig) -> int:
    """Matrices that every token is read by; biases, norms and what only frames are read by are left out."""
    return _layers_of(aed.decoder, 6) + aed.num_classes * aed.decoder.hidden


def aed_elements(config: ModelConfig, length_s: float) -> float:
    """Numbers of kept keys and values that an attention decoder reads for one recording."""
    assert config.aed is not None
    frames, tokens = _frames(config, length_s), PROMPT_TOKENS + LABELS_PER_S * length_s
    decoder = config.aed.decoder
    return decoder.num_layers * 2 * decoder.hidden * tokens * (frames + tokens / 2)


def encoder_elements(config: ModelConfig, length_s: float) -> dict[str, float]:
    """Numbers read and written between a fused encoder's operations for one recording, by part.

    Attention's scores are counted as one table of biases that is written and read; a kernel that makes them as it goes has
    none, so a bound on speed leaves them out.
    """
    return _COUNTS[type(config.encoder)].elements(config.encoder, _mel_frames(config, length_s))


def _conformer_elements(encoder: EncoderConfig, mel_frames: int) -> dict[str, float]:
    frames = _stages(encoder, mel_frames)[-1][0]
    width, hidden = encoder.d_model, encoder.ff_hidden
    seen, _ = _window(encoder, frames)
    # x in and its normed form out and in again, the matrices' outputs out and in, the residual in, the sum out.
    per_frame = {
        "feed_forward": 2 * (5 * width + 2 * hidden),
        "attention": 13 * width,
        "scores": 2 * encoder.num_heads * seen,
        "convolution": 11 * width,
        "last_norm": 2 * width,
    }
    layers = {name: float(encoder.num_layers * frames * count) for name, count in per_frame.items()}
    return {"subsampling": _subsampling_elements(encoder, mel_frames), **layers}


def encoder_parameters(encoder: EncoderSettings) -> int:
    """Matrices and convolutions; biases and norms, a thousandth of them, are left out."""
    return _COUNTS[type(encoder)].parameters(encoder)


def _conformer_parameters(encoder: EncoderConfig) -> int:
    width = encoder.d_model
    layer = 4 * width * encoder.ff_hidden + 5 * width * width + 3 * width * width + width * encoder.conv_kernel
    channels, factor = encoder.subsampling_channels, encoder.subsampling_factor
    stages = factor.bit_length() - 1
    later = 9 * channels**2 if encoder.subsampling == "striding" else 9 * channels + channels**2
    _, mels = _stages(encoder, 1)[-1]
    prompt = encoder.language_prompt
    prompted = 0 if prompt is None else (2 * width + prompt.num_prompts) * prompt.hidden
    convolutions = 9 * channels + (stages - 1) * later
    return encoder.num_layers * layer + convolutions + channels * mels * width + prompted


def _other_flops(config: ModelConfig, length_s: float, beam: int) -> dict[str, float]:
    labels = LABELS_PER_S * length_s
    return {"features": features_flops(config, length_s), "decoder": decoder_flops(config, length_s, labels, beam)}


def _mel_frames(config: ModelConfig, length_s: float) -> int:
    return max(1, math.floor(length_s * config.features.sample_rate) // config.features.hop_length)


def _frames(config: ModelConfig, length_s: float) -> int:
    """Encoder frames, as the strided convolutions leave them."""
    return _COUNTS[type(config.encoder)].frames(config.encoder, _mel_frames(config, length_s))


def _stages(encoder: EncoderConfig, mel_frames: int) -> list[tuple[int, int]]:
    """(frames, mels) before the first strided convolution and after each."""
    found = [(mel_frames, encoder.num_mels)]
    for _ in range(encoder.subsampling_factor.bit_length() - 1):
        frames, mels = found[-1]
        found.append(
            (subsampled(frames, 1, encoder.causal_subsampling), subsampled(mels, 1, encoder.causal_subsampling))
        )
    return found


def _subsampling_macs(encoder: EncoderConfig, mel_frames: int) -> int:
    channels = encoder.subsampling_channels
    _, *after = _stages(encoder, mel_frames)
    macs = 0
    for stage, (frames, mels) in enumerate(after):
        full = stage == 0 or encoder.subsampling == "striding"
        macs += frames * mels * channels * (9 * (1 if stage == 0 else channels) if full else 9 + channels)
    frames, mels = after[-1]
    return macs + frames * mels * channels * encoder.d_model


def _subsampling_elements(encoder: EncoderConfig, mel_frames: int) -> float:
    """Each convolution's output out and in; a depthwise one has its pointwise one after it."""
    channels = encoder.subsampling_channels
    _, *after = _stages(encoder, mel_frames)
    total = 0
    for stage, (frames, mels) in enumerate(after):
        convolutions = 1 if stage == 0 or encoder.subsampling == "striding" else 2
        total += 2 * convolutions * frames * mels * channels
    return float(total)


@dataclass(frozen=True)
class _Convolution:
    """One convolution of a Jasper encoder, or the two matrices of a squeeze-and-excite layer."""

    part: str  # "depthwise", "convolution", "squeeze_excite" or "residual"
    filters: int
    inputs_a_filter: int  # channels times kernel; of squeeze-and-excite: twice the width between its matrices
    frames: int

    @property
    def weights(self) -> int:
        return self.filters * self.inputs_a_filter

    @property
    def macs(self) -> int:
        return self.weights * (1 if self.part == "squeeze_excite" else self.frames)

    @property
    def elements(self) -> int:
        return (3 if self.part == "squeeze_excite" else 2) * self.frames * self.filters


def _convolutions(encoder: JasperConfig, mel_frames: int) -> Iterator[_Convolution]:
    """The layers in the order in which they run."""
    frames, channels = mel_frames + (not encoder.masked), encoder.num_mels
    dense: list[int] = []
    for block in encoder.blocks:
        dense += [channels] * block.dense
        residuals = [] if block.residual == "none" else list(dense) if block.dense else [channels]
        for number in range(block.repeat):
            if not block.stride_last or number == block.repeat - 1:
                frames = -(-frames // block.stride)
            kernel = block.kernel
            if block.separable:
                yield _Convolution("depthwise", channels, kernel, frames)
                kernel = 1
            yield _Convolution("convolution", block.filters, channels // block.groups * kernel, frames)
            channels = block.filters
        if block.se_hidden is not None:
            yield _Convolution("squeeze_excite", channels, 2 * block.se_hidden, frames)
        for width in residuals:
            yield _Convolution("residual", channels, width, frames)


def _jasper_flops(encoder: JasperConfig, mel_frames: int) -> dict[str, float]:
    return _by_part((conv.part, 2 * conv.macs) for conv in _convolutions(encoder, mel_frames))


def _jasper_elements(encoder: JasperConfig, mel_frames: int) -> dict[str, float]:
    """Each convolution's output out and in; a residual's is added as it is made. A gate reads all for the mean before."""
    return _by_part((conv.part, conv.elements) for conv in _convolutions(encoder, mel_frames))


def _by_part(counts: Iterable[tuple[str, int]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for part, count in counts:
        found[part] = found.get(part, 0.0) + count
    return found


def _jasper_parameters(encoder: JasperConfig) -> int:
    """Shared depthwise filters are counted once for each channel, as they are used."""
    return sum(conv.weights for conv in _convolutions(encoder, 1))


def _granite_layers(encoder: GraniteConfig, mel_frames: int) -> Iterator[tuple[int, int, int]]:
    """Frames before and after each layer, and the frames that a frame attends to."""
    before = -(-mel_frames // GRANITE_STACKED)
    for number in range(encoder.num_layers):
        after = before // 2 if number in encoder.strided_layers else before
        yield before, after, min(before, encoder.block)
        before = after


def _granite_flops(encoder: GraniteConfig, mel_frames: int) -> dict[str, float]:
    width, channels = encoder.d_model, encoder.conv_width
    found: dict[str, float] = {
        "subsampling": 4.0 * GRANITE_STACKED * encoder.num_mels * width * -(-mel_frames // GRANITE_STACKED),
        "conditioning": 4.0 * width * encoder.num_tokens * _granite_middle(encoder, mel_frames),
    }
    for before, after, seen in _granite_layers(encoder, mel_frames):
        for name, macs in (
            ("feed_forward", 2 * (before + after) * width * encoder.ff_hidden),
            ("projections", 4 * before * width * width),
            ("scores", before * seen * width),
            ("position_scores", before * (2 * seen - 1) * width),
            ("weighted_sums", before * seen * width),
            ("convolution", 2 * before * width * channels + after * channels * (encoder.conv_kernel + width)),
        ):
            found[name] = found.get(name, 0.0) + 2.0 * macs
    return found


def _granite_middle(encoder: GraniteConfig, mel_frames: int) -> int:
    """Return the frames that are conditioned: those after the middle layer. A single layer has none."""
    layers = list(_granite_layers(encoder, mel_frames))
    return layers[encoder.num_layers // 2 - 1][1] if len(layers) > 1 else 0


def _granite_elements(encoder: GraniteConfig, mel_frames: int) -> dict[str, float]:
    """As _conformer_elements counts, with a wider convolution."""
    width, hidden, channels = encoder.d_model, encoder.ff_hidden, encoder.conv_width
    found: dict[str, float] = {
        "subsampling": 2.0 * width * -(-mel_frames // GRANITE_STACKED),
        "conditioning": (4.0 * encoder.num_tokens + 3.0 * width) * _granite_middle(encoder, mel_frames),
    }
    for before, after, seen in _granite_layers(encoder, mel_frames):
        for name, elements in (
            ("feed_forward", (before + after) * (5 * width + 2 * hidden)),
            ("attention", 13 * before * width),
            ("scores", 2 * before * encoder.num_heads * seen),
            ("convolution", before * (3 * width + 4 * channels) + after * (2 * width + 2 * channels)),
            ("last_norm", 2 * after * width),
        ):
            found[name] = found.get(name, 0.0) + elements
    return found


def _granite_parameters(encoder: GraniteConfig) -> int:
    width, channels = encoder.d_model, encoder.conv_width
    layer = 4 * width * encoder.ff_hidden + 4 * width * width + 3 * width * channels + channels * encoder.conv_kernel
    layer += (2 * encoder.max_distance + 1) * width // encoder.num_heads
    outside = 2 * GRANITE_STACKED * encoder.num_mels * width + 2 * width * encoder.num_tokens
    return encoder.num_layers * layer + outside


@dataclass(frozen=True)
class _Counts:
    """What is counted of a family of encoders, from its config and the frames of its features."""

    flops: Callable[[Any, int], dict[str, float]]
    elements: Callable[[Any, int], dict[str, float]]
    frames: Callable[[Any, int], int]
    parameters: Callable[[Any], int]


_COUNTS: dict[type, _Counts] = {
    EncoderConfig: _Counts(
        _conformer_flops, _conformer_elements, lambda *given: _stages(*given)[-1][0], _conformer_parameters
    ),
    JasperConfig: _Counts(
        _jasper_flops, _jasper_elements, lambda *given: list(_convolutions(*given))[-1].frames, _jasper_parameters
    ),
    GraniteConfig: _Counts(
        _granite_flops, _granite_elements, lambda *given: list(_granite_layers(*given))[-1][1], _granite_parameters
    ),
}
