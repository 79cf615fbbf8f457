"""Finding files below a folder: sorted, lazily, once each, whatever the symbolic links do.

Which of the files are audio is the caller's question. `glob` in the standard library would find a file behind a looping
link forty times over, so `**` patterns are matched against this walk instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

MAGIC = re.compile(r"[*?\[]")


def walk(folder: str) -> Iterator[str | OSError]:
    """Paths of the files below `folder`, relative to it, sorted by name at each level; hidden ones are left out.

    Linked folders are followed, but no folder is visited twice. A folder that cannot be listed is yielded as its error.
    """
    visited: set[tuple[int, int]] = set()
    pending = [("", True)]
    while pending:
        relative, is_folder = pending.pop()
        if not is_folder:
            yield relative
            continue
        try:
            entries = _entries(os.path.join(folder, relative) if relative else folder, visited)
        except OSError as error:
            yield error
            continue
        pending.extend((os.path.join(relative, name), below) for name, below in reversed(entries))


def _entries(folder: str, visited: set[tuple[int, int]]) -> list[tuple[str, bool]]:
    """(name, is a folder) of what is not hidden; empty when the folder was visited before under another name."""
    status = os.stat(folder)
    key = (status.st_dev, status.st_ino)
    if key in visited:
        return []
    visited.add(key)
    with os.scandir(folder or ".") as listing:
        shown = [entry for entry in listing if not entry.name.startswith(".")]
    return sorted((entry.name, _is_folder(entry)) for entry in shown if not _leads_back(entry, folder))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: let the reader say so
        return False


def _leads_back(entry: os.DirEntry[str], folder: str) -> bool:
    """True for a link to a folder that `folder` itself lies in: following it would leave the given root upwards."""
    if not entry.is_symlink() or not _is_folder(entry):
        return False
    target = os.path.realpath(entry.path).rstrip(os.sep) + os.sep
    return (os.path.realpath(folder) + os.sep).startswith(target)


def split_pattern(pattern: str) -> tuple[str, list[str]]:
    """The folder that a glob pattern starts from (no magic in it), and the pattern's remaining parts.

    >>> split_pattern("corpus/en/*/clips/*.wav")
    ('corpus/en', ['*', 'clips', '*.wav'])
    """
    parts = pattern.replace(os.sep, "/").split("/")
    first = next(index for index, part in enumerate(parts) if MAGIC.search(part))
    prefix = "/".join(parts[:first]) or ("/" if first else "")
    return prefix, [part for part in parts[first:] if part]


def match_depth(names: Sequence[str], patterns: Sequence[str]) -> int | None:
    """How many leading parts of a path the pattern takes up; less than all of them when it matches a folder above.

    The longest match counts; None when there is none.
    """
    return next((depth for depth in range(len(names), 0, -1) if _matches(names[:depth], patterns)), None)


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    if not patterns:
        return not names
    if patterns[0] == "**":
        return any(_matches(names[skipped:], patterns[1:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], patterns[0]) and _matches(names[1:], patterns[1:])
