"""The parts of scripts/gpu_check, by name. A part writes a row after each measurement (scripts/measurement_log.py).

So a crash or a time limit costs one row. Measurements come in order of worth; those without time left are skipped. The first
part that needs a model or audio makes it and keeps it in the scratch folder.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scripts.gpu.part import Part

PARTS = {  # modules of this folder and their functions; scripts/gpu/plan.py says when each is run
    "facts": "checks:facts",
    "devices": "checks:devices",
    "files": "files:files",
    "nemo": "files:nemo",
    "engine": "engine:engine",
    "memory": "engine:memory",
    "nemo_long": "files:nemo_long",
    "agreement": "engine:dtypes",
    "tenfold": "tenfold:tenfold",
    "samplewise": "training:samplewise",
    "loss": "training:loss",
    "training_speed": "batches:training_speed",
    "attention": "families:attention",
    "convolutions": "families:convolutions",
    "profile": "pieces:profile",
    "ceilings": "pieces:ceilings",
    "encoder": "pieces:encoder",
    "decoder": "pieces:decoder",
    "kernels": "pieces:kernels",
    "tests": "checks:tests",
    "end_to_end": "checks:end_to_end",
    "sanitizer": "checks:sanitizer",
}


def function(name: str) -> Callable[[Part], None]:
    """Return the function that runs a part."""
    module, _, found = PARTS[name].partition(":")
    run: Callable[[Part], None] = getattr(import_module(f"{__name__}.{module}"), found)
    return run
