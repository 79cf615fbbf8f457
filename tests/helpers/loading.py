"""load_batches() with a thread pool of its own."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

from fastscribe.pipeline import loader
from fastscribe.pipeline.idle import Idle
from fastscribe.pipeline.loader import Loaded
from fastscribe.pipeline.thread_pool import ReplacingThreadPool


def load_batches(plans, *, threads: int, **options) -> Generator[Loaded | Idle, None, None]:
    with (
        closing(ReplacingThreadPool(threads, "read")) as pool,
        closing(loader.load_batches(plans, pool=pool, **options)) as loaded,
    ):
        yield from loaded
