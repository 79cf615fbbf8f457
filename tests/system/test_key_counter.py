"""KeyCounter against collections.Counter, and its memory."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe._system.key_counter import KeyCounter

LAST = (1 << 64) - 1
KEYS = st.one_of(st.sampled_from([0, 1, 2, LAST, LAST - 1, 1 << 63]), st.integers(0, LAST))


@settings(deadline=None)
@given(st.lists(KEYS, max_size=60))
def test_counts_equal_a_counter(keys: list[int]) -> None:
    seen, counter = KeyCounter(), Counter[int]()
    for key in keys:
        assert seen.count(key) == counter[key]
        counter[key] += 1


@pytest.mark.timeout(100)  # keys that all fell into one slot would take hours
@pytest.mark.parametrize("step", [1, 1 << 40, 1 << 52, 0x9E3779B97F4A7C15])
def test_counts_survive_growth(step: int) -> None:
    seen = KeyCounter()
    keys = [number * step & LAST for number in range(10_000 if step < 1 << 52 else 4096)]
    assert not any(seen.count(key) for key in keys)
    assert all(seen.count(key) == 1 for key in keys)
    assert seen.count(LAST - 12345) == 0


def test_a_key_takes_at_most_32_bytes() -> None:
    num_keys = 25_000
    tracemalloc.start()
    try:
        seen = KeyCounter()
        for number in range(num_keys):
            seen.count(number * 0xD1342543DE82EF95 & LAST)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 32 * num_keys + 12_500
    assert peak < 48 * num_keys + 62_500  # both tables while it grows
    assert seen.count(0xD1342543DE82EF95) == 1
