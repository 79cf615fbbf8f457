"""One input before it is opened, and the Failure that stands in for one that cannot be used.

Nothing is opened here. `Source` comes from inputs.py; probe.py turns it into an AudioInfo. Whatever is reported about
an input (path, id) is text that UTF-8 can hold, because it ends up in JSON.
"""

from __future__ import annotations

import os
import posixpath

from fastscribe.errors import AudioError
from fastscribe.types import AudioInfo, Failure, Source


def is_utf8(text: str) -> bool:
    """False for surrogates: bytes of a file name that are not UTF-8, or half a pair from JSON."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def relative_id(path: str) -> str:
    """`path` with "/" between its parts, without a leading "/" and without ".." or "." parts.

    >>> relative_id("../corpus/./a.wav")
    'corpus/a.wav'
    """
    parts = posixpath.normpath(path.replace(os.sep, "/")).split("/")
    return "/".join(part for part in parts if part not in ("", ".", "..")) or "input"


def system_problem(error: OSError | ValueError) -> str:
    """What the operating system objects to, in the words used everywhere here."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return "no such file or folder"
    if isinstance(error, PermissionError):
        return "permission denied"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


def input_failure(path: str, problem: str) -> Failure:
    """For what never became a Source. Its message leaves the path out: Failure.path has it."""
    return Failure(printable(path), printable(relative_id(path)), "input", AudioError.__name__, problem)


def to_failure(item: Source | AudioInfo, stage: str, error: BaseException) -> Failure:
    """Any exception as a value; an AudioError's message is its problem alone, without the path."""
    problem = error.problem if isinstance(error, AudioError) else " ".join(str(error).split())
    kind = type(error).__name__
    return Failure(item.path, item.id, stage, kind, problem or kind, item.row, item.index)
