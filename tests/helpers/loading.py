"""load_batches() with a thread pool of its own, whose threads no other part of the program names as they are named here."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

from fastscribe.pipeline import loader
from fastscribe.pipeline.interfaces import Idle
from fastscribe.pipeline.loader import Loaded
from fastscribe.pipeline.thread_pool import ReplacingThreadPool

THREADS = "read for a test"  # begins the names of the pool's threads


def load_batches(plans, *, threads: int, **options) -> Generator[Loaded | Idle, None, None]:
    with (
        closing(ReplacingThreadPool(threads, THREADS)) as pool,
        closing(loader.load_batches(plans, pool=pool, **options)) as loaded,
    ):
        yield from loaded
