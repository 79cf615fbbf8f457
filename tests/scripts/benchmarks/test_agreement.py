"""Labels of two runs are compared recording by recording."""

from __future__ import annotations

from fastscribe.types import Hypothesis
from scripts.benchmarks import agreement


def test_agreement_of_equal_and_of_different_labels() -> None:
    wanted = [Hypothesis(token_ids=(1, 2, 3)), Hypothesis(token_ids=(4,))]
    assert agreement.compare(wanted, wanted)["label_difference_share"] == 0.0
    found = agreement.compare([Hypothesis(token_ids=(1, 3)), Hypothesis(token_ids=(4,))], wanted)
    assert (found["label_difference_share"], found["equal_share"]) == (0.25, 0.5)
