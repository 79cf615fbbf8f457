"""A thread pool that replaces hung threads.

A read from a lost network mount may never return, and Python cannot cancel it. The pool abandons such a thread and starts
another. It tells a hung thread from a busy one by its CPU time, which stands still. At exit the program waits for no
thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread, get_ident

STUCK_S = 1.0
_STUCK_WITHOUT_CLOCK_S = 30.0  # where a thread's processor time cannot be seen
_MAX_SPARE = 32  # threads beyond those asked for; if as many hang, the rest waits for one of them
_CHECK_INTERVAL_S = 0.25

Task = Callable[[], None]


class ReplacingThreadPool:
    """A pool of daemon threads. It starts tasks in order of submission. Tasks must not raise.

    Args:
        threads: Number of threads. A larger number may be set later; they start within _CHECK_INTERVAL_S.
        name: Name of the threads.

    Raises:
        RuntimeError: The system has no room for them.
    """

    def __init__(self, threads: int, name: str) -> None:
        self.threads, self._name = threads, name
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()  # None: no more tasks
        self._closed = Event()
        try:
            self._workers = [self._start() for _ in range(threads)]
            Thread(target=self._replace_stuck, name=f"{name}-watch", daemon=True).start()
        except BaseException:
            self.close()  # those that have started
            raise

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def submit(self, task: Task) -> None:
        """Queue a task. Thread-safe."""
        self._tasks.put(task)

    def close(self) -> None:
        """Drop the queued tasks. Running tasks end by themselves."""
        self._closed.set()
        self._tasks.put(None)

    def _start(self) -> _Worker:
        worker = _Worker(self._tasks, self._closed, self._name)
        worker.start()
        return worker

    def _replace_stuck(self) -> None:
        """Start a new thread for each one that is stuck or dead."""
        while not self._closed.wait(_CHECK_INTERVAL_S):
            self._workers = [worker for worker in self._workers if worker.is_alive()]
            for worker in self._workers:
                worker.is_abandoned = worker.is_abandoned or worker.is_stuck(time.monotonic())
            missing = self.threads - sum(not worker.is_abandoned for worker in self._workers)
            spare = self.threads + _MAX_SPARE - len(self._workers)
            for _ in range(min(missing, spare)):
                self._workers.append(self._start())


class _Worker(Thread):
    def __init__(self, tasks: SimpleQueue[Task | None], closed: Event, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.is_abandoned = False  # another has its place, so it ends with its task
        self._tasks, self._closed = tasks, closed
        self._num_started, self._is_busy = 0, False
        self._cpu_clock: int | None = None
        self._last_progress: tuple[int, float] = (0, 0.0)
        self._unchanged_since = time.monotonic()

    def run(self) -> None:
        if hasattr(time, "pthread_getcpuclockid"):
            self._cpu_clock = time.pthread_getcpuclockid(get_ident())
        while not self.is_abandoned:
            task = self._tasks.get()
            if task is None or self._closed.is_set():
                self._tasks.put(None)  # for the next thread
                return
            self._num_started += 1
            self._is_busy = True
            task()
            task = None  # free what it references before the wait for the next one
            self._is_busy = False

    def is_stuck(self, now: float) -> bool:
        """Return True if its task has used no CPU time for STUCK_S. One thread polls this."""
        seen = self._num_started, self._cpu_time_s()
        if seen != self._last_progress or not self._is_busy:
            self._last_progress, self._unchanged_since = seen, now
        return now - self._unchanged_since > (STUCK_S if self._cpu_clock is not None else _STUCK_WITHOUT_CLOCK_S)

    def _cpu_time_s(self) -> float:
        if sys.platform == "win32" or self._cpu_clock is None:
            return 0.0
        try:
            return time.clock_gettime(self._cpu_clock)
        except OSError:  # it has just ended
            return -1.0
