"""The lines of a list: of a file or of an object in a store, unpacked if its first bytes are gzip's, whatever its name."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import cast

from fastscribe._system.remote import read_lines
from fastscribe._system.urls import is_url
from fastscribe.audio.json_lines import NotAList
from fastscribe.audio.remote_file import RemoteFile

GZIP = b"\x1f\x8b"
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)


@contextmanager
def opened_lines(path: str) -> Iterator[Iterator[bytes]]:
    """Give the lines of a list. Raises OSError, and NotAList if not all of it can be unpacked."""
    try:
        if is_url(path):
            yield from _of_object(path)
        else:
            with open(path, "rb") as file:  # which may be a pipe, and cannot seek then
                yield iter(cast(Iterator[bytes], gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == GZIP else file))
    except _DAMAGED as error:
        raise NotAList("damaged or cut off: not all of it can be unpacked") from error


def _of_object(url: str) -> Iterator[Iterator[bytes]]:
    """Yield the lines of an object, once."""
    lines = read_lines(url)
    first = next(lines, b"")
    if first[:2] != GZIP:
        yield chain([first], lines)
        return

    with RemoteFile(url).open() as file, gzip.GzipFile(fileobj=file) as unpacked:
        yield iter(unpacked)
