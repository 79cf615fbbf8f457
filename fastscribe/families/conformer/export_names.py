"""Names of a FastConformer model's weights for NeMo and for transformers: the inverse of names.py."""

from __future__ import annotations

from collections.abc import Mapping

from fastscribe.checkpoint.lazy_weights import TensorSource
from fastscribe.checkpoint.names import (
    BOTH,
    NEMO_CTC,
    NEMO_HYBRID_CTC,
    NEMO_TRANSDUCER,
    Pairs,
    as_convolution,
    rename,
    writing,
)
from fastscribe.config import ModelConfig
from fastscribe.families.conformer.config import EncoderConfig
from fastscribe.families.conformer.names import HUGGINGFACE, NEMO, nemo_layers, subsampling


def to_nemo(weights: Mapping[str, TensorSource], config: ModelConfig) -> dict[str, TensorSource]:
    """Give a FastConformer model's weights NeMo's names and shapes, the inverse of names.from_nemo()."""
    assert isinstance(config.encoder, EncoderConfig)
    head = NEMO_CTC if config.joint is None else NEMO_HYBRID_CTC
    return _rename_back(weights, nemo_layers(config.encoder), NEMO + NEMO_TRANSDUCER + head + BOTH)


def to_huggingface(weights: Mapping[str, TensorSource], config: EncoderConfig) -> dict[str, TensorSource]:
    """Give a FastConformer model's weights the names and shapes of transformers' Parakeet, the inverse of
    from_huggingface()."""
    return _rename_back(weights, subsampling(config, "encoder.subsampling.layers"), HUGGINGFACE + BOTH)


def _rename_back(
    weights: Mapping[str, TensorSource], layers: Mapping[str, str], pairs: Pairs
) -> dict[str, TensorSource]:
    shaped = {name: as_convolution(name, source) for name, source in weights.items()}
    return rename(shaped, {ours: theirs for theirs, ours in layers.items()}, writing(pairs), linear=None)
