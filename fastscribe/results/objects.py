"""The objects below an output URL, by names relative to it.

A store replaces an object in one step and lists what was written, but it neither appends nor renames. What resume builds on
this is in parts.py and storage_object.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from fastscribe._system import remote
from fastscribe._system.file_kinds import InTheWay
from fastscribe._system.remote.retry import retry
from fastscribe.errors import UsageError

_MAX_REQUESTS = 16  # at once
_BATCH = 64  # answers that wait in memory

Given = TypeVar("Given")
Answer = TypeVar("Answer")


class ObjectFolder:
    """Reads and writes the objects below a URL, several at once. Thread-safe. Every method raises OSError with the URL.

    Args:
        url: Of the folder, with or without "/" at the end.

    Raises:
        UsageError: The store needs a package that is not installed, or there is no such protocol or bucket.
    """

    def __init__(self, url: str) -> None:
        try:
            remote.store_for(url)
        except UsageError as error:
            raise UsageError(f"{url}: {error}") from error
        self.url = url.rstrip("/")
        self._pool = ThreadPoolExecutor(_MAX_REQUESTS, "store")

    def url_of(self, name: str) -> str:
        return f"{self.url}/{name}"

    def list(self, below: str = "") -> Iterator[tuple[str, int]]:
        """Yield name and size in bytes of the objects below a folder of this one; none if it does not exist."""
        url = self.url_of(below).rstrip("/")
        try:
            for found in remote.list_objects(url):
                yield found.url[len(self.url) + 1 :], found.size
        except OSError as error:
            if isinstance(error, FileNotFoundError) and "bucket" not in str(error):
                return
            error.filename = url
            raise

    def exists(self, name: str) -> bool:
        return self.size(name) is not None

    def size(self, name: str) -> int | None:
        """Return an object's size in bytes; None if there is none."""
        try:
            return self._ask(name, remote.stat_object).size
        except FileNotFoundError:
            return None

    def read(self, name: str, start: int = 0, num_bytes: int | None = None) -> bytes:
        return self._ask(name, lambda url: remote.read_object(url, start, num_bytes)).data

    def read_if_there(self, name: str) -> bytes:
        """Return the object's content, or nothing if there is none."""
        try:
            return self.read(name)
        except FileNotFoundError:
            return b""

    def put(self, name: str, content: bytes) -> None:
        """Write an object, or replace it."""
        self._ask(name, lambda url: remote.write_object(url, content))

    def create(self, name: str, content: bytes) -> None:
        """Write an object that must not exist.

        Raises:
            InTheWay: There is one with other content. With the same, it is this one: its first answer was lost.
        """
        try:
            self._ask(name, lambda url: _create(url, content))
        except FileExistsError:
            if self.read_if_there(name) != content:
                raise InTheWay(self.url_of(name)) from None

    def refuses_to_replace(self, name: str, content: bytes) -> bool:
        """Return True if the store refuses to create an object that exists. Its content must be this one."""
        try:
            self._ask(name, lambda url: _create(url, content))
        except FileExistsError:
            return True
        except remote.RemoteUnavailable:
            raise
        except OSError:  # the store does not know the condition
            pass
        return False

    def upload(self, name: str, path: Path) -> None:
        """Write a file's content as one object: readers see the old one or the new one."""
        self._ask(name, lambda url: remote.upload_object(url, path))

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects. One that does not exist is no error."""
        given = list(names)
        if len(given) == 1:  # a thread of the pool may ask, which must not wait for another one
            self._ask(given[0], remote.delete_object)
            return
        for _ in self.map(lambda name: self._ask(name, remote.delete_object), given):
            pass

    def map(self, call: Callable[[Given], Answer], items: Iterable[Given], batch: int = _BATCH) -> Iterator[Answer]:
        """Yield the answers in order; requests of the same batch run at once.

        Args:
            call: Makes one request.
            items: What it is called with.
            batch: Answers that wait in memory at most.
        """
        left = iter(items)
        while some := list(islice(left, batch)):
            yield from self._pool.map(call, some)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _ask(self, name: str, request: Callable[[str], Answer]) -> Answer:
        url = self.url_of(name)
        try:
            return request(url)
        except OSError as error:
            error.filename = url
            raise


def _create(url: str, content: bytes) -> str:
    """Write an object that must not exist. No library repeats such a request whose answer was lost."""
    return retry(lambda: remote.write_object(url, content, if_version=""))


class Listing:
    """Names and sizes of objects, in 16 bytes each."""

    def __init__(self, objects: Iterable[tuple[str, int]]) -> None:
        pairs = np.fromiter(((hash(name), size) for name, size in objects), np.dtype((np.int64, 2)))
        pairs = pairs[np.argsort(pairs[:, 0])]
        self._hashes, self._sizes = pairs[:, 0].copy(), pairs[:, 1].copy()

    def size(self, name: str) -> int | None:
        """Return an object's size in bytes; None if there is none."""
        at = int(np.searchsorted(self._hashes, hash(name)))
        return int(self._sizes[at]) if at < len(self._hashes) and int(self._hashes[at]) == hash(name) else None
