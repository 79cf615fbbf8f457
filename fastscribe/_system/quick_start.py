"""A shorter start of a process that uses torch: no garbage collection, and no kernels for torch's compiler."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fastscribe._system.late_module import import_late


@contextmanager
def quick_start() -> Iterator[None]:
    """Import torch and load a model. For a process of fastscribe's own. No effect once torch is imported.

    The collector leaves out what that makes, then and later. It would take a seventh of the import's time and 0.25 s of a large
    model's. A third of the import are meta kernels in Python, which torch's compiler needs; they wait for it.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    import_late("torch._meta_registrations", before=("torch._dynamo", "torch._inductor"))
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
