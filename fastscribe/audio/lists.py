"""Lists of paths on stdin: one path a line, or each ended by a NUL (`find -print0`), as a path may hold line breaks.

They are bytes, because a file name need not be text, and leave as they arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def paths_in(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the paths of a list, none of them blank.

    The first block with a separator decides: a NUL in it is no part of a path, so then all paths end in one.

    Args:
        blocks: The list's bytes, cut anywhere.
    """
    separator, rest = b"", b""
    for block in blocks:
        rest += block
        separator = separator or (b"\0" if b"\0" in rest else b"\n" if b"\n" in rest else b"")
        if separator:
            *paths, rest = rest.split(separator)
            yield from _not_blank(paths, separator)
    yield from _not_blank([rest], separator)


def lines_in(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a stream without their ends."""
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
    yield rest


def _not_blank(paths: Iterable[bytes], separator: bytes) -> Iterator[bytes]:
    for path in paths:
        if path.strip():
            yield path if separator == b"\0" else path.rstrip(b"\r")
