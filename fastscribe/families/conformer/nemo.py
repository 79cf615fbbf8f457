"""NeMo's ConformerEncoder: the encoder section of model_config.yaml, and NeMo's names of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from fastscribe.checkpoint.lazy_weights import TensorSource
from fastscribe.checkpoint.names import BOTH, NEMO_CTC, NEMO_HYBRID_CTC, NEMO_TRANSDUCER, Pairs, rename_back
from fastscribe.checkpoint.value import Section
from fastscribe.config import AttentionConfigs, ChunkedAttention, LocalAttention, ModelConfig
from fastscribe.errors import UnsupportedCheckpoint
from fastscribe.families.conformer.config import SUBSAMPLING_FACTORS, ConvNorm, EncoderConfig, Subsampling

NEMO: Pairs = (
    ("^encoder.pre_encode.out.", "^encoder.subsampling.out."),
    (".conv.batch_norm.", ".conv.norm."),
    ("^prompt_kernel.0.", "^encoder.language_prompt.inner."),
    ("^prompt_kernel.2.", "^encoder.language_prompt.outer."),
)


def encoder_config(section: Section) -> EncoderConfig:
    """Convert the encoder section, whose `_target_` is checked already. Raises UnsupportedCheckpoint naming key and value."""
    d_model, kernel = section.positive("d_model"), section.positive("conv_kernel_size", 31)
    if kernel % 2 == 0:
        raise UnsupportedCheckpoint(section.where, "encoder.conv_kernel_size", kernel, "odd numbers")
    section.choose("feat_out", -1, (-1, d_model, None))
    symmetric, causal = (None, kernel // 2, [kernel // 2, kernel // 2]), ("causal", [kernel - 1, 0])
    # "dcc" (dynamic chunked convolution) is for streaming; NeMo's forward pass does not read it.
    section.choose("conv_context_style", "regular", ("regular", "dcc"))
    section.choose("reduction", None, (None,))
    section.ignore("reduction_position", "reduction_factor", "untie_biases", "pos_emb_max_len", "sync_max_audio_length")
    section.ignore("subsampling_conv_chunking_factor", "att_context_probs", "att_chunk_context_size")
    section.ignore("use_pytorch_sdpa", "use_pytorch_sdpa_backends")
    section.ignore("stochastic_depth_drop_prob", "stochastic_depth_mode", "stochastic_depth_start_layer")
    section.ignore("dropout", "dropout_pre_encoder", "dropout_emb", "dropout_att")
    own_channels = section.get("subsampling_conv_channels", None) not in (None, -1)
    attention, contexts = _attention(section)
    config = EncoderConfig(
        num_mels=section.positive("feat_in"),
        num_layers=section.positive("n_layers"),
        d_model=d_model,
        num_heads=section.positive("n_heads", 4),
        ff_hidden=d_model * section.positive("ff_expansion_factor", 4),
        conv_kernel=kernel,
        conv_norm=section.choose("conv_norm_type", "batch_norm", get_args(ConvNorm)),
        use_bias=section.choose("use_bias", True, (True, False)),
        xscaling=section.choose("xscaling", True, (True, False)),
        subsampling=section.choose("subsampling", "striding", get_args(Subsampling)),
        subsampling_factor=section.choose("subsampling_factor", 4, SUBSAMPLING_FACTORS),
        subsampling_channels=section.positive("subsampling_conv_channels") if own_channels else d_model,
        attention=attention,
        contexts=contexts,
        causal_subsampling=bool(section.choose("causal_downsampling", False, (False, True, None))),
        causal_conv=section.choose("conv_context_size", None, (*symmetric, *causal)) in causal,
    )
    section.finish()
    return config


def _attention(section: Section) -> tuple[AttentionConfigs | None, tuple[ChunkedAttention, ...]]:
    """Return the attention, and the contexts of a streaming model."""
    section.ignore("global_tokens_spacing")  # irrelevant with at most one global token
    is_local = section.choose("self_attention_model", "rel_pos", ("rel_pos", "rel_pos_local_attn")) != "rel_pos"
    styles = ("regular",) if is_local else ("regular", "chunked_limited", "chunked_limited_with_rc")
    style = section.choose("att_context_style", "regular", styles)
    if is_local:
        return _local_attention(section), ()
    section.choose("global_tokens", 0, (0, None))
    section.ignore("global_attn_separate")
    if style == "chunked_limited":
        contexts = _contexts(section)
        return (contexts[0], contexts) if contexts else (None, ())
    if style == "regular":
        section.choose("att_context_size", None, (None, [-1, -1], [[-1, -1]]))
    else:
        section.ignore("att_context_size")  # chunks are for streaming; NeMo uses full attention by default
    return None, ()


def _contexts(section: Section) -> tuple[ChunkedAttention, ...]:
    """Return the contexts of a streaming model, of which NeMo uses the first; none for full attention."""
    size = section.take("att_context_size", list)
    sizes = size if size and isinstance(size[0], list) else [size]
    if sizes == [[-1, -1]]:
        return ()
    try:
        contexts = tuple(ChunkedAttention(left, right) for left, right in sizes)
        if len(set(contexts)) < len(sizes) or (len(sizes) > 1 and any(context.right < 0 for context in contexts)):
            raise ValueError("a context comes twice, or has no chunks")
    except (ValueError, TypeError) as error:
        supported = "[left, right], or a list of different ones, with left a multiple of right + 1 or -1"
        raise UnsupportedCheckpoint(section.where, section.path("att_context_size"), size, supported) from error
    return contexts


def _local_attention(section: Section) -> LocalAttention:
    section.choose("global_attn_separate", False, (False, None))
    num_global = section.choose("global_tokens", 0, (0, 1, None)) or 0
    size = section.take("att_context_size", list)
    left_right = size[0] if size and isinstance(size[0], list) else size  # NeMo uses the first of several
    try:
        left, right = left_right
        return LocalAttention(left, right, num_global)
    except ValueError as error:
        raise UnsupportedCheckpoint(
            section.where,
            section.path("att_context_size"),
            size,
            "[left, right] with one above 0 in rel_pos_local_attn",
        ) from error


def nemo_layers(config: EncoderConfig) -> dict[str, str]:
    """Map NeMo's names of numbered layers to ours."""
    return subsampling(config, "encoder.pre_encode.conv")


def subsampling(config: EncoderConfig, prefix: str) -> dict[str, str]:
    """Map names of subsampling convolutions: NeMo and Hugging Face number all layers, ours are numbered by stage."""
    names, position = {}, 0
    for stage in range(config.subsampling_factor.bit_length() - 1):
        for conv in range(1 if stage == 0 or config.subsampling == "striding" else 2):
            names[f"{prefix}.{position}"] = f"encoder.subsampling.stages.{stage}.{conv}"
            position += 1
        position += 1  # the activation
    return names


def to_nemo(weights: Mapping[str, TensorSource], config: ModelConfig) -> dict[str, TensorSource]:
    """Give a FastConformer model's weights NeMo's names and shapes, the inverse of names.from_nemo()."""
    assert isinstance(config.encoder, EncoderConfig)
    head = NEMO_CTC if config.joint is None else NEMO_HYBRID_CTC
    if config.aed is not None:
        from fastscribe.families.canary import nemo

        head = nemo.NAMES
    return rename_back(weights, nemo_layers(config.encoder), NEMO + NEMO_TRANSDUCER + head + BOTH)
