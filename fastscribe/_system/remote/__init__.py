"""Objects at URLs: list, read, write and delete them in any store.

s3://, gs://, az:// and abfs:// go through obstore, http:// and https:// through urllib3 (both in the extra `remote`), and
hf://, memory:// and every other protocol through fsspec. Reads and writes retry what may pass (429, 5xx, timeouts, cut
connections) with exponential back-off and jitter, for at most RETRY_S seconds. A store is opened once in a process; its
pool holds as many connections as threads use at once. Nothing heavy is imported before the first request.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Lock

from fastscribe._system import url_secrets  # noqa: F401  # for messages, also when no file can be opened any more
from fastscribe._system.remote.store import (
    Content,
    RemoteConflict,
    RemoteDenied,
    RemoteNotFound,
    RemoteObject,
    RemoteUnavailable,
    Store,
)
from fastscribe._system.urls import WEB, root_of
from fastscribe.errors import MissingExtra, RemoteError, UsageError

__all__ = [
    "Content",
    "RemoteConflict",
    "RemoteDenied",
    "RemoteError",
    "RemoteNotFound",
    "RemoteObject",
    "RemoteUnavailable",
    "Store",
    "delete_object",
    "forget_stores",
    "list_objects",
    "read_lines",
    "read_object",
    "stat_object",
    "store_for",
    "upload_object",
    "write_object",
]

_OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
_LINES_BLOCK = 1 << 22  # bytes

_stores: dict[str, Store] = {}
_lock = Lock()


def store_for(url: str) -> Store:
    """Return the store of a URL, opened once for each bucket or host.

    Raises:
        UsageError: The store cannot be opened: a package is missing, the protocol is unknown, or the URL names no bucket.
    """
    root = url[: root_of(url)]
    with _lock:
        if root not in _stores:
            try:
                _stores[root] = _open(root, url)
            except RemoteError as error:
                raise UsageError(f"{root}: {error}") from error
        return _stores[root]


def forget_stores() -> None:
    """Close all connections; the next request reads the environment again."""
    with _lock:
        _stores.clear()


def list_objects(url: str) -> Iterator[RemoteObject]:
    """Yield the objects below a folder's URL. See Store.list."""
    return store_for(url).list(url)


def stat_object(url: str) -> RemoteObject:
    """Return size and version of one object, in one request."""
    return store_for(url).stat(url)


def read_object(url: str, start: int = 0, num_bytes: int | None = None) -> Content:
    """Read an object, or a range of it, in one request. See Store.read."""
    return store_for(url).read(url, start, num_bytes)


def read_lines(url: str) -> Iterator[bytes]:
    """Yield an object's lines without their ends, reading a block at a time.

    Raises:
        RemoteError: A request failed, or the object changed meanwhile.
    """
    position, rest, first = 0, b"", None
    while True:
        content = read_object(url, position, _LINES_BLOCK)
        first = first or content
        if content.version != first.version:
            raise RemoteError("changed while it was read")
        *lines, rest = (rest + content.data).split(b"\n")
        yield from lines
        position += len(content.data)
        if position >= content.size or not content.data:
            break
    if rest:
        yield rest


def write_object(url: str, data: bytes, if_version: str | None = None) -> str:
    """Replace an object in one step and return its new version. See Store.write."""
    return store_for(url).write(url, data, if_version)


def upload_object(url: str, path: Path) -> None:
    """Replace an object by a file's content in one step. See Store.upload."""
    store_for(url).upload(url, path)


def delete_object(url: str) -> None:
    """Delete an object. One that does not exist is no error."""
    store_for(url).delete(url)


def _open(root: str, url: str) -> Store:
    scheme = root.partition(":")[0].lower()
    try:
        if scheme in _OBJECT_STORES:
            from fastscribe._system.remote.object_store import ObjectStore

            return ObjectStore(root)
        if scheme in WEB:
            from fastscribe._system.remote.web import WebStore

            return WebStore(root)
        from fastscribe._system.remote.file_system import FileSystemStore

        return FileSystemStore(url)
    except ModuleNotFoundError as error:
        if scheme not in (*_OBJECT_STORES, *WEB):
            raise
        raise MissingExtra(f"{scheme}://", error.name or "more packages", "remote") from error
