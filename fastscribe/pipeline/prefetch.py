"""Prefetch: groups of calls run in threads or in helper processes ahead of the consumer. The one rule for slow and hung files
is here.

A group is a batch's rows, or files to probe. Groups come out complete and in order. If the oldest group makes no
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
        self.all_started = num_calls == 0
        self.may_be_slow = True  # False: it comes out complete, whatever time it takes
        self.is_dropped = False  # no more calls are started
        self.done: list[int] = []  # in order of completion
        self.progress_at = 0.0  # when the last of them was done
        self._num_popped = 0

    def call(self, index: int) -> None:
        """Make one call. Several threads do this at once; what it raises is kept in `errors`."""
        raise NotImplementedError

    def start(self, pool: ReplacingThreadPool, finished: Callable[[int], None]) -> None:
        """Start the calls in the pool's threads; a group for helper processes starts them there.

        Args:
            pool: Makes the calls.
            finished: Called in any thread with the index of each call that is done.
        """
        not_started = iter(range(self.num_calls))  # threads take the indices in order

        def call_next() -> None:
            index = next(not_started)
            self.all_started = self.all_started or index == self.num_calls - 1
            self.attempt(index, finished)

        for _ in range(self.num_calls):
            pool.submit(call_next)

    def attempt(self, index: int, finished: Callable[[int], None]) -> None:
        """Make one call in this thread, and keep what it raises. Do nothing if the group is dropped."""
        if self.is_dropped:
            return
        try:
            self.call(index)
        except BaseException as error:  # one bad file must not stop the rest, whatever is wrong with it
            self.errors[index] = error
        finished(index)

    def expect_late(self) -> None:
        """Note that a call's result comes late."""
        self.may_be_slow = True

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
        wake: Called in any thread when poll() has something new.
    """

    def __init__(self, pool: ReplacingThreadPool, wake: Callable[[], None]) -> None:
        self._pool, self._wake = pool, wake
        self._groups: list[G] = []  # in order
        # Slow groups that later ones have passed. All their calls have started, so there are no more than threads.
        self._late: list[G] = []
        self._oldest: G | None = None
        self._oldest_since = 0.0  # when it was first seen as the oldest
        self._deadline = math.inf

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
        group.start(self._pool, partial(self._finished, group))

    def close(self) -> None:
        """Drop the calls that have not started."""
        for group in (*self._late, *self._groups):
            group.is_dropped = True

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

    def _finished(self, group: G, index: int) -> None:
        group.progress_at = monotonic()
        group.done.append(index)
        if group.is_complete or group in self._late:
            self._wake()

    def _is_slow(self, oldest: G) -> bool:
        """Return True if the oldest group has made no progress for MAX_WAIT_S."""
        now = monotonic()
        if self._oldest is not oldest:
            self._oldest, self._oldest_since = oldest, now
        if not oldest.may_be_slow:
            self._deadline = now + MAX_WAIT_S
            return False
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
