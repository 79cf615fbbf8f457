"""A shorter start of a process that uses torch: no garbage collection meanwhile."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_start() -> Iterator[None]:
    """Import torch and load a model. For a process of fastscribe's own. No effect once torch is imported.

    The collector leaves out what that makes, then and later. It would take a seventh of the import's time and 0.25 s of a large
    model's. torch is imported whole: a part that is left out may be one that a function sets up for others.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
