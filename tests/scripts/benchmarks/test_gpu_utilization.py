"""Busy time of a GPU counts once, however many kernels overlap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.benchmarks import gpu_utilization

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda s: (s[0], s[0] + s[1])), max_size=12)


@given(spans)
def test_covered_is_the_length_of_the_union(spans: list[tuple[int, int]]) -> None:
    assert gpu_utilization.covered(spans) == len({instant for begin, end in spans for instant in range(begin, end)})


def test_busy_share_counts_no_time_twice() -> None:
    found = gpu_utilization.summary([("a", 0.0, 400.0), ("b", 300.0, 500.0), ("a", 900.0, 1000.0)], wall_s=0.002)
    assert found["busy_share_of_wall"] == pytest.approx(0.3)
    assert found["busy_share_first_to_last"] == pytest.approx(0.6)
    assert found["top_kernels"][0] == {"name": "a", "count": 2, "ms": 0.5}
    assert gpu_utilization.summary([], wall_s=1.0)["busy_share_of_wall"] == 0.0
