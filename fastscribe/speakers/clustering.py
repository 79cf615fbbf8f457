"""Cluster voice prints: which speakers of many recordings are one person. Pure.

Agglomerative, with average linkage: the two most similar groups become one until no two are as similar as the threshold. The
similarity of two groups is the mean cosine of their pairs of prints, which is the product of their means, because prints have
length 1. Two speakers of one recording are two persons, so groups that share a recording never become one.

A merged group is never more similar to another one than the more similar of its parts was. So two groups that are each other's
nearest become one sooner or later, whatever else happens, and all such pairs are merged at once (Murtagh 1983, reciprocal
nearest neighbours). Groups whose nearest has changed look for another one, many in one matrix product. Memory grows with the
number of prints, not with its square.

Shapes: N prints, G groups, E numbers of a print.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import chain

import numpy as np

from fastscribe.types import BoolArray, Float32Array, Int64Array

_ROWS_PER_BLOCK = 512  # of similarities at once


def cluster(
    prints_NE: Float32Array,
    recordings: Sequence[Hashable],
    threshold: float,
    fixed: Sequence[Hashable | None] | None = None,
    unheard: Iterable[tuple[Hashable, Hashable]] = (),
) -> list[int]:
    """Return the group of each print, numbered from 0 in the order of their first prints.

    Args:
        prints_NE: Prints of length 1.
        recordings: The recording of each.
        threshold: Least similarity of groups that become one.
        fixed: What is known of each: prints with equal values are one group, whatever their recordings, and those with
            different ones are not. None: nothing is known.
        unheard: Recordings in which a group of `fixed` has a speaker without a print: its value and the recording.
    """
    groups = _Groups(prints_NE, recordings, fixed or [None] * len(recordings), unheard)
    groups.merge_all(threshold)
    numbers: dict[int, int] = {}
    return [numbers.setdefault(group, len(numbers)) for group in groups.group_of()]


class _Groups:
    """Groups of prints, at first of those with an equal `fixed`, else of one each."""

    def __init__(
        self,
        prints_NE: Float32Array,
        recordings: Sequence[Hashable],
        fixed: Sequence[Hashable | None],
        unheard: Iterable[tuple[Hashable, Hashable]],
    ) -> None:
        first: dict[Hashable, int] = {}
        self._first_group = [
            number if known is None else first.setdefault(known, number) for number, known in enumerate(fixed)
        ]
        size = len(prints_NE)
        self._merged_into = list(self._first_group)  # by group; itself if it is none's part
        self._counts = np.zeros(size, np.int64)
        sums_GE = np.zeros_like(prints_NE, np.float64)
        np.add.at(self._counts, self._first_group, 1)
        np.add.at(sums_GE, self._first_group, prints_NE)
        self._means_GE = (sums_GE / np.maximum(self._counts, 1)[:, None]).astype(np.float32)
        self._is_group: BoolArray = self._counts > 0
        self._is_fixed: BoolArray = np.array([known is not None for known in fixed], bool)
        self._recordings: list[set[Hashable]] = [set() for _ in range(size)]  # by group
        self._groups_of: dict[Hashable, set[int]] = {}  # by recording
        others = ((first[known], recording) for known, recording in unheard if known in first)
        for group, recording in chain(zip(self._first_group, recordings, strict=True), others):
            self._recordings[group].add(recording)
            self._groups_of.setdefault(recording, set()).add(group)

    def group_of(self) -> list[int]:
        """Return the group of each print."""
        return [self._root(group) for group in self._first_group]

    def merge_all(self, threshold: float) -> None:
        """Merge until no two groups are as similar as the threshold."""
        best_G = np.full(len(self._is_group), -np.inf, np.float32)  # similarity to the nearest group
        nearest_G = np.full(len(best_G), -1)
        stale = np.flatnonzero(self._is_group)
        while True:
            self._look(stale, best_G, nearest_G)
            candidates = np.flatnonzero(self._is_group & (best_G >= max(threshold, -1.0)))
            if not len(candidates):
                return
            nearest = nearest_G[candidates]
            are_pairs = (nearest_G[nearest] == candidates) & (candidates < nearest) & (best_G[nearest] >= threshold)
            pairs = list(zip(candidates[are_pairs].tolist(), nearest[are_pairs].tolist(), strict=True))
            if not pairs:  # equal similarities in a circle
                first = int(candidates[best_G[candidates].argmax()])
                pairs = [(first, int(nearest_G[first]))]
            for group, other in pairs:
                self._merge(group, other)
            has_changed_G = np.zeros(len(best_G), bool)
            has_changed_G[[group for pair in pairs for group in pair]] = True
            is_stale = self._is_group[candidates] & (has_changed_G[nearest_G[candidates]] | has_changed_G[candidates])
            stale = candidates[is_stale]  # the others can only become less similar

    def _look(self, groups: Int64Array, best_G: Float32Array, nearest_G: Int64Array) -> None:
        """Find the nearest of some groups."""
        all_groups = np.flatnonzero(self._is_group)
        place_G = np.zeros(len(self._is_group), np.int64)
        place_G[all_groups] = np.arange(len(all_groups))
        means_AE, is_fixed_A = self._means_GE[all_groups], self._is_fixed[all_groups]
        for at in range(0, len(groups), _ROWS_PER_BLOCK):
            block = groups[at : at + _ROWS_PER_BLOCK]
            similarities = self._means_GE[block] @ means_AE.T
            similarities[np.ix_(self._is_fixed[block], is_fixed_A)] = -np.inf
            for row_A, group in zip(similarities, block.tolist(), strict=True):
                refused = [group, *(one for name in self._recordings[group] for one in self._groups_of[name])]
                row_A[place_G[refused]] = -np.inf
            found = similarities.argmax(1)
            best_G[block], nearest_G[block] = similarities[np.arange(len(block)), found], all_groups[found]

    def _merge(self, group: int, other: int) -> None:
        """Make `other` a part of `group`."""
        counts = self._counts
        total = counts[group] + counts[other]
        weighted_E = self._means_GE[group] * counts[group] + self._means_GE[other] * counts[other]
        self._means_GE[group] = weighted_E / total
        counts[group] = total
        self._is_group[other] = False
        self._is_fixed[group] |= self._is_fixed[other]
        self._merged_into[other] = group
        for recording in self._recordings[other]:
            self._groups_of[recording].discard(other)
            self._groups_of[recording].add(group)
        self._recordings[group] |= self._recordings[other]
        self._recordings[other] = set()

    def _root(self, group: int) -> int:
        while self._merged_into[group] != group:
            self._merged_into[group] = group = self._merged_into[self._merged_into[group]]
        return group
