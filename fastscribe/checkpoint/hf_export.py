"""Writer of Hugging Face folders of transformers' ParakeetForCTC, ParakeetForRNNT and ParakeetForTDT.

huggingface.py reads them. transformers is not needed. hf_tokenizer.py makes the tokenizer.json of a SentencePiece model.

These classes have one head, and a predictor as wide as the joint network. Zeros widen the narrower one, and change no result:
an LSTM's unit whose weights and biases are all zero keeps its cell at zero and gives zero, and a unit of the joint network adds
nothing to the logits if its column of the output layer is zero.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastscribe.checkpoint.exchange import check_config, check_family, refuse, sources_with_counters, stored_dtypes
from fastscribe.checkpoint.hf_tokenizer import first_special, tokenizer_json, with_blank
from fastscribe.checkpoint.huggingface import model_config
from fastscribe.checkpoint.lazy_weights import LazyWeights, TensorSource, sources_of
from fastscribe.checkpoint.value import Checkpoint, Section
from fastscribe.checkpoint.weight_writers import write_safetensors
from fastscribe.config import FeaturesConfig, FloatDtypeName, ModelConfig
from fastscribe.families.conformer.config import EncoderConfig
from fastscribe.families.conformer.huggingface import to_huggingface
from fastscribe.text.tokenizer import from_huggingface

if TYPE_CHECKING:
    import torch

_WRITTEN_FOR = "5.23.0"  # version of transformers
_DTYPES: dict[FloatDtypeName, str] = {"bf16": "bfloat16", "fp32": "float32"}
_CLASSES = {"ctc": "ParakeetForCTC", "rnnt": "ParakeetForRNNT", "tdt": "ParakeetForTDT"}
_PAD, _BLANK = "<pad>", "<blank>"  # names of the blank of a CTC model and of a transducer
_PREDICTOR, _JOINT, _CTC = "transducer.predictor.", "transducer.joint.", "ctc."
_NUM_GATES = 4  # of an LSTM; each has a block of rows


def write(checkpoint: Checkpoint, files: dict[str, bytes], folder: Path, dtype: torch.dtype) -> None:
    """Write a folder.

    Args:
        checkpoint: the model.
        files: of files_of().
        folder: exists.
        dtype: dtype of float weights.

    Raises:
        CheckpointError: a weight is not finite or cannot be read.
        OSError: the folder cannot be written.
    """
    checkpoint = for_transformers(checkpoint)
    assert isinstance(checkpoint.config.encoder, EncoderConfig)
    sources = to_huggingface(sources_with_counters(checkpoint), checkpoint.config.encoder)
    write_safetensors(folder / "model.safetensors", sources, stored_dtypes(sources, dtype))
    for name, content in files.items():
        (folder / name).write_bytes(content)


def files_of(checkpoint: Checkpoint, dtype: FloatDtypeName) -> dict[str, bytes]:
    """Return the files besides the weights. Raises UsageError if a Hugging Face folder cannot hold the model."""
    encoder = check_family(checkpoint, "hf")
    checkpoint = for_transformers(checkpoint)
    config = checkpoint.config
    head = config.decoders[0]
    # In a CTC model transformers takes the pad for the blank; a transducer's pad fills up batches and is never emitted.
    pad_id = config.blank_id if head == "ctc" else first_special(checkpoint.tokenizer)
    if pad_id is None:
        raise refuse(
            checkpoint, "hf", "transformers needs a token to fill up batches, and this vocabulary has no <unk>"
        )
    stored = _config(config, encoder, pad_id, dtype)
    processor = _processor(config.features, head)
    check_config(
        checkpoint, "hf", lambda: model_config(Section(stored, "config", "new"), Section(processor, "", "new"))
    )
    tokenizer, tokens = _tokenizer(checkpoint, _PAD if head == "ctc" else _BLANK)
    contents = {
        "config.json": stored,
        "generation_config.json": _generation(config, pad_id),
        "processor_config.json": processor,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {
            "backend": "tokenizers",
            "clean_up_tokenization_spaces": False,
            "pad_token": tokens[pad_id],
            "processor_class": "ParakeetProcessor",
            "tokenizer_class": "ParakeetTokenizer",
            "unk_token": "<unk>" if "<unk>" in tokens.values() else None,
        },
    }
    return {
        name: (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode() for name, content in contents.items()
    }


def _tokenizer(checkpoint: Checkpoint, blank: str) -> tuple[dict[str, Any], dict[int, str]]:
    """Return the tokenizer.json with a blank, and its tokens by id. Raises UsageError if its texts would differ."""
    tokenizer, num_labels = checkpoint.tokenizer, checkpoint.config.num_labels
    stored = tokenizer.files.get("tokenizer.json")
    content = with_blank(json.loads(stored) if stored else tokenizer_json(tokenizer), num_labels, blank)
    read_back = from_huggingface(json.dumps(content).encode(), num_labels)
    kept = tokenizer.pieces, tokenizer.dropped_marks, tokenizer.unknown_ids | tokenizer.silent_ids
    if (read_back.pieces, read_back.dropped_marks, read_back.silent_ids) != kept and not stored:
        raise refuse(checkpoint, "hf", "a tokenizer.json cannot hold this vocabulary's rules for spaces")
    tokens = dict(enumerate(tokenizer.pieces)) | {token["id"]: token["content"] for token in content["added_tokens"]}
    return content, tokens


def _config(config: ModelConfig, encoder: EncoderConfig, pad_id: int, dtype: FloatDtypeName) -> dict[str, Any]:
    head, blank = config.decoders[0], config.blank_id
    stored: dict[str, Any] = {
        "architectures": [_CLASSES[head]],
        "dtype": _DTYPES[dtype],
        "encoder_config": _encoder(encoder),
        "initializer_range": 0.02,
        "model_type": f"parakeet_{head}",
        "pad_token_id": pad_id,
        "transformers_version": _WRITTEN_FOR,
        "vocab_size": blank + 1,
    }
    if config.predictor is None or config.joint is None:
        return stored | {"ctc_loss_reduction": "mean", "ctc_zero_infinity": True}
    stored |= {
        "blank_token_id": blank,
        "bos_token_id": blank,
        "decoder_hidden_size": config.predictor.hidden,
        "decoder_start_token_id": blank,
        "hidden_act": config.joint.activation,
        "is_encoder_decoder": True,
        "max_symbols_per_step": config.joint.max_symbols,
        "num_decoder_layers": config.predictor.num_layers,
    }
    return stored | ({"durations": list(config.durations)} if config.durations else {})


def _encoder(encoder: EncoderConfig) -> dict[str, Any]:
    return {
        "activation_dropout": 0.1,
        "attention_bias": encoder.use_bias,
        "attention_dropout": 0.1,
        "conv_kernel_size": encoder.conv_kernel,
        "convolution_bias": encoder.use_bias,
        "dropout": 0.1,
        "dropout_positions": 0.0,
        "hidden_act": "silu",
        "hidden_size": encoder.d_model,
        "initializer_range": 0.02,
        "intermediate_size": encoder.ff_hidden,
        "layerdrop": 0.1,
        "max_position_embeddings": 5000,
        "model_type": "parakeet_encoder",
        "num_attention_heads": encoder.num_heads,
        "num_hidden_layers": encoder.num_layers,
        "num_key_value_heads": encoder.num_heads,
        "num_mel_bins": encoder.num_mels,
        "scale_input": encoder.xscaling,
        "subsampling_conv_channels": encoder.subsampling_channels,
        "subsampling_conv_kernel_size": 3,
        "subsampling_conv_stride": 2,
        "subsampling_factor": encoder.subsampling_factor,
    }


def _generation(config: ModelConfig, pad_id: int) -> dict[str, Any]:
    stored: dict[str, Any] = {"pad_token_id": pad_id, "transformers_version": _WRITTEN_FOR}
    if config.joint is None:
        return stored
    blank = config.blank_id
    stored |= {"bos_token_id": blank, "decoder_start_token_id": blank}
    outputs = list(range(blank + 1, blank + 1 + len(config.durations)))  # of the durations, which are no tokens
    return stored | ({"suppress_tokens": outputs} if outputs else {})


def _processor(features: FeaturesConfig, head: str) -> dict[str, Any]:
    return {
        "blank_token": _BLANK,
        "decoder_type": None if head == "ctc" else head,
        "feature_extractor": {
            "feature_extractor_type": "ParakeetFeatureExtractor",
            "feature_size": features.num_mels,
            "hop_length": features.hop_length,
            "n_fft": features.n_fft,
            "padding_side": "right",
            "padding_value": 0.0,
            "preemphasis": features.preemphasis,
            "return_attention_mask": True,
            "sampling_rate": features.sample_rate,
            "win_length": features.win_length,
        },
        "processor_class": "ParakeetProcessor",
    }


def for_transformers(checkpoint: Checkpoint) -> Checkpoint:
    """Return a hybrid as its transducer alone, and any transducer with one width. Values stay unread."""
    config, sources = checkpoint.config, sources_of(checkpoint.weights)
    if config.predictor is None or config.joint is None:
        return checkpoint
    width = max(config.predictor.hidden, config.joint.hidden)
    kept = {name: source for name, source in sources.items() if not name.startswith(_CTC)}
    return replace(
        checkpoint,
        config=replace(
            config,
            has_ctc=False,
            predictor=replace(config.predictor, hidden=width),
            joint=replace(config.joint, hidden=width),
        ),
        weights=LazyWeights({**kept, **dict(_widened(kept, width))}),
    )


def _widened(sources: Mapping[str, TensorSource], width: int) -> Iterator[tuple[str, TensorSource]]:
    for name, source in sources.items():
        if name.startswith(f"{_PREDICTOR}lstm."):
            yield name, _padded(source, width, width, _NUM_GATES)
        elif name.startswith(_PREDICTOR) or name == f"{_JOINT}output.weight":
            yield name, _padded(source, source.shape[0], width)
        elif name.startswith(f"{_JOINT}predictor."):
            yield name, _padded(source, width, width)
        elif name.startswith(f"{_JOINT}encoder."):
            yield name, _padded(source, width, source.shape[-1])


def _padded(source: TensorSource, num_rows: int, num_columns: int, num_blocks: int = 1) -> TensorSource:
    """Return a matrix or a bias with zeros at the end of the rows of each block, and of the columns."""
    sizes = (num_rows, num_columns)[: len(source.shape)]
    shape = (num_blocks * num_rows, *sizes[1:])

    def read() -> torch.Tensor:
        tensor = source.read()
        blocks = tensor.view(num_blocks, -1, *tensor.shape[1:])
        wider = tensor.new_zeros(num_blocks, *sizes)
        wider[tuple(map(slice, blocks.shape))] = blocks
        return wider.view(shape)

    return source if shape == source.shape else TensorSource(source.dtype, shape, read)
