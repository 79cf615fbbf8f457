"""Writer of fastscribe's own folders, durably under a temporary name. native.py describes and reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fastscribe._system.file_kinds import InTheWay
from fastscribe._system.safe_files import remove, sync_folder, sync_path, temp_path_for
from fastscribe.checkpoint.lazy_weights import sources_of
from fastscribe.checkpoint.native import (
    ALIGNER_FOLDER,
    FORMAT_VERSION,
    KEEPS_SPACES_KEY,
    LANGUAGE_MODEL_FILE,
    LANGUAGES_KEY,
    RANDOM_KEY,
    quantised,
)
from fastscribe.checkpoint.value import FORMAT, Checkpoint
from fastscribe.checkpoint.weight_writers import write_safetensors

if TYPE_CHECKING:
    import torch


def write(checkpoint: Checkpoint, folder: Path, dtype: torch.dtype, in_8_bits: bool = False) -> None:
    """Write a checkpoint without BatchNorm's counters, which inference never reads.

    Args:
        checkpoint: the model.
        folder: created if needed.
        dtype: dtype of float weights.
        in_8_bits: store matrices in 8 bits as native.py says, which loses some precision.

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


@contextmanager
def new_model(folder: Path) -> Iterator[Path]:
    """Create a temporary folder beside `folder` to write a model into. On exit it is synced; the caller renames it.

    Args:
        folder: the final path.

    Yields:
        The temporary folder, which an exception removes.

    Raises:
        OSError: the folder cannot be written.
    """
    new = temp_path_for(folder)
    remove_model(new)
    folder.parent.mkdir(parents=True, exist_ok=True)
    new.mkdir()
    try:
        yield new
        for path in (*new.rglob("*"), new):
            sync_folder(path) if path.is_dir() else sync_path(path)
    except BaseException:
        remove_model(new)
        raise


def remove_model(folder: Path) -> None:
    """Remove a model's folder, if there is one. Raises OSError for a link, or for any subfolder but an aligner's."""
    if folder.is_symlink():
        raise InTheWay(folder)
    if folder.is_dir():
        for path in folder.iterdir():
            if path.name == ALIGNER_FOLDER:
                remove_model(path)
            else:
                remove(path)
        folder.rmdir()
