"""Each utterance gets one result, whatever dies; only poisoned utterances are given up."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fastscribe.pipeline.workers.dispatch import Dispatch, Task
from fastscribe.types import AudioInfo, Utterance


def utterance(index: int, num_samples: int = 100) -> Utterance:
    return Utterance(AudioInfo(f"{index}", f"{index}", 100, 1, num_samples, index=index), 0, num_samples)


def plans(sizes: list[int]) -> list[list[Utterance]]:
    numbers = iter(range(1000))
    return [[utterance(next(numbers), 100 + size) for _ in range(size)] for size in sizes]


def dispatch(num_workers: int, max_in_flight: int = 3) -> Dispatch:
    made = Dispatch(lambda one: one.num_samples)
    for worker in range(num_workers):
        made.add_worker(worker, max_in_flight)
    return made


class Simulation:
    """Workers that do their batches in order, die of poison, and are killed now and then; a dead one is replaced."""

    def __init__(self, num_workers: int, batches: list[list[Utterance]], poison: set[int], seed: int) -> None:
        self.dispatch, self.random = dispatch(num_workers), random.Random(seed)
        self.waiting, self.poison = list(batches), poison
        self.inboxes: dict[int, list[tuple[int, list[Utterance]]]] = {worker: [] for worker in range(num_workers)}
        self.finished: Counter[int] = Counter()
        self.given_up: Counter[int] = Counter()
        self.deaths = 0

    def send(self, task: Task | None) -> bool:
        if task is not None:
            self.inboxes[task.worker].append((task.number, list(task.left.values())))
        return task is not None

    def step(self) -> None:
        while self.waiting and self.dispatch.has_room():
            self.send(self.dispatch.assign(self.waiting.pop(0)))
        while self.send(self.dispatch.assign_suspect()):
            pass
        while not self.waiting and (stolen := self.dispatch.steal()) is not None:
            self.send(stolen[1])  # the robbed worker decodes it too: its results come first or second
        busy = [worker for worker, inbox in self.inboxes.items() if inbox]
        assert busy, "nothing is being decoded, but not all is done"
        worker = self.random.choice(busy)
        number, utterances = self.inboxes[worker].pop(0)
        for one in utterances:
            if one.audio.index in self.poison:
                return self.die(worker)
            if (done := self.dispatch.finish(number, one.key)) is not None:
                assert done == one
                self.finished[one.audio.index] += 1

    def die(self, worker: int) -> None:
        self.deaths += 1
        self.inboxes[worker].clear()
        self.given_up.update(one.audio.index for one in self.dispatch.remove_worker(worker).given_up)
        self.dispatch.add_worker(worker, 3)

    def run(self, kills: list[int]) -> None:
        steps = 0
        while self.waiting or self.dispatch.is_busy:
            steps += 1
            if steps in kills:
                self.die(self.random.choice(list(self.inboxes)))
            else:
                self.step()
            assert steps < 10_000


@given(
    st.integers(1, 4),
    st.lists(st.integers(1, 6), max_size=12),
    st.sets(st.integers(0, 30), max_size=3),
    st.lists(st.integers(1, 20), max_size=1),
    st.integers(0, 5),
)
def test_each_utterance_has_one_result_whatever_dies(num_workers, sizes, poison, kills, seed) -> None:
    batches = plans(sizes)
    everything = {one.audio.index for batch in batches for one in batch}
    poison &= everything
    simulation = Simulation(num_workers, batches, poison, seed)
    simulation.run(kills)
    assert simulation.finished + simulation.given_up == Counter(everything)
    assert set(simulation.given_up) >= poison
    if (
        not kills
    ):  # a worker that is killed for no reason while it has a single utterance twice is taken for a victim of it
        assert set(simulation.given_up) == poison
        assert simulation.deaths <= 3 * len(poison)


def test_batches_go_to_the_least_busy_worker_and_the_last_ones_move() -> None:
    made = dispatch(2)
    long, short = [utterance(0, 1000)], [[utterance(index, 10)] for index in range(1, 6)]
    assert made.assign(long).worker == 0
    assert [made.assign(plan).worker for plan in short[:3]] == [1, 1, 1]
    assert [made.assign(plan).worker for plan in short[3:]] == [0, 0]
    assert not made.has_room()
    assert made.steal() is None  # both have work
    for index in (1, 2, 3):
        made.finish(index, (index, None, 0, "words"))
    robbed, task = made.steal() or (None, None)
    assert (robbed, task and task.worker, task and list(task.left)) == (0, 1, [(5, None, 0, "words")])
    assert made.finish(5, (5, None, 0, "words")) is not None and made.finish(5, (5, None, 0, "words")) is None


def test_neighbours_of_a_suspect_wait_for_no_one_and_do_not_share_its_worker() -> None:
    made = dispatch(2)
    first, second = made.assign([utterance(0), utterance(1)]), made.assign([utterance(2)])
    third = made.assign([utterance(3)])
    assert (first.worker, second.worker, third.worker) == (0, 1, 1)
    death = made.remove_worker(1)
    assert (death.num_handed_over, death.given_up) == (2, [])
    assert not made.has_room() and made.assign_suspect() is None  # worker 0 has other work
    made.add_worker(1, 3)
    suspect = made.assign_suspect()
    assert suspect is second and suspect.worker == 1 and made.assign_suspect() is None
    assert made.assign([utterance(4)]).worker == 0
    assert made.remove_worker(1).given_up == [utterance(2)]  # it was alone, and among a dead worker's before


def test_batches_that_hang_do_not_fill_a_worker() -> None:
    made = dispatch(1)
    for index in range(3):
        made.assign([utterance(index)])
    assert not made.has_room()
    made.mark_stuck(0)
    assert made.has_room() and made.is_busy and made.assign([utterance(9)]).worker == 0


def test_a_poisoned_utterance_is_found_beside_a_file_that_hangs() -> None:
    made = dispatch(1)
    made.assign([utterance(0)])  # hangs in every worker
    made.mark_stuck(0)
    made.assign([utterance(1), utterance(2)])  # 2 is poison
    deaths, given_up = 0, []
    task: Task | None = made.assign([utterance(3)])
    while task is not None and deaths < 10:
        numbers = numbers_of(task)
        if numbers == [0]:
            made.mark_stuck(0)
        elif 2 in numbers or not deaths:
            deaths += 1
            given_up += made.remove_worker(0).given_up
            made.add_worker(0, 3)
        else:
            made.finish(task.number, (numbers[0], None, 0, "words"))
        task = made.assign_suspect()
    assert (deaths, given_up) == (3, [utterance(2)])
    assert made.finish(0, (0, None, 0, "words")) == utterance(0) and not made.is_busy


def test_a_batch_that_hung_and_then_kills_its_worker_is_to_blame() -> None:
    made = dispatch(1)
    made.assign([utterance(0)])
    for given_up in ([], [utterance(0)]):
        made.mark_stuck(0)
        assert made.remove_worker(0).given_up == given_up
        made.add_worker(0, 3)
        made.assign_suspect()
    assert not made.is_busy


def numbers_of(task: Task | None) -> list[int]:
    assert task is not None
    return [one.audio.index for one in task.left.values()]


def test_a_batch_that_a_robbed_worker_finishes_is_not_retried() -> None:
    made = dispatch(2)
    for index in range(3):
        made.assign([utterance(index)])
    made.finish(1, (1, None, 0, "words"))
    robbed, task = made.steal() or (None, None)
    assert (robbed, numbers_of(task)) == (0, [2])
    assert made.remove_worker(1).num_handed_over == 1
    assert made.finish(2, (2, None, 0, "words")) is not None  # worker 0 had begun it
    made.add_worker(1, 3)
    assert made.assign_suspect() is None and made.assign([utterance(3)]).worker == 1
    made.finish(0, (0, None, 0, "words")), made.finish(3, (3, None, 0, "words"))
    assert not made.is_busy


def test_a_late_answer_of_a_robbed_worker_is_none_to_another_utterance_that_begins_there() -> None:
    """Gap recovery decodes a part of a recording again."""
    made = dispatch(2)
    for index in range(3):
        made.assign([utterance(index)])
    made.finish(1, (1, None, 0, "words"))
    assert (made.steal() or (None, None))[0] == 0
    assert made.finish(2, (2, None, 0, "words")) == utterance(2)  # from the thief
    part = replace(utterance(2), num_samples=50)
    again = made.assign([part])
    assert made.finish(2, (2, None, 0, "words")) is None  # from worker 0
    assert made.finish(again.number, (2, None, 0, "words")) == part


def test_a_robbed_worker_that_dies_proves_nothing_against_its_suspect() -> None:
    """It may have died of the batch that was taken from it."""
    made = dispatch(3)
    for index in range(6):
        assert made.assign([utterance(index)]).worker == index % 3
    made.finish(1, (1, None, 0, "words")), made.finish(4, (4, None, 0, "words"))
    robbed, task = made.steal() or (None, None)
    assert (robbed, numbers_of(task)) == (0, [3])
    made.finish(0, (0, None, 0, "words"))
    assert made.remove_worker(2).num_handed_over == 2
    assert numbers_of(made.assign_suspect()) == [2]
    assert made.remove_worker(0).given_up == []
    made.add_worker(0, 3)
    for index in (5, 2):
        assert numbers_of(made.assign_suspect()) == [index]
        made.finish(index, (index, None, 0, "words"))
    made.finish(3, (3, None, 0, "words"))
    assert not made.is_busy
