"""Phrases to boost for captured decoders (scorer.FixedPlace): a graph contains addresses, so the tables of each batch are
copied to fixed ones.
"""

from __future__ import annotations

import torch

from fastscribe.context.boost_tables import BoostTables
from fastscribe.cuda.loops import power_of_two
from fastscribe.decode.scorer import Boost

Sizes = tuple[int, ...]


class FixedTables:
    """Tables on a device that grow to the largest of each size so far, in powers of two.

    So batches with lists of many sizes soon need no new graphs. A graph that reads smaller ones keeps them until it is dropped.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tables: BoostTables | None = None
        self._loaded: BoostTables | None = None  # those that were copied there last

    def load(self, boost: Boost) -> tuple[BoostTables, Sizes]:
        """Copy a batch's tables, in the order of the current stream. Return those with the batch's phrases, and their sizes."""
        tables = boost.tables
        assert isinstance(tables, BoostTables)
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
