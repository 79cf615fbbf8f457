"""What a run with a limit begins: nothing that is expected to be done too late."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.pipeline.time_limit import TimeLimit


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def decode(limit: TimeLimit, clock: Clock, audio_s: float, seconds: float) -> None:
    assert limit.begin(audio_s)
    clock.now_s += seconds
    limit.done(audio_s)


def parts(limit: TimeLimit, items: Sequence[float], undone_s: float = 0.0, probe_s: float = 1.0) -> list[list[float]]:
    return list(limit.parts(items, lambda item: item, lambda: undone_s, probe_s))


def test_no_batch_begins_that_would_be_late() -> None:
    clock = Clock()
    limit = TimeLimit(10.0, clock)
    decode(limit, clock, audio_s=60.0, seconds=6.0)
    assert limit.begin(30.0)  # until 9 s
    assert not limit.is_reached
    assert not limit.begin(30.0)  # with what is in flight, until 12 s
    assert limit.is_reached


def test_the_slowest_of_the_last_batches_counts() -> None:
    clock = Clock()
    limit = TimeLimit(120.0, clock)
    decode(limit, clock, audio_s=10.0, seconds=50.0)
    decode(limit, clock, audio_s=10.0, seconds=1.0)
    assert not limit.begin(14.0)


def test_pauses_are_not_the_models_speed() -> None:
    clock = Clock()
    limit = TimeLimit(100.0, clock)
    decode(limit, clock, audio_s=10.0, seconds=1.0)
    clock.now_s += 50.0  # the input was slow
    decode(limit, clock, audio_s=10.0, seconds=1.0)
    assert limit.begin(10.0)


def test_parts_of_a_batch_and_empty_ones() -> None:
    """A batch that failed comes back in halves; a batch may hold no audio at all."""
    clock = Clock()
    limit = TimeLimit(10.0, clock)
    assert limit.begin(8.0) and limit.begin(0.0)
    for audio_s in (4.0, 4.0, 0.0):
        clock.now_s += 1.0
        limit.done(audio_s)
    assert limit.begin(20.0)  # a quarter of a second a second, and nothing is in flight
    clock.now_s = 10.0
    assert not limit.begin(0.0)


def test_first_the_shortest_then_all_that_fits() -> None:
    clock = Clock()
    limit = TimeLimit(10.0, clock)
    begun = limit.parts([500.0, 3.0, 0.0, 2.0, 40.0], lambda item: item, lambda: 0.0, probe_s=2.5)
    assert next(begun) == [0.0, 2.0]
    decode(limit, clock, audio_s=2.0, seconds=0.5)  # 9.5 s are left for 38 s of audio
    assert next(begun) == [3.0]
    decode(limit, clock, audio_s=3.0, seconds=0.1)
    assert next(begun, None) is None and limit.is_reached


def test_without_time_nothing_begins() -> None:
    clock = Clock()
    clock.now_s = 10.0
    limit = TimeLimit(10.0, clock)
    assert parts(limit, [1.0]) == [] and limit.is_reached


def test_work_in_flight_takes_room() -> None:
    clock = Clock()
    limit = TimeLimit(10.0, clock)
    decode(limit, clock, audio_s=10.0, seconds=1.0)
    assert parts(limit, [50.0], undone_s=41.0) == []
    assert parts(limit, [50.0], undone_s=40.0) == [[50.0]]


@given(st.lists(st.floats(0, 100), max_size=30), st.floats(0.1, 10), st.floats(0, 5))
def test_with_time_each_item_comes_once(items: list[float], probe_s: float, pace: float) -> None:
    clock = Clock()
    limit = TimeLimit(1e9, clock)
    seen = []
    for part in limit.parts(items, lambda item: item, lambda: 0.0, probe_s):
        assert part
        decode(limit, clock, sum(part), pace * sum(part))
        seen += part
    assert sorted(seen) == sorted(items) and not limit.is_reached


@pytest.mark.parametrize("end_s", [1.0, 30.0, 200.0])
def test_a_steady_run_ends_in_time_and_leaves_no_room(end_s: float) -> None:
    clock = Clock()
    limit = TimeLimit(end_s, clock)
    done_s = 0.0
    for part in limit.parts([1.0] * 1000, lambda item: item, lambda: 0.0, probe_s=3.0):
        for item in part:
            if limit.begin(item):
                clock.now_s += 0.25 * item
                limit.done(item)
                done_s += item
    assert limit.is_reached
    assert end_s - 0.5 <= clock.now_s <= end_s
    assert done_s == clock.now_s / 0.25
