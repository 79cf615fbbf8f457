"""Checkpoints as data: a config, a tokenizer and named float tensors, from whichever of three formats a path holds.

A checkpoint runs no code here: weights come through safetensors or torch's weights_only loader, YAML through the safe
loader, and a tar is read member by member without unpacking paths of its choosing.
"""

from __future__ import annotations

import json
from pathlib import Path

from fastscribe.checkpoint import huggingface, native, nemo
from fastscribe.checkpoint.value import Checkpoint
from fastscribe.errors import CheckpointError

__all__ = ["Checkpoint", "read_checkpoint"]


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Reads a .nemo file (tar, or gzip tar), an unpacked one, a Hugging Face folder or a fastscribe folder.

    Raises CheckpointError for everything that cannot be used, naming what and where.
    """
    path = Path(path)
    if path.is_file():
        return nemo.read_archive(path)
    if not path.exists():
        raise CheckpointError(path, "no such model; give a .nemo file, a Hugging Face folder or a fastscribe folder")
    if (path / nemo.CONFIG_NAME).is_file():
        return nemo.read_folder(path)
    config = _read_config_json(path)
    return native.read(path, config) if config.get("format") == native.FORMAT else huggingface.read(path, config)


def _read_config_json(folder: Path) -> dict:
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except FileNotFoundError:
        raise CheckpointError(folder, f"not a model folder: holds neither config.json nor {nemo.CONFIG_NAME}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(folder / "config.json", f"cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(folder / "config.json", "not a JSON object")
    return config
