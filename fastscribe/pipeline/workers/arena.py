"""The memory that the processes of a run share: batches of samples.

It has no name: a memfd, or where the system has or allows none a temporary file that is deleted at once. So a container with a
small /dev/shm has it too, and nothing is left behind, however the processes end. The coordinator alone allocates in it.

All of it is mapped from the beginning, but it comes into use in segments, each as large as all before it, and a segment that no
batch has lain in takes no memory. A part lies in one segment, because a GPU's process pins each segment by itself.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from threading import Thread
from typing import NamedTuple

_DEVICE_BYTES = 2 << 30  # for each device
_MEMORY_SHARE = 8  # at most an eighth of the machine's memory
_MIN_BYTES = 64 << 20
_DEVICE_PARTS = 8  # of a device that fit: batches that are being read, and at it
_ALIGN_BYTES = 4096
_SEGMENT_ALIGN_BYTES = 1 << 16  # a page of any system


class SharedFile(NamedTuple):
    """What another process needs to map the memory: an inherited descriptor, on Windows a path."""

    descriptor: int
    path: str
    num_bytes: int
    first_bytes: int  # of the first segment


class SharedMemory:
    """The memory as any process of the run sees it. It may have grown since it was mapped.

    Attributes:
        segments: Begin and end of each.
    """

    def __init__(self, file: SharedFile) -> None:
        self.file = file
        self.segments = _segments(file.first_bytes, file.num_bytes)
        self._map = self._mapped(file.num_bytes)  # stays where it is: a GPU's driver may have pinned it
        self._grown = self._map
        self._pinned: list[int] = []  # bytes, from the threads that pin
        self._pin: Callable[[memoryview], int] | None = None
        self._refused: Callable[[RuntimeError], None]
        self._unpinned = list(self.segments)

    @property
    def pinned_bytes(self) -> int:
        """What this process has pinned."""
        return sum(self._pinned)

    def view(self, begin: int, num_bytes: int) -> memoryview:
        """Return a part of the memory."""
        end = begin + num_bytes
        if self._pin is not None:
            self._pin_segment_of(begin, self._pin)
        if end > len(self._grown):
            self._grown = self._mapped(0)
        return memoryview(self._map if end <= len(self._map) else self._grown)[begin:end]

    def pin_with(self, pin: Callable[[memoryview], int], refused: Callable[[RuntimeError], None]) -> list[Thread]:
        """Pin the first segment now, and each other one once this process uses a part of it.

        That is as slow as writing to all of the segment. Parts in it can be copied meanwhile, as from other memory.

        Args:
            pin: Pins a segment, and returns how many bytes are pinned. It is called in a thread.
            refused: Called with the reason if a segment stays unpinned because the system has no thread for it.

        Returns:
            The thread that pins the first one, if there is one.
        """
        self._pin, self._refused = pin, refused
        return self._pin_segment_of(self.segments[0][0], pin)

    def _pin_segment_of(self, place: int, pin: Callable[[memoryview], int]) -> list[Thread]:
        """Start the thread that pins the segment of a part, if it has none yet."""

        def run(segment: memoryview) -> None:
            self._pinned.append(pin(segment))

        started = []
        for begin, end in [one for one in self._unpinned if one[0] <= place < one[1]]:
            self._unpinned.remove((begin, end))
            thread = Thread(target=run, args=(memoryview(self._map)[begin:end],), name="pin", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more threads
                self._refused(error)
            else:
                started.append(thread)
        return started

    def _mapped(self, num_bytes: int) -> mmap.mmap:
        if self.file.path:
            with open(self.file.path, "r+b") as opened:
                return mmap.mmap(opened.fileno(), num_bytes)
        return mmap.mmap(self.file.descriptor, num_bytes)


class Arena(SharedMemory):
    """The memory as the coordinator has it, which gives its parts to batches: the first gap that is large enough.

    Args:
        num_bytes: Its size.
        part_bytes: Size of a part that fits into every segment, and of the first segment; None: there is one segment.

    Raises:
        OSError: The system gives no such memory, or the folder of temporary files has no room for the first segment.

    Attributes:
        part_bytes: As above.
        refusal: Why the memory is a file, on a system that has memory without one.
    """

    def __init__(self, num_bytes: int, part_bytes: int | None = None) -> None:
        num_bytes = _aligned(num_bytes)
        self.part_bytes = num_bytes if part_bytes is None else _aligned(min(part_bytes, num_bytes))
        self.num_bytes = num_bytes
        self.refusal: OSError | None = None
        self._is_file, self._num_used = False, 1  # segments
        self._parts: dict[int, int] = {}  # size by begin, of those that are given away
        self._descriptor, self._path = self._open()
        try:
            os.truncate(self._descriptor, self.num_bytes)
            self._reserve(0, self.part_bytes)
            super().__init__(SharedFile(self._descriptor, self._path, self.num_bytes, self.part_bytes))
        except BaseException:
            self.close()
            raise

    @classmethod
    def of_machine(cls, total_bytes: int, num_devices: int) -> Arena:
        """Return an arena for a machine with this memory. Raises OSError."""
        num_bytes = max(_MIN_BYTES, min(_DEVICE_BYTES * num_devices, total_bytes // _MEMORY_SHARE))
        return cls(num_bytes, _aligned(num_bytes // (_DEVICE_PARTS * num_devices), _SEGMENT_ALIGN_BYTES))

    def allocate(self, num_bytes: int) -> int | None:
        """Return where a part begins, or None if there is no room for it now."""
        size = _aligned(num_bytes)
        while True:
            for begin, end in self._gaps():
                if end - begin >= size:
                    self._parts[begin] = size
                    return begin
            if not self._use_next_segment(size):
                return None

    def release(self, begin: int) -> None:
        """Take back a part."""
        del self._parts[begin]

    def grow(self, num_bytes: int) -> int:
        """Return where a part begins for which waiting makes no room. Raises OSError.

        One recording of many hours is larger than the memory. Recordings that hang keep their parts.
        """
        begin, size = self.num_bytes, _aligned(num_bytes)
        os.truncate(self._descriptor, begin + size)
        self._reserve(begin, size)
        self.num_bytes += size
        self._parts[begin] = size
        return begin

    def close(self) -> None:
        """Free the memory once the last process that maps it has ended."""
        os.close(self._descriptor)
        if self._path:
            os.unlink(self._path)

    def _gaps(self) -> Iterator[tuple[int, int]]:
        """Yield begin and end of what is free, in order; no gap goes beyond its segment."""
        parts = sorted(self._parts.items())
        for begin, segment_end in [*self.segments[: self._num_used], (self.file.num_bytes, self.num_bytes)]:
            for start, size in parts:
                if begin <= start < segment_end:
                    yield begin, start
                    begin = start + size
            yield begin, segment_end

    def _use_next_segment(self, num_bytes: int) -> bool:
        """Use the next segment, if that or a later one has room for a part. Return False if not."""
        unused = self.segments[self._num_used :]
        if all(end - begin < num_bytes for begin, end in unused):
            return False
        begin, end = unused[0]
        try:
            self._reserve(begin, end - begin)
        except OSError:  # the disk is full: what there is has to do
            return False
        self._num_used += 1
        return True

    def _open(self) -> tuple[int, str]:
        if hasattr(os, "memfd_create"):
            try:
                return os.memfd_create("fastscribe"), ""
            except OSError as error:  # a container's filter of system calls
                self.refusal = error
        self._is_file = True
        descriptor, path = tempfile.mkstemp(prefix="fastscribe-")
        if os.name == "nt":  # Windows deletes no open file
            return descriptor, path
        os.unlink(path)
        return descriptor, ""

    def _reserve(self, begin: int, num_bytes: int) -> None:
        """Take room on the disk, if the memory is a file: without it, writing to a full disk ends a process. Raises OSError."""
        if self._is_file and sys.platform == "linux":
            os.posix_fallocate(self._descriptor, begin, num_bytes)


def _segments(first_bytes: int, end: int) -> list[tuple[int, int]]:
    """Return begin and end of each segment."""
    found, begin, size = [], 0, first_bytes
    while begin < end:
        found.append((begin, min(begin + size, end)))
        begin = size = found[-1][1]
    return found


def _aligned(num_bytes: int, align_bytes: int = _ALIGN_BYTES) -> int:
    return max(1, -(-num_bytes // align_bytes)) * align_bytes
