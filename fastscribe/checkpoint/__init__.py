"""Checkpoints as data: a config, a tokenizer and named float tensors, from whichever of three formats a path holds.

A checkpoint runs no code here and writes nothing: weights are found by the headers of their files, which are checked first,
and read one tensor at a time when something asks for them; YAML comes through the safe loader; a tar is read member by
member; and a path that is no ordinary file is not opened.
"""

from __future__ import annotations

import stat
from pathlib import Path

from fastscribe.checkpoint import huggingface, native, nemo
from fastscribe.checkpoint.value import Checkpoint, one_line, read_json
from fastscribe.errors import CheckpointError

__all__ = ["Checkpoint", "read_checkpoint"]


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Reads a .nemo file (tar, or gzip tar), an unpacked one, a Hugging Face folder or a fastscribe folder.

    Raises CheckpointError for everything that cannot be used, naming what and where.
    """
    path = Path(path)
    try:
        return _read(path)
    except MemoryError as error:
        raise CheckpointError(path, "needs more memory than there is") from error


def _read(path: Path) -> Checkpoint:
    mode = _mode(path)
    if stat.S_ISREG(mode):
        return nemo.read_archive(path)
    if not stat.S_ISDIR(mode):
        raise CheckpointError(path, "neither a file nor a folder")
    if (path / nemo.CONFIG_NAME).is_file():
        return nemo.read_folder(path)
    config = _read_config_json(path)
    return native.read(path, config) if config.get("format") == native.FORMAT else huggingface.read(path, config)


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        problem = "no such model; give a .nemo file, a Hugging Face folder or a fastscribe folder"
        raise CheckpointError(path, problem) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(path, f"cannot be opened: {one_line(error)}") from error


def _read_config_json(folder: Path) -> dict:
    try:
        config = read_json(folder / "config.json")
    except FileNotFoundError:
        raise CheckpointError(folder, f"not a model folder: holds neither config.json nor {nemo.CONFIG_NAME}") from None
    if not isinstance(config, dict):
        raise CheckpointError(folder / "config.json", "not a JSON object")
    return config
