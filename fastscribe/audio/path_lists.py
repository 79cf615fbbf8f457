"""A list of paths in a file or on stdin: one a line, or each ended by a NUL.

The first line tells such a list from text of another kind.
"""

from __future__ import annotations

import locale
import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from fastscribe._system.urls import is_url, name_of
from fastscribe.audio.formats import is_audio_name
from fastscribe.audio.input_names import meant
from fastscribe.audio.json_lines import NotAList

_SHOWN = 40  # characters of a line that is no path


class PathEntry(NamedTuple):
    """An entry of a list of paths."""

    number: int  # of its line, or its own
    content: bytes
    is_line: bool  # False: a NUL ends it, so that it is a path, and no comment


def path_rows(where: str, entries: Iterable[PathEntry], is_there: Callable[[str], bool]) -> Iterator[tuple[int, str]]:
    """Yield the paths of a list with the numbers of their lines, or their own.

    Comments, which are lines that begin with #, are left out; the name of a file that is there is none.

    Args:
        where: The list's path or URL.
        entries: From entries_in() or paths_in().
        is_there: Tells whether a path is a file's.

    Raises:
        NotAList: The first path is neither a URL, nor has an extension of recordings, nor is there; or it is an HLS playlist,
            whose parts are one recording.
    """
    is_first = True
    for number, content, is_line in entries:
        path = _decoded(content).removeprefix("\ufeff")  # a byte order mark
        if is_line and path.startswith("#EXT-X-"):
            made = os.path.splitext(name_of(where) if is_url(where) else os.path.basename(where))[0] + ".m4a"
            command = f"ffmpeg -i {shlex.quote(where)} -vn -c:a copy {shlex.quote(made)}"
            raise NotAList(f"is an HLS playlist, whose parts are one recording: make a file of it: {command}")
        if is_line and _looks_like_comment(path) and not is_there(path):
            continue
        if path != (bare := _bare(path)) and not is_there(path):
            path = bare
        if is_first and not (is_url(path) or is_audio_name(path) or is_there(path) or is_there(meant(path, is_there))):
            shown = path if len(path) <= _SHOWN else f"{path[:_SHOWN]}.."
            raise NotAList(f"is text, and no list of recordings: its first line, {shown!r}, is no path of one")
        is_first = False
        yield number, path


def _looks_like_comment(path: str) -> bool:
    return path.startswith("#EXT") or (path.startswith("#") and not is_audio_name(path))  # #EXTM3U of playlists


def _bare(path: str) -> str:
    """Return a path without spaces around it, and without quotes, which Windows' "Copy as path" puts there."""
    path = path.strip()
    return path[1:-1] if len(path) > 2 and path[0] == path[-1] and path[0] in "\"'" else path


def _decoded(name: bytes) -> str:
    """Return a file name as text. On Windows, where programs write UTF-8 or the system's own encoding, try both."""
    try:
        return os.fsdecode(name)
    except UnicodeDecodeError:
        return name.decode(locale.getpreferredencoding(False), "backslashreplace")


def entries_in(head: bytes, lines: Iterable[tuple[int, bytes]]) -> Iterator[PathEntry]:
    """Yield a file's entries. `head` is its first line that is not blank."""
    if b"\0" in head:
        yield from paths_in(line for _, line in lines)
        return
    for number, line in lines:
        yield PathEntry(number, line.rstrip(b"\r\n"), is_line=True)


def paths_in(blocks: Iterable[bytes]) -> Iterator[PathEntry]:
    """Yield the entries of a list with their own numbers. Blank ones are left out.

    The first block with a separator decides: a NUL in it is no part of a path, so then all paths end in one.

    Args:
        blocks: The list's bytes, cut anywhere.
    """
    for number, (path, separator) in enumerate(_split(blocks), start=1):
        yield PathEntry(number, path, is_line=separator != b"\0")


def _split(blocks: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the paths of a list that are not blank, each with what separates it from the next."""
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


def _not_blank(paths: Iterable[bytes], separator: bytes) -> Iterator[tuple[bytes, bytes]]:
    for path in paths:
        if path.strip():
            yield path if separator == b"\0" else path.rstrip(b"\r"), separator
