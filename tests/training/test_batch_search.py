"""The search for batch sizes against simulated memories of known size, and its cache file."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.errors import OutputError, UsageError
from fastscribe.training.batch_search import cached_batch_sizes, read_batch_sizes, search_batch_sizes, write_batch_sizes
from fastscribe.training.buckets import Bucket

BUCKETS = (Bucket(2.0, 10), Bucket(2.0, 20), Bucket(5.0, 15), Bucket(5.0, 60))
WHAT = {"model": {"d_model": 4, "durations": (0, 1)}, "device": "a card", "memory": 1 << 30, "dtype": "bfloat16"}


class Memory:
    """A device's memory: the encoder, full attention and the transducer's lattice have to fit, and trials are counted."""

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self.trials: list[tuple[Bucket, int]] = []

    def fits(self, bucket: Bucket, rows: int) -> bool:
        self.trials.append((bucket, rows))
        return rows <= self.rows_of(bucket)

    def rows_of(self, bucket: Bucket) -> float:
        duration_s, tokens = bucket
        return self.budget / (duration_s * (1 + 0.01 * duration_s + 0.002 * (tokens + 1)))


buckets = st.lists(st.builds(Bucket, st.floats(0.5, 40), st.integers(0, 300)), min_size=1, max_size=12, unique=True)


@given(buckets, st.floats(800, 1e5), st.integers(1, 3000))
def test_found_sizes_fit(buckets, budget, max_rows) -> None:
    memory = Memory(budget)
    for bucket, rows in zip(buckets, search_batch_sizes(buckets, memory.fits, max_rows), strict=True):
        right = min(max_rows, max(1, int(memory.rows_of(bucket))))
        assert 1 <= rows <= max(1, 0.9 * right)
        assert rows >= int(0.9 * (0.95 * right - 1)) or rows == 1
    assert len(memory.trials) == len(set(memory.trials))  # no size is tried twice
    assert all(rows <= max_rows for _, rows in memory.trials)


def test_smaller_buckets_reuse_larger() -> None:
    memory = Memory(1000)
    search_batch_sizes(BUCKETS, memory.fits)
    assert memory.trials[0] == (BUCKETS[3], 1)
    assert min(rows for bucket, rows in memory.trials if bucket == BUCKETS[0]) > 300
    assert len(memory.trials) < 40


def test_one_row_too_large() -> None:
    with pytest.raises(UsageError, match="no memory for one recording of 5 s with 60 tokens"):
        search_batch_sizes(BUCKETS, lambda bucket, rows: False)


def test_cache(tmp_path) -> None:
    path, memory = tmp_path / "new" / "sizes.json", Memory(1000)
    found = cached_batch_sizes(path, WHAT, BUCKETS, memory.fits)
    tried = len(memory.trials)
    assert cached_batch_sizes(path, WHAT, BUCKETS, memory.fits) == found and len(memory.trials) == tried
    assert [p.name for p in path.parent.iterdir()] == ["sizes.json"]
    assert cached_batch_sizes(path, WHAT | {"dtype": "float32"}, BUCKETS, Memory(500).fits) != found
    assert read_batch_sizes(path, WHAT, BUCKETS) is None
    assert read_batch_sizes(path, WHAT | {"dtype": "float32"}, BUCKETS[1:]) is None


@pytest.mark.parametrize("damage", ["", "{", "[]", "3", '{"batch_sizes": [1]}'])
def test_damaged_cache(tmp_path, damage) -> None:
    path = tmp_path / "sizes.json"
    path.write_text(damage)
    assert read_batch_sizes(path, WHAT, BUCKETS) is None


@pytest.mark.parametrize("sizes", [[1, 2, 3], [1, 2, 3, 0], [1, 2, 3, "4"], [1, 2, 3, True], None])
def test_impossible_sizes_in_cache(tmp_path, sizes) -> None:
    path = tmp_path / "sizes.json"
    write_batch_sizes(path, WHAT, BUCKETS, (1, 2, 3, 4))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"batch_sizes": sizes}))
    assert read_batch_sizes(path, WHAT, BUCKETS) is None


def test_unwritable_cache(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError):
        write_batch_sizes(tmp_path / "file" / "sizes.json", WHAT, BUCKETS, (1, 2, 3, 4))
