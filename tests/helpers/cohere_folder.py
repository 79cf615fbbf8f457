"""A small Cohere Transcribe model with random weights, as the folder that transformers' CohereAsr classes read.

The weights come from NumPy's legacy generator, as those of granite_folder.py. Used by tests, and by
scripts/goldens/make_cohere_goldens.py, which runs where transformers is installed and fastscribe is not, so nothing here
imports either of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

Json = dict[str, Any]

NAME = "cohere-transcribe-03-2026"
# The defaults of transformers' CohereAsrConfig, which are the published model's sizes.
PUBLISHED_CONFIG: Json = {
    "architectures": ["CohereAsrForConditionalGeneration"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "bos_token_id": 4,
    "decoder_start_token_id": None,
    "dtype": "bfloat16",
    "encoder_config": {
        "activation_dropout": 0.0,
        "attention_bias": True,
        "attention_dropout": 0.0,
        "conv_kernel_size": 9,
        "convolution_bias": True,
        "dropout": 0.0,
        "dropout_positions": 0.0,
        "hidden_act": "silu",
        "hidden_size": 1280,
        "initializer_range": 0.02,
        "intermediate_size": 5120,
        "layerdrop": 0.0,
        "max_position_embeddings": 5000,
        "model_type": "parakeet_encoder",
        "num_attention_heads": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "num_mel_bins": 128,
        "scale_input": False,
        "subsampling_conv_channels": 256,
        "subsampling_conv_kernel_size": 3,
        "subsampling_conv_stride": 2,
        "subsampling_factor": 8,
    },
    "eos_token_id": 3,
    "head_dim": 128,
    "hidden_act": "relu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 4096,
    "is_encoder_decoder": True,
    "max_position_embeddings": 1024,
    "model_type": "cohere_asr",
    "num_attention_heads": 8,
    "num_hidden_layers": 8,
    "num_key_value_heads": 8,
    "pad_token_id": 2,
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": 16384,
}
PROCESSOR_CONFIG: Json = {
    "feature_extractor": {
        "dither": 1e-05,
        "feature_extractor_type": "CohereAsrFeatureExtractor",
        "feature_size": 128,
        "hop_length": 160,
        "max_audio_clip_s": 35.0,
        "min_energy_window_samples": 1600,
        "n_fft": 512,
        "overlap_chunk_second": 5.0,
        "padding_side": "right",
        "padding_value": 0.0,
        "preemphasis": 0.97,
        "return_attention_mask": True,
        "sampling_rate": 16000,
        "win_length": 400,
    },
    "processor_class": "CohereAsrProcessor",
}
# fmt: off
_CONTROLS = (
    "<unk>", "<|nospeech|>", "<pad>", "<|endoftext|>", "<|startoftranscript|>", "<|pnc|>", "<|nopnc|>", "<|startofcontext|>",
    "<|itn|>", "<|noitn|>", "<|timestamp|>", "<|notimestamp|>", "<|diarize|>", "<|nodiarize|>", "<|emo:undefined|>",
    "<|en|>", "<|de|>", "<|ja|>",
)
_PIECES = ("▁", "▁the", "▁dog", "s", "ing", "▁of", ",", ".", "é", "▁It", "字", "▁7", "o", "▁and", "er", "▁漢")
# fmt: on


def tokenizer() -> Json:
    pieces = [*_CONTROLS, *_PIECES]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    steps = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "Fuse"}]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [plain | {"id": i, "content": piece} for i, piece in enumerate(_CONTROLS)],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [*steps, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "vocab": {p: i for i, p in enumerate(pieces)}, "merges": []},
    }


def small_config() -> Json:
    """Return the published configuration with small sizes; every key stays."""
    whole = json.loads(json.dumps(PUBLISHED_CONFIG))
    sizes = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
    whole["encoder_config"] |= sizes | {"num_key_value_heads": 4, "subsampling_conv_channels": 8}
    own = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    own |= {"num_key_value_heads": 4, "head_dim": 6, "max_position_embeddings": 48}
    return whole | own | {"vocab_size": len(_CONTROLS) + len(_PIECES)}


def shapes(config: Json) -> dict[str, tuple[int, ...]]:
    """Return name and shape of each stored weight."""
    found: dict[str, tuple[int, ...]] = {}

    def layer(name: str, *shape: int) -> None:
        found[f"{name}.weight"], found[f"{name}.bias"] = shape, (shape[0],)

    encoder = config["encoder_config"]
    width, inner, channels = encoder["hidden_size"], encoder["intermediate_size"], encoder["subsampling_conv_channels"]
    heads, kernel, stage = encoder["num_attention_heads"], encoder["conv_kernel_size"], "model.encoder.subsampling"
    layer(f"{stage}.layers.0", channels, 1, 3, 3)
    for number in (2, 5):
        layer(f"{stage}.layers.{number}", channels, 1, 3, 3)
        layer(f"{stage}.layers.{number + 1}", channels, channels, 1, 1)
    layer(f"{stage}.linear", width, channels * encoder["num_mel_bins"] // 8)
    for name in (f"model.encoder.layers.{number}" for number in range(encoder["num_hidden_layers"])):
        for norm in ("norm_feed_forward1", "norm_self_att", "norm_conv", "norm_feed_forward2", "norm_out"):
            layer(f"{name}.{norm}", width)
        for part in ("feed_forward1", "feed_forward2"):
            layer(f"{name}.{part}.linear1", inner, width)
            layer(f"{name}.{part}.linear2", width, inner)
        for part in "qkvo":
            layer(f"{name}.self_attn.{part}_proj", width, width)
        found[f"{name}.self_attn.relative_k_proj.weight"] = (width, width)
        found[f"{name}.self_attn.bias_u"] = found[f"{name}.self_attn.bias_v"] = (heads, width // heads)
        layer(f"{name}.conv.pointwise_conv1", 2 * width, width, 1)
        layer(f"{name}.conv.depthwise_conv", width, 1, kernel)
        layer(f"{name}.conv.pointwise_conv2", width, width, 1)
        layer(f"{name}.conv.norm", width)
        found[f"{name}.conv.norm.running_mean"] = found[f"{name}.conv.norm.running_var"] = (width,)
        found[f"{name}.conv.norm.num_batches_tracked"] = ()
    hidden, inner, tokens = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    found["model.decoder.embed_tokens.weight"] = (tokens, hidden)
    found["model.decoder.pos_emb.weight"] = (config["max_position_embeddings"], hidden)
    layer("model.decoder.proj", hidden, width)
    layer("model.decoder.embedding_layernorm", hidden)
    layer("model.decoder.norm", hidden)
    for name in (f"model.decoder.layers.{number}" for number in range(config["num_hidden_layers"])):
        for norm in ("input_layernorm", "post_attention_layernorm", "final_layernorm"):
            layer(f"{name}.{norm}", hidden)
        for attention in ("self_attn", "encoder_attn"):
            for part in "qkvo":
                layer(f"{name}.{attention}.{part}_proj", hidden, hidden)
        layer(f"{name}.mlp.fc1", inner, hidden)
        layer(f"{name}.mlp.fc2", hidden, inner)
    layer("proj_out", tokens, hidden)
    return found


def random_weights(config: Json, seed: int) -> dict[str, torch.Tensor]:
    """Return float32 weights of a model whose tokens depend on the audio and that ends some of its texts."""
    random, weights = np.random.RandomState(seed), {}
    for name, shape in sorted(shapes(config).items()):
        if not shape:
            weights[name] = torch.zeros((), dtype=torch.int64)
            continue
        values = random.standard_normal(shape)
        if name.endswith("running_var") or ("norm" in name and name.endswith("weight")):
            values = 1.0 + 0.5 * np.tanh(values)
        elif len(shape) == 1:
            values *= 0.1
        elif "emb" not in name and "bias_" not in name:
            values *= np.prod(shape[1:]) ** -0.5
        if name.endswith("attn.q_proj.weight") or name == "proj_out.weight":
            values *= 4.0  # attention to few frames, and labels that are clearly the best
        if name == "proj_out.bias":
            values[: len(_CONTROLS)] -= 100.0  # only pieces of text, and the end
            values[config["eos_token_id"]] += 100.0 + _END_BIAS
        weights[name] = torch.from_numpy(values.astype(np.float32))
    return weights


_END_BIAS = 3.0
SEED = 3


def write_folder(folder: Path, seed: int = SEED) -> Json:
    """Write the folder and return its config.json."""
    config = small_config()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "processor_config.json").write_text(json.dumps(PROCESSOR_CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(), ensure_ascii=False), encoding="utf-8")
    tokens = {"pad_token": "<pad>", "eos_token": "<|endoftext|>", "unk_token": "<unk>"}
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(described | tokens))
    save_file(random_weights(config, seed), folder / "model.safetensors", metadata={"format": "pt"})
    return config
