"""Writer of fastscribe's own folders, which native.py describes and reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from fastscribe.checkpoint.formats import FORMAT, LANGUAGE_MODEL_FILE
from fastscribe.checkpoint.int8_rows import quantised
from fastscribe.checkpoint.lazy_weights import sources_of
from fastscribe.checkpoint.native import ALIGNER_FOLDER, FORMAT_VERSION, KEEPS_SPACES_KEY, LANGUAGES_KEY, RANDOM_KEY
from fastscribe.checkpoint.value import Checkpoint
from fastscribe.checkpoint.weight_writers import write_safetensors

if TYPE_CHECKING:
    import torch


def write(checkpoint: Checkpoint, folder: Path, dtype: torch.dtype, in_8_bits: bool = False) -> None:
    """Write a checkpoint without BatchNorm's counters, which inference never reads.

    Args:
        checkpoint: the model.
        folder: created if needed.
        dtype: dtype of float weights.
        in_8_bits: store matrices as int8_rows.py says, which loses some precision.

    Raises:
        CheckpointError: a weight is not finite or cannot be read.
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if checkpoint.aligner is not None:  # first, because config.json marks a complete folder
        write(checkpoint.aligner, folder / ALIGNER_FOLDER, dtype, in_8_bits)
    sources = {name: source for name, source in sources_of(checkpoint.weights).items() if source.dtype != "int64"}
    dtypes = dict.fromkeys(sources, dtype)
    if in_8_bits:
        sources, dtypes = quantised(sources, dtype)
    write_safetensors(folder / "model.safetensors", sources, dtypes)
    for name, content in checkpoint.tokenizer.files.items():
        (folder / name).write_bytes(content)
    if checkpoint.language_model is not None:
        from fastscribe.context.language_model import serialize

        (folder / LANGUAGE_MODEL_FILE).write_bytes(serialize(checkpoint.language_model))
    stored = {"format": FORMAT, "format_version": FORMAT_VERSION, "model": checkpoint.config.to_json()}
    if checkpoint.tokenizer.attached == "nowhere":
        stored[KEEPS_SPACES_KEY] = True
    if checkpoint.languages:
        stored[LANGUAGES_KEY] = list(checkpoint.languages)
    if checkpoint.has_random_weights:
        stored[RANDOM_KEY] = True
    (folder / "config.json").write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")
