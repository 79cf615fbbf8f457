"""What small folders of transformers' models have in common: weights, a tokenizer and files.

Nothing of fastscribe or transformers is imported: scripts/goldens/ runs where one of them is not installed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

Json = dict[str, Any]


def drawn_weights(
    shapes: Mapping[str, tuple[int, ...]], seed: int, adjust: Callable[[str, np.ndarray], None]
) -> dict[str, torch.Tensor]:
    """Return float32 weights from NumPy's legacy generator, whose numbers do not change between versions.

    Matrices keep the size of their inputs, and norms are near one. `adjust` gets each name with its numbers to change them.
    """
    random, weights = np.random.RandomState(seed), {}
    for name, shape in sorted(shapes.items()):
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
        adjust(name, values)
        weights[name] = torch.from_numpy(values.astype(np.float32))
    return weights


def bpe_tokenizer(
    pieces: Sequence[str], added: Sequence[bool], decoder: Json, pre_tokenizer: Json | None = None, **model: Any
) -> Json:
    """Return a tokenizer.json without merges. The first pieces are added tokens: special ones where `added` says so."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokens = [plain | {"id": i, "content": pieces[i], "special": is_special} for i, is_special in enumerate(added)]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    return {
        **{"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens},
        **{"normalizer": None, "pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": decoder},
        "model": {"type": "BPE", **model, "vocab": vocabulary, "merges": []},
    }


def word_mark_decoder(*steps: Json) -> Json:
    """Return what makes a text of pieces with word marks; `steps` come before they are joined."""
    spaces = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return {"type": "Sequence", "decoders": [spaces, *steps, {"type": "Fuse"}, strip]}


def write_json(folder: Path, **contents: Json) -> None:
    """Write files by their names without .json."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
