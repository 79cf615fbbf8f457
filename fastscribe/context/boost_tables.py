"""Phrases to boost for captured decoders: a graph contains addresses, so the tables of each batch are copied to fixed ones."""

from __future__ import annotations

import torch

from fastscribe.context.boosting import Boost, BoostTables
from fastscribe.cuda.loops import power_of_two

Sizes = tuple[int, ...]


class FixedTables:
    """Tables on a device that grow to the largest of each size so far, in powers of two.

    So batches with lists of many sizes soon need no new graphs. A graph that reads smaller ones keeps them until it is dropped.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tables: BoostTables | None = None
        self._loaded: BoostTables | None = None  # those that were copied there last

    def load(self, boost: Boost | None) -> tuple[int, BoostTables | None]:
        """Copy a batch's tables, in the order of the current stream.

        Returns:
            The lists of a row, and the tables with the batch's phrases; 0 and None without phrases.
        """
        if boost is None:
            return 0, None
        *numbers, num_labels, max_count, num_levels = boost.tables.sizes
        rounded = [*map(power_of_two, numbers), num_labels]
        sizes = (*rounded, min(power_of_two(max_count), max(1, num_labels)), power_of_two(num_levels))
        if self._tables is not None:
            sizes = tuple(map(max, sizes, self._tables.sizes))
        if self._tables is None or sizes != self._tables.sizes:
            self._loaded = None
            self._tables = BoostTables.allocate(sizes, self._device)
        if self._loaded is not boost.tables:
            self._tables.copy_from_(boost.tables)
            self._loaded = boost.tables
        return boost.start_BK.shape[1], self._tables

    def clear(self) -> None:
        self._tables = self._loaded = None


def sizes_of(tables: BoostTables | None) -> Sizes:
    """Return what tells captured graphs apart; () without phrases."""
    return () if tables is None else tables.sizes
