"""The recordings of folders and of glob patterns: sorted, lazily, and each once, whatever the symbolic links.

A file whose name does not say what it is is opened: its first bytes tell, and of the rest, such as an MP3 without tags, FFmpeg
is asked.

The standard library's `glob` would list a file behind a looping link forty times, so `**` patterns are matched against a walk
instead.
"""

from __future__ import annotations

import glob
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from shlex import quote

from fastscribe.audio.failures import input_failure, system_problem
from fastscribe.audio.first_bytes import TELEPHONE, has_certain_format, has_no_control, is_something_else, is_text
from fastscribe.audio.formats import (
    MAGIC,
    MAY_BE_TEXT,
    UNKNOWN_CONTENT,
    Found,
    count_left_out,
    extension,
    file_source,
    is_audio_name,
    is_other_name,
    is_unfinished,
)
from fastscribe.audio.header import HEAD_BYTES
from fastscribe.config import OUTPUT_FORMATS
from fastscribe.types import Failure, Source

_MIN_BYTES = 16  # no recording is as short
FromPath = Callable[[str, str, Counter[str]], Iterator[Found]]  # inputs._from_path


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


def split_pattern(pattern: str, is_there: Callable[[str], bool] = os.path.lexists) -> tuple[str, list[str]]:
    """Split a glob pattern into the folder it starts from and the remaining parts.

    A folder that is there is no pattern, whatever its name: `Show [2024]/*.flac` starts from `Show [2024]`.

    >>> split_pattern("corpus/en/*/clips/*.wav")
    ('corpus/en', ['*', 'clips', '*.wav'])
    """
    parts = pattern.replace(os.sep, "/").split("/")
    first = 0
    while first < len(parts) - 1 and (not MAGIC.search(parts[first]) or is_there("/".join(parts[: first + 1]))):
        first += 1
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


def from_folder(folder: str, id_prefix: str, left_out: Counter[str]) -> Iterator[Source | Failure]:
    empty, texts = True, _Texts(folder, left_out)
    for entry in walk(folder):
        if isinstance(entry, OSError):
            empty = False
            yield input_failure(os.fspath(entry.filename or folder), system_problem(entry))
        elif not texts.holds(path := os.path.join(folder, entry)) and _is_taken(path, left_out):
            empty = False
            texts.add_recording(path)
            yield file_source(path, os.path.join(id_prefix, entry))
    texts.settle()
    if empty:
        yield input_failure(folder, f"no audio in this folder{_archives_hint(folder, left_out)}")


def _archives_hint(folder: str, left_out: Counter[str]) -> str:
    return f"; of tar archives name each: {quote(os.path.join(folder, '*.tar'))}" if left_out[".tar"] else ""


def _is_taken(path: str, left_out: Counter[str]) -> bool:
    """Return True for a folder's file that is audio, by its name or else by its content. Count any other."""
    is_of_text = extension(path) in MAY_BE_TEXT and holds_text(path)
    if is_audio_name(path) and not is_of_text and not is_unfinished(path):
        return True
    why = "" if is_of_text or is_other_name(path) else why_left_out(path)
    if why is not None:
        count_left_out(left_out, path, why)
    return why is None


def why_left_out(path: str) -> str | None:
    """Look into a file whose name does not say what it is.

    Args:
        path: A file in a folder.

    Returns:
        None for a recording; "" for something else; UNKNOWN_CONTENT if it cannot be told.
    """
    try:
        head = _head(path)
    except OSError:
        return UNKNOWN_CONTENT
    if len(head) < _MIN_BYTES:
        return ""
    if extension(path) in TELEPHONE:  # each is an error with its cure; .sln is Visual Studio's too
        return "" if is_text(head) else None
    if is_something_else(head):
        return ""
    if has_certain_format(head):
        return None
    from fastscribe.audio.containers import holds_track

    return None if holds_track(path) else UNKNOWN_CONTENT


def holds_text(path: str) -> bool:
    """Return True for a file of text; an empty one is none."""
    try:
        head = _head(path)
    except OSError:
        return False
    return bool(head) and has_no_control(head)


def _head(path: str) -> bytes:
    """Return a file's first bytes; none of what is no file. Raises OSError."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would block
        return b""
    with open(path, "rb", buffering=0) as file:
        return file.read(HEAD_BYTES)


def from_pattern(pattern: str, left_out: Counter[str], from_path: FromPath) -> Iterator[Found]:
    prefix, patterns = split_pattern(pattern)
    if "**" in patterns:
        matches = _deep_matches(prefix, patterns, left_out, from_path)
    else:
        matches = _flat_matches(prefix, patterns, left_out, from_path)
    empty, before = True, left_out.total()
    for match in matches:
        empty = False
        yield match
    if empty and left_out.total() > before:
        hint = _archives_hint(os.path.dirname(pattern), left_out)
        yield input_failure(pattern, f"no audio in what matches this pattern{hint}")
    elif empty:
        yield input_failure(pattern, "no such file, and nothing matches it as a pattern")


def _flat_matches(prefix: str, patterns: list[str], left_out: Counter[str], from_path: FromPath) -> Iterator[Found]:
    """Treat each match like a path given by itself; a bare `*` selects audio files only."""
    for path in sorted(glob.glob(os.path.join(glob.escape(prefix), *patterns))):
        name = os.path.relpath(path, prefix or ".")
        if os.path.isdir(path):
            yield from from_folder(path, name, left_out)
        elif patterns[-1] != "*" or _is_taken(path, left_out):
            yield from from_path(path, name, left_out)


def _deep_matches(prefix: str, patterns: list[str], left_out: Counter[str], from_path: FromPath) -> Iterator[Found]:
    for entry in walk(prefix or "."):
        if isinstance(entry, OSError):
            if not isinstance(entry, FileNotFoundError):
                yield input_failure(os.fspath(entry.filename or prefix), system_problem(entry))
            continue
        names = entry.split(os.sep)
        depth = match_depth(names, patterns)
        named = depth == len(names) and patterns[-1] not in ("*", "**")
        path = os.path.join(prefix, entry)
        if depth is not None and (named or _is_taken(path, left_out)):
            yield from from_path(path, entry, left_out)


class _Texts:
    """Files left out that may be results: those of a recording beside them, such as a.srt beside a.flac, are not counted, nor
    are those in the output folder of a run below the folder of recordings.

    Names that are alike up to their first dot come one after another, so only those of one recording are kept.
    """

    def __init__(self, folder: str, left_out: Counter[str]) -> None:
        self._folder, self._left_out, self._start = folder, left_out, ""
        self._is_of_run = lru_cache(100)(self._look_for_journal)
        self._recordings: set[str] = set()  # paths, with and without the extension
        self._texts: list[str] = []

    def holds(self, path: str) -> bool:
        """Return True for the name of a result, which is counted later if it has no recording."""
        start = path[: len(path) - len(os.path.basename(path))] + os.path.basename(path).partition(".")[0]
        if start != self._start:
            self.settle()
            self._start = start
        is_text = path.rpartition(".")[2].lower() in OUTPUT_FORMATS
        if is_text:
            self._texts.append(path)
        return is_text

    def add_recording(self, path: str) -> None:
        """Take in a recording, for which holds() was called before."""
        self._recordings |= {path, os.path.splitext(path)[0]}

    def settle(self) -> None:
        """Count the texts that no recording has."""
        for path in self._texts:
            if os.path.splitext(path)[0] not in self._recordings and not self._is_of_run(os.path.dirname(path)):
                count_left_out(self._left_out, path)
        self._texts.clear()
        self._recordings.clear()

    def _look_for_journal(self, folder: str) -> bool:
        """Return True for the output folder of a run, or one below it."""
        if len(folder) <= len(self._folder):
            return False
        journals = glob.glob(os.path.join(glob.escape(folder), "journal*.jsonl"))
        return bool(journals) or self._is_of_run(os.path.dirname(folder))
