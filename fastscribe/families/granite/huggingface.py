"""transformers' GraniteSpeech5ForCTC: config, weight names and tokenizer.

There the blank is label 0, and here it is the last one. So the rows of the head, the columns that read its probabilities, and
the ids of the tokenizer move by one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastscribe._system.file_kinds import safe_read
from fastscribe.checkpoint.huggingface import HARMLESS, extractor_of, read_weights
from fastscribe.checkpoint.lazy_weights import LazyWeights, TensorSource
from fastscribe.checkpoint.names import BOTH, reading, rename
from fastscribe.checkpoint.value import Checkpoint, Section, read_tokenizer
from fastscribe.config import FeaturesConfig, ModelConfig
from fastscribe.errors import UnsupportedCheckpoint
from fastscribe.families.granite.config import GRANITE_STACKED, GraniteConfig
from fastscribe.text.tokenizer import MAX_TOKENIZER_BYTES, Tokenizer, from_huggingface

_DELTAS = 2  # a mel frame and its difference in time
_TRAINING = ("ctc_loss_reduction", "ctc_zero_infinity")
NAMES = (
    (r"^encoder\.input_linear\.", "encoder.input."),
    (r"^encoder\.layers\.", "encoder.body.layers."),
    (r"^encoder\.out\.", "encoder.body.conditioning.inner."),
    (r"^encoder\.out_mid\.", "encoder.body.conditioning.outer."),
    (r"^ctc_head\.", "ctc.output."),
    (r"\.self_attn\.([qkv])_proj\.", r".self_attn.linear_\1."),
    (r"\.self_attn\.o_proj\.", ".self_attn.linear_out."),
    (r"\.self_attn\.rel_pos_emb\.", ".self_attn.positions."),
    (r"\.conv\.pointwise_lin([12])\.", r".conv.pointwise\1."),
)


def read_config(section: Section, processor: Section) -> ModelConfig:
    """Convert config.json and the processor's config. Raises UnsupportedCheckpoint naming key and value."""
    extractor = extractor_of(processor)
    num_tokens = section.positive("vocab_size", 16384)
    section.choose("pad_token_id", 0, (0,))
    encoder = _encoder(section.part("encoder_config"), num_tokens)
    section.ignore(*HARMLESS, *_TRAINING)
    section.finish()
    return ModelConfig(
        features=_features(extractor, encoder.num_mels),
        encoder=encoder,
        predictor=None,
        joint=None,
        durations=(),
        has_ctc=True,
        num_labels=num_tokens - 1,
    )


def our_names(weights: Mapping[str, TensorSource], model: ModelConfig) -> dict[str, TensorSource]:
    """Give the weights of a folder our names, without those that it omits."""
    bare = {name.removeprefix("model."): source for name, source in weights.items()}
    return rename(bare, {}, NAMES + reading(BOTH))


def read_model(folder: Path, section: Section, model: ModelConfig) -> Checkpoint:
    """Read the tokenizer and the weights of a folder whose config.json is `section`. Raises CheckpointError."""
    whole = LazyWeights(add_missing_weights(our_names(read_weights(folder), model)))
    return Checkpoint(folder, "huggingface", model, read_tokenizer(folder, model, tokenizer_of), whole)


def _encoder(section: Section, num_tokens: int) -> GraniteConfig:
    section.choose("vocab_size", 16384, (num_tokens,))
    section.choose("hidden_act", "silu", ("silu",))
    width, heads = section.positive("hidden_size", 1024), section.positive("num_attention_heads", 8)
    section.choose("num_key_value_heads", None, (heads, None))
    section.choose("head_dim", None, (width // heads, None))
    num_layers = section.positive("num_hidden_layers", 16)
    strided = section.get("subsample_layers", None)
    strided = [0, 1] if strided is None else strided
    if not isinstance(strided, list) or not all(type(layer) is int and 0 <= layer < num_layers for layer in strided):
        supported = f"a list of numbers from 0 to {num_layers - 1}"
        raise UnsupportedCheckpoint(section.where, section.path("subsample_layers"), strided, supported)
    config = GraniteConfig(
        num_mels=section.positive("num_mel_bins", 80),
        num_layers=num_layers,
        d_model=width,
        num_heads=heads,
        ff_hidden=section.positive("intermediate_size", 4096),
        conv_kernel=section.positive("conv_kernel_size", 7),
        conv_width=width * section.positive("conv_expansion_factor", 2),
        use_bias=section.choose("attention_bias", True, (True, False)),
        block=section.positive("context_size", 128),
        max_distance=section.positive("max_position_embeddings", 512),
        strided_layers=tuple(sorted(set(strided))),
        num_tokens=num_tokens,
    )
    section.ignore(*HARMLESS)
    section.finish()
    return config


def _features(section: Section, num_mels: int) -> FeaturesConfig:
    """Convert the feature extractor's config. Window, mel scale and logarithm are constants: torchaudio's defaults."""
    kind = "GraniteSpeech5FeatureExtractor"
    section.choose("feature_extractor_type", kind, (kind,))
    size = num_mels * _DELTAS * GRANITE_STACKED
    section.choose("feature_size", size, (size,))
    section.choose("num_mel_bins", 80, (num_mels,))
    section.choose("delta_win_length", 3, (3,))
    sample_rate = section.positive("sampling_rate", 16000)
    config = FeaturesConfig(
        sample_rate=sample_rate,
        num_mels=num_mels,
        n_fft=section.positive("n_fft", 512),
        win_length=section.positive("win_length", 400),
        hop_length=section.positive("hop_length", 160),
        window="hann",
        preemphasis=None,
        mag_power=2.0,
        low_hz=0.0,
        high_hz=sample_rate // 2,
        mel_norm=None,
        log=True,
        log_guard="clamp",
        log_guard_value=1e-10,
        normalize="peak",
        mel_scale="htk",
        periodic_window=True,
        edges="reflect",
        peak_range=section.number("logmel_floor_db", 8.0),
        frame_multiple=GRANITE_STACKED,
    )
    section.ignore(
        "padding_side", "padding_value", "return_attention_mask", "return_tensors", "processor_class", *HARMLESS
    )
    section.finish()
    return config


def add_missing_weights(weights: Mapping[str, TensorSource]) -> dict[str, TensorSource]:
    """Add the head that the folder omits, and move the blank (our names).

    The conditioning's layer and the head share their weights; the folder stores them once.
    """
    moved = dict(weights)
    for suffix in ("weight", "bias"):
        inner = f"encoder.body.conditioning.inner.{suffix}"
        head = moved.setdefault(f"ctc.output.{suffix}", moved[inner]) if inner in moved else None
        if head is not None:
            moved[inner], moved[f"ctc.output.{suffix}"] = _blank_last(moved[inner], 0), _blank_last(head, 0)
    outer = "encoder.body.conditioning.outer.weight"
    if outer in moved:
        moved[outer] = _blank_last(moved[outer], 1)
    return moved


def _blank_last(source: TensorSource, axis: int) -> TensorSource:
    return replace(source, read=lambda: source.read().roll(-1, axis))


def tokenizer_of(folder: Path, num_labels: int) -> Tokenizer:
    """Read a folder's tokenizer.json, and move the blank from id 0 to the end.

    Raises FileNotFoundError, ValueError and LookupError.
    """
    content = safe_read(folder / "tokenizer.json", MAX_TOKENIZER_BYTES)
    return from_huggingface(blank_last(content, num_labels + 1), num_labels)


def blank_last(tokenizer_json: bytes, num_tokens: int) -> bytes:
    """Return the file with the ids after 0 moved down by one and id 0 as the last one."""
    data: dict[str, Any] = json.loads(tokenizer_json)

    def moved(token: int) -> int:
        return (token - 1) % num_tokens if 0 <= token < num_tokens else token

    vocabulary = data["model"]["vocab"]
    data["model"]["vocab"] = {piece: moved(token) for piece, token in vocabulary.items()}
    for token in data.get("added_tokens", []):
        token["id"] = moved(token["id"])
    return json.dumps(data, ensure_ascii=False).encode()
