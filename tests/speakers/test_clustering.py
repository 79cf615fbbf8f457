"""Clustering of voice prints against a slow form of its definition, and its properties."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import pytest

from fastscribe.speakers.clustering import cluster


def prints(seed: int, num_persons: int, per_person: int, noise: float, size: int = 24) -> tuple[np.ndarray, np.ndarray]:
    """Return prints of length 1 and the person of each, in random order."""
    random = np.random.RandomState(seed)
    persons = np.repeat(np.arange(num_persons), per_person)
    random.shuffle(persons)
    centres = random.standard_normal((num_persons, size))
    found = centres[persons] + noise * random.standard_normal((len(persons), size))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32), persons


def slow_cluster(
    found: np.ndarray, recordings: Sequence[Hashable], threshold: float, fixed: Sequence[Hashable | None]
) -> list[int]:
    """Merge the pair of groups with the greatest mean cosine, as long as it is the threshold's at least."""
    cosines = found.astype(np.float64) @ found.T
    groups: list[list[int]] = []
    for number, known in enumerate(fixed):
        same = [group for group in groups if known is not None and fixed[group[0]] == known]
        if same:
            same[0].append(number)
        else:
            groups.append([number])

    def similarity(one: list[int], other: list[int]) -> float:
        shared = {recordings[a] for a in one} & {recordings[b] for b in other}
        both_fixed = any(fixed[a] is not None for a in one) and any(fixed[b] is not None for b in other)
        return -1.0 if shared or both_fixed else float(cosines[np.ix_(one, other)].mean())

    while len(groups) > 1:
        pairs = [(similarity(groups[a], groups[b]), a, b) for a in range(len(groups)) for b in range(a)]
        best, a, b = max(pairs)
        if best < threshold:
            break
        groups[b] += groups.pop(a)
    label = {number: min(group) for group in groups for number in group}
    numbers: dict[int, int] = {}
    return [numbers.setdefault(label[number], len(numbers)) for number in range(len(found))]


@pytest.mark.parametrize("seed", range(12))
def test_groups_are_those_of_the_slow_form(seed: int) -> None:
    found, _ = prints(seed, 4, 6, noise=0.9)
    random = np.random.RandomState(seed)
    recordings = random.randint(0, 12, len(found)).tolist()
    fixed = [f"name {random.randint(3)}" if random.rand() < 0.2 * (seed % 3) else None for _ in found]
    for threshold in (0.2, 0.4, 0.6):
        expected = slow_cluster(found, recordings, threshold, fixed)
        assert cluster(found, recordings, threshold, fixed) == expected


def test_equal_prints_are_one_person() -> None:
    """None of many equal similarities is the nearest."""
    assert cluster(np.ones((7, 1), np.float32), range(7), 0.4) == [0] * 7
    assert len(set(cluster(np.ones((7, 1), np.float32), [0, 1, 2, 0, 1, 2, 0], 0.4))) >= 3


def test_nothing_and_one_print() -> None:
    assert cluster(np.zeros((0, 4), np.float32), [], 0.4) == []
    assert cluster(np.eye(1, 4, dtype=np.float32), ["a"], 0.4) == [0]
