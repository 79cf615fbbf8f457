"""List files below a folder: sorted, lazily, and each once, whatever the symbolic links.

The caller decides which files are audio. The standard library's `glob` would list a file behind a looping link forty
times, so `**` patterns are matched against this walk instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from fastscribe.audio.formats import MAGIC


def walk(folder: str) -> Iterator[str | OSError]:
    """Yield the paths of the files below `folder`, relative to it.

    Names are sorted at each level, and hidden ones are skipped. Linked folders are followed, but no folder is visited
    twice. A folder that cannot be listed is yielded as its OSError.
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
    """(name, is a folder) of each visible entry; empty if the folder was visited before under another name."""
    status = os.stat(folder)
    key = (status.st_dev, status.st_ino)
    if key in visited:
        return []
    visited.add(key)
    with os.scandir(folder or ".") as listing:
        shown = [entry for entry in listing if not entry.name.startswith(".")]
    return sorted((entry.name, _is_folder(entry)) for entry in shown if not _links_to_ancestor(entry, folder))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: the reader reports it
        return False


def _links_to_ancestor(entry: os.DirEntry[str], folder: str) -> bool:
    """Return True for a link to a folder that contains `folder`: following it would leave the given root upwards."""
    if not entry.is_symlink() or not _is_folder(entry):
        return False
    target = os.path.realpath(entry.path).rstrip(os.sep) + os.sep
    return (os.path.realpath(folder) + os.sep).startswith(target)


def split_pattern(pattern: str) -> tuple[str, list[str]]:
    """Split a glob pattern into the folder it starts from (without wildcards) and the remaining parts.

    >>> split_pattern("corpus/en/*/clips/*.wav")
    ('corpus/en', ['*', 'clips', '*.wav'])
    """
    parts = pattern.replace(os.sep, "/").split("/")
    first = next(index for index, part in enumerate(parts) if MAGIC.search(part))
    prefix = "/".join(parts[:first])
    if first and os.path.splitdrive(prefix)[0] == prefix:  # the root, of a drive on Windows
        prefix += "/"
    return prefix, [part for part in parts[first:] if part]


def match_depth(names: Sequence[str], patterns: Sequence[str]) -> int | None:
    """Return how many leading parts of a path the longest match takes; fewer than all if it matches a parent folder.

    None: no match.
    """
    return next((depth for depth in range(len(names), 0, -1) if _matches(names[:depth], patterns)), None)


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    if not patterns:
        return not names
    if patterns[0] == "**":
        return any(_matches(names[skipped:], patterns[1:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], patterns[0]) and _matches(names[1:], patterns[1:])
