"""transformers' Parakeet classes (ForCTC, ForRNNT, ForTDT): config, weights and their names.

Other families share their encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from fastscribe.checkpoint.huggingface import HARMLESS, extractor_of, read_weights
from fastscribe.checkpoint.lazy_weights import LazyWeights, TensorSource
from fastscribe.checkpoint.names import BOTH, Pairs, Patterns, reading, rename, rename_back
from fastscribe.checkpoint.value import Checkpoint, Section, read_tokenizer
from fastscribe.config import (
    ChunkedAttention,
    FeaturesConfig,
    JointActivation,
    JointConfig,
    ModelConfig,
    PredictorConfig,
)
from fastscribe.errors import UnsupportedCheckpoint
from fastscribe.families.conformer.config import SUBSAMPLING_FACTORS, EncoderConfig
from fastscribe.families.conformer.nemo import subsampling

HUGGINGFACE: Pairs = (
    ("^encoder.subsampling.linear.", "^encoder.subsampling.out."),
    (".self_attn.q_proj.", ".self_attn.linear_q."),
    (".self_attn.k_proj.", ".self_attn.linear_k."),
    (".self_attn.v_proj.", ".self_attn.linear_v."),
    (".self_attn.o_proj.", ".self_attn.linear_out."),
    (".self_attn.relative_k_proj.", ".self_attn.linear_pos."),
    (".self_attn.bias_u", ".self_attn.pos_bias_u"),
    (".self_attn.bias_v", ".self_attn.pos_bias_v"),
    ("^decoder.embedding.", "^transducer.predictor.embedding."),
    ("^decoder.lstm.", "^transducer.predictor.lstm."),
    ("^decoder.decoder_projector.", "^transducer.joint.predictor."),
    ("^encoder_projector.", "^transducer.joint.encoder."),
    ("^joint.head.", "^transducer.joint.output."),
    ("^ctc_head.", "^ctc.output."),
    ("^prompt_projector.linear_1.", "^encoder.language_prompt.inner."),
    ("^prompt_projector.linear_2.", "^encoder.language_prompt.outer."),
)


def read_config(section: Section, processor: Section) -> ModelConfig:
    """Convert config.json and the processor's config. Raises UnsupportedCheckpoint naming key and value."""
    family, encoder = section.values["model_type"], encoder_config(section.part("encoder_config"))
    features = extractor_of(processor)
    has_ctc = family == "parakeet_ctc"
    return transcriber_config(section, encoder, features, has_ctc=has_ctc, has_durations=family == "parakeet_tdt")


def our_names(weights: Mapping[str, TensorSource], model: ModelConfig) -> dict[str, TensorSource]:
    """Give the weights of a folder our names."""
    assert isinstance(model.encoder, EncoderConfig)
    return from_huggingface(weights, model.encoder)


def read_model(folder: Path, section: Section, model: ModelConfig) -> Checkpoint:
    """Read the tokenizer and the weights of a folder whose config.json is `section`. Raises CheckpointError."""
    tokenizer = read_tokenizer(folder, model)
    return Checkpoint(folder, "huggingface", model, tokenizer, LazyWeights(our_names(read_weights(folder), model)))


def transcriber_config(
    section: Section,
    encoder: EncoderConfig,
    extractor: Section,
    has_ctc: bool,
    has_durations: bool,
    is_streaming: bool = False,
) -> ModelConfig:
    """Make the config of a model with a CTC head or a transducer.

    Args:
        section: config.json.
        encoder: Settings of its encoder.
        extractor: The feature extractor's config.
        has_ctc: A CTC head; else a transducer.
        has_durations: The transducer is TDT.
        is_streaming: The feature extractor is a streaming model's.
    """
    where = section.where
    vocab_size = section.positive("vocab_size")
    predictor = joint = None
    durations: tuple[int, ...] = ()
    if not has_ctc:
        hidden = section.positive("decoder_hidden_size", 640)
        predictor = PredictorConfig(hidden=hidden, num_layers=section.positive("num_decoder_layers", 2))
        joint = JointConfig(
            hidden=hidden,
            activation=section.choose("hidden_act", "relu", get_args(JointActivation)),
            max_symbols=section.positive("max_symbols_per_step", 10),
        )
    if has_durations:
        durations = tuple(section.take("durations", list))
        if not durations:
            raise UnsupportedCheckpoint(where, "config.durations", [], "at least one")
    blank_key = "pad_token_id" if has_ctc else "blank_token_id"
    if section.get(blank_key, vocab_size - 1) != vocab_size - 1:
        raise UnsupportedCheckpoint(
            where, f"config.{blank_key}", section.values[blank_key], f"the last id, {vocab_size - 1}"
        )
    return ModelConfig(
        features=read_features(extractor, encoder.num_mels, is_streaming=is_streaming),
        encoder=encoder,
        predictor=predictor,
        joint=joint,
        durations=durations,
        has_ctc=has_ctc,
        num_labels=vocab_size - 1,
    )


def read_features(
    section: Section, num_mels: int, is_streaming: bool = False, kind: str = "ParakeetFeatureExtractor"
) -> FeaturesConfig:
    """Convert the feature extractor's config. Normalisation, window and log guard are constants: NeMo's defaults."""
    kind = "NemotronAsrStreamingFeatureExtractor" if is_streaming else kind
    section.choose("feature_extractor_type", kind, (kind,))
    if is_streaming:
        section.choose("mel_filters_dtype", "float32", ("float32",))
    section.choose("feature_size", num_mels, (num_mels,))
    sample_rate = section.positive("sampling_rate", 16000)
    config = FeaturesConfig(
        sample_rate=sample_rate,
        num_mels=num_mels,
        n_fft=section.positive("n_fft", 512),
        win_length=section.positive("win_length", 400),
        hop_length=section.positive("hop_length", 160),
        window="hann",
        preemphasis=section.number("preemphasis", 0.97, nullable=True),
        mag_power=2.0,
        low_hz=0.0,
        high_hz=sample_rate / 2,
        mel_norm="slaney",
        log=True,
        log_guard="add",
        log_guard_value=2**-24,
        normalize="none" if is_streaming else "per_feature",
    )
    section.ignore("padding_side", "padding_value", "return_attention_mask", "return_tensors", "processor_class")
    section.ignore(*HARMLESS, "blank_token", "decoder_type")
    section.finish()
    return config


def encoder_config(section: Section, is_streaming: bool = False) -> EncoderConfig:
    """Convert the encoder's section. Raises UnsupportedCheckpoint naming key and value."""
    heads = section.positive("num_attention_heads", 8)
    section.choose("num_key_value_heads", heads, (heads,))
    section.choose("hidden_act", "silu", ("silu",))
    section.choose("subsampling_conv_kernel_size", 3, (3,))
    section.choose("subsampling_conv_stride", 2, (2,))
    bias = section.choose("attention_bias", True, (True, False))
    section.choose("convolution_bias", bias, (bias,))
    contexts = _contexts(section) if is_streaming else ()
    config = EncoderConfig(
        num_mels=section.positive("num_mel_bins", 80),
        num_layers=section.positive("num_hidden_layers", 24),
        d_model=section.positive("hidden_size", 1024),
        num_heads=heads,
        ff_hidden=section.positive("intermediate_size", 4096),
        conv_kernel=section.positive("conv_kernel_size", 9),
        conv_norm="layer_norm" if is_streaming else "batch_norm",
        use_bias=bias,
        xscaling=section.choose("scale_input", True, (True, False)),
        subsampling="dw_striding",
        subsampling_factor=section.choose("subsampling_factor", 8, SUBSAMPLING_FACTORS),
        subsampling_channels=section.positive("subsampling_conv_channels", 256),
        attention=contexts[0] if contexts else None,
        contexts=contexts,
        causal_subsampling=is_streaming,
        causal_conv=is_streaming,
    )
    section.ignore(*HARMLESS)
    section.finish()
    return config


def _contexts(section: Section) -> tuple[ChunkedAttention, ...]:
    """Return the contexts of a streaming encoder: one left side, and the default and other numbers of frames ahead."""
    left = section.positive("sliding_window", 71) - 1  # the frame itself counts here
    default = section.get("default_num_lookahead_tokens", 13)
    supported = section.get("supported_num_lookahead_tokens", None) or [default]
    try:
        rights = dict.fromkeys((default, *supported))
        return tuple(ChunkedAttention(left, right) for right in rights)
    except (ValueError, TypeError) as error:
        key = section.path("supported_num_lookahead_tokens")
        allowed = f"numbers from 0 of which, plus 1, {left} is a multiple"
        raise UnsupportedCheckpoint(section.where, key, supported, allowed) from error


def from_huggingface(
    weights: Mapping[str, TensorSource], config: EncoderConfig, first: Patterns = ()
) -> dict[str, TensorSource]:
    """Rename the weights of a Hugging Face folder.

    Args:
        weights: By the folder's names, of which some classes have `model.` in front.
        config: Settings of the encoder.
        first: What to replace before the rest.
    """
    layers = (
        _causal_subsampling(config) if config.causal_subsampling else subsampling(config, "encoder.subsampling.layers")
    )
    bare = {name.removeprefix("model."): source for name, source in weights.items()}
    return rename(bare, layers, first + reading(HUGGINGFACE + BOTH))


def _causal_subsampling(config: EncoderConfig) -> dict[str, str]:
    """Map Hugging Face's names of causal subsampling convolutions."""
    names = {"encoder.subsampling.conv_in": "encoder.subsampling.stages.0.0"}
    for stage in range(1, config.subsampling_factor.bit_length() - 1):
        for number, kind in enumerate(("depthwise", "pointwise")):
            theirs = f"encoder.subsampling.layers.{stage - 1}.{kind}_conv"
            names[theirs] = f"encoder.subsampling.stages.{stage}.{number}"
    return names


def to_huggingface(weights: Mapping[str, TensorSource], config: EncoderConfig) -> dict[str, TensorSource]:
    """Give a FastConformer model's weights the names and shapes of transformers' Parakeet, the inverse of
    from_huggingface()."""
    return rename_back(weights, subsampling(config, "encoder.subsampling.layers"), HUGGINGFACE + BOTH)
