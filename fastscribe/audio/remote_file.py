"""A recording at a URL, as a medium (media.py). Few requests, bounded memory, no temporary files.

An object of up to SMALL_BYTES is fetched whole by one request and held from the probe until its recording is done, while all
objects together hold at most MAX_HELD_BYTES. Larger ones, and those for which there is no room, are read by ranges in blocks
that all readers share; the least recently used blocks go first. An object that is not the same in two requests, or not the
one that was listed, is an error: a recording is never put together from two versions. Manifest rows that cut one recording
share one object while they are in flight, so it is fetched once.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from threading import Lock, RLock
from typing import BinaryIO, TypeAlias
from weakref import WeakValueDictionary

from fastscribe._system import remote
from fastscribe._system.positioned_read import PositionedFile
from fastscribe._system.shared_calls import SharedCalls
from fastscribe.audio.media import RemoteMedium

SMALL_BYTES = 4 << 20
MAX_HELD_BYTES = 512 << 20
MAX_CACHED_BYTES = 256 << 20  # blocks of the other objects
HEAD_BYTES = 1 << 16  # the first block, which has the header of most formats
BLOCK_BYTES = 1 << 18  # the blocks behind it
_MAX_BLOCKS = 16  # a request brings more blocks, the longer a reader has gone forward: 1, 1, 2, 2, 4, 4 ..

_Key: TypeAlias = tuple[str, str, int]  # URL, version, block
_Known: TypeAlias = tuple[str, remote.RemoteObject | None]  # URL, and what was known of the object


def forget_objects() -> None:
    """Free the block cache, and look at every object anew."""
    _blocks.clear()
    with _lock:
        _in_use.clear()


def divide_memory(processes: int) -> None:
    """Hold a part of the bytes that one process would: as many processes read objects at the same time."""
    global MAX_HELD_BYTES, MAX_CACHED_BYTES
    MAX_HELD_BYTES, MAX_CACHED_BYTES = MAX_HELD_BYTES // processes, MAX_CACHED_BYTES // processes


class RemoteFile(RemoteMedium):
    """A recording in an object. All recordings in the same version of an object share what is known of it, and its bytes.

    Args:
        url: Its URL.
        found: Size and version from the listing that named it; None: the first request tells.
    """

    local_path: str | None = None

    def __init__(self, url: str, found: remote.RemoteObject | None = None) -> None:
        self.identity = url
        self._found = found
        self._object: _Object | None = _shared(url, found)
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[RemoteFile], tuple[str, remote.RemoteObject | None]]:
        """Another process gets the URL and what is known of the object, without its bytes."""
        with self._lock:
            found = self._found if self._object is None else self._object.found
        return RemoteFile, (self.identity, found)

    @property
    def stated_bytes(self) -> int | None:
        """The size, if it is known without a request."""
        found = self._found if self._object is None else self._object.found
        return None if found is None else found.size

    def version(self) -> str:
        found = self._in_store().stated()
        return f"{found.size} {found.version}"

    def num_bytes(self) -> int:
        return self._in_store().known().size

    def open(self) -> BinaryIO:
        """Open for reading, at the beginning. Several readers at once are fine."""
        return self._in_store().open()

    def share(self) -> None:
        with self._lock, _lock:
            if self._object is not None and self._object.found is not None:
                _in_use[self.identity, self._object.found] = self._object

    def drop(self) -> None:
        with self._lock:
            if self._object is not None:
                self._found, self._object = self._object.found, None

    def _in_store(self) -> _Object:
        with self._lock:
            if self._object is None:
                self._object = _shared(self.identity, self._found)
            return self._object


class _Object:
    """An object, with the bytes of a small one."""

    def __init__(self, url: str, found: remote.RemoteObject | None) -> None:
        self.url, self.found = url, found
        self._content: bytes | None = None
        self._finding: SharedCalls[str, remote.RemoteObject] = SharedCalls()
        self._fetching: SharedCalls[str, bytes | None] = SharedCalls()

    def __del__(self) -> None:
        if self._content is not None:
            _held.release(len(self._content))

    def stated(self) -> remote.RemoteObject:
        """Return size and version, by a request for these alone if need be."""
        return self.found or self._finding.call(self.url, lambda: self._find(remote.stat_object))

    def known(self) -> remote.RemoteObject:
        """Return size and version, from the listing or from the first request for the content."""
        return self.found or self._finding.call(self.url, lambda: self._find(self._first_request))

    def open(self) -> BinaryIO:
        found = self.known()
        content = self._content
        # Fetched once whatever the number of readers, if there is room.
        if content is None and found.size <= SMALL_BYTES:
            content = self._fetching.call(self.url, self._fetch)
        return io.BytesIO(content) if content is not None else io.BufferedReader(_Reader(self), HEAD_BYTES)

    def block(self, index: int, num_blocks: int) -> bytes:
        """Return a block; a request for it brings up to `num_blocks` of them."""
        found = self.known()
        key = (self.url, found.version, index)
        return _blocks.get(key, lambda: self._request_blocks(index, num_blocks, found.size))

    def _find(self, request: Callable[[str], remote.RemoteObject]) -> remote.RemoteObject:
        self.found = self.found or request(self.url)
        return self.found

    def _first_request(self, url: str) -> remote.RemoteObject:
        """Request the content's beginning, which may be all of it, and keep it."""
        content = self._request(0, SMALL_BYTES if _held.has_room(SMALL_BYTES) else HEAD_BYTES)
        if len(content.data) == content.size and _held.take(content.size):
            self._content = content.data
        else:
            self._keep_blocks(content)
        return remote.RemoteObject(url, content.size, content.version)

    def _keep_blocks(self, content: remote.Content) -> None:
        """Put every whole block of the object's first bytes into the cache."""
        for index in count():
            begin, end = _span(index, content.size)
            if begin == end or end > len(content.data):
                return
            _blocks.put((self.url, content.version, index), content.data[begin:end])

    def _fetch(self) -> bytes | None:
        """Return all of a small object; None if there is no room for it."""
        size = self.known().size
        if self._content is None and _held.take(size):
            try:
                self._content = self._request(0, None).data
            except BaseException:
                _held.release(size)
                raise
        return self._content

    def _request_blocks(self, index: int, num_blocks: int, size: int) -> list[bytes]:
        begin, _ = _span(index, size)
        _, end = _span(index + num_blocks - 1, size)
        data = self._request(begin, end - begin).data
        spans = (_span(index + number, size) for number in range(num_blocks))
        return [data[start - begin : stop - begin] for start, stop in spans if start < stop]

    def _request(self, start: int, num_bytes: int | None) -> remote.Content:
        content = remote.read_object(self.url, start, num_bytes)
        found = self.found
        if found is not None and (content.size, content.version) != (found.size, found.version):
            raise remote.RemoteError("changed since the run began")
        end = content.size if num_bytes is None else min(content.size, start + num_bytes)
        if len(content.data) != max(0, end - start):
            raise remote.RemoteUnavailable(f"the store sent {len(content.data):,} bytes of {end - start:,}")
        return content


class _Reader(PositionedFile):
    """An object with a position."""

    def __init__(self, opened: _Object) -> None:
        self._object, self._size = opened, opened.known().size
        self._next_index, self._run = -1, 0

    def num_bytes(self) -> int:
        return self._size

    def read_at(self, position: int, buffer: memoryview) -> int:
        if position >= self._size:
            return 0
        index = 0 if position < HEAD_BYTES else 1 + (position - HEAD_BYTES) // BLOCK_BYTES
        if index != self._next_index - 1:  # another block than the last time
            self._run = self._run + 1 if index == self._next_index and index > 1 else 0
        block = self._object.block(index, min(_MAX_BLOCKS, 2 ** (self._run // 2)))
        self._next_index = index + 1
        begin = position - _span(index, self._size)[0]
        content = block[begin : begin + len(buffer)]
        buffer[: len(content)] = content
        return len(content)


class _Held:
    """Counts the bytes that small objects hold."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._lock = RLock()  # a RemoteFile may be collected, and release, while this thread holds it

    def has_room(self, num_bytes: int) -> bool:
        return self.num_bytes + num_bytes <= MAX_HELD_BYTES

    def take(self, num_bytes: int) -> bool:
        """Return True if there was room, which is taken now."""
        with self._lock:
            if not self.has_room(num_bytes):
                return False
            self.num_bytes += num_bytes
            return True

    def release(self, num_bytes: int) -> None:
        with self._lock:
            self.num_bytes -= num_bytes


class _Blocks:
    """The block cache. A block that is on its way is not asked for twice."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._blocks: OrderedDict[_Key, bytes] = OrderedDict()
        self._fetching: SharedCalls[_Key, bytes] = SharedCalls()
        self._lock = Lock()

    def get(self, key: _Key, request: Callable[[], list[bytes]]) -> bytes:
        """Return a block. `request` fetches it, and may bring those behind it."""
        return self._find(key) or self._fetching.call(key, lambda: self._find(key) or self._fetch(key, request))

    def _find(self, key: _Key) -> bytes | None:
        with self._lock:
            if key in self._blocks:
                self._blocks.move_to_end(key)
            return self._blocks.get(key)

    def _fetch(self, key: _Key, request: Callable[[], list[bytes]]) -> bytes:
        blocks = request()
        for number, block in enumerate(blocks):
            self.put((key[0], key[1], key[2] + number), block)
        return blocks[0]

    def clear(self) -> None:
        with self._lock:
            self._blocks.clear()
            self.num_bytes = 0

    def put(self, key: _Key, block: bytes) -> None:
        with self._lock:
            self.num_bytes += len(block) - len(self._blocks.pop(key, b""))
            self._blocks[key] = block
            while self.num_bytes > MAX_CACHED_BYTES and len(self._blocks) > 1:
                self.num_bytes -= len(self._blocks.popitem(last=False)[1])


def _span(index: int, size: int) -> tuple[int, int]:
    """Return the begin and end of a block in an object of `size` bytes; an empty span behind its end."""
    begin = 0 if index == 0 else HEAD_BYTES + (index - 1) * BLOCK_BYTES
    end = begin + (BLOCK_BYTES if index else HEAD_BYTES)
    return min(begin, size), min(end, size)


def _shared(url: str, found: remote.RemoteObject | None) -> _Object:
    """Return the object of which this is known, the same one while a recording in it waits for its result."""
    with _lock:
        shared = _in_use.get((url, found))
        if shared is None:
            shared = _in_use[url, found] = _Object(url, found)
        return shared


_held, _blocks = _Held(), _Blocks()
_in_use: WeakValueDictionary[_Known, _Object] = WeakValueDictionary()
_lock = RLock()  # an object may be collected while this thread holds it
