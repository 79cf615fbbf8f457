"""Names of a FastConformer encoder's weights in NeMo and in Hugging Face's folders."""

from __future__ import annotations

from collections.abc import Mapping

from fastscribe.checkpoint.lazy_weights import TensorSource
from fastscribe.checkpoint.names import BOTH, HUGGINGFACE_HEADS, Pairs, Patterns, reading, rename
from fastscribe.families.conformer.config import EncoderConfig

NEMO: Pairs = (
    ("^encoder.pre_encode.out.", "^encoder.subsampling.out."),
    (".conv.batch_norm.", ".conv.norm."),
    ("^prompt_kernel.0.", "^encoder.language_prompt.inner."),
    ("^prompt_kernel.2.", "^encoder.language_prompt.outer."),
)
HUGGINGFACE: Pairs = (
    ("^encoder.subsampling.linear.", "^encoder.subsampling.out."),
    (".self_attn.q_proj.", ".self_attn.linear_q."),
    (".self_attn.k_proj.", ".self_attn.linear_k."),
    (".self_attn.v_proj.", ".self_attn.linear_v."),
    (".self_attn.o_proj.", ".self_attn.linear_out."),
    (".self_attn.relative_k_proj.", ".self_attn.linear_pos."),
    (".self_attn.bias_u", ".self_attn.pos_bias_u"),
    (".self_attn.bias_v", ".self_attn.pos_bias_v"),
    *HUGGINGFACE_HEADS,
    ("^prompt_projector.linear_1.", "^encoder.language_prompt.inner."),
    ("^prompt_projector.linear_2.", "^encoder.language_prompt.outer."),
)


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


def _causal_subsampling(config: EncoderConfig) -> dict[str, str]:
    """Map Hugging Face's names of causal subsampling convolutions."""
    names = {"encoder.subsampling.conv_in": "encoder.subsampling.stages.0.0"}
    for stage in range(1, config.subsampling_factor.bit_length() - 1):
        for number, kind in enumerate(("depthwise", "pointwise")):
            theirs = f"encoder.subsampling.layers.{stage - 1}.{kind}_conv"
            names[theirs] = f"encoder.subsampling.stages.{stage}.{number}"
    return names
