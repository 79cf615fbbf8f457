"""Levenshtein distance between two sequences of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def edit_distance(a: Sequence[int], b: Sequence[int]) -> int:
    """Insertions, deletions and substitutions that turn one sequence into the other."""
    row = np.arange(len(b) + 1)
    columns = np.asarray(b)
    for number, label in enumerate(a, start=1):
        best = np.minimum(row[1:] + 1, row[:-1] + (columns != label))
        first = np.concatenate([[number], best])
        # An insertion costs one a step: the running minimum of what is left when the steps are taken off.
        row = np.minimum.accumulate(first - np.arange(len(first))) + np.arange(len(first))
    return int(row[-1])
