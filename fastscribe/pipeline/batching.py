"""Batch planning: utterances sorted by length, longest first, up to a budget of padded encoder frames. Pure, no tensors.

Sorting by length puts similar lengths together, so padding stays at a few per cent. The batch that needs the most memory
comes first, where an out-of-memory error costs least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

# A batch that is filled to _MIN_FILLED of its budget takes no row that would raise its padding above the budget's limit.
_MIN_FILLED = 0.25
# The budget after a batch ran out of memory, as a share of that batch's cost.
_SHRINK_TO = 0.7


@dataclass
class Budget:
    """The largest cost of one batch, in encoder frames. It can shrink, never grow.

    A row of T frames costs T + T*T / quadratic_at_frames + overhead_frames_per_row.

    Args:
        frames: The budget; infinite: no limit.
        quadratic_at_frames: The row length at which the quadratic cost (attention) equals the linear cost; infinite: no
            quadratic cost.
        overhead_frames_per_row: The cost of a row that does not depend on its length.
        max_padding: The share of padding above which a batch takes no more rows, once it is filled in part.
        max_rows: The most rows of a batch, whatever they cost; infinite: no limit.
    """

    frames: float
    quadratic_at_frames: float = math.inf
    overhead_frames_per_row: float = 0.0
    max_padding: float = 0.05
    max_rows: float = math.inf

    @classmethod
    def smallest(cls, budgets: Sequence[Budget]) -> Budget:
        """Return a budget that allows no batch which one of these forbids."""
        return cls(
            min(one.frames for one in budgets),
            min(one.quadratic_at_frames for one in budgets),
            max(one.overhead_frames_per_row for one in budgets),
            min(one.max_padding for one in budgets),
            min(one.max_rows for one in budgets),
        )

    def cost(self, rows: int, longest: int) -> float:
        """Return the cost of `rows` rows padded to `longest` encoder frames."""
        return rows * (longest * (1.0 + longest / self.quadratic_at_frames) + self.overhead_frames_per_row)

    def shrink(self, rows: int, longest: int) -> None:
        """Shrink the budget below the cost of a batch of this shape, which ran out of memory."""
        self.frames = max(1.0, min(self.frames, _SHRINK_TO * self.cost(rows, longest)))


def plan(utterances: Iterable[T], num_frames: Callable[[T], int], budget: Budget) -> Iterator[tuple[T, ...]]:
    """Yield batches, longest utterances first.

    An utterance that exceeds the whole budget is a batch of its own. Equal lengths keep their order. A batch stays below
    its budget if the next utterance is much shorter; otherwise batches of a few rows would be mostly padding.

    Args:
        utterances: The items to sort and batch.
        num_frames: Returns an utterance's length in encoder frames.
        budget: Read again for each batch, so a budget that shrinks applies to the next batch.
    """
    batch: list[T] = []
    longest = real = 0
    for utterance in sorted(utterances, key=num_frames, reverse=True):
        frames = num_frames(utterance)
        if batch and _is_full(len(batch), longest, real + frames, budget):
            yield tuple(batch)
            batch, real = [], 0
        longest = frames if not batch else longest
        batch.append(utterance)
        real += frames
    if batch:
        yield tuple(batch)


def padded_within(items: Iterable[T], length: Callable[[T], float], most: float) -> Iterator[list[T]]:
    """Yield groups of items, longest first, whose rows take at most `most` when padded to the group's longest.

    A longer item is a group of its own.
    """
    group: list[T] = []
    for item in sorted(items, key=length, reverse=True):
        if group and (len(group) + 1) * length(group[0]) > most:
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def in_turn(items: Iterable[T], work: Callable[[T], float], least: float) -> Iterator[list[T]]:
    """Yield the items in parts, in their order. A part ends with the item with which its `work` reaches `least`."""
    part: list[T] = []
    done = 0.0
    for item in items:
        part.append(item)
        done += work(item)
        if done >= least:
            yield part
            part, done = [], 0.0
    if part:
        yield part


def _is_full(rows: int, longest: int, real_with_next: int, budget: Budget) -> bool:
    """Return True if the batch should not take the next utterance. With it, `real_with_next` frames are not padding."""
    if rows >= budget.max_rows:
        return True
    padded_with_next = (rows + 1) * longest
    too_padded = padded_with_next - real_with_next > budget.max_padding * padded_with_next
    filled_enough = budget.cost(rows, longest) >= _MIN_FILLED * budget.frames
    return budget.cost(rows + 1, longest) > budget.frames or (too_padded and filled_enough)
