"""Threads that share the work of one call, for functions that release the GIL.

numba's own parallel loops abort the process when two threads enter them or after a fork, and both happen here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise


def share(shares: Sequence[tuple[int, int]], work: Callable[[int, int], None], level: int = 0) -> None:
    """Call work(*share) for each share, in threads, and wait for all of them. The calling thread does the first share.

    Args:
        shares: Ranges (start, stop).
        work: Called with each.
        level: `work` may itself share at a lower level: each has threads of its own, so none waits for itself.

    Raises:
        Exception: What `work` raised.
    """
    pool, futures = _pool(os.getpid(), level), []
    for part in shares[1:]:
        try:
            futures.append(pool.submit(work, *part))
        except RuntimeError:  # the interpreter is ending and starts no more threads; this one goes on
            work(*part)
    try:
        for part in shares[:1]:
            work(*part)
    finally:
        wait(futures)
    for future in futures:
        future.result()


def equal_parts(size: int, num_parts: int) -> list[tuple[int, int]]:
    """Divide range(size) into at most `num_parts` ranges (start, stop) that are not empty."""
    bounds = [size * part // num_parts for part in range(num_parts + 1)]
    return [(start, stop) for start, stop in pairwise(bounds) if start < stop]


@cache
def _pool(process_id: int, level: int) -> ThreadPoolExecutor:
    """Thread pool of this process: a fork does not copy threads."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="fastscribe-share")
