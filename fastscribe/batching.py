"""Utterances to batches: longest first, filled up to a budget of padded encoder frames. Pure; knows no tensor.

Sorting by length makes neighbours alike, so that padding stays at a few per cent, and puts the batch that needs the most
memory first, where running out of it costs least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

# A batch that holds this share of its budget is closed rather than padded by more than that share for one more row.
_FILLED_ENOUGH = 0.25
_MOST_PADDING = 0.05


def plan(
    utterances: Iterable[T],
    num_frames: Callable[[T], int],
    batch_frames: int | None,
    batch_size: int | None,
) -> Iterator[tuple[T, ...]]:
    """Batches of at most `batch_frames` (rows x longest; None = no limit) and `batch_size` rows (None = no limit).

    An utterance longer than the whole budget is a batch by itself. Equal lengths keep their order. A batch stops short of
    its budget where the next length is much smaller: few rows of many lengths would otherwise be mostly padding.
    """
    batch: list[T] = []
    longest = real = 0
    for utterance in sorted(utterances, key=num_frames, reverse=True):
        frames = num_frames(utterance)
        if batch and _is_full(len(batch), longest, real + frames, batch_frames, batch_size):
            yield tuple(batch)
            batch, real = [], 0
        longest = frames if not batch else longest
        batch.append(utterance)
        real += frames
    if batch:
        yield tuple(batch)


def _is_full(rows: int, longest: int, real_with_next: int, batch_frames: int | None, batch_size: int | None) -> bool:
    """Whether a batch of so many rows should not take the next utterance, with which it would hold `real_with_next`."""
    if batch_size is not None and rows >= batch_size:
        return True
    if batch_frames is None:
        return False
    padded_with_next = (rows + 1) * longest
    too_padded = padded_with_next - real_with_next > _MOST_PADDING * padded_with_next
    return padded_with_next > batch_frames or (too_padded and rows * longest >= _FILLED_ENOUGH * batch_frames)
