"""A Hugging Face folder of a published shape with random weights, for `fastscribe bench --against transformers`.

    python -m scripts.benchmarks.random_folder cohere FOLDER [--layers 48] [--dtype bf16] [--tokens 20]

transformers has no such model of its own, and its texts must have a length. So Cohere's answer ends after `--tokens` tokens:
from that position on, the position's embedding outweighs everything else, and the output layer knows it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.helpers import cohere_folder, granite_folder
from tests.helpers.cohere_folder import Json

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_PROMPT_TOKENS = 10
_LOUD = 1000.0


def fill(pieces: list[str], count: int, mark: str) -> list[str]:
    """Return the pieces and invented ones of four letters, two of five with a word mark."""
    known, number = dict.fromkeys(pieces), 0
    while len(known) < count:
        rest, letters = number, ""
        for _ in range(4):
            rest, letter = divmod(rest, len(_LETTERS))
            letters += _LETTERS[letter]
        known.setdefault(mark * (number % 5 < 2) + letters)
        number += 1
    return list(known)


def random_weights(shapes: dict[str, tuple[int, ...]], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Matrices that keep the size of their inputs, and norms near one."""
    torch.manual_seed(1)
    weights = {}
    for name, shape in shapes.items():
        values = torch.randn(shape) if shape else torch.zeros((), dtype=torch.int64)
        if name.endswith("running_var") or ("norm" in name and name.endswith("weight")):
            values = 1.0 + 0.5 * values.tanh()
        elif len(shape) == 1:
            values *= 0.1
        elif shape and "emb" not in name:
            values *= values[0].numel() ** -0.5
        weights[name] = values.to(dtype) if shape else values
    return weights


def end_after_(weights: dict[str, torch.Tensor], end_id: int, num_tokens: int) -> None:
    """Make the decoder write its end token at a position, and only there."""
    positions, output = weights["model.decoder.pos_emb.weight"], weights["proj_out.weight"]
    direction = torch.where(torch.arange(positions.shape[1]) % 2 == 0, 1.0, -1.0).to(positions.dtype)
    positions[_PROMPT_TOKENS + num_tokens - 1 :] += _LOUD * direction
    weights["model.decoder.embedding_layernorm.weight"].abs_().clamp_(min=0.5)
    weights["model.decoder.norm.weight"].abs_().clamp_(min=0.5)
    output[end_id], weights["proj_out.bias"][end_id] = direction * (_LOUD / len(direction)), -0.4 * _LOUD


def write_cohere(folder: Path, config: Json, dtype: torch.dtype, num_tokens: int) -> None:
    data = cohere_folder.tokenizer()
    data["model"]["vocab"] = {p: i for i, p in enumerate(fill(list(data["model"]["vocab"]), config["vocab_size"], "▁"))}
    weights = random_weights(cohere_folder.shapes(config), dtype)
    weights["proj_out.bias"][: len(data["added_tokens"])] = -_LOUD  # pieces of text alone
    end_after_(weights, config["eos_token_id"], num_tokens)
    tokens = {"pad_token": "<pad>", "eos_token": "<|endoftext|>", "unk_token": "<unk>"}
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False} | tokens
    _write(folder, config, cohere_folder.PROCESSOR_CONFIG, data, described, weights)


def write_granite(folder: Path, dtype: torch.dtype) -> None:
    config, data = granite_folder.PUBLISHED_CONFIG, granite_folder.byte_level_tokenizer()
    data["model"]["vocab"] = {p: i for i, p in enumerate(fill(list(data["model"]["vocab"]), config["vocab_size"], "Ġ"))}
    described = {"tokenizer_class": "ParakeetTokenizer", "pad_token": "<|blank|>"}
    weights = random_weights(granite_folder.shapes(config), dtype)
    _write(folder, config, granite_folder.PROCESSOR_CONFIG, data, described, weights)


def _write(
    folder: Path, config: Json, processor: Json, tokenizer: Json, described: Json, weights: dict[str, torch.Tensor]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (
        ("config", config),
        ("processor_config", processor),
        ("tokenizer", tokenizer),
        ("tokenizer_config", described),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("cohere", "granite"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=48, help="layers of Cohere's encoder")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="bf16", help="of the stored weights")
    parser.add_argument("--tokens", type=int, default=20, help="tokens of each of Cohere's texts")
    given = parser.parse_args()
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[given.dtype]
    if given.kind == "cohere":
        config: Json = json.loads(json.dumps(cohere_folder.SAVED_CONFIG))
        config["encoder_config"]["num_hidden_layers"] = given.layers
        write_cohere(given.folder, config, dtype, given.tokens)
    else:
        write_granite(given.folder, dtype)


if __name__ == "__main__":
    main()
