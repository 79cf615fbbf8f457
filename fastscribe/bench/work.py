"""How much work a second of audio is, counted from a model's shape: operations, and bytes that must move. Pure.

Two operations a multiply-add; matrix products and convolutions only, as torch's FlopCounterMode counts them. Work is what
the result needs, so neither padding nor anything that an implementation does twice is in it; projected positions, which
depend on no input and are kept between batches, are counted apart.

Bytes are those of a fused implementation: each layer reads its input and writes its output, a norm and an activation cost
what they read and write and nothing is transposed or copied. A kernel makes attention's scores as it goes, so they are none.
Weights are read once a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

from fastscribe.config import (
    AedConfig,
    ChunkedAttention,
    EightBitDtypeName,
    ModelConfig,
    TransformerConfig,
)
from fastscribe.families.conformer.config import EncoderConfig, subsampled
from fastscribe.families.granite.config import GRANITE_STACKED, GraniteConfig
from fastscribe.families.jasper.config import JasperConfig
from fastscribe.families.parameter_shapes import parameter_shapes

LABELS_PER_S = 3.5  # of speech, about
PROMPT_TOKENS = 9  # of an attention decoder
_MIN_SIDE = 16  # of a matrix; a table of biases has as many rows as there are heads


@dataclass(frozen=True)
class Work:
    """Work per second of audio. `mb` is the least that must move, beside the weights."""

    gflop: float
    mb: float
    weights_bytes: (
        float  # that are read for a batch: the encoder's once, an attention decoder's for each token of a row
    )

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
    flops = math.fsum(
        encoder_flops(config, length_s)
        + features_flops(config, length_s)
        + decoder_flops(config, length_s, LABELS_PER_S * length_s, beam)
        for length_s in lengths_s
    )
    elements = math.fsum(
        encoder_elements(config, length_s) + (0.0 if config.aed is None else aed_elements(config, length_s))
        for length_s in lengths_s
    )
    weight_bytes = 1 if dtype in get_args(EightBitDtypeName) else activation_bytes
    weights_bytes = float(weight_bytes * encoder_parameters(config))
    if config.aed is not None:
        steps = 1 + LABELS_PER_S * total_s / len(lengths_s)
        weights_bytes += activation_bytes * steps * aed_parameters(config.aed)
    return Work(1e-9 * flops / total_s, 1e-6 * activation_bytes * elements / total_s, weights_bytes)


def encoder_flops(config: ModelConfig, length_s: float) -> float:
    """Operations of one recording in the encoder."""
    return _COUNTS[type(config.encoder)].flops(config.encoder, _mel_frames(config, length_s))


def _conformer_flops(encoder: EncoderConfig, mel_frames: int) -> float:
    frames = _stages(encoder, mel_frames)[-1][0]
    width, (seen, distances) = encoder.d_model, _window(encoder, frames)
    # Feed-forward, projections and convolution of a frame, then its scores, those of positions, and weighted sums.
    layer = width * (4 * encoder.ff_hidden + 4 * width + 3 * width + encoder.conv_kernel + 2 * seen + distances)
    prompt = encoder.language_prompt
    prompted = 0 if prompt is None else 2 * width * prompt.hidden
    return 2.0 * (_subsampling_macs(encoder, mel_frames) + frames * (encoder.num_layers * layer + prompted))


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
    return 1e-9 * math.fsum(encoder_flops(config, length_s) for length_s in lengths_s) / math.fsum(lengths_s)


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


def encoder_elements(config: ModelConfig, length_s: float) -> float:
    """Numbers read and written between a fused encoder's operations for one recording."""
    return _COUNTS[type(config.encoder)].elements(config.encoder, _mel_frames(config, length_s))


def _conformer_elements(encoder: EncoderConfig, mel_frames: int) -> float:
    frames = _stages(encoder, mel_frames)[-1][0]
    width, hidden = encoder.d_model, encoder.ff_hidden
    # x in and its normed form out and in again, the matrices' outputs out and in, the residual in, the sum out:
    # of two feed-forward modules, attention, convolution and the last norm.
    layer = 2 * (5 * width + 2 * hidden) + 13 * width + 11 * width + 2 * width
    return _subsampling_elements(encoder, mel_frames) + encoder.num_layers * frames * layer


def encoder_parameters(config: ModelConfig) -> int:
    """Matrices and convolutions; biases and norms, a thousandth of them, are left out."""
    shapes = [shape for name, shape in parameter_shapes(config).items() if name.startswith("encoder.")]
    return sum(math.prod(shape) for shape in shapes if len(shape) > 2 or (len(shape) == 2 and min(shape) > _MIN_SIDE))


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


class _Convolution(NamedTuple):
    """One convolution of a Jasper encoder, or the two matrices of a squeeze-and-excite layer."""

    filters: int
    inputs_a_filter: int  # channels times kernel; of squeeze-and-excite: twice the width between its matrices
    frames: int
    is_gate: bool = False  # squeeze-and-excite


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
                yield _Convolution(channels, kernel, frames)
                kernel = 1
            yield _Convolution(block.filters, channels // block.groups * kernel, frames)
            channels = block.filters
        if block.se_hidden is not None:
            yield _Convolution(channels, 2 * block.se_hidden, frames, is_gate=True)
        for width in residuals:
            yield _Convolution(channels, width, frames)


def _jasper_flops(encoder: JasperConfig, mel_frames: int) -> float:
    found = _convolutions(encoder, mel_frames)
    return 2.0 * sum(one.filters * one.inputs_a_filter * (1 if one.is_gate else one.frames) for one in found)


def _jasper_elements(encoder: JasperConfig, mel_frames: int) -> float:
    """Each convolution's output out and in; a residual's is added as it is made. A gate reads all for the mean before."""
    found = _convolutions(encoder, mel_frames)
    return float(sum((3 if one.is_gate else 2) * one.frames * one.filters for one in found))


def _granite_layers(encoder: GraniteConfig, mel_frames: int) -> Iterator[tuple[int, int, int]]:
    """Frames before and after each layer, and the frames that a frame attends to."""
    before = -(-mel_frames // GRANITE_STACKED)
    for number in range(encoder.num_layers):
        after = before // 2 if number in encoder.strided_layers else before
        yield before, after, min(before, encoder.block)
        before = after


def _granite_flops(encoder: GraniteConfig, mel_frames: int) -> float:
    width, channels = encoder.d_model, encoder.conv_width
    macs = 2 * GRANITE_STACKED * encoder.num_mels * width * -(-mel_frames // GRANITE_STACKED)
    macs += 2 * width * encoder.num_tokens * _granite_middle(encoder, mel_frames)
    for before, after, seen in _granite_layers(encoder, mel_frames):
        macs += 2 * (before + after) * width * encoder.ff_hidden
        macs += before * width * (4 * width + 4 * seen - 1)  # projections, scores, those of positions, weighted sums
        macs += 2 * before * width * channels + after * channels * (encoder.conv_kernel + width)
    return 2.0 * macs


def _granite_middle(encoder: GraniteConfig, mel_frames: int) -> int:
    """Return the frames that are conditioned: those after the middle layer. A single layer has none."""
    layers = list(_granite_layers(encoder, mel_frames))
    return layers[encoder.num_layers // 2 - 1][1] if len(layers) > 1 else 0


def _granite_elements(encoder: GraniteConfig, mel_frames: int) -> float:
    """As _conformer_elements counts, with a wider convolution."""
    width, hidden, channels = encoder.d_model, encoder.ff_hidden, encoder.conv_width
    elements = 2 * width * -(-mel_frames // GRANITE_STACKED)
    elements += (4 * encoder.num_tokens + 3 * width) * _granite_middle(encoder, mel_frames)
    for before, after, _ in _granite_layers(encoder, mel_frames):
        elements += (before + after) * (5 * width + 2 * hidden) + 13 * before * width
        elements += before * (3 * width + 4 * channels) + after * (2 * width + 2 * channels) + 2 * after * width
    return float(elements)


class _Counts(NamedTuple):
    """What is counted of a family of encoders, from its config and the frames of its features."""

    flops: Callable[[Any, int], float]
    elements: Callable[[Any, int], float]
    frames: Callable[[Any, int], int]


_COUNTS: dict[type, _Counts] = {
    EncoderConfig: _Counts(_conformer_flops, _conformer_elements, lambda *given: _stages(*given)[-1][0]),
    JasperConfig: _Counts(_jasper_flops, _jasper_elements, lambda *given: list(_convolutions(*given))[-1].frames),
    GraniteConfig: _Counts(_granite_flops, _granite_elements, lambda *given: list(_granite_layers(*given))[-1][1]),
}
