from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from fastscribe.batching import plan

lengths = st.lists(st.integers(1, 500), max_size=200)
limits = st.one_of(st.none(), st.integers(1, 3000))


@given(lengths, limits, st.one_of(st.none(), st.integers(1, 50)))
def test_every_utterance_once_longest_first_within_budget(frames, batch_frames, batch_size) -> None:
    items = list(enumerate(frames))
    batches = list(plan(items, lambda item: item[1], batch_frames, batch_size))
    flat = [item for batch in batches for item in batch]
    assert sorted(flat) == items
    assert flat == sorted(items, key=lambda item: -item[1])  # stable: equal lengths keep their order
    for batch in batches:
        assert batch
        assert batch_size is None or len(batch) <= batch_size
        assert batch_frames is None or len(batch) == 1 or len(batch) * batch[0][1] <= batch_frames


@given(lengths, st.integers(1, 50))
def test_batch_size_alone_fills_every_batch(frames, batch_size) -> None:
    sizes = [len(batch) for batch in plan(frames, lambda n: n, None, batch_size)]
    assert all(size == batch_size for size in sizes[:-1])


def test_padding_is_a_few_per_cent() -> None:
    """Lengths like a benchmark's (mean near 8 s, 12.5 frames a second), and few recordings of all lengths."""
    draw = random.Random(0)
    many = [max(8, int(12.5 * draw.lognormvariate(1.8, 0.7))) for _ in range(4000)]
    few = [6, 13, 16, 25, 25, 33, 40, 44, 47, 50, 52, 58, 62, 66, 70, 71, 80, 97, 300]
    for frames, most in ((many, 0.03), (few, 0.25)):
        batches = list(plan(frames, lambda n: n, 1600, None))
        padded = sum(len(batch) * batch[0] for batch in batches)
        assert 1 - sum(frames) / padded < most
