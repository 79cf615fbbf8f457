"""fastscribe's own folder: config.json (ModelConfig as JSON), model.safetensors (our names), the tokenizer's file, and a
language model where there is one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fastscribe import language_model
from fastscribe.checkpoint.validate import validate
from fastscribe.checkpoint.value import Checkpoint, odd_values_refused, one_line, read_tokenizer
from fastscribe.checkpoint.weights import load_safetensors
from fastscribe.config import ModelConfig
from fastscribe.errors import CheckpointError
from fastscribe.language_model import LanguageModel
from fastscribe.regular_file import read_regular

FORMAT = "fastscribe"
FORMAT_VERSION = 1
KEEPS_SPACES_KEY = "keeps_spaces"  # true where punctuation is written as the model was taught, and not as NeMo does
RANDOM_KEY = "random_weights"  # true in a model that was made for benchmarks


def read(folder: Path, stored: Mapping[str, Any]) -> Checkpoint:
    """Raises CheckpointError where the folder is not what `write` makes."""
    config = read_config(folder, stored, folder)
    tokenizer, weights = read_tokenizer(folder, config), load_safetensors(folder / "model.safetensors")
    if stored.get(KEEPS_SPACES_KEY) is True:
        tokenizer = replace(tokenizer, attached="nowhere")
    is_random, heeded = stored.get(RANDOM_KEY) is True, _language_model(folder, config)
    return Checkpoint(folder, "fastscribe", config, tokenizer, weights, is_random, heeded)


def read_config(folder: Path, stored: Mapping[str, Any], where: object) -> ModelConfig:
    """Read the configuration alone; `where` names the folder in messages. Raises CheckpointError."""
    if stored.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            where, f"format_version {stored.get('format_version')!r}; this fastscribe reads {FORMAT_VERSION}"
        )
    with odd_values_refused(f"{where}: config.json"):
        config = ModelConfig.from_json(stored["model"])
        validate(config, f"{where}: config.json")
    return config


def _language_model(folder: Path, config: ModelConfig) -> LanguageModel | None:
    """Raises CheckpointError for a damaged one, and where the model could not heed it."""
    path = folder / language_model.FILE
    if not os.path.lexists(path):  # a link that leads nowhere is a download that lacks something
        return None
    try:
        content = read_regular(path, language_model.MOST_BYTES)
    except (OSError, ValueError) as error:
        raise CheckpointError(path, f"cannot be read: {one_line(error)}") from error
    return language_model.parse(content, path, config.blank_id)


def write(checkpoint: Checkpoint, folder: Path, dtype: torch.dtype) -> None:
    """Writes the checkpoint with float weights as `dtype`; BatchNorm's counters, which inference never reads, are left out."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    # Copies, because safetensors refuses tensors that share memory, as a NeMo Canary's head and embedding do.
    weights = {
        name: tensor.to(dtype, copy=True).contiguous()
        for name, tensor in checkpoint.weights.items()
        if tensor.is_floating_point()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for name, content in checkpoint.tokenizer.files.items():
        (folder / name).write_bytes(content)
    if checkpoint.language_model is not None:
        (folder / language_model.FILE).write_bytes(language_model.packed(checkpoint.language_model))
    stored = {"format": FORMAT, "format_version": FORMAT_VERSION, "model": checkpoint.config.to_json()}
    if checkpoint.tokenizer.attached == "nowhere":
        stored[KEEPS_SPACES_KEY] = True
    if checkpoint.has_random_weights:
        stored[RANDOM_KEY] = True
    (folder / "config.json").write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")
