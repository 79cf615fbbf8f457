"""Which worker gets which batch, and what becomes of the batches of a dead one. Pure: no processes, no clock.

A batch goes to the worker with the least to do, by encoder frames. When no batches are left, a worker with nothing to do takes
the last batch of the one with the most, so that all end at about the same time.

Any of the batches that a dead worker had may have killed it. Each of them is retried whole, while its worker has nothing else;
a batch that kills a worker so is retried by utterance. An utterance that was alone, and was among a dead worker's before, is
given up. So a poisoned utterance costs three workers, and its neighbours nothing. A worker may still decode a batch that was
taken from it, if it hears of that too late; then its death proves nothing against the others that it has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from fastscribe.types import Utterance, UtteranceKey


@dataclass(eq=False)
class Task:
    """A batch. `left` has its utterances without a result. `deaths` counts the workers that died while they had it."""

    number: int  # of the batch as it was planned; tells its answers from late ones to another one with the same keys
    left: dict[UtteranceKey, Utterance]
    frames: int  # padded encoder frames
    deaths: int = 0
    is_stuck: bool = False  # waits for a file that hangs; its worker has room for others
    worker: int = -1

    @property
    def is_suspect(self) -> bool:
        return self.deaths > 0


@dataclass
class Death:
    """What the death of a worker means: utterances that others take over, and those that are given up."""

    num_handed_over: int
    given_up: list[Utterance]


@dataclass
class _Worker:
    max_in_flight: int
    tasks: list[Task] = field(default_factory=list)
    taken: set[UtteranceKey] = field(default_factory=set)  # utterances that another worker got instead

    @property
    def frames(self) -> int:
        return sum(task.frames for task in self.tasks if not task.is_stuck)

    @property
    def num_active(self) -> int:
        return sum(not task.is_stuck for task in self.tasks)

    @property
    def has_suspect(self) -> bool:
        return any(task.is_suspect and not task.is_stuck for task in self.tasks)


class Dispatch:
    """The batches in flight.

    Args:
        num_frames: Returns an utterance's length in encoder frames.
    """

    def __init__(self, num_frames: Callable[[Utterance], int]) -> None:
        self._num_frames = num_frames
        self._numbers = count()
        self._workers: dict[int, _Worker] = {}
        self._tasks: dict[UtteranceKey, Task] = {}
        self._suspects: deque[Task] = deque()  # to be retried alone
        self._given_up: set[UtteranceKey] = set()

    @property
    def is_busy(self) -> bool:
        """True while an utterance has no result."""
        return bool(self._tasks)

    def add_worker(self, worker: int, max_in_flight: int) -> None:
        """Give batches to this worker from now on, at most `max_in_flight` at a time."""
        self._workers[worker] = _Worker(max_in_flight)

    def has_room(self) -> bool:
        """Return True if a worker can take a new batch."""
        return self._least_busy() is not None

    def has_idle(self) -> bool:
        """Return True if a worker has nothing to do."""
        return any(not one.num_active for one in self._workers.values())

    def is_working(self, worker: int) -> bool:
        """Return True if the worker has batches that do not wait for files."""
        return worker in self._workers and self._workers[worker].num_active > 0

    def assign(self, plan: Sequence[Utterance]) -> Task:
        """Give a new batch to the worker with the least to do, of those with room."""
        worker = self._least_busy()
        assert worker is not None and plan
        task = self._new_task(plan, next(self._numbers))
        self._tasks |= dict.fromkeys(task.left, task)
        self._put(task, worker)
        return task

    def assign_suspect(self) -> Task | None:
        """Give the next suspect to a worker that has nothing to do, if there are both."""
        worker = self._for_suspects()
        if worker is None or not self._suspects or self._workers[worker].num_active:
            return None
        task = self._suspects.popleft()
        self._put(task, worker)
        return task

    def steal(self) -> tuple[int, Task] | None:
        """Give the last batch of the busiest worker to one with nothing to do. Return the robbed worker and the batch."""
        idle = next((number for number, one in self._workers.items() if not one.num_active), None)
        busiest = max(self._workers, key=lambda number: self._workers[number].frames, default=None)
        if idle is None or busiest is None or self._suspects:
            return None
        robbed = self._workers[busiest]
        active = [task for task in robbed.tasks if not task.is_stuck]
        if len(active) < 2:
            return None
        task = active[-1]
        robbed.tasks.remove(task)
        robbed.taken |= task.left.keys()
        self._put(task, idle)
        return busiest, task

    def finish(self, batch: int, key: UtteranceKey) -> Utterance | None:
        """Note that an utterance of a batch has a result. Return it; None if it had one already, or is in another batch now."""
        task = self._tasks.get(key)
        if task is None or task.number != batch:
            return None
        del self._tasks[key]
        utterance = task.left.pop(key)
        if not task.left:
            (self._suspects if task.worker < 0 else self._workers[task.worker].tasks).remove(task)
        return utterance

    def mark_stuck(self, worker: int) -> None:
        """Note that the worker has nothing to do but to wait for files that hang."""
        for task in self._workers[worker].tasks:
            task.is_stuck = True

    def remove_worker(self, worker: int) -> Death:
        """Take over the batches of a worker that has died."""
        dead = self._workers.pop(worker, _Worker(0))
        blamed = [task for task in dead.tasks if not task.is_stuck] or dead.tasks
        others = [task for task in dead.tasks if task not in blamed]  # it only waited for their files
        handed_over = sum(len(task.left) for task in dead.tasks)
        given_up: list[Utterance] = []
        for task in blamed:
            task.deaths += 1
        for task in dead.tasks:
            task.is_stuck, task.worker = False, -1
        if len(blamed) == 1 and not dead.taken & (self._tasks.keys() | self._given_up):  # it alone can be to blame
            given_up = self._isolate(blamed[0])
            handed_over -= len(given_up)
        else:
            self._suspects.extend(blamed)
        self._suspects.extend(others)
        return Death(handed_over, given_up)

    def _isolate(self, task: Task) -> list[Utterance]:
        """Queue the utterances of a batch one by one, or give up the only one. Return that one."""
        if len(task.left) == 1 and task.deaths > 1:
            [(key, utterance)] = task.left.items()
            del self._tasks[key]
            self._given_up.add(key)
            return [utterance]
        alone = [self._new_task([utterance], task.number, task.deaths) for utterance in task.left.values()]
        for one in alone:
            self._tasks |= dict.fromkeys(one.left, one)
        self._suspects.extendleft(reversed(alone))
        return []

    def _new_task(self, plan: Iterable[Utterance], number: int, deaths: int = 0) -> Task:
        left = {one.key: one for one in plan}
        return Task(number, left, len(left) * max(map(self._num_frames, left.values())), deaths)

    def _put(self, task: Task, worker: int) -> None:
        task.worker = worker
        self._workers[worker].tasks.append(task)

    def _least_busy(self) -> int | None:
        """Return the worker with room that has the least to do. The one for suspects has no room for others."""
        reserved = self._for_suspects()
        fitting = [
            number
            for number, one in self._workers.items()
            if number != reserved and not one.has_suspect and one.num_active < one.max_in_flight
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
