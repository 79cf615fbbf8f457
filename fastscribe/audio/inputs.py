"""What the user gave (files, folders, globs, manifests, `-`) as a stream of Sources, in a stable order.

Lazy: a manifest's or a folder's first file comes out before the last is looked at. Nothing is opened except manifests;
an input that cannot be used becomes a Failure of stage "input" and the rest goes on. Two inputs may have the same id
(`a/x.wav` and `b/x.wav` given as files): telling them apart is left to whoever names outputs.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from fastscribe.audio.failures import input_failure, is_utf8, relative_id, system_problem
from fastscribe.audio.folders import MAGIC, match_depth, split_pattern, walk
from fastscribe.audio.formats import (
    CONTAINER_ADVICE,
    CONTAINER_EXTENSIONS,
    MANIFEST_EXTENSIONS,
    extension,
    is_audio_name,
)
from fastscribe.audio.manifest import read_manifest
from fastscribe.types import Failure, Source

__all__ = ["Source", "expand"]

_READ_BYTES = 1 << 16


def expand(inputs: Iterable[str], stdin: BinaryIO | None = None) -> Iterator[Source | Failure]:
    """Everything that `inputs` stand for. `-`: a list of paths, one a line, on `stdin` (None: the process's own)."""
    for given in inputs:
        if given == "-":
            yield from _listed_on_stdin() if stdin is None else _listed(stdin)
        elif MAGIC.search(given) and not os.path.lexists(given):
            yield from _matching(given)
        else:
            yield from _path(given, os.path.basename(given))


def _listed(lines: Iterable[bytes]) -> Iterator[Source | Failure]:
    """Paths as bytes, because a file name need not be text. They are names, not patterns."""
    for line in lines:
        if line.strip():
            given = os.fsdecode(line.rstrip(b"\r\n"))
            yield from _path(given, os.path.basename(given))


def _listed_on_stdin() -> Iterator[Source | Failure]:
    if sys.stdin is None:
        yield input_failure("-", "stdin is closed")
    else:
        yield from _listed(_lines(sys.stdin.fileno()))


def _lines(descriptor: int) -> Iterator[bytes]:
    """Lines of an open file, as they come. Not sys.stdin's own: a thread that waits in its buffer when the program ends
    brings the interpreter down, which wants that buffer's lock."""
    rest = b""
    while block := os.read(descriptor, _READ_BYTES):
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _path(given: str, name: str) -> Iterator[Source | Failure]:
    """One existing or missing path; `name` is what its id is made of, a folder's own name not included."""
    try:
        os.lstat(given)
    except (OSError, ValueError) as error:
        yield input_failure(given, system_problem(error))
        return
    if os.path.isdir(given):
        yield from _folder(given, "")
    elif extension(given) in MANIFEST_EXTENSIONS:
        yield from read_manifest(given)
    else:
        yield _file(given, name)


def _file(path: str, name: str) -> Source | Failure:
    if not is_utf8(path):
        return input_failure(path, "path is not valid UTF-8; rename the file")
    return Source(path=path, file=path, id=relative_id(name))


def _folder(folder: str, id_prefix: str) -> Iterator[Source | Failure]:
    empty, container = True, ""
    for found in walk(folder):
        if isinstance(found, OSError):
            empty = False
            yield input_failure(os.fspath(found.filename or folder), system_problem(found))
        elif is_audio_name(found):
            empty = False
            yield _file(os.path.join(folder, found), os.path.join(id_prefix, found))
        elif extension(found) in CONTAINER_EXTENSIONS:
            container = container or extension(found)
    if empty:
        hint = f" ({container} {CONTAINER_ADVICE})" if container else ""
        yield input_failure(folder, f"no audio in this folder{hint}")


def _matching(pattern: str) -> Iterator[Source | Failure]:
    prefix, patterns = split_pattern(pattern)
    matches = _deep_matches(prefix, patterns) if "**" in patterns else _flat_matches(pattern, prefix, patterns)
    empty = True
    for match in matches:
        empty = False
        yield match
    if empty:
        yield input_failure(pattern, "no such file, and nothing matches it as a pattern")


def _flat_matches(pattern: str, prefix: str, patterns: list[str]) -> Iterator[Source | Failure]:
    """A match is treated like a path given by itself, except that a bare `*` names no kind of file: audio only."""
    for path in sorted(glob.glob(pattern)):
        name = os.path.relpath(path, prefix or ".")
        if os.path.isdir(path):
            yield from _folder(path, name)
        elif is_audio_name(path) or patterns[-1] != "*":
            yield from _path(path, name)


def _deep_matches(prefix: str, patterns: list[str]) -> Iterator[Source | Failure]:
    for found in walk(prefix or "."):
        if isinstance(found, OSError):
            if not isinstance(found, FileNotFoundError):
                yield input_failure(os.fspath(found.filename or prefix), system_problem(found))
            continue
        names = found.split(os.sep)
        depth = match_depth(names, patterns)
        named = depth == len(names) and patterns[-1] not in ("*", "**")
        if depth is not None and (named or is_audio_name(found)):
            path = os.path.join(prefix, found)
            yield from _path(path, found)
