"""Published models' shapes. No weights and no files; see random_checkpoint.py for those.

The 0.6B shapes are parakeet-tdt-0.6b-v2 (1,024 labels) and -v3 (8,192); those of 1.1B share an encoder. jasper10x5dr and
quartznet15x5 are the convolutional models that NVIDIA published tables of latencies for; they write letters. The citrinet and
contextnet shapes are those of NeMo's configurations. canary-1b has 24 layers in encoder and decoder, canary-1b-flash 32 and
4, of the same width (Zelasko et al. 2025). Granite's model is that of Saon et al. 2026; Cohere's has the sizes that
transformers states. IndicConformer's have the outputs of one of their 22 languages, as in a run. `tiny` and its like have the
same parts and are for trying a measurement out on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from fastscribe.bench.work import LABELS_PER_S, PROMPT_TOKENS
from fastscribe.config import (
    AedConfig,
    ChunkedAttention,
    FeaturesConfig,
    JointConfig,
    ModelConfig,
    PredictorConfig,
    PromptForm,
    TransformerConfig,
)
from fastscribe.families.conformer.config import EncoderConfig, LanguagePromptConfig
from fastscribe.families.granite.config import GRANITE_STACKED, GraniteConfig
from fastscribe.families.jasper.config import JasperActivation, JasperBlockConfig, JasperConfig, JasperResidual
from fastscribe.families.jasper.nemo import odd


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


_LARGE: dict[str, Any] = {"features": _features(80), "encoder": _encoder(80, 42, use_bias=True)}
_CTC_HEAD: dict[str, Any] = {"predictor": None, "joint": None, "durations": (), "has_ctc": True}


def _aed(model: ModelConfig, layers: int, hidden: int, ff_hidden: int, heads: int, prompt: PromptForm) -> ModelConfig:
    """The model's encoder with an attention decoder, which writes as many tokens as speech has."""
    decoder = TransformerConfig(layers, hidden, ff_hidden, heads, "relu", pre_norm=True, final_norm=True)
    aed = AedConfig(
        decoder,
        bridge=None,
        num_classes=model.num_labels,
        max_tokens=1024,
        max_extra_tokens=PROMPT_TOKENS,
        prompt=prompt,
        tokens_per_frame=LABELS_PER_S * model.frame_s,
    )
    return replace(model, predictor=None, joint=None, durations=(), aed=aed)


def _canary(layers: int, decoder_layers: int, num_labels: int, prompt: PromptForm) -> ModelConfig:
    encoder = _encoder(128, layers, use_bias=True)
    return _aed(replace(_TDT, encoder=encoder, num_labels=num_labels), decoder_layers, 1024, 4096, 8, prompt)


LETTERS = (" ", *"abcdefghijklmnopqrstuvwxyz", "'")


def _block(filters: int, kernel: int, **settings: Any) -> JasperBlockConfig:
    plain = JasperBlockConfig(
        filters=filters,
        repeat=1,
        kernel=kernel,
        stride=1,
        stride_last=False,
        dilation=1,
        separable=False,
        groups=1,
        heads=None,
        residual="none",
        dense=False,
    )
    return replace(plain, **settings)


def _convolutional(blocks: Sequence[JasperBlockConfig]) -> ModelConfig:
    """A CTC model that writes letters."""
    return ModelConfig(
        features=replace(_features(64), win_length=320),
        encoder=JasperConfig(64, tuple(blocks), "relu", masked=True),
        predictor=None,
        joint=None,
        durations=(),
        has_ctc=True,
        num_labels=len(LETTERS),
    )


def _jasper(times: int, repeat: int) -> ModelConfig:
    """Five sizes of block, each `times` times, with dense residuals."""
    middle = ((256, 11), (384, 13), (512, 17), (640, 21), (768, 25))
    dense = [_block(*size, repeat=repeat, residual="add", dense=True) for size in middle for _ in range(times)]
    return _convolutional([_block(256, 11, stride=2), *dense, _block(896, 29, dilation=2), _block(1024, 1)])


def _quartznet(times: int, repeat: int) -> ModelConfig:
    """The same of separable convolutions, each with its own input as residual."""
    middle = ((256, 33), (256, 39), (512, 51), (512, 63), (512, 75))
    blocks = [_block(*size, repeat=repeat, residual="add", separable=True) for size in middle for _ in range(times)]
    last = (_block(512, 87, dilation=2, separable=True), _block(1024, 1))
    return _convolutional([_block(256, 33, stride=2, separable=True), *blocks, *last])


_SE_REDUCTION = 8


def _excited(filters: int, kernel: int, stride: int = 1, repeat: int = 5) -> JasperBlockConfig:
    """A separable block with squeeze-and-excite, and a residual if it has several convolutions."""
    residual: JasperResidual | Literal["none"] = "none" if repeat == 1 else "stride_add" if stride > 1 else "add"
    block = _block(filters, kernel, repeat=repeat, stride=stride, stride_last=stride > 1, separable=True)
    return replace(block, residual=residual, se_hidden=filters // _SE_REDUCTION)


def _citrinet(filters: int, last: int, factor: float) -> ModelConfig:
    """Three stages, each of which begins with a stride; `factor` shortens the kernels of all blocks but the first."""
    sizes = [(11, 2), *((k, 1) for k in range(13, 22, 2)), (13, 2), *((k, 1) for k in range(15, 26, 2))]
    sizes += [(25, 2), *((k, 1) for k in range(27, 40, 2))]
    middle = [_excited(filters, odd(factor * kernel), stride) for kernel, stride in sizes]
    blocks = (_excited(filters, 5, repeat=1), *middle, _excited(last, odd(factor * 41), repeat=1))
    encoder = JasperConfig(80, blocks, "relu", masked=True)
    return replace(_TDT, features=_features(80), encoder=encoder, **_CTC_HEAD)


def _contextnet(filters: int) -> ModelConfig:
    middle = [_excited(filters, 5, 2 if number in (3, 7, 14) else 1) for number in range(1, 22)]
    blocks = (_excited(filters, 5, repeat=1), *middle, _excited(640, 5, repeat=1))
    model = replace(_TDT, features=_features(80), encoder=JasperConfig(80, blocks, "silu", masked=True), durations=())
    return replace(model, predictor=PredictorConfig(hidden=640, num_layers=1))


def _tiny_excited(model: ModelConfig, activation: JasperActivation) -> ModelConfig:
    middle = [_excited(144, kernel, stride=2, repeat=2) for kernel in (5, 7, 9)]
    blocks = (_excited(144, 5, repeat=1), *middle, _excited(160, 11, repeat=1))
    return replace(model, encoder=JasperConfig(80, blocks, activation, masked=True))


def _streaming(model: ModelConfig, contexts: Sequence[tuple[int, int]]) -> ModelConfig:
    """The model with a causal encoder that attends in chunks, and features that are not normalised."""
    chunks = tuple(ChunkedAttention(*context) for context in contexts)
    causal = replace(
        _conformer(model),
        conv_norm="layer_norm",
        attention=chunks[0],
        contexts=chunks,
        causal_subsampling=True,
        causal_conv=True,
    )
    return replace(model, features=replace(model.features, normalize="none"), encoder=causal, durations=())


def _prompted(model: ModelConfig) -> ModelConfig:
    """The model with a language prompt; its one language here is the default."""
    encoder = _conformer(model)
    prompt = LanguagePromptConfig(128, 2 * encoder.d_model, {"auto": 101}, 101)
    return replace(model, encoder=replace(encoder, language_prompt=prompt))


def _conformer(model: ModelConfig) -> EncoderConfig:
    assert isinstance(model.encoder, EncoderConfig)
    return model.encoder


def _granite(layers: int, width: int, heads: int, num_tokens: int) -> ModelConfig:
    """Block attention, two halving layers, and a convolution of twice the width."""
    features = replace(
        _features(80),
        preemphasis=None,
        mel_norm=None,
        log_guard="clamp",
        log_guard_value=1e-10,
        normalize="peak",
        mel_scale="htk",
        periodic_window=True,
        edges="reflect",
        peak_range=8.0,
        frame_multiple=GRANITE_STACKED,
    )
    encoder = GraniteConfig(
        num_mels=80,
        num_layers=layers,
        d_model=width,
        num_heads=heads,
        ff_hidden=4 * width,
        conv_kernel=7,
        conv_width=2 * width,
        use_bias=True,
        block=128,
        max_distance=512,
        strided_layers=(0, 1),
        num_tokens=num_tokens,
    )
    return ModelConfig(features, encoder, None, None, durations=(), has_ctc=True, num_labels=num_tokens - 1)


_TINY_STREAMING = _prompted(_streaming(_TINY, ((8, 1), (8, 0))))
_NEMOTRON = _streaming(_TDT, ((70, 13), (70, 6), (70, 1), (70, 0)))
_NEMOTRON_35 = _streaming(replace(_TDT, num_labels=13087), ((56, 3), (56, 0), (56, 6), (56, 13)))


def _indic(encoder: EncoderConfig, predictor_layers: int) -> ModelConfig:
    """IndicConformer as it runs, with the outputs and the vocabulary of one language."""
    predictor = PredictorConfig(hidden=640, num_layers=predictor_layers)
    own = replace(_TDT, features=_features(80), predictor=predictor, durations=(), has_ctc=True, num_labels=256)
    return replace(own, encoder=replace(encoder, xscaling=True))


_INDIC_LARGE = replace(
    _encoder(80, 17, use_bias=True),
    d_model=512,
    ff_hidden=2048,
    conv_kernel=31,
    subsampling="striding",
    subsampling_factor=4,
    subsampling_channels=512,
)
_COHERE_ENCODER = replace(_encoder(128, 48, use_bias=True), d_model=1280, ff_hidden=5120)
_COHERE = _aed(replace(_TDT, encoder=_COHERE_ENCODER, num_labels=16384), 8, 1024, 4096, 8, "cohere")
_COHERE = replace(_COHERE, features=replace(_COHERE.features, dither=1e-5), trained_utterance_s=35.0)


SHAPES: dict[str, ModelConfig] = {
    "parakeet-tdt-0.6b": _TDT,
    "parakeet-tdt-0.6b-v3": replace(_TDT, num_labels=8192),
    "parakeet-rnnt-0.6b": replace(_TDT, durations=()),
    "parakeet-rnnt-1.1b": replace(_TDT, **_LARGE, durations=()),
    "parakeet-tdt-1.1b": replace(_TDT, **_LARGE),
    "parakeet-ctc-0.6b": replace(_TDT, **_CTC_HEAD),
    "parakeet-ctc-1.1b": replace(_TDT, **_LARGE, **_CTC_HEAD),
    "nemotron-speech-streaming-en-0.6b": _NEMOTRON,
    "nemotron-3.5-asr-streaming-0.6b": _prompted(_NEMOTRON_35),
    "canary-1b": _canary(24, 24, 4128, "canary"),
    "canary-1b-flash": _canary(32, 4, 5248, "canary2"),
    "cohere-transcribe-03-2026": _COHERE,
    "granite-speech-5.0-470m-turboctc": _granite(16, 1024, 8, 16384),
    "indicconformer_stt_hi_hybrid_ctc_rnnt_large": _indic(_INDIC_LARGE, 1),
    "indicconformer_stt_multi_hybrid_rnnt_600m": _indic(_encoder(80, 24, use_bias=True), 2),
    "jasper10x5dr": _jasper(2, 5),
    "quartznet15x5": _quartznet(3, 5),
    "citrinet-256": _citrinet(256, 640, 1.0),
    "citrinet-512": _citrinet(512, 640, 1.0),
    "citrinet-1024-gamma-0.25": _citrinet(1024, 1024, 0.25),
    "contextnet-256": _contextnet(256),
    "contextnet-512": _contextnet(512),
    "contextnet-1024": _contextnet(1024),
    "tiny": _TINY,
    "tiny-streaming": _TINY_STREAMING,
    "tiny-rnnt": replace(_TINY, durations=()),
    "tiny-canary": _aed(_TINY, 2, 48, 96, 4, "canary2"),
    "tiny-granite": _granite(4, 64, 2, 128),
    "tiny-jasper": _convolutional(
        [_block(32, 5, stride=2), *2 * [_block(32, 5, repeat=2, residual="add", dense=True)]]
    ),
    "tiny-quartznet": _convolutional([_block(48, 9, stride=2, separable=True), _block(64, 1)]),
    "tiny-citrinet": _tiny_excited(replace(_TINY, **_CTC_HEAD), "relu"),
    "tiny-contextnet": _tiny_excited(replace(_TINY, durations=()), "silu"),
    "tiny-ctc": replace(_TINY, **_CTC_HEAD),
}
