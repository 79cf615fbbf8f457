"""Stores with buckets (S3 and what speaks like it, Google Cloud Storage, Azure) through obstore.

obstore retries, resumes a cut body with a ranged request, and lists page by page; this module adds the user's usual
credentials, one line an error, and a listing that goes on where an expired one ended.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.store import AzureStore, GCSStore, S3Store

from fastscribe._system.remote.credentials import azure_options, google_options, s3_options
from fastscribe._system.remote.retry import Result, check_reachable, interruptible
from fastscribe._system.remote.store import (
    Content,
    RemoteConflict,
    RemoteDenied,
    RemoteNotFound,
    RemoteObject,
    RemoteUnavailable,
)
from fastscribe.errors import RemoteError, UsageError, first_line

_CHUNK = 100  # objects that the listing hands over at once; what a failing page leaves of a chunk is asked for again
CLIENT = {"connect_timeout": "10s", "read_timeout": "30s", "timeout": "180s"}  # timeout: of one request with its body
RETRY: Any = {  # pauses are drawn between the first one and `base` times the last; together they are about 40 s
    "max_retries": 10,
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=15), "base": 3},
    "retry_timeout": timedelta(seconds=120),
}
_STATUS = re.compile(r"status code: (\d{3}[\w ]*)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_CREDENTIALS = {
    "s3": "AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or `gcloud auth application-default login`",
    "az": "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or `az login`",
}
# Environment variables that obstore reads and s3_options() and its like do not.
_ENDPOINT_VARIABLES = {
    "s3": re.compile(r"(?i)AWS_\w*ENDPOINT"),
    "gs": re.compile(r"(?i)GOOGLE_\w*BASE_URL"),
    "az": re.compile(r"(?i)AZURE_\w*(ENDPOINT|EMULATOR)"),
}
_KINDS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az", "abfss": "az"}


class ObjectStore:
    """One bucket. See Store.

    Args:
        root: The URL up to the bucket's end ("s3://bucket").
    """

    lists = True

    def __init__(self, root: str) -> None:
        self._root = root
        self._kind = _KINDS[urlsplit(root).scheme]
        if not urlsplit(root).netloc:
            raise UsageError(f"no bucket; write {root}BUCKET/FOLDER")
        self._store, self._is_anonymous, self._endpoint = _connect(self._kind, root)
        self._was_reached = False

    def list(self, url: str) -> Iterator[RemoteObject]:
        prefix, last = self._key(url).rstrip("/"), ""
        while True:
            start = last
            try:
                pages = obstore.list(self._store, prefix=prefix or None, offset=last or None, chunk_size=_CHUNK)
                while (page := self._ask(partial(next, pages, None))) is not None:
                    for meta in page:
                        last = meta["path"]
                        yield RemoteObject(f"{self._root}/{last}", meta["size"], _version(meta))
                return
            except RemoteError:
                # A continuation token that expired while the run worked on a page: go on behind the last key.
                if last == start:
                    raise

    def stat(self, url: str) -> RemoteObject:
        meta = self._ask(lambda: obstore.head(self._store, self._key(url)))
        return RemoteObject(url, meta["size"], _version(meta))

    def read(self, url: str, start: int = 0, num_bytes: int | None = None) -> Content:
        options: Any = {}
        if num_bytes is not None:
            options["range"] = (start, start + num_bytes)
        elif start:
            options["range"] = {"offset": start}
        try:
            return self._ask(lambda: self._get(url, options))
        except RemoteError as error:
            if "status code: 416" not in str(error.__cause__):
                raise
            found = self.stat(url)  # the range begins at the end or behind it, as in an empty object
            return Content(b"", found.size, found.version)

    def _get(self, url: str, options: Any) -> Content:
        result = obstore.get(self._store, self._key(url), options=options)
        return Content(bytes(result.bytes()), result.meta["size"], _version(result.meta))

    def write(self, url: str, data: bytes, if_version: str | None = None) -> str:
        mode = self._mode(url, if_version)
        result = self._ask(lambda: obstore.put(self._store, self._key(url), data, mode=mode))
        return _plain(result["e_tag"] or result["version"] or "")

    def _mode(self, url: str, if_version: str | None) -> Any:
        if not if_version:
            return "overwrite" if if_version is None else "create"
        if self._kind != "gs":
            return {"e_tag": f'"{if_version}"'}
        # Google's condition is a generation, which its listings leave out. That of this very version is looked up.
        meta = self._ask(lambda: obstore.head(self._store, self._key(url)))
        if _version(meta) != if_version:
            raise RemoteConflict("another process wrote this object in the meantime")
        return {"e_tag": meta["e_tag"], "version": meta["version"]}

    def upload(self, url: str, path: Path) -> None:
        self._ask(lambda: obstore.put(self._store, self._key(url), path))

    def delete(self, url: str) -> None:
        with suppress(FileNotFoundError):
            self._ask(lambda: obstore.delete(self._store, self._key(url)))

    def _ask(self, call: Callable[[], Result]) -> Result:
        """Call obstore. Raises RemoteError.

        Before the first request, check that the store can be reached: obstore would retry for a minute.
        """

        def ask() -> Result:
            if not self._was_reached and self._endpoint:
                check_reachable(self._endpoint)
                self._was_reached = True
            return call()

        try:
            return interruptible(ask)
        except RemoteError:
            raise
        except Exception as error:
            raise self._translated(error) from error

    def _key(self, url: str) -> str:
        return url[len(self._root) :].lstrip("/")

    def _translated(self, error: Exception) -> RemoteError:
        """Say in one line what obstore's error means. Its own text holds the request and pages of debugging."""
        text = str(error)
        status = (_STATUS.search(text) or [None, ""])[1] or ""
        code = f" ({found[1]})" if (found := _CODE.search(text)) else ""
        if isinstance(error, FileNotFoundError) or status.startswith("404"):
            is_bucket = "NoSuchBucket" in text
            return RemoteNotFound(f"no such bucket: {self._root}" if is_bucket else "no such object")
        denied = (obstore.exceptions.PermissionDeniedError, obstore.exceptions.UnauthenticatedError)
        if isinstance(error, denied) or status.startswith(("401", "403")):
            who = "no credentials were found" if self._is_anonymous else "access denied to these credentials"
            return RemoteDenied(f"{who}{code}; they come from {_CREDENTIALS[self._kind]}")
        in_conflict = (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError)
        if isinstance(error, in_conflict) or status.startswith(("409", "412")):
            return RemoteConflict("another process wrote this object in the meantime")
        if "empty path segment" in text:
            return RemoteError(
                f'a key with "//" can be neither listed nor read, rename the object: {first_line(error)}'
            )
        if status.startswith("4") and not status.startswith(("408", "429")):
            return RemoteError(f"the store answered {status.strip()}{code}")
        if status:
            return RemoteUnavailable(f"the store answered {status.strip()}{code}, also after retries; try again later")
        if "dns" in text.lower() or "connect" in text.lower() or "error sending request" in text:
            return RemoteUnavailable(
                "the store cannot be reached; check the network, the endpoint and the bucket's name"
            )
        if "timed out" in text or "timeout" in text or "body error" in text:
            return RemoteUnavailable("the connection broke or was too slow, also after retries; try again later")
        return RemoteError(first_line(error))


def _version(meta: Any) -> str:
    return _plain(meta["e_tag"] or meta["version"] or meta["last_modified"].isoformat())


def _plain(tag: str) -> str:
    """Remove an ETag's quotes, which Azure's listings leave out."""
    return tag.strip('"')


def _connect(kind: str, root: str) -> tuple[Any, bool, str]:
    """Return obstore's store, True if there are no credentials to send, and the endpoint; "" if it is not known here."""
    makers: Any = {"s3": (S3Store, s3_options), "gs": (GCSStore, google_options), "az": (AzureStore, azure_options)}
    make, options_of = makers[kind]
    options = options_of(urlsplit(root))
    endpoint = options.get("endpoint") or options.get("base_url") or ""
    client = CLIENT | ({"allow_http": True} if endpoint.startswith("http://") else {})
    store = make(client_options=client, retry_config=RETRY, **options)
    return store, options.get("skip_signature", False), endpoint or _public_endpoint(kind, options)


def _public_endpoint(kind: str, options: dict[str, Any]) -> str:
    """Return the cloud's own endpoint; "" if obstore may take another from the environment."""
    if any(_ENDPOINT_VARIABLES[kind].fullmatch(name) for name in os.environ):
        return ""
    if kind == "s3":
        return f"https://s3.{options['region']}.amazonaws.com"
    return (
        "https://storage.googleapis.com" if kind == "gs" else f"https://{options['account_name']}.blob.core.windows.net"
    )
