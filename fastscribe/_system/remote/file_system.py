"""Every other protocol through fsspec: hf:// (huggingface_hub), memory://, and what the user has installed (ftp, sftp ..)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from fastscribe._system.remote.retry import retry
from fastscribe._system.remote.store import (
    Content,
    RemoteConflict,
    RemoteDenied,
    RemoteNotFound,
    RemoteObject,
    RemoteUnavailable,
)
from fastscribe.errors import RemoteError, UsageError, first_line

_VERSION_KEYS = ("ETag", "etag", "blob_id", "oid", "version_id", "mtime", "modified", "LastModified", "created")


class FileSystemStore:
    """One file system of fsspec. See Store.

    Args:
        url: Any URL of it.
    """

    lists = True

    def __init__(self, url: str) -> None:
        try:  # ftp, sftp and smb connect and log in here
            self._fs, _ = self._ask(lambda: self._connected(url), was_reached=lambda: False)
        except RemoteError as error:
            raise UsageError(str(error)) from error

    def list(self, url: str) -> Iterator[RemoteObject]:
        folder = self._path(url).rstrip("/")
        yield from self._below(folder, len(folder), url.rstrip("/"))

    def stat(self, url: str) -> RemoteObject:
        info = self._ask(lambda: self._fs.info(self._path(url)))
        if info["type"] == "directory":
            raise RemoteNotFound("this is a folder")
        return RemoteObject(url, int(info["size"] or 0), _version(info))

    def read(self, url: str, start: int = 0, num_bytes: int | None = None) -> Content:
        found = self.stat(url)
        end = found.size if num_bytes is None else min(found.size, start + num_bytes)
        data = self._ask(lambda: self._fs.cat_file(self._path(url), start, end)) if end > start else b""
        if len(data) != end - min(start, end):
            raise RemoteUnavailable("the store sent fewer bytes than it has; try again later")
        return Content(data, found.size, found.version)

    def write(self, url: str, data: bytes, if_version: str | None = None) -> str:
        """Write; the check of a condition and the write are two steps, for fsspec has no conditional write."""
        if if_version is not None:
            try:
                version = self.stat(url).version
            except FileNotFoundError:
                version = ""
            if version != if_version:
                raise RemoteConflict("another process wrote this object in the meantime")
        self._ask(lambda: self._fs.pipe_file(self._path(url), data))
        return self.stat(url).version

    def upload(self, url: str, path: Path) -> None:
        self._ask(lambda: self._fs.put_file(str(path), self._path(url)))

    def delete(self, url: str) -> None:
        with suppress(FileNotFoundError):
            self._ask(lambda: self._fs.rm_file(self._path(url)))

    def _path(self, url: str) -> str:
        if hasattr(self._fs, "_strip_protocol"):
            return str(self._fs._strip_protocol(url))
        return str(self._connected(url)[1])

    def _connected(self, url: str) -> tuple[Any, str]:
        """Connect to the store of a URL; also return the URL's path there."""
        import fsspec

        found: tuple[Any, str] = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
        return found

    def _below(self, folder: str, skip: int, url: str) -> Iterator[RemoteObject]:
        """Yield the objects below a folder in byte order of their keys; a folder sorts as its name with "/"."""
        try:
            entries = self._ask(lambda: self._fs.ls(folder, detail=True))
        except FileNotFoundError:  # stores with buckets have no empty folders either
            return
        for entry in sorted(entries, key=_sort_key):
            if entry["type"] == "directory":
                yield from self._below(entry["name"], skip, url)
            elif entry["name"] != folder:
                yield RemoteObject(url + entry["name"][skip:], int(entry["size"] or 0), _version(entry))

    def _ask(self, call: Any, **how: Any) -> Any:
        return retry(lambda: _translated(call), **how)


def _sort_key(entry: dict[str, Any]) -> bytes:
    name = entry["name"] + ("/" if entry["type"] == "directory" else "")
    return str(name).encode("utf-8", "surrogatepass")


def _version(info: dict[str, Any]) -> str:
    lfs = info.get("lfs") or {}
    if isinstance(lfs, dict) and lfs.get("sha256"):
        return str(lfs["sha256"])
    found = next((info[key] for key in _VERSION_KEYS if info.get(key)), "")
    return str(found.timestamp() if isinstance(found, datetime) else found)  # memory:// lists numbers, and shows dates


def _translated(call: Any) -> Any:
    try:
        return call()
    except RemoteError:
        raise
    except FileNotFoundError as error:
        raise RemoteNotFound("no such file or folder") from error
    except PermissionError as error:
        raise RemoteDenied(f"access denied: {first_line(error)}") from error
    except (TimeoutError, ConnectionError) as error:
        raise RemoteUnavailable(f"no answer, also after retries: {first_line(error)}") from error
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", 0)
        if status in (401, 403):
            raise RemoteDenied(
                f"access denied: {first_line(error)}; for hf:// set HF_TOKEN or `hf auth login`"
            ) from error
        if status == 429 or status >= 500:
            raise RemoteUnavailable(f"the store answered {status}, also after retries; try again later") from error
        if "Connect" in type(error).__name__ or "Timeout" in type(error).__name__:  # its library has retried
            problem = f"the store cannot be reached ({first_line(error)}); check the network"
            raise RemoteError(problem) from error
        raise RemoteError(first_line(error)) from error
