"""The parts of scripts/gpu_check, by name. A part writes a row after each measurement (scripts/measurement_log.py).

So a crash or a time limit costs one row. Measurements come in order of worth; those without time left are skipped. The first
part that needs a model or audio makes it and keeps it in the scratch folder.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from scripts.gpu.plan import PARTS

if TYPE_CHECKING:
    from scripts.gpu.part import Part


def function(name: str) -> Callable[[Part], None]:
    """Return the function that runs a part."""
    module, _, found = PARTS[name].run.partition(":")
    run: Callable[[Part], None] = getattr(import_module(f"{__name__}.{module}"), found)
    return run
