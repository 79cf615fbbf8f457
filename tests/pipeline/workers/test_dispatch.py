"""Each row of a batch gets one result, whatever dies; only poisoned rows are given up."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fastscribe.pipeline.workers.dispatch import BatchRow, Dispatch, Task


def dispatch(num_workers: int, max_in_flight: int = 3) -> Dispatch:
    made = Dispatch()
    for worker in range(num_workers):
        made.add_worker(worker, max_in_flight)
    return made


class Simulation:
    """Workers that do their batches in order, die of poison, and are killed now and then; a dead one is replaced."""

    def __init__(self, num_workers: int, sizes: list[int], poison: set[BatchRow], seed: int) -> None:
        self.dispatch, self.random = dispatch(num_workers), random.Random(seed)
        self.waiting, self.poison = list(enumerate(sizes)), poison
        self.late: list[tuple[int, range, int]] = []  # parts that found no room
        self.inboxes: dict[int, list[tuple[int, list[int]]]] = {worker: [] for worker in range(num_workers)}
        self.finished: Counter[BatchRow] = Counter()
        self.given_up: Counter[BatchRow] = Counter()
        self.deaths = 0

    def send(self, task: Task | None) -> bool:
        if task is not None:
            self.inboxes[task.worker].append((task.number, sorted(task.left)))
        return task is not None

    def hand_out(self, number: int, size: int) -> None:
        """A batch with slow files goes out in two parts."""
        cut = self.random.randint(0, size)
        for rows in filter(None, (range(cut), range(cut, size))):
            if self.dispatch.has_room():
                self.send(self.dispatch.assign(number, rows, 100 + size))
            else:
                self.late.append((number, rows, 100 + size))

    def step(self) -> None:
        while (self.late or self.waiting) and self.dispatch.has_room():
            if self.late:
                self.send(self.dispatch.assign(*self.late.pop(0)))
            else:
                self.hand_out(*self.waiting.pop(0))
        while self.send(self.dispatch.assign_suspect()):
            pass
        busy = [worker for worker, inbox in self.inboxes.items() if inbox]
        assert busy, "nothing is being decoded, but not all is done"
        worker = self.random.choice(busy)
        number, rows = self.inboxes[worker].pop(0)
        for row in rows:
            if (number, row) in self.poison:
                return self.die(worker)
            self.dispatch.finish(number, [row])
            self.finished[number, row] += 1

    def die(self, worker: int) -> None:
        self.deaths += 1
        self.inboxes[worker].clear()
        self.given_up.update(self.dispatch.remove_worker(worker)[1])
        self.dispatch.add_worker(worker, 3)

    def run(self, kills: list[int]) -> None:
        steps = 0
        while self.waiting or self.late or self.dispatch.is_busy:
            steps += 1
            if steps in kills:
                self.die(self.random.choice(list(self.inboxes)))
            else:
                self.step()
            assert steps < 10_000


@given(
    st.integers(1, 4),
    st.lists(st.integers(1, 6), max_size=12),
    st.sets(st.tuples(st.integers(0, 11), st.integers(0, 5)), max_size=3),
    st.lists(st.integers(1, 20), max_size=1),
    st.integers(0, 5),
)
def test_each_row_has_one_result_whatever_dies(num_workers, sizes, poison, kills, seed) -> None:
    everything = {(number, row) for number, size in enumerate(sizes) for row in range(size)}
    poison &= everything
    simulation = Simulation(num_workers, sizes, poison, seed)
    simulation.run(kills)
    assert simulation.finished + simulation.given_up == Counter(everything)
    assert set(simulation.given_up) >= poison
    if not kills:  # a worker that is killed for no reason while it has a single row twice is taken for a victim of it
        assert set(simulation.given_up) == poison
        assert simulation.deaths <= 3 * len(poison)


def test_batches_go_to_the_least_busy_worker() -> None:
    made = dispatch(2)
    assert made.assign(0, [0], 1000).worker == 0
    assert [made.assign(number, [0], 10).worker for number in (1, 2, 3)] == [1, 1, 1]
    assert [made.assign(number, [0], 10).worker for number in (4, 5)] == [0, 0]
    assert not made.has_room()


def test_the_longest_row_counts_for_each_row() -> None:
    """Shorter ones are padded."""
    made = dispatch(2)
    made.assign(0, range(4), 10), made.assign(1, [0], 30)
    assert made.assign(2, [0], 1).worker == 1


def test_neighbours_of_a_suspect_wait_for_no_one_and_do_not_share_its_worker() -> None:
    made = dispatch(2)
    first, second, third = made.assign(0, [0, 1], 100), made.assign(1, [0], 100), made.assign(2, [0], 100)
    assert (first.worker, second.worker, third.worker) == (0, 1, 1)
    assert made.remove_worker(1) == (2, [])
    assert not made.has_room() and made.assign_suspect() is None  # worker 0 has other work
    made.add_worker(1, 3)
    suspect = made.assign_suspect()
    assert suspect is second and suspect.worker == 1 and made.assign_suspect() is None
    assert made.assign(3, [0], 100).worker == 0
    assert made.remove_worker(1)[1] == [(1, 0)]  # it was alone, and among a dead worker's before


def test_what_dead_workers_had_is_suspect_until_it_has_a_result() -> None:
    made = dispatch(1)
    for batch in range(2):
        made.assign(batch, range(2), 10)
    assert not made.suspects()
    made.remove_worker(0)
    made.add_worker(1, 3)
    assert made.suspects() == [(0, 0), (0, 1), (1, 0), (1, 1)]
    made.finish(0, [0])
    assert made.suspects() == [(0, 1), (1, 0), (1, 1)]
