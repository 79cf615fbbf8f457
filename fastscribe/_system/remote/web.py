"""Web servers through urllib3: single files by GET, ranged where the server allows it. They cannot list a folder."""

from __future__ import annotations

import re
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3

from fastscribe._system.remote.retry import retry
from fastscribe._system.remote.store import Content, RemoteDenied, RemoteNotFound, RemoteObject, RemoteUnavailable
from fastscribe.errors import RemoteError, UsageError, first_line

_MAX_CONNECTIONS = 64  # kept open; more are opened when more threads ask at once
_TIMEOUT = urllib3.Timeout(connect=10, read=30)
_REQUEST_S = 180.0  # for one request with its body
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_TOTAL = re.compile(r"bytes (?:\d+-\d+|\*)/(\d+)")
_MAX_STREAM = 1 << 26  # bytes of an answer without a length
_CHUNK = 1 << 18
_NO_SIZE = "the server does not tell the file's size: download it first"


class WebStore:
    """One host. See Store.

    Args:
        root: The URL up to the host's end ("https://host").
    """

    lists = False

    def __init__(self, root: str) -> None:
        self._was_reached = False
        url = _host(root)
        proxy = None if proxy_bypass(url.netloc.rpartition("@")[2]) else getproxies().get(url.scheme)
        make: Callable[..., urllib3.PoolManager] = urllib3.PoolManager
        if proxy is not None:
            make = partial(urllib3.ProxyManager, proxy, proxy_headers=_login("Proxy-Authorization", urlsplit(proxy)))
        self._headers = {"Accept-Encoding": "identity"} | _login("Authorization", url)
        self._pool = make(maxsize=_MAX_CONNECTIONS)

    def list(self, url: str) -> Iterator[RemoteObject]:
        raise RemoteError("a web server cannot list a folder; name single files, or a manifest of URLs")

    def stat(self, url: str) -> RemoteObject:
        """Ask for one byte, because signed URLs and many servers allow GET alone."""
        content = self.read(url, 0, 1)
        return RemoteObject(url, content.size, content.version)

    def read(self, url: str, start: int = 0, num_bytes: int | None = None) -> Content:
        return retry(lambda: self._read(url, start, num_bytes), lambda: self._was_reached)

    def _take_nothing(self, *_: object) -> Any:
        raise RemoteError("a web server takes no results; write to a folder, s3://, gs:// or az://")

    write = upload = delete = _take_nothing

    def _read(self, url: str, start: int, num_bytes: int | None) -> Content:
        deadline = time.monotonic() + _REQUEST_S
        end = "" if num_bytes is None else start + num_bytes - 1
        span = {"Range": f"bytes={start}-{end}"} if start or num_bytes is not None else {}
        try:
            response = self._pool.request(
                "GET",
                url,
                headers=self._headers | span,
                preload_content=False,
                timeout=_TIMEOUT,
                retries=urllib3.Retry(connect=0, read=0, other=0, redirect=5, status=0),
            )
            self._was_reached = True
            try:
                return self._content(response, start, num_bytes, deadline)
            finally:
                response.drain_conn() if response.status >= 400 else response.release_conn()
        except urllib3.exceptions.LocationParseError as error:
            raise RemoteError(f"not a URL: {first_line(error)}") from error
        except urllib3.exceptions.MaxRetryError as error:
            if isinstance(error.reason, urllib3.exceptions.SSLError):
                raise RemoteError(f"no secure connection: {first_line(error.reason)}") from error
            raise RemoteUnavailable("the server cannot be reached; check the network and the host's name") from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            if isinstance(error, RemoteError):
                raise
            raise RemoteUnavailable(
                "the connection broke or was too slow, also after retries; try again later"
            ) from error

    def _content(
        self, response: urllib3.BaseHTTPResponse, start: int, num_bytes: int | None, deadline: float
    ) -> Content:
        _check(response.status, response.reason)
        version = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        total = _TOTAL.match(response.headers.get("Content-Range", ""))
        if response.status == 416:
            return Content(b"", int(total[1]) if total else 0, version)
        length = response.headers.get("Content-Length")
        is_part = response.status == 206
        if start and not is_part:
            raise RemoteError("the server allows no ranged reads, which a large file needs: download it first")
        if is_part and total is None:  # what came may be all or a piece of it
            raise RemoteError(_NO_SIZE)
        data = bytearray()
        for chunk in response.stream(_CHUNK):
            data += chunk
            if time.monotonic() > deadline:
                raise TimeoutError
            if num_bytes is not None and len(data) >= num_bytes and length is not None and not is_part:
                response.close()  # the server ignored the range, and what is wanted is here
                break
            if length is None and len(data) > _MAX_STREAM:
                raise RemoteError(_NO_SIZE)
        size = int(total[1]) if total else int(length) if length is not None else len(data)
        return Content(bytes(data[:num_bytes]), size, version)


def _host(root: str) -> SplitResult:
    try:
        url = urlsplit(root)
    except ValueError as error:  # brackets that hold no address
        raise UsageError(f"not a URL: {first_line(error)}") from error
    if not url.hostname:
        raise UsageError("not a URL: it names no host")
    return url


def _login(header: str, url: SplitResult) -> dict[str, str]:
    """Return the header with the user and password of a URL, which urllib3 leaves out; nothing without them."""
    login, at, _ = url.netloc.rpartition("@")
    return {header: f"Basic {b64encode(unquote(login).encode()).decode()}"} if at else {}


def _check(status: int, reason: str | None) -> None:
    if status < 300 or status == 416:
        return
    answer = f"{status} {reason or ''}".strip()
    if status in (404, 410):
        raise RemoteNotFound(f"no such file on the server ({answer})")
    if status in (401, 403, 407):
        raise RemoteDenied(f"the server denies access ({answer}); a signed URL may have expired")
    if status in _PASSING:
        raise RemoteUnavailable(f"the server answered {answer}, also after retries; try again later")
    raise RemoteError(f"the server answered {answer}")
