"""A small Granite Speech 5.0 TurboCTC model with random weights, as the folder that transformers reads.

The weights come from NumPy's legacy generator, whose numbers do not change between versions. Used by tests, and by
scripts/goldens/granite.py, which runs where transformers is installed and fastscribe is not, so nothing here
imports either of them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

Json = dict[str, Any]

NAMES = ("granite-speech-5.0-470m-turboctc", "granite-speech-5.0-470m-turboctc-nc")
# The published configuration of both models; their folders differ by the tokenizer.
PUBLISHED_CONFIG: Json = {
    "architectures": ["GraniteSpeech5ForCTC"],
    "ctc_loss_reduction": "mean",
    "ctc_zero_infinity": True,
    "dtype": "bfloat16",
    "encoder_config": {
        "activation_dropout": 0.0,
        "attention_bias": True,
        "attention_dropout": 0.0,
        "context_size": 128,
        "conv_expansion_factor": 2,
        "conv_kernel_size": 7,
        "dtype": "bfloat16",
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "initializer_range": 0.02,
        "intermediate_size": 4096,
        "max_position_embeddings": 512,
        "model_type": "granite_speech5_encoder",
        "num_attention_heads": 8,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "num_mel_bins": 80,
        "subsample_layers": [0, 1],
        "vocab_size": 16384,
    },
    "initializer_range": 0.02,
    "model_type": "granite_speech5_ctc",
    "pad_token_id": 0,
    "tie_word_embeddings": True,
    "transformers_version": "5.16.0",
    "vocab_size": 16384,
}
PROCESSOR_CONFIG: Json = {
    "feature_extractor": {
        "delta_win_length": 3,
        "feature_extractor_type": "GraniteSpeech5FeatureExtractor",
        "feature_size": 320,
        "hop_length": 160,
        "logmel_floor_db": 8.0,
        "n_fft": 512,
        "num_mel_bins": 80,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": True,
        "sampling_rate": 16000,
        "win_length": 400,
    },
    "processor_class": "GraniteSpeech5Processor",
}
_TEXTS = (
    " the",
    " a",
    " of",
    "ing",
    " dog",
    "s",
    "t",
    "e",
    ",",
    ".",
    " naïve",
    "é",
    " 漢",
    "字",
    " It's",
    "  two",
    "#",
    " 7",
)
_PARTS = (b"\xc3", b"\xa9", b"\xe6\xbc", b"\xa2", b" \xc3", b"\xf0\x9f\x98", b"\x80", b"\xff")  # of characters
_SHARPNESS = 4.0  # of the output layer, so that rounding does not change the best label


def byte_level(content: bytes) -> str:
    """Return bytes as a byte-level BPE writes them: printable ones as themselves, others from U+0100 on."""
    printable = [byte for byte in range(256) if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255]
    others = [byte for byte in range(256) if byte not in printable]
    return "".join(chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in content)


def byte_level_tokenizer() -> Json:
    """Return the kind of the Apache-licensed model: pieces of bytes, and the blank as an added token."""
    pieces = ["<|blank|>", *(byte_level(text.encode()) for text in _TEXTS), *(byte_level(part) for part in _PARTS)]
    blank = {"id": 0, "content": pieces[0], "single_word": False, "lstrip": False, "rstrip": False}
    byte_level_step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [blank | {"normalized": False, "special": True}],
        "normalizer": None,
        "pre_tokenizer": byte_level_step,
        "post_processor": None,
        "decoder": byte_level_step | {"add_prefix_space": True},
        "model": {"type": "BPE", "vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": []},
    }


def sentence_pieces_tokenizer() -> Json:
    """Return the kind of the other model: pieces with word marks, bytes, and text tokens that nothing hides."""
    words = [text.replace(" ", "▁") for text in _TEXTS]
    pieces = ["<unk>", "<|tok0|>", "<|tok1|>", *(f"<0x{byte:02X}>" for byte in (0x41, 0x62, 0x20)), *words]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    steps = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [plain | {"id": i, "content": pieces[i], "special": i == 0} for i in range(3)],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [*steps, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {
            "type": "BPE",
            "byte_fallback": True,
            "unk_token": "<unk>",
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": [],
        },
    }


TOKENIZERS = {"turboctc": byte_level_tokenizer, "turboctc-nc": sentence_pieces_tokenizer}
SEEDS = {"turboctc": 11, "turboctc-nc": 7}  # models that say many different labels


def small_config(num_tokens: int, **encoder: Any) -> Json:
    """Return the published configuration with small sizes; every key stays, and so does the size of a block."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 4, "head_dim": 8, "vocab_size": num_tokens}
    whole = json.loads(json.dumps(PUBLISHED_CONFIG))
    whole["encoder_config"] |= sizes | encoder
    return whole | {"vocab_size": num_tokens}


def shapes(config: Json) -> dict[str, tuple[int, ...]]:
    """Return name and shape of each stored weight; the head is the encoder's own output layer."""
    encoder, found = config["encoder_config"], {}
    width, inner = encoder["hidden_size"], encoder["intermediate_size"]
    channels, tokens = width * encoder["conv_expansion_factor"], encoder["vocab_size"]

    def linear(name: str, inputs: int, outputs: int, bias: bool = True) -> None:
        found[f"{name}.weight"] = (outputs, inputs)
        if bias:
            found[f"{name}.bias"] = (outputs,)

    linear("encoder.input_linear", 4 * encoder["num_mel_bins"], width)
    linear("encoder.out", width, tokens)
    linear("encoder.out_mid", tokens, width)
    for layer in (f"encoder.layers.{number}" for number in range(encoder["num_hidden_layers"])):
        for name in ("feed_forward1", "feed_forward2"):
            linear(f"{layer}.{name}.linear1", width, inner, encoder["attention_bias"])
            linear(f"{layer}.{name}.linear2", inner, width, encoder["attention_bias"])
        for name in ("q", "k", "v", "o"):
            linear(f"{layer}.self_attn.{name}_proj", width, width, name == "o")
        num_positions = 2 * encoder["max_position_embeddings"] + 1
        found[f"{layer}.self_attn.rel_pos_emb.weight"] = (num_positions, width // encoder["num_attention_heads"])
        linear(f"{layer}.conv.pointwise_lin1", width, 2 * channels)
        linear(f"{layer}.conv.pointwise_lin2", channels, width)
        found[f"{layer}.conv.depthwise_conv.weight"] = (channels, 1, encoder["conv_kernel_size"])
        for name in ("weight", "bias", "running_mean", "running_var"):
            found[f"{layer}.conv.norm.{name}"] = (channels,)
        found[f"{layer}.conv.norm.num_batches_tracked"] = ()
        for name in ("norm_feed_forward1", "norm_self_att", "norm_conv", "norm_feed_forward2", "norm_out"):
            found[f"{layer}.{name}.weight"] = found[f"{layer}.{name}.bias"] = (width,)
    return found


def num_parameters(config: Json) -> int:
    """Return the number of stored weights that are learnt."""
    return sum(math.prod(shape) for name, shape in shapes(config).items() if shape and "running" not in name)


def random_weights(config: Json, seed: int) -> dict[str, torch.Tensor]:
    """Return float32 weights: matrices that keep the size of their inputs, norms near one, and a blank that often wins."""
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
        elif "rel_pos_emb" not in name:
            values *= np.prod(shape[1:]) ** -0.5
        if name == "encoder.out.weight":
            values *= _SHARPNESS
        if name == "encoder.out.bias":
            values[0] += _SHARPNESS
        if name == "encoder.out_mid.weight":
            values *= 4.0 * shape[1] ** 0.5  # of probabilities, most of which are near zero
        weights[name] = torch.from_numpy(values.astype(np.float32))
    return weights


def write_folder(folder: Path, kind: str = "turboctc", **encoder: Any) -> Json:
    """Write the folder and return its config.json; `encoder` replaces values of its encoder_config."""
    tokenizer = TOKENIZERS[kind]()
    config = small_config(len(tokenizer["model"]["vocab"]), **encoder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "processor_config.json").write_text(json.dumps(PROCESSOR_CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    blank = tokenizer["added_tokens"][0]["content"]
    described = {"tokenizer_class": "ParakeetTokenizer", "pad_token": blank, "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    save_file(random_weights(config, SEEDS[kind]), folder / "model.safetensors", metadata={"format": "pt"})
    return config
