"""Objects at URLs: list, read, write and delete them in any store.

s3://, gs://, az:// and abfs:// go through obstore, http:// and https:// through urllib3 (both in the extra `remote`), and
hf://, memory:// and every other protocol through fsspec. Reads and writes retry what may pass (429, 5xx, timeouts, cut
connections) with exponential back-off and jitter, for at most RETRY_S seconds. A store is opened once in a process; its
pool holds as many connections as threads use at once. Nothing heavy is imported before the first request.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from urllib.parse import quote, unquote

from fastscribe._system.remote.store import (
    Content,
    RemoteConflict,
    RemoteDenied,
    RemoteError,
    RemoteNotFound,
    RemoteObject,
    RemoteUnavailable,
    Store,
)
from fastscribe.errors import MissingExtra

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
    "is_url",
    "join_url",
    "key_of",
    "list_objects",
    "location_of",
    "name_of",
    "read_lines",
    "read_object",
    "stat_object",
    "store_for",
    "upload_object",
    "write_object",
]

# Two characters at least, so that no Windows drive is a scheme.
_URL = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)
_ROOT = re.compile(r"[^/]*//[^/?#]*")
_OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
_WEB = ("http", "https")
_LINES_BLOCK = 1 << 22  # bytes

_stores: dict[str, Store] = {}
_lock = Lock()


def is_url(text: str) -> bool:
    """Return True for a scheme followed by ://. Windows drive letters and names such as "a:b.wav" are no URLs.

    >>> is_url("s3://bucket/a.wav"), is_url("C://a.wav"), is_url("a:b.wav"), is_url("./s3://a")
    (True, False, False, False)
    """
    return _URL.match(text) is not None


def key_of(url: str) -> str:
    """Return the path below the bucket or host, without "/" before it and, of a web address, without its query.

    >>> key_of("s3://bucket/a/b?.wav"), key_of("https://host/a%20b.mp3?signature=x")
    ('a/b?.wav', 'a%20b.mp3')
    """
    key = url[_root_of(url) :].lstrip("/")
    return re.split(r"[?#]", key)[0] if _is_web(url) else key


def location_of(url: str) -> str:
    """Return bucket or host and key, without the scheme, credentials and query.

    >>> location_of("s3://bucket/a/b.wav"), location_of("https://me:secret@host/a.mp3?signature=x")
    ('bucket/a/b.wav', 'host/a.mp3')
    """
    return url[: _root_of(url)].partition("://")[2].rpartition("@")[2] + "/" + key_of(url)


def name_of(url: str) -> str:
    """Return the last part of the path, of a web address without its escapes."""
    name = key_of(url).rstrip("/").rpartition("/")[2]
    return unquote(name) if _is_web(url) else name


def join_url(base: str, path: str) -> str:
    """Return the URL of a path that is relative to the folder of `base`. A query of `base` is dropped.

    >>> join_url("s3://bucket/lists/a.jsonl", "../clips/b c.wav")
    's3://bucket/clips/b c.wav'
    """
    root = base[: _root_of(base)]
    joined = posixpath.normpath(posixpath.join("/", posixpath.dirname(key_of(base)), path))
    return root + (quote(joined) if _is_web(base) else joined)


def _root_of(url: str) -> int:
    match = _ROOT.match(url)
    assert match is not None, url
    return match.end()


def _is_web(url: str) -> bool:
    return url.partition(":")[0].lower() in _WEB


def store_for(url: str) -> Store:
    """Return the store of a URL, opened once for each bucket or host.

    Raises:
        UsageError: The store needs a package that is not installed, the protocol is unknown, or the URL names no bucket.
    """
    root = url[: _root_of(url)]
    with _lock:
        if root not in _stores:
            _stores[root] = _open(root, url)
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
        if scheme in _WEB:
            from fastscribe._system.remote.web import WebStore

            return WebStore(root)
        from fastscribe._system.remote.file_system import FileSystemStore

        return FileSystemStore(url)
    except ModuleNotFoundError as error:
        if scheme not in (*_OBJECT_STORES, *_WEB):
            raise
        raise MissingExtra(f"{scheme}://", error.name or "more packages", "remote") from error
