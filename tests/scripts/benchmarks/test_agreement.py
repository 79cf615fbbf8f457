"""Labels of two runs are compared recording by recording."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fastscribe.types import Hypothesis
from scripts.benchmarks import agreement


def test_agreement_of_equal_and_of_different_labels() -> None:
    wanted = [Hypothesis(token_ids=(1, 2, 3)), Hypothesis(token_ids=(4,))]
    assert agreement.compare(wanted, wanted)["label_difference_share"] == 0.0
    found = agreement.compare([Hypothesis(token_ids=(1, 3)), Hypothesis(token_ids=(4,))], wanted)
    assert (found["label_difference_share"], found["equal_share"]) == (0.25, 0.5)


@given(st.lists(st.integers(0, 3), max_size=7), st.lists(st.integers(0, 3), max_size=7))
def test_edit_distance(a: list[int], b: list[int]) -> None:
    table = {(i, 0): i for i in range(len(a) + 1)} | {(0, j): j for j in range(len(b) + 1)}
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            swap = table[i - 1, j - 1] + (a[i - 1] != b[j - 1])
            table[i, j] = min(swap, table[i - 1, j] + 1, table[i, j - 1] + 1)
    assert agreement.edit_distance(a, b) == table[len(a), len(b)]
