"""Which device gets which batch, and what becomes of the batches of a dead one. Pure: no processes, no clock.

A batch goes to the worker, a device's process, with the least to do, by encoder frames.

Any of the batches that a dead worker had may have killed it. Each of them is retried whole, while its worker has nothing else;
a batch that kills a worker so is retried by row. A row that was alone, and was among a dead worker's before, is given up. So a
poisoned row costs three workers, and its neighbours nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

BatchRow: TypeAlias = tuple[int, int]  # a batch's number and a row of it


@dataclass(eq=False)
class Task:
    """Rows of a batch. `left` has those without a result. `deaths` counts the workers that died while they had it."""

    number: int  # of the batch
    left: set[int]
    longest: int  # encoder frames of its longest row
    deaths: int = 0
    worker: int = -1

    @property
    def frames(self) -> int:
        """Padded encoder frames."""
        return len(self.left) * self.longest

    @property
    def is_suspect(self) -> bool:
        return self.deaths > 0


@dataclass
class _Worker:
    max_in_flight: int
    tasks: list[Task] = field(default_factory=list)

    @property
    def frames(self) -> int:
        return sum(task.frames for task in self.tasks)

    @property
    def has_suspect(self) -> bool:
        return any(task.is_suspect for task in self.tasks)


class Dispatch:
    """The batches in flight."""

    def __init__(self) -> None:
        self._workers: dict[int, _Worker] = {}
        self._tasks: dict[int, list[Task]] = {}  # by batch
        self._suspects: deque[Task] = deque()  # to be retried alone

    @property
    def is_busy(self) -> bool:
        """True while a row has no result."""
        return bool(self._tasks)

    def add_worker(self, worker: int, max_in_flight: int) -> None:
        """Give batches to this worker from now on, at most `max_in_flight` at a time."""
        self._workers[worker] = _Worker(max_in_flight)

    def has_room(self) -> bool:
        """Return True if a worker can take a new batch."""
        return self._least_busy() is not None

    def is_working(self, worker: int) -> bool:
        return worker in self._workers and bool(self._workers[worker].tasks)

    def assign(self, batch: int, rows: Iterable[int], longest: int) -> Task:
        """Give rows of a batch to the worker with the least to do, of those with room.

        Args:
            batch: The batch's number.
            rows: Its rows, none of which was given before.
            longest: Encoder frames of the longest.
        """
        worker = self._least_busy()
        assert worker is not None
        task = Task(batch, set(rows), longest)
        self._tasks.setdefault(batch, []).append(task)
        self._put(task, worker)
        return task

    def assign_suspect(self) -> Task | None:
        """Give the next suspect to a worker that has nothing to do, if there are both."""
        worker = self._for_suspects()
        if worker is None or not self._suspects or self._workers[worker].tasks:
            return None
        task = self._suspects.popleft()
        self._put(task, worker)
        return task

    def finish(self, batch: int, rows: Iterable[int]) -> None:
        """Note that rows of a batch have results."""
        for task in list(self._tasks[batch]):
            task.left.difference_update(rows)
            if not task.left:  # forget it
                (self._suspects if task.worker < 0 else self._workers[task.worker].tasks).remove(task)
                self._drop(task)

    def remove_worker(self, worker: int) -> tuple[int, list[BatchRow]]:
        """Take over the batches of a worker that has died.

        Returns:
            The number of rows that go to other workers, and the rows that the pool gives up.
        """
        dead = self._workers.pop(worker, _Worker(0))
        num_rows = sum(len(task.left) for task in dead.tasks)
        for task in dead.tasks:
            task.deaths, task.worker = task.deaths + 1, -1
        given_up: list[BatchRow] = []
        if len(dead.tasks) == 1:  # it alone can be to blame
            given_up = self._isolate(dead.tasks[0])
        else:
            self._suspects.extend(dead.tasks)
        return num_rows - len(given_up), given_up

    def suspects(self) -> list[BatchRow]:
        """Return the rows without a result that a worker had when it died."""
        tasks = (task for tasks in self._tasks.values() for task in tasks if task.is_suspect)
        return [(task.number, row) for task in tasks for row in sorted(task.left)]

    def _isolate(self, task: Task) -> list[BatchRow]:
        """Queue the rows of a batch one by one, or give up the only one. Return that one."""
        if len(task.left) == 1 and task.deaths > 1:
            self._drop(task)
            return [(task.number, row) for row in task.left]
        alone = [Task(task.number, {row}, task.longest, task.deaths) for row in sorted(task.left)]
        self._tasks[task.number] += alone
        self._drop(task)
        self._suspects.extendleft(reversed(alone))
        return []

    def _drop(self, task: Task) -> None:
        self._tasks[task.number].remove(task)
        if not self._tasks[task.number]:
            del self._tasks[task.number]

    def _put(self, task: Task, worker: int) -> None:
        task.worker = worker
        self._workers[worker].tasks.append(task)

    def _least_busy(self) -> int | None:
        """Return the worker with room that has the least to do. The one for suspects has no room for others."""
        reserved = self._for_suspects()
        fitting = [
            number
            for number, one in self._workers.items()
            if number != reserved and not one.has_suspect and len(one.tasks) < one.max_in_flight
        ]
        return min(fitting, key=lambda number: self._workers[number].frames, default=None)

    def _for_suspects(self) -> int | None:
        """Return the worker that has, or gets next, a suspect, if there is one to retry."""
        if not self._suspects:
            return None
        taken = [number for number, one in self._workers.items() if one.has_suspect]
        if taken:
            return taken[0]
        return min(self._workers, key=lambda number: self._workers[number].frames, default=None)
