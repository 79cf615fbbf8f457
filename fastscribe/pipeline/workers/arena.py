"""The memory that the processes of a run share: batches of samples, and what each helper is working on.

It has no name: on Linux a memfd, elsewhere a temporary file that is deleted at once. So a container with a small /dev/shm has
it too, and nothing is left behind, however the processes end. The coordinator alone allocates in it.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from bisect import insort
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fastscribe.types import Int64Array

MAX_BYTES = 2 << 30
_MEMORY_SHARE = 8  # at most an eighth of the machine's memory
_MIN_BYTES = 64 << 20
_ALIGN_BYTES = 4096
MAX_HELPERS = 1024
_STATUS_BYTES = 2 * 8 * MAX_HELPERS


class SharedFile(NamedTuple):
    """What another process needs to map the memory: an inherited descriptor, on Windows a path."""

    descriptor: int
    path: str
    num_bytes: int


class SharedMemory:
    """The memory as any process of the run sees it. It may have grown since it was mapped."""

    def __init__(self, file: SharedFile) -> None:
        self.file = file
        self._map = self._mapped(file.num_bytes)  # stays where it is: a GPU's driver may have pinned it
        self._grown = self._map

    def view(self, begin: int, num_bytes: int) -> memoryview:
        """Return a part of the memory."""
        end = begin + num_bytes
        if end > len(self._grown):
            self._grown = self._mapped(0)
        return memoryview(self._map if end <= len(self._map) else self._grown)[begin:end]

    def status(self, helper: int) -> Int64Array:
        """Return what a helper is working on, [2]: the number of a job, and of an item in it; -1 between jobs."""
        return np.frombuffer(self._map, np.int64, 2, 16 * helper)

    def _mapped(self, num_bytes: int) -> mmap.mmap:
        if self.file.path:
            with open(self.file.path, "r+b") as opened:
                return mmap.mmap(opened.fileno(), num_bytes)
        return mmap.mmap(self.file.descriptor, num_bytes)


class Arena(SharedMemory):
    """The memory as the coordinator has it, which gives its parts to batches: the first gap that is large enough.

    Args:
        num_bytes: Its size.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = _aligned(num_bytes) + _STATUS_BYTES
        self._free: list[tuple[int, int]] = []  # begin and size, in order
        self.clear()
        self._path = ""
        if hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create("fastscribe")
        else:
            self._descriptor, self._path = tempfile.mkstemp(prefix="fastscribe-")
            if os.name != "nt":  # Windows deletes no open file
                os.unlink(self._path)
                self._path = ""
        os.truncate(self._descriptor, self.num_bytes)
        super().__init__(SharedFile(self._descriptor, self._path, self.num_bytes))
        np.frombuffer(self._map, np.int64, 2 * MAX_HELPERS)[:] = -1

    @classmethod
    def of_machine(cls, total_bytes: int) -> Arena:
        """Return an arena for a machine with this memory."""
        return cls(max(_MIN_BYTES, min(MAX_BYTES, total_bytes // _MEMORY_SHARE)))

    @property
    def is_empty(self) -> bool:
        """True if no part is given away."""
        return sum(size for _, size in self._free) == self._num_free

    def allocate(self, num_bytes: int) -> int | None:
        """Return where a part begins, or None if there is no room for it now."""
        size = _aligned(num_bytes)
        for index, (begin, free) in enumerate(self._free):
            if free >= size:
                self._free[index : index + 1] = [(begin + size, free - size)] if free > size else []
                return begin
        return None

    def release(self, begin: int, num_bytes: int) -> None:
        """Take back a part."""
        insort(self._free, (begin, _aligned(num_bytes)))
        joined: list[tuple[int, int]] = []
        for start, size in self._free:
            if joined and sum(joined[-1]) == start:
                joined[-1] = joined[-1][0], joined[-1][1] + size
            else:
                joined.append((start, size))
        self._free = joined

    def grow(self, num_bytes: int) -> int:
        """Return where a part begins for which waiting makes no room.

        One recording of many hours is larger than the memory. Recordings that hang keep their parts.
        """
        begin, size = self.num_bytes, _aligned(num_bytes)
        self.num_bytes += size
        self._num_free += size
        os.truncate(self._descriptor, self.num_bytes)
        return begin

    def clear(self, kept: Iterable[tuple[int, int]] = ()) -> None:
        """Take back all parts but some, for good: begin and size of each that is still written to."""
        self._free, begin = [], _STATUS_BYTES
        for start, size in sorted(kept):
            if start > begin:
                self._free.append((begin, start - begin))
            begin = start + _aligned(size)
        if begin < self.num_bytes:
            self._free.append((begin, self.num_bytes - begin))
        self._num_free = sum(size for _, size in self._free)

    def close(self) -> None:
        """Free the memory once the last process that maps it has ended."""
        os.close(self._descriptor)
        if self._path:
            os.unlink(self._path)


def _aligned(num_bytes: int) -> int:
    return max(1, -(-num_bytes // _ALIGN_BYTES)) * _ALIGN_BYTES
