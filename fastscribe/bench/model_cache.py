"""Random models (random_model.py) kept in the user's cache folder, since a large one takes a minute to make on a CPU.

A folder's name ends in a digest of everything that decides what is in it, so a changed shape or recipe is made anew and
takes the place of what was there. Weights are stored in bf16, which is what large models run in.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from fastscribe._system.safe_files import sync_path
from fastscribe._system.user_cache import cache_folder
from fastscribe.bench import random_model, synthetic
from fastscribe.bench.shapes import SHAPES
from fastscribe.checkpoint import native_writer
from fastscribe.errors import UsageError

_DIGITS = 12  # of the digest


def cached_model(shape: str, device: str, say: Callable[[str], None]) -> Path:
    """A folder with a random checkpoint of this shape, a name in SHAPES. Raises UsageError where none can be written."""
    folder = _cache() / f"{shape}-{_digest(shape)}"
    if (folder / "config.json").is_file():
        return folder
    say(f"making a {shape} with random weights, once; of 0.6B this takes a minute on a CPU (kept: {folder})")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f"{shape}.part-", dir=folder.parent))
    except OSError as error:
        raise _cannot_keep(folder.parent, error) from error
    try:
        native_writer.write(random_model.random_checkpoint(shape, device=device), unfinished, torch.bfloat16)
        for old in folder.parent.glob(f"{shape}-{'?' * _DIGITS}"):
            if old != folder:
                shutil.rmtree(old, ignore_errors=True)
        for path in (*unfinished.iterdir(), unfinished):
            sync_path(path)
        unfinished.rename(folder)
    except OSError as error:
        if not folder.is_dir():  # else somebody was quicker
            raise _cannot_keep(folder.parent, error) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _cache() -> Path:
    return cache_folder() / "random-models"


def _digest(shape: str) -> str:
    recipe = json.dumps(SHAPES[shape].to_json(), sort_keys=True).encode()
    for module in (random_model, synthetic):
        assert module.__file__ is not None
        recipe += Path(module.__file__).read_bytes()
    return hashlib.sha256(recipe).hexdigest()[:_DIGITS]


def _cannot_keep(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"--random: {folder} cannot be written: {error.strerror or error}; XDG_CACHE_HOME names another place"
    )
