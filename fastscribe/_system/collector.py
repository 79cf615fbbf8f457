"""Python's garbage collector kept from the objects of imported modules, which live as long as the process."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Import torch, and modules that import it, without looking for garbage among what they make, then or later.

    It takes a seventh of the import's processor time. No effect once torch is imported: only objects of a start are frozen.
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


def skip_last_collection() -> None:
    """Let Python end without looking for garbage in all of torch, which takes half a second.

    With triton it looks: what triton's native library still holds then, it prints as leaked (nanobind), in 30 lines.
    """
    if "triton" in sys.modules:
        gc.unfreeze()
    else:
        gc.freeze()
