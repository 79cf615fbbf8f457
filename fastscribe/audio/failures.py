"""Build the Failure of an input that cannot be used, and the id of one that can.

Nothing is opened here. inputs.py makes Sources; probe.py turns them into AudioInfos. Every reported path and id is text
that UTF-8 can encode, because it ends up in JSON.
"""

from __future__ import annotations

import os
import posixpath
import sys
import traceback
from pathlib import Path

from fastscribe._system.urls import is_url, location_of
from fastscribe.errors import AudioError, FastscribeError, RemoteError, is_out_of_memory
from fastscribe.types import AudioInfo, Failure, Source

# Messages of a recording that is not where its path says.
NOT_THERE = ("no such file or folder", "no such object")
# No recording is meant to raise these. Libraries that read recordings have classes of their own for damage.
_OF_A_DEFECT = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    RuntimeError,
    TypeError,
    ValueError,
)
_PACKAGE = Path(__file__).parents[1]
_TOOLS = {"numpy", "torch", *sys.stdlib_module_names}  # what they raise is the matter of the line that called them
_PLACE = "fastscribe_place"  # an exception's attribute
_LOCALE = "not in the characters of this locale, which is not UTF-8: set LC_ALL=C.UTF-8, or PYTHONUTF8=1"


class ContainerError(Exception):
    """A container that cannot be read (containers.py); its text is one line without the path."""


class NotAContainer(ContainerError):
    """FFmpeg does not recognise the file."""


def is_utf8(text: str) -> bool:
    """Return False for text with surrogates: file names that are not UTF-8, or half a pair from JSON."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def not_utf8(name: str, remedy: str = "rename the file") -> str:
    """Return what is wrong with a name that is_utf8() refuses: the name, or the locale, which makes surrogates of any."""
    is_of_locale = sys.getfilesystemencoding() != "utf-8" and is_utf8(
        os.fsencode(name).decode("utf-8", "surrogateescape")
    )
    return _LOCALE if is_of_locale else f"not valid UTF-8; {remedy}"


def printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def relative_id(path: str) -> str:
    """Normalise `path` to parts joined with "/", without a leading "/", ".." or "." parts.

    A drive letter is left out, and so are the scheme and the query of a URL.

    >>> relative_id("../corpus/./a.wav"), relative_id("s3://bucket/b.wav")
    ('corpus/a.wav', 'bucket/b.wav')
    """
    path = location_of(path) if is_url(path) else os.path.splitdrive(path)[1]
    parts = posixpath.normpath(path.replace(os.sep, "/")).split("/")
    return "/".join(part for part in parts if part not in ("", ".", "..")) or "input"


def system_problem(error: OSError | ValueError) -> str:
    """Name the operating system's error in the words that every message uses."""
    if isinstance(error, RemoteError):
        return str(error)
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return NOT_THERE[0]
    if isinstance(error, PermissionError):
        return "permission denied"
    if isinstance(error, UnicodeEncodeError) and sys.getfilesystemencoding() != "utf-8":  # of a name in a list
        return f"its name is {_LOCALE}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


def input_failure(path: str, problem: str) -> Failure:
    """Make the Failure of an input that never became a Source. Its message omits the path, which Failure.path holds."""
    return Failure(printable(path), printable(relative_id(path)), "input", AudioError.__name__, problem)


def to_failure(item: Source | AudioInfo, stage: str, error: BaseException) -> Failure:
    """Make a Failure of any exception. An AudioError's message omits the path, which Failure.path holds."""
    problem = error.problem if isinstance(error, AudioError) else " ".join(str(error).split())
    cause = error.__cause__
    is_of_store = isinstance(cause, RemoteError) and cause.may_pass
    # Of a model's memory, the recording is to blame, or the run ends (engine.py).
    may_pass = is_of_store or (stage != "model" and is_out_of_memory(error))
    may_pass = may_pass or (isinstance(error, AudioError) and error.may_pass)
    kind = type(cause if is_of_store else error).__name__
    if isinstance(error, ImportError) and not is_out_of_memory(error):
        of_another = "a library cannot be imported" if (error.name or "").startswith("fastscribe") else problem
        problem = f"the installation is incomplete ({of_another}): `fastscribe doctor` shows what is missing"
    elif stage != "input" or not isinstance(error, ValueError):  # one of an input says what is wrong with it
        problem = defect(error) or problem
    message = FastscribeError.spoken(problem) or kind
    return Failure(
        item.path, item.id, stage, kind, message, item.row, item.index, item.given_key, item.listed, may_pass
    )


def defect(error: BaseException) -> str:
    """Return an error of this package's code with its line; "" for one that is raised on purpose, or by another's code, such
    as a caller's file object.

    A Failure crosses processes, and a traceback does not. A RuntimeError is not called a defect: a driver may be to blame.
    """
    if not isinstance(error, _OF_A_DEFECT) or isinstance(error, FastscribeError) or is_out_of_memory(error):
        return ""
    place = error.__dict__.get(_PLACE) or _place_of(error)
    whose = "" if isinstance(error, RuntimeError) else "a defect of fastscribe, "
    return f"{whose}{type(error).__name__} {' '.join(str(error).split())}{place}" if place else ""


def _place_of(error: BaseException) -> str:
    """Return the package's line that raised an error, or that called what raised it in one of _TOOLS; "" if there is none."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):  # reads no source: memory may be short
        file = Path(frame.f_code.co_filename)
        if _PACKAGE in file.parents:
            place = f" in {file.relative_to(_PACKAGE.parent).as_posix()}, line {line}"
        elif frame.f_globals.get("__name__", "").partition(".")[0] not in _TOOLS:
            place = ""
    return place


def drop_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error and its causes, whose frames keep tensors alive; defect() still knows the place."""
    error.__dict__[_PLACE] = _place_of(error)
    linked: list[BaseException | None] = [error]
    while linked:
        if (one := linked.pop()) is not None and one.__traceback__ is not None:
            one.__traceback__ = None
            linked += one.__cause__, one.__context__
