"""JSON lines: the rows of manifests and results, one JSON object a line in UTF-8. Pure.

A file that is no such thing from its first line on (UTF-16, an array, a document over several lines, binary data) is one
problem, and not one for each of its lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_HEADER_BYTES = 64
_ENCODINGS = {
    "UTF-32": re.compile(rb"\xff\xfe\0\0|\0\0\xfe\xff|[{\[]\0{3}|\0{3}[{\[]"),
    "UTF-16": re.compile(rb'\xff\xfe([\t-~]\0){2}|\xfe\xff(\0[\t-~]){2}|[{\[]\0[\s"{]\0|\0[{\[]\0[\s"{]'),
}
_ROW_START = re.compile(rb'(\xef\xbb\xbf)?\s*(\{\s*("|\Z)|\[\s*(\{|\Z))')
_EXPECTED = "one JSON object per line is expected"


class NotAList(ValueError):
    """A file that is no list as a whole; the message says what it is, and what to do."""


class NotJsonLines(NotAList):
    """A file that holds no JSON lines."""


def starts_rows(head: bytes) -> bool:
    """Return True if a stream begins like a manifest, or like JSON of another shape, and so not like a path."""
    return _ROW_START.match(head) is not None


def wide_encoding(head: bytes) -> str | None:
    """Return "UTF-16" or "UTF-32" if text begins like it, and not like a recording; else None."""
    return next((name for name, start in _ENCODINGS.items() if start.match(head)), None)


def not_blank(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank with their numbers from 1, without a byte order mark."""
    for number, line in enumerate(lines, start=1):
        content = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
        if content.strip():
            yield number, content


def numbered_rows(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines as not_blank() does.

    Raises:
        NotJsonLines: The file is something else from its first line on. No line was yielded.
    """
    rows = not_blank(lines)
    for first in rows:
        yield from chain(_checked(first, rows), rows)


def _checked(first: tuple[int, bytes], rest: Iterator[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Return the first row, and the second one if it was read to tell. Raises NotJsonLines."""
    line = first[1].strip()
    if (encoding := wide_encoding(first[1])) is not None:
        raise NotJsonLines(f"is {encoding}: save it as UTF-8")
    if b"\0" in line[:_HEADER_BYTES]:  # JSON has no zero byte, and a recording's header has
        raise NotJsonLines("is a recording or other binary data, not JSON lines")
    if line.startswith(b"["):
        raise NotJsonLines(f"is one JSON array; {_EXPECTED}: jq -c '.[]' IN.json > OUT.jsonl makes such a file")
    if not (line.startswith(b"{") and line.endswith((b"{", b"[", b","))):
        return [first]
    second = next(rest, None)
    if second is None:
        return [first]
    if not (second[1].lstrip().startswith(b'"') or line.endswith(b"[")):  # the first is a row that was cut off
        return [first, second]
    raise NotJsonLines(
        f"is one JSON document over several lines; {_EXPECTED}: jq -c . IN.json > OUT.jsonl makes such a file"
    )
