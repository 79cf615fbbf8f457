"""The phrases to boost of a batch, and what boosting means for each kind of decoding.

- Greedy decoding (RNN-T, TDT, CTC, attention): the model alone decides whether there is a label. A blank stays a blank, and
  TDT's durations are the model's. The boost decides which label it is. So one lookup a label is enough, and nothing is
  written into silence. Letting labels beat blanks found no more names (docs/log.md, 2026-11-23). Greedy decoding cannot take
  back what it has written, but the loss for leaving a phrase in the middle still makes it go on with the phrase.
- Beam search adds the scores to its hypotheses, and compares them with blanks, which get none. A hypothesis that leaves a
  phrase in the middle loses what the phrase gave it, also at the end of the text.

Shapes: B rows, K states of each, one in each list that applies to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from fastscribe.context.boost_tables import BoostTables
from fastscribe.cuda.device import small_to_device
from fastscribe.types import Int64Array


@dataclass(frozen=True)
class Boost:
    """The phrases of a batch: tables, and each row's states before its first token."""

    tables: BoostTables
    start_BK: Int64Array

    def starts(self) -> torch.Tensor:
        """Return the rows' first states on the tables' device."""
        return small_to_device(np.ascontiguousarray(self.start_BK), self.tables.first_S.device)

    def part(self, rows: slice) -> Boost:
        """Return the phrases of some rows."""
        return replace(self, start_BK=self.start_BK[rows])

    def new_place(self) -> FixedTables:
        """Return a place for the tables of later batches too."""
        return FixedTables(self.tables.first_S.device)


Sizes = tuple[int, ...]


class FixedTables:
    """Tables for captured decoders: a graph contains addresses, so the tables of each batch are copied to fixed ones.

    They are on a device, and grow to the largest of each size so far, in powers of two. So batches with lists of many sizes
    soon need no new graphs. A graph that reads smaller ones keeps them until it is dropped.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tables: BoostTables | None = None
        self._loaded: BoostTables | None = None  # those that were copied there last

    def load(self, boost: Boost) -> tuple[BoostTables, Sizes]:
        """Copy a batch's tables, in the order of the current stream. Return those with the batch's phrases, and their sizes."""
        from fastscribe.cuda.loops import power_of_two

        tables = boost.tables
        *numbers, num_labels, max_count, num_levels = tables.sizes
        rounded = [*map(power_of_two, numbers), num_labels]
        sizes = (*rounded, min(power_of_two(max_count), max(1, num_labels)), power_of_two(num_levels))
        if self._tables is not None:
            sizes = tuple(map(max, sizes, self._tables.sizes))
        if self._tables is None or sizes != self._tables.sizes:
            self._loaded = None
            self._tables = BoostTables.allocate(sizes, self._device)
        if self._loaded is not tables:
            self._tables.copy_from_(tables)
            self._loaded = tables
        return self._tables, self._tables.sizes
