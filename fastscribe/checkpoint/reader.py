"""Checkpoints as data: a config, a tokenizer and named float tensors, from whichever of three formats a path holds.

A checkpoint runs no code here and writes nothing: weights are found by the headers of their files, which are checked first,
and read one tensor at a time when something asks for them; YAML comes through the safe loader; a tar is read member by
member; and a path that is no ordinary file is not opened.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastscribe.checkpoint import huggingface, native, nemo
from fastscribe.checkpoint.value import Checkpoint, one_line, read_json
from fastscribe.errors import CheckpointError

__all__ = ["Checkpoint", "check_config", "nemo_beside", "read_checkpoint"]

CONFIG_NAME = "config.json"


def read_checkpoint(path: str | Path, say: Callable[[str], None] = lambda line: None) -> Checkpoint:
    """Read a .nemo file (tar, or gzip tar), an unpacked one, a Hugging Face folder or a fastscribe folder.

    A folder whose config.json is of no such model, or that has none, may hold one .nemo file: that one is read, and `say`
    gets a line. Raises CheckpointError for everything that cannot be used, naming what and where.
    """
    path = Path(path)
    try:
        return _read(path, say)
    except MemoryError as error:
        raise CheckpointError(path, "needs more memory than there is") from error


def check_config(folder: Path, where: object) -> None:
    """Check the configuration of a folder whose weights need not be there yet.

    Args:
        folder: a Hugging Face or fastscribe folder.
        where: the name that messages give it.

    Raises:
        CheckpointError: a setting is missing or not supported.
    """
    try:
        config = _read_config_json(folder)
    except FileNotFoundError:
        raise CheckpointError(where, f"holds no {CONFIG_NAME}") from None
    read_config = native.read_config if config.get("format") == native.FORMAT else huggingface.read_config
    read_config(folder, config, where)


def _read(path: Path, say: Callable[[str], None]) -> Checkpoint:
    mode = _mode(path)
    if stat.S_ISREG(mode):
        return nemo.read_archive(path)
    if not stat.S_ISDIR(mode):
        raise CheckpointError(path, "neither a file nor a folder")
    if (path / nemo.CONFIG_NAME).is_file():
        return nemo.read_folder(path)
    try:
        config = _read_config_json(path)
    except FileNotFoundError:
        config = {}
    if config.get("format") == native.FORMAT:
        return native.read(path, config)
    if config.get("model_type") in huggingface.FAMILIES:
        return huggingface.read(path, config)
    beside = nemo_beside(path)
    if beside is not None:
        reason = f"its {CONFIG_NAME} is not of a supported model" if config else f"it has no {CONFIG_NAME}"
        say(f"{path}: using {beside.name}; {reason}")
        return nemo.read_archive(beside)
    if not config:
        raise CheckpointError(path, f"not a model folder: holds no {CONFIG_NAME}, {nemo.CONFIG_NAME} or .nemo file")
    if "nemo_model_name" in config or "nemo_model_type" in config:
        name = config.get("nemo_model_name", "the model")
        raise CheckpointError(path, f"{CONFIG_NAME} describes NeMo's encoder alone; give the .nemo file of {name}")
    return huggingface.read(path, config)


def nemo_beside(folder: Path) -> Path | None:
    """Return the folder's .nemo file, or None if there is none. Raises CheckpointError for several."""
    found = sorted(folder.glob("*.nemo"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:3])
        raise CheckpointError(folder, f"holds {len(found)} .nemo files ({names}); give one of them")
    return found[0] if found else None


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        problem = "no such model; give a .nemo file, a Hugging Face folder or a fastscribe folder"
        raise CheckpointError(path, problem) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(path, f"cannot be opened: {one_line(error)}") from error


def _read_config_json(folder: Path) -> dict[str, Any]:
    config = read_json(folder / CONFIG_NAME)
    if not isinstance(config, dict):
        raise CheckpointError(folder / CONFIG_NAME, "not a JSON object")
    return config
