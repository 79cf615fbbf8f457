"""Threads that share the work of one call, for functions that release the GIL: `share` of independent ranges, `together` of
work that meets on the way.

numba's own parallel loops abort the process when two threads enter them or after a fork, and both happen here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cache
from itertools import pairwise
from threading import Barrier, BrokenBarrierError

import torch

_UNLIMITED = 1 << 20  # threads that wait for each other must all run; idle ones are used again


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


def together(count: int, work: Callable[[int, Barrier], None]) -> bool:
    """Call work(number, barrier) for each number below `count`, all at the same time. The calling thread has number 0.

    Args:
        count: Number of threads.
        work: Its calls may wait for each other at the barrier. If one raises, the barrier breaks for the others.

    Returns:
        False if nothing was called, because the interpreter is ending and starts no more threads.

    Raises:
        Exception: What `work` raised first.
    """
    barrier, errors = Barrier(count), list[BaseException]()

    def attempt(number: int) -> None:
        try:
            barrier.wait()
            work(number, barrier)
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    pool = _pool(os.getpid(), "together")
    try:
        futures = [pool.submit(attempt, number) for number in range(1, count)]
    except RuntimeError:
        barrier.abort()
        return False
    attempt(0)
    wait(futures)
    for failure in sorted(errors, key=lambda failure: isinstance(failure, BrokenBarrierError)):
        raise failure  # what another thread raised, and not that it broke the barrier
    return True


def set_own_threads(number: int, usual: int) -> None:
    """Set the number of threads that torch's operators take in the calling thread.

    torch keeps the number that was set last, in any thread, for threads that have not asked yet, and those keep it for good.
    So another thread sets the usual number again at once.
    """
    torch.get_num_threads()  # a thread that has not asked would take the usual number later
    torch.set_num_threads(number)
    with suppress(RuntimeError):  # the interpreter is ending and starts no more threads
        _pool(os.getpid(), "usual").submit(torch.set_num_threads, usual).result()


def equal_parts(size: int, num_parts: int) -> list[tuple[int, int]]:
    """Divide range(size) into at most `num_parts` ranges (start, stop) that are not empty."""
    bounds = [size * part // num_parts for part in range(num_parts + 1)]
    return [(start, stop) for start, stop in pairwise(bounds) if start < stop]


@cache
def _pool(process_id: int, level: int | str) -> ThreadPoolExecutor:
    """Thread pool of this process: a fork does not copy threads."""
    limit = _UNLIMITED if level == "together" else os.cpu_count() or 1
    return ThreadPoolExecutor(limit, thread_name_prefix="fastscribe-share")
