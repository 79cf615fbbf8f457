"""What every kind of store offers: values, errors and the protocol. Nothing here opens a connection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from fastscribe.errors import RemoteError


class RemoteObject(NamedTuple):
    """An object as a listing or a request for its header describes it."""

    url: str
    size: int  # bytes
    version: str  # changes with the content: an ETag, or a modification time; "" where the store gives neither


class Content(NamedTuple):
    """Bytes of an object, with the object's whole size and its version when they were read."""

    data: bytes
    size: int
    version: str


class RemoteNotFound(RemoteError, FileNotFoundError):
    """There is no such object, or no such bucket."""


class RemoteDenied(RemoteError, PermissionError):
    """The store refuses these credentials, or there are none."""


class RemoteConflict(RemoteError, FileExistsError):
    """A conditional write: the object exists, or its version is another."""


class RemoteUnavailable(RemoteError):
    """Timeouts, refused connections and the store's own errors, after all retries."""

    may_pass = True


class Store(Protocol):
    """One bucket, container, host or file system. Thread-safe; its connections are shared by all threads.

    URLs are whole ones. Every method raises RemoteError, after retries of what may pass. A constructor that cannot go on raises
    UsageError with what to do.
    """

    lists: bool  # False: a web server, where only single files can be named

    def list(self, url: str) -> Iterator[RemoteObject]:
        """Yield the objects below a folder, deep, in byte order of their keys, page by page."""
        ...

    def stat(self, url: str) -> RemoteObject: ...

    def read(self, url: str, start: int = 0, num_bytes: int | None = None) -> Content:
        """Return a range of bytes, or all from `start`. A range that ends beyond the object is shortened."""
        ...

    def write(self, url: str, data: bytes, if_version: str | None = None) -> str:
        """Replace an object in one step and return its new version.

        Args:
            if_version: Write only if the object has this version; "": only if there is none; None: in any case.

        Raises:
            RemoteConflict: `if_version` does not hold.
        """
        ...

    def upload(self, url: str, path: Path) -> None:
        """Replace an object by a file's content in one step, in parts if it is large."""
        ...

    def delete(self, url: str) -> None:
        """Delete an object. One that does not exist is no error."""
        ...
