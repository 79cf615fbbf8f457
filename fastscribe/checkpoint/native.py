"""fastscribe's own folder: config.json (ModelConfig as JSON), model.safetensors (our names), the tokenizer's file, and an
optional language model. A timestamps aligner lies in a folder `aligner`, which is such a folder by itself."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fastscribe._system.safe_files import write_atomic
from fastscribe._system.safe_open import safe_read
from fastscribe.checkpoint.lazy_weights import ITEM_BYTES, LazyWeights, sources_of
from fastscribe.checkpoint.validate import validate
from fastscribe.checkpoint.value import (
    Checkpoint,
    check_aligner,
    odd_values_refused,
    one_line,
    read_json,
    read_tokenizer,
)
from fastscribe.checkpoint.weights import SAFETENSORS_NAMES, load_safetensors
from fastscribe.config import ModelConfig
from fastscribe.errors import CheckpointError

if TYPE_CHECKING:
    import torch

    from fastscribe.text.language_model import LanguageModel

FORMAT = "fastscribe"
FORMAT_VERSION = 1
KEEPS_SPACES_KEY = "keeps_spaces"  # true where punctuation is written as the model was taught, and not as NeMo does
RANDOM_KEY = "random_weights"  # true in a model that was made for benchmarks
ALIGNER_FOLDER = "aligner"


def read(folder: Path, stored: Mapping[str, Any]) -> Checkpoint:
    """Raises CheckpointError where the folder is not what `write` makes."""
    config = read_config(folder, stored, folder)
    tokenizer = read_tokenizer(folder, config)
    weights = LazyWeights(load_safetensors(folder / "model.safetensors"))
    if stored.get(KEEPS_SPACES_KEY) is True:
        tokenizer = replace(tokenizer, attached="nowhere")
    is_random, heeded = stored.get(RANDOM_KEY) is True, _language_model(folder, config)
    return Checkpoint(folder, "fastscribe", config, tokenizer, weights, is_random, heeded, _aligner(folder, config))


def _aligner(folder: Path, config: ModelConfig) -> Checkpoint | None:
    """Raises CheckpointError for one that is damaged, or that this model cannot use."""
    path = folder / ALIGNER_FOLDER
    if not os.path.lexists(path):
        return None
    try:
        stored = read_json(path / "config.json")
    except FileNotFoundError:
        raise CheckpointError(path, "holds no config.json; convert the model anew") from None
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        raise CheckpointError(path / "config.json", "not what fastscribe convert writes")
    if os.path.lexists(path / ALIGNER_FOLDER):
        raise CheckpointError(path, "an aligner with an aligner of its own")
    aligner = read(path, stored)
    check_aligner(aligner.config, config, path)
    return aligner


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
    from fastscribe.text import language_model

    path = folder / language_model.FILE
    if not os.path.lexists(path):  # a link that leads nowhere is a download that lacks something
        return None
    try:
        content = safe_read(path, language_model.MAX_BYTES)
    except (OSError, ValueError) as error:
        raise CheckpointError(path, f"cannot be read: {one_line(error)}") from error
    return language_model.parse(content, path, config.blank_id)


def write(checkpoint: Checkpoint, folder: Path, dtype: torch.dtype) -> None:
    """Writes the checkpoint with float weights as `dtype`; BatchNorm's counters, which inference never reads, are left out.

    Raises CheckpointError if a weight of the checkpoint's file is not finite, OSError if the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if checkpoint.aligner is not None:  # first, because a folder is whole once its own config.json is there
        write(checkpoint.aligner, folder / ALIGNER_FOLDER, dtype)
    _write_weights(checkpoint, folder / "model.safetensors", dtype)
    for name, content in checkpoint.tokenizer.files.items():
        (folder / name).write_bytes(content)
    if checkpoint.language_model is not None:
        from fastscribe.text import language_model

        (folder / language_model.FILE).write_bytes(language_model.packed(checkpoint.language_model))
    stored = {"format": FORMAT, "format_version": FORMAT_VERSION, "model": checkpoint.config.to_json()}
    if checkpoint.tokenizer.attached == "nowhere":
        stored[KEEPS_SPACES_KEY] = True
    if checkpoint.has_random_weights:
        stored[RANDOM_KEY] = True
    (folder / "config.json").write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")


def _write_weights(checkpoint: Checkpoint, path: Path, dtype: torch.dtype) -> None:
    """One tensor after another, as safetensors lays them out; safetensors itself wants all of them in memory, twice."""
    import torch

    type_name = str(dtype).removeprefix("torch.")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    sources = {name: source for name, source in sources_of(checkpoint.weights).items() if source.dtype != "int64"}
    end = 0
    for name in sorted(sources):
        start, end = end, end + sources[name].num_elements * ITEM_BYTES[type_name]
        header[name] = {
            "dtype": SAFETENSORS_NAMES[type_name],
            "shape": list(sources[name].shape),
            "data_offsets": [start, end],
        }
    encoded = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)

    def write_all(file: BinaryIO) -> None:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for name in sorted(sources):
            tensor = sources[name].read().detach().to("cpu", dtype).contiguous()
            file.write(tensor.view(-1).view(torch.uint8).numpy().data)

    write_atomic(path, write_all)  # the weights may have been read from this file
