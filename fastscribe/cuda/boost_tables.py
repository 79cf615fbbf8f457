"""Phrases to boost for captured decoders: a graph contains addresses, so the tables of each batch are copied to fixed ones."""

from __future__ import annotations

import torch

from fastscribe.cuda.loops import power_of_two
from fastscribe.decode.boosting import Boost, BoostTables

Sizes = tuple[int, ...]


class FixedTables:
    """Tables on a device, one for each set of sizes, which are powers of two. Kept until `clear`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tables: dict[Sizes, tuple[BoostTables, BoostTables]] = {}  # and those that were copied there last

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
        tables, loaded = self._tables.get(sizes, (None, None))
        if tables is None:
            tables = BoostTables.allocate(sizes, self._device)
        if loaded is not boost.tables:
            tables.copy_from_(boost.tables)
            self._tables[sizes] = tables, boost.tables
        return boost.start_BK.shape[1], tables

    def clear(self) -> None:
        self._tables.clear()


def sizes_of(tables: BoostTables | None) -> Sizes:
    """Return what tells captured graphs apart; () without phrases."""
    return () if tables is None else tables.sizes
