"""Occurrence counter of 64-bit keys, in 16 to 32 bytes a key; a set of a million takes seventy."""

from __future__ import annotations

import numpy as np

_MIN_SLOTS = 1 << 12
_MAX_FILLED = 0.5
_MASK = (1 << 64) - 1
_SCRAMBLE = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio spreads similar keys (Knuth, TAOCP 3, 6.4)


class KeyCounter:
    """A hash table with linear probing; 0 marks a free slot. Repeated keys are few and have their own counts."""

    def __init__(self) -> None:
        self._slots = np.zeros(_MIN_SLOTS, np.uint64)
        self._num_keys = 0
        self._repeats: dict[int, int] = {}

    def count(self, key: int) -> int:
        """Count a key. Return how often it was counted before."""
        if key and self._insert(key):
            return 0
        self._repeats[key] = self._repeats.get(key, 0 if key else -1) + 1  # 0 has no slot, so all its counts are here
        return self._repeats[key]

    def _insert(self, key: int) -> bool:
        """Return False if the key has a slot already."""
        slot = self._find(key)
        if self._slots[slot]:
            return False
        self._slots[slot] = key
        self._num_keys += 1
        if self._num_keys > _MAX_FILLED * len(self._slots):
            self._grow()
        return True

    def _find(self, key: int) -> int:
        """Return the slot of the key, or the free slot for it."""
        mask = len(self._slots) - 1
        slot = (key * _SCRAMBLE & _MASK) >> (64 - mask.bit_length())
        while (held := self._slots.item(slot)) and held != key:
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        held = self._slots
        self._slots = np.zeros(2 * len(held), np.uint64)
        for start in range(0, len(held), _MIN_SLOTS):  # in parts, because Python's integers take four times the memory
            for key in held[start : start + _MIN_SLOTS].tolist():
                if key:
                    self._slots[self._find(key)] = key
