"""The models on the disk and the room for more."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from fastscribe.checkpoint.location import PACKAGED
from fastscribe.doctor.check import Check


def packaged_model() -> Check:
    """The model that the wheel holds."""
    from fastscribe.checkpoint.reader import read_checkpoint

    checkpoint = read_checkpoint(PACKAGED)
    num_bytes = sum(file.stat().st_size for file in PACKAGED.iterdir())
    finding = f"{checkpoint.num_parameters / 1e6:.1f} million parameters, English, {num_bytes / 1e6:.0f} MB"
    return Check("packaged model", "ok", finding, facts={"path": str(PACKAGED), "bytes": num_bytes})


def model_cache() -> Check:
    """The Hugging Face cache: whether a model can be stored there."""
    cache = _cache()
    existing = _existing(cache)
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        finding = f"{cache} cannot be written ({error.strerror or error}): models cannot be downloaded"
        return Check("model cache", "problem", finding, "set HF_HUB_CACHE to a folder that can be written")
    models = len(list(cache.glob("models--*")))
    return Check("model cache", "ok", f"{cache}, {models} models", facts={"path": str(cache), "models": models})


def free_disk() -> Check:
    """Room for models in the cache."""
    cache = _cache()
    free = shutil.disk_usage(_existing(cache)).free
    return Check("free disk", "ok", f"{free / 1e9:.1f} GB for the model cache", facts={"free_bytes": free})


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _existing(folder: Path) -> Path:
    """Return the folder or the closest one above it that exists."""
    return next(one for one in (folder, *folder.parents) if one.is_dir())
