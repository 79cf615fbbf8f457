"""Prefetch: groups of calls run on a thread pool ahead of the consumer. The one rule for slow and hung files is here.

A group is a batch's rows, or one file to probe. Groups come out complete and in order. If the oldest group makes no
progress for MAX_WAIT_S, complete later groups go first, and the slow group comes out in parts: the calls that are done now,
the others when they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Generic, TypeVar

from fastscribe.pipeline.thread_pool import ReplacingThreadPool

MAX_WAIT_S = 0.2


class Group:
    """Calls that belong together. A subclass makes one call and keeps its result.

    Args:
        num_calls: Number of calls; a group without calls is complete at once.
    """

    def __init__(self, num_calls: int) -> None:
        self.num_calls = num_calls
        self.errors: dict[int, BaseException] = {}  # what calls raised, by index
        self.not_started = iter(range(num_calls))
        self.all_started = num_calls == 0
        self.done: list[int] = []  # in order of completion
        self.progress_at = 0.0  # when the last of them was done
        self._num_popped = 0

    def call(self, index: int) -> None:
        """Make one call. Several threads do this at once; what it raises is kept in `errors`."""
        raise NotImplementedError

    @property
    def is_complete(self) -> bool:
        """True if all calls are done."""
        return len(self.done) == self.num_calls

    @property
    def all_popped(self) -> bool:
        """True if pop_done() has returned all calls, so that no thread works on the group any more."""
        return self._num_popped == self.num_calls

    def pop_done(self) -> list[int]:
        """Return the calls that are done, in ascending order, each once."""
        indices = self.done[self._num_popped :]
        self._num_popped += len(indices)
        return sorted(indices)


G = TypeVar("G", bound=Group)


class Prefetcher(Generic[G]):
    """Groups in flight. Not thread-safe: callers take turns.

    Args:
        pool: Runs the calls.
        wake: Called in the pool's threads when poll() has something new.
        in_order: True: wait for slow groups; every group comes out complete and in order.
    """

    def __init__(self, pool: ReplacingThreadPool, wake: Callable[[], None], in_order: bool = False) -> None:
        self._pool, self._wake, self._in_order = pool, wake, in_order
        self._groups: list[G] = []  # in order
        # Slow groups that later ones have passed. All their calls have started, so there are no more than threads.
        self._late: list[G] = []
        self._oldest: G | None = None
        self._oldest_since = 0.0  # when it was first seen as the oldest
        self._deadline = math.inf
        self._closed = False

    def __len__(self) -> int:
        """Number of groups in flight without the late ones."""
        return len(self._groups)

    @property
    def has_late(self) -> bool:
        """True if part of a slow group is still to come."""
        return bool(self._late)

    def submit(self, group: G) -> None:
        """Start a group's calls."""
        self._groups.append(group)
        call = partial(self._call_next, group)
        for _ in range(group.num_calls):
            self._pool.submit(call)

    def close(self) -> None:
        """Drop the calls that have not started."""
        self._closed = True

    def poll(self) -> tuple[G, list[int]] | None:
        """Return a group that can leave and the calls that it comes with, without waiting.

        It has all calls that no earlier poll() has returned, unless the group is slow. None: none can leave yet.
        """
        while True:
            for group in (*self._late, *self._groups[:1]):
                if group.is_complete:
                    return self._remove(group)
            if part := self._part(self._late):
                return part
            if not self._groups or not self._is_slow(oldest := self._groups[0]):
                return None
            if oldest.all_started:
                self._late.append(self._groups.pop(0))
            for group in self._groups:
                if group.is_complete:
                    return self._remove(group)
            if part := self._part([oldest]):
                return part
            self._oldest = None  # nothing can leave: wait MAX_WAIT_S again

    def remaining_s(self) -> float:
        """Return the time after which poll() should be called again even if nothing is complete; may be infinite."""
        return max(0.0, self._deadline - monotonic()) if self._groups else math.inf

    def _call_next(self, group: G) -> None:
        index = next(group.not_started)
        if index == group.num_calls - 1:  # indices are handed out in order, so all have started
            group.all_started = True
        if self._closed:
            return
        try:
            group.call(index)
        except BaseException as error:  # one bad file must not stop the rest, whatever is wrong with it
            group.errors[index] = error
        group.progress_at = monotonic()
        group.done.append(index)
        if group.is_complete or group in self._late:
            self._wake()

    def _is_slow(self, oldest: G) -> bool:
        """Return True if the oldest group has made no progress for MAX_WAIT_S."""
        if self._in_order:
            return False
        now = monotonic()
        if self._oldest is not oldest:
            self._oldest, self._oldest_since = oldest, now
        self._deadline = max(self._oldest_since, oldest.progress_at) + MAX_WAIT_S
        return now >= self._deadline

    def _remove(self, group: G) -> tuple[G, list[int]]:
        (self._late if group in self._late else self._groups).remove(group)
        return group, group.pop_done()

    def _part(self, groups: list[G]) -> tuple[G, list[int]] | None:
        for group in groups:
            if done := group.pop_done():
                if group.all_popped:  # its last call has ended since is_complete was asked
                    self._remove(group)
                return group, done
        return None
