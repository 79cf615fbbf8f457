"""Chunks of recordings: each is handed out once, small ones last, and one that kills its worker ends up alone."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.ray.chunks import MAX_ITEMS, Chunk, ChunkQueue, Item, LengthEstimate
from fastscribe.types import Source

LENGTHS = st.lists(st.floats(0, 5000), max_size=50)


def items(lengths: list[float]) -> list[Item]:
    return [Item(Source(f"{i}.wav", f"{i}.wav", f"{i}", index=i), length) for i, length in enumerate(lengths)]


def taken(queue: ChunkQueue, target_s: float, min_s: float, num_workers: int) -> list[Chunk]:
    return list(iter(lambda: queue.take(target_s, min_s, num_workers, is_idle=True), None))


@settings(max_examples=50)
@given(LENGTHS, st.floats(1, 10_000), st.integers(1, 64))
def test_each_recording_is_handed_out_once(lengths: list[float], target_s: float, num_workers: int) -> None:
    queue = ChunkQueue(3)
    queue.add(items(lengths))
    chunks = taken(queue, target_s, 1.0, num_workers)
    found = [item.source.index for chunk in chunks for item in chunk.items.values()]
    assert sorted(found) == list(range(len(lengths))) and not len(queue)
    for chunk in chunks:
        assert 1 <= len(chunk.items) <= MAX_ITEMS
        assert len(chunk.items) == 1 or chunk.seconds <= max(target_s, 1.0) + 1e-6


def test_chunks_get_smaller_towards_the_end() -> None:
    queue = ChunkQueue(3)
    queue.add(items([10.0] * 1000))
    seconds = [chunk.seconds for chunk in taken(queue, 2000, 30, num_workers=4)]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] == 1250 and seconds[-1] <= 30 and len(seconds) < 40
    queue.add(items([10.0] * 1000))
    assert [chunk.seconds for chunk in taken(queue, 2000, 30, num_workers=1)] == [2000.0] * 5  # nobody to share with


@settings(max_examples=50)
@given(st.integers(1, 300), st.data())
def test_what_kills_workers_is_given_up_and_the_others_are_done(number: int, data: st.DataObject) -> None:
    """A worker does the recordings of a chunk until the first one that kills it."""
    deadly = data.draw(st.sets(st.integers(0, number - 1), max_size=3))
    queue, done, given_up, deaths = ChunkQueue(3), [], [], 0
    queue.add(items([1.0] * number))
    while (chunk := queue.take(1e9, 1.0, 1, is_idle=True)) is not None:
        if deadly & {item.source.index for item in chunk.items.values()}:
            deaths += 1
            given_up += [item.source.index for item in queue.split(chunk)]
        else:
            done += [item.source.index for item in chunk.items.values()]
    assert sorted(given_up) == sorted(deadly)
    assert sorted(done) == sorted(set(range(number)) - deadly)
    assert deaths <= 3 * len(deadly) + 3 * len(deadly)  # eighths: 300 recordings are singles after three rounds


def test_nothing_waits_behind_a_suspect_chunk() -> None:
    queue = ChunkQueue(3)
    queue.add(items([1.0] * 16))
    chunk = queue.take(100, 1, 1, is_idle=True)
    assert chunk is not None and queue.split(chunk) == []
    assert queue.take(100, 1, 1, is_idle=False) is None
    again = queue.take(100, 1, 1, is_idle=True)
    assert again is not None and again.is_suspect and len(again.items) == 2


def test_lengths_are_learnt() -> None:
    lengths = LengthEstimate()
    assert lengths.seconds(160_000) == 10
    lengths.learn(320_000, 10)
    assert lengths.seconds(160_000) == 5
