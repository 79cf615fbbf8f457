"""Utterances to batches: longest first, filled up to a budget of padded encoder frames. Pure; knows no tensor.

Sorting by length makes neighbours alike, so that padding stays at a few per cent, and puts the batch that needs the most
memory first, where running out of it costs least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

# A batch that holds this share of its budget is closed rather than padded by more than that share for one more row.
_FILLED_ENOUGH = 0.25
_MAX_PADDING = 0.05
# What is left of a budget after a batch ran out of memory: that batch's own cost, times this.
_AFTER_FAILURE = 0.7


@dataclass
class Budget:
    """What one batch may cost, in encoder frames (infinite: anything). It only ever shrinks.

    A row of T frames costs T + T*T / bend + row_frames: `bend` is the length at which attention's part, quadratic in T,
    weighs as much as all that is linear (infinite where nothing that counts is quadratic), and `row_frames` is what a row
    costs however short it is.
    """

    frames: float
    bend: float = math.inf
    row_frames: float = 0.0

    def cost(self, rows: int, longest: int) -> float:
        return rows * (longest * (1.0 + longest / self.bend) + self.row_frames)

    def shrink(self, rows: int, longest: int) -> None:
        """A batch of this shape was too much: none as large is planned again."""
        self.frames = max(1.0, min(self.frames, _AFTER_FAILURE * self.cost(rows, longest)))


def plan(
    utterances: Iterable[T], num_frames: Callable[[T], int], budget: Budget, batch_size: int | None
) -> Iterator[tuple[T, ...]]:
    """Batches within `budget`, which is looked at anew for each, and `batch_size` rows (None = no limit).

    An utterance beyond the whole budget is a batch by itself. Equal lengths keep their order. A batch stops short of
    its budget where the next length is much smaller: few rows of many lengths would otherwise be mostly padding.
    """
    batch: list[T] = []
    longest = real = 0
    for utterance in sorted(utterances, key=num_frames, reverse=True):
        frames = num_frames(utterance)
        if batch and _is_full(len(batch), longest, real + frames, budget, batch_size):
            yield tuple(batch)
            batch, real = [], 0
        longest = frames if not batch else longest
        batch.append(utterance)
        real += frames
    if batch:
        yield tuple(batch)


def _is_full(rows: int, longest: int, real_with_next: int, budget: Budget, batch_size: int | None) -> bool:
    """Whether a batch of so many rows should not take the next utterance, with which it would hold `real_with_next`."""
    if batch_size is not None and rows >= batch_size:
        return True
    padded_with_next = (rows + 1) * longest
    too_padded = padded_with_next - real_with_next > _MAX_PADDING * padded_with_next
    filled_enough = budget.cost(rows, longest) >= _FILLED_ENOUGH * budget.frames
    return budget.cost(rows + 1, longest) > budget.frames or (too_padded and filled_enough)
