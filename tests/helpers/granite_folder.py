"""A small Granite Speech 5.0 TurboCTC model with random weights, as the folder that transformers reads.

Used by tests, and by scripts/goldens/granite.py, which runs where transformers is installed and fastscribe is not, so nothing
here imports either of them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from tests.helpers.hf_folder import Json, bpe_tokenizer, drawn_weights, word_mark_decoder, write_json
from tests.helpers.se_checkpoint import Shapes, batch_norm, linear

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
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return bpe_tokenizer(pieces, [True], step | {"add_prefix_space": True}, step)


def sentence_pieces_tokenizer() -> Json:
    """Return the kind of the other model: pieces with word marks, bytes, and text tokens that nothing hides."""
    words = [text.replace(" ", "▁") for text in _TEXTS]
    pieces = ["<unk>", "<|tok0|>", "<|tok1|>", *(f"<0x{byte:02X}>" for byte in (0x41, 0x62, 0x20)), *words]
    decoder = word_mark_decoder({"type": "ByteFallback"})
    return bpe_tokenizer(pieces, [True, False, False], decoder, byte_fallback=True, unk_token="<unk>")


TOKENIZERS = {"turboctc": byte_level_tokenizer, "turboctc-nc": sentence_pieces_tokenizer}
SEEDS = {"turboctc": 11, "turboctc-nc": 7}  # models that say many different labels


def small_config(num_tokens: int, **encoder: Any) -> Json:
    """Return the published configuration with small sizes; every key stays, and so does the size of a block."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 4, "head_dim": 8, "vocab_size": num_tokens}
    whole = json.loads(json.dumps(PUBLISHED_CONFIG))
    whole["encoder_config"] |= sizes | encoder
    return whole | {"vocab_size": num_tokens}


def shapes(config: Json) -> Shapes:
    """Return name and shape of each stored weight; the head is the encoder's own output layer."""
    encoder, found, norms = config["encoder_config"], {}, ("feed_forward1", "self_att", "conv", "feed_forward2", "out")
    width, inner, has_bias = encoder["hidden_size"], encoder["intermediate_size"], encoder["attention_bias"]
    channels, tokens = width * encoder["conv_expansion_factor"], encoder["vocab_size"]
    found |= linear("encoder.input_linear", 4 * encoder["num_mel_bins"], width)
    found |= linear("encoder.out", width, tokens) | linear("encoder.out_mid", tokens, width)
    for layer in (f"encoder.layers.{number}" for number in range(encoder["num_hidden_layers"])):
        for name in (f"{layer}.feed_forward1", f"{layer}.feed_forward2"):
            found |= linear(f"{name}.linear1", width, inner, has_bias) | linear(
                f"{name}.linear2", inner, width, has_bias
            )
        for name in "qkvo":
            found |= linear(f"{layer}.self_attn.{name}_proj", width, width, name == "o")
        num_positions = 2 * encoder["max_position_embeddings"] + 1
        found[f"{layer}.self_attn.rel_pos_emb.weight"] = (num_positions, width // encoder["num_attention_heads"])
        found |= linear(f"{layer}.conv.pointwise_lin1", width, 2 * channels)
        found |= linear(f"{layer}.conv.pointwise_lin2", channels, width)
        found |= linear(f"{layer}.conv.depthwise_conv", 1, channels, False, encoder["conv_kernel_size"])
        found |= batch_norm(f"{layer}.conv.norm", channels)
        found |= {f"{layer}.norm_{name}.{part}": (width,) for name in norms for part in ("weight", "bias")}
    return found


def num_parameters(config: Json) -> int:
    """Return the number of stored weights that are learnt."""
    return sum(math.prod(shape) for name, shape in shapes(config).items() if shape and "running" not in name)


def random_weights(config: Json, seed: int) -> dict[str, torch.Tensor]:
    """Return float32 weights with a blank that often wins."""

    def adjust(name: str, values: np.ndarray) -> None:
        if name == "encoder.out.weight":
            values *= _SHARPNESS
        if name == "encoder.out.bias":
            values[0] += _SHARPNESS
        if name == "encoder.out_mid.weight":
            values *= 4.0 * values.shape[1] ** 0.5  # of probabilities, most of which are near zero

    return drawn_weights(shapes(config), seed, adjust)


def write_folder(folder: Path, kind: str = "turboctc", **encoder: Any) -> Json:
    """Write the folder and return its config.json; `encoder` replaces values of its encoder_config."""
    tokenizer = TOKENIZERS[kind]()
    config = small_config(len(tokenizer["model"]["vocab"]), **encoder)
    blank = tokenizer["added_tokens"][0]["content"]
    described = {"tokenizer_class": "ParakeetTokenizer", "pad_token": blank, "clean_up_tokenization_spaces": False}
    write_json(
        folder, config=config, processor_config=PROCESSOR_CONFIG, tokenizer=tokenizer, tokenizer_config=described
    )
    save_file(random_weights(config, SEEDS[kind]), folder / "model.safetensors", metadata={"format": "pt"})
    return config
