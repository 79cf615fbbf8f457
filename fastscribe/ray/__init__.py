"""Transcription on a Ray cluster (extra `ray`): a class for Ray Data, and a run with journal and report over all its GPUs.

>>> import fastscribe.ray, ray
>>> rows = ray.data.read_json("s3://bucket/manifest.jsonl")                                   # doctest: +SKIP
>>> rows.map_batches(fastscribe.ray.Transcriber, batch_size=2048, num_gpus=1, batch_format="pyarrow",
...     compute=ray.data.ActorPoolStrategy(size=8))                                           # doctest: +SKIP
>>> fastscribe.ray.transcribe(["calls/"], model="nvidia/parakeet-tdt-0.6b-v3", output="s3://bucket/out")  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastscribe.ray.journaled import transcribe
    from fastscribe.ray.map_batches import Transcriber

__all__ = ["Transcriber", "transcribe"]


def __getattr__(name: str) -> Any:
    """Import on first use only: the command line needs neither."""
    modules = {"Transcriber": "map_batches", "transcribe": "journaled"}
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{modules[name]}"), name)
