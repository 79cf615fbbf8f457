"""Turn the user's inputs (files, folders, globs, lists, URLs, `-`) into a stream of Sources, in a stable order.

Lazy: the first file of a list or folder comes out before the last is listed. Nothing is opened except lists, and files
of a folder whose names do not say what they are. An input that cannot be used becomes a Failure of stage "input", and the rest
goes on. A file that is reached twice comes once. Files of a folder that are not audio are counted. Two inputs may have the same
id (`a/x.wav` and `b/x.wav` given as files); the output stage makes names unique.

The first bytes of stdin tell whether it is a recording or a list. Readers of lists and of stores are imported when such an
input comes.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress

from fastscribe._system.urls import is_url
from fastscribe.audio.failures import input_failure, system_problem
from fastscribe.audio.first_bytes import CONTROL, HEAD_BYTES, has_known_format
from fastscribe.audio.formats import MAGIC, STDIN, Found, Manifest, file_source, list_kind
from fastscribe.audio.input_names import Repeats, hint, meant
from fastscribe.audio.media import EncodedBytes
from fastscribe.types import Failure, Source

__all__ = ["Source", "expand"]

_READ_BYTES = 1 << 16
MAX_BYTES = 1 << 30  # 9 hours of 16-bit mono at 16 kHz, 18 hours of MP3 at 128 kbit/s


def expand(
    inputs: Iterable[str],
    stdin: Iterable[bytes] | None = None,
    left_out: Counter[str] | None = None,
    repeats: Repeats | None = None,
) -> Iterator[Source | Failure]:
    """Yield every recording that `inputs` name.

    Args:
        inputs: paths or URLs of files, folders and lists, glob patterns, or "-" for stdin: a recording, or a list of paths
            and URLs, one a line or each ended by a NUL.
        stdin: the blocks of bytes that "-" reads; None: the process's own.
        left_out: counts the files of folders and patterns that are not taken for audio, by kind (".docx").
        repeats: finds and counts the inputs that came before, which are left out; None: they come again.
    """
    left_out = Counter() if left_out is None else left_out
    for path in inputs:
        for found in _expand(path, stdin, left_out):
            if isinstance(found, Manifest):
                if repeats is None or not repeats.is_repeated_manifest(found.path):
                    from fastscribe.audio.list_sources import read_list

                    yield from read_list(found.path, left_out)
            elif repeats is None or not repeats.is_repeated(found):
                yield found


def _expand(path: str, stdin: Iterable[bytes] | None, left_out: Counter[str]) -> Iterator[Found]:
    path = meant(path, _is_there)
    if path == STDIN and stdin is None and sys.stdin is None:
        yield input_failure(STDIN, "stdin is closed")
    elif path == STDIN:
        yield from _from_stream(STDIN, _blocks(sys.stdin.fileno()) if stdin is None else stdin, left_out)
    elif is_pipe(path):
        with open(path, "rb", buffering=0) as pipe:
            yield from _from_stream(path, _blocks(pipe.fileno()), left_out)
    elif is_url(path):
        yield from _from_url(path, left_out, has_patterns=True)
    elif MAGIC.search(path) and not os.path.lexists(path):
        from fastscribe.audio.folders import from_pattern

        yield from from_pattern(path, left_out, _from_path)
    else:
        yield from _from_path(path, os.path.basename(path), left_out)


def _is_there(path: str) -> bool:
    """Return True if a path names something, or a pattern begins in a folder that is there."""
    if MAGIC.search(path) is None or os.path.lexists(path):
        return os.path.lexists(path)
    from fastscribe.audio.folders import split_pattern

    return os.path.lexists(split_pattern(path)[0])


def _from_url(url: str, left_out: Counter[str], has_patterns: bool) -> Iterator[Found]:
    from fastscribe.audio.urls import expand_url

    return expand_url(url, left_out, has_patterns)


def names_file(path: str) -> bool:
    """Return True if an input is a path or URL of one file, there or not, and not of a list."""
    if path.lower().startswith(("http://", "https://")):  # which list nothing, and may have a query
        return not list_kind(path)
    is_pattern = MAGIC.search(path) is not None and not os.path.lexists(path)
    return not (is_pattern or os.path.isdir(path) or list_kind(path))


def _from_list(where: str, blocks: Iterable[bytes], left_out: Counter[str]) -> Iterator[Found]:
    """Sources of the paths in a list. Wildcards have no meaning, and a folder is no recording."""
    from fastscribe.audio.json_lines import NotAList
    from fastscribe.audio.path_lists import path_rows, paths_in

    try:
        for _, given in path_rows(where, paths_in(blocks), os.path.lexists):
            path = meant(given)
            if is_url(path):
                yield from _from_url(path, left_out, has_patterns=False)
            elif os.path.isdir(path):
                yield file_source(path, os.path.basename(path))  # the probe says what it is
            else:
                yield from _from_path(path, os.path.basename(path), left_out)
    except NotAList as error:
        yield input_failure(where, str(error))


def _from_stream(path: str, stream: Iterable[bytes], left_out: Counter[str]) -> Iterator[Found]:
    """A recording, or the sources of a list of paths or of a manifest's rows."""
    from fastscribe.audio.json_lines import starts_rows, wide_encoding

    head, blocks = split_head(stream)
    if (encoding := wide_encoding(head)) is not None:
        yield input_failure(path, f"is {encoding}: save it as UTF-8")
    elif is_audio(head):
        yield recording(blocks, path)
    elif starts_rows(head):
        from fastscribe.audio.list_sources import manifest_rows
        from fastscribe.audio.path_lists import lines_in

        yield from manifest_rows(STDIN, lines_in(blocks))
    else:
        yield from _from_list(path, blocks, left_out)


def is_pipe(path: str) -> bool:
    """Return True for a pipe that has a name, as `<(ffmpeg ..)` gives one."""
    with suppress(OSError, ValueError):
        return stat.S_ISFIFO(os.stat(path).st_mode)
    return False


def _blocks(descriptor: int) -> Iterator[bytes]:
    """Yield the bytes of an open file as they arrive.

    This does not use sys.stdin: at exit the interpreter needs the lock of its buffer, and crashes if a thread holds it.
    """
    while block := os.read(descriptor, _READ_BYTES):
        yield block


def _from_path(path: str, name: str, left_out: Counter[str]) -> Iterator[Found]:
    """Sources of one existing or missing path; `name` is the base of its id, without a folder's own name."""
    try:
        os.lstat(path)
    except (OSError, ValueError) as error:
        yield input_failure(path, system_problem(error) + hint(path))
        return
    if os.path.isdir(path):
        from fastscribe.audio.folders import from_folder

        yield from from_folder(path, "", left_out)
    elif list_kind(path):
        yield Manifest(path)
    else:
        yield file_source(path, name)


def is_audio(head: bytes) -> bool:
    """Return True if a stream begins like a recording, or at least not like a list of paths."""
    return has_known_format(head) or CONTROL.search(head) is not None


def split_head(blocks: Iterable[bytes]) -> tuple[bytes, Iterable[bytes]]:
    """Read until the kind of a stream is clear, and no further: a list may be typed.

    Returns:
        What was read, and all blocks of the stream.
    """
    rest, head = iter(blocks), b""
    for block in rest:
        head += block
        if len(head) >= HEAD_BYTES or b"\n" in head:
            break
    return head, itertools.chain([head], rest)


def recording(blocks: Iterable[bytes], path: str = STDIN) -> Source | Failure:
    """Return the recording that a stream holds. Its content gives its id and its key in a journal.

    So a second recording from stdin is another input, and the same one again is done already.
    """
    kept, num_bytes = [], 0
    for block in blocks:
        kept.append(block)
        num_bytes += len(block)
        if num_bytes > MAX_BYTES:
            return input_failure(
                path, f"holds more than {MAX_BYTES >> 30} GiB, the most that stdin may: save it to a file"
            )
    content = b"".join(kept)
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    return Source(path=path, file=EncodedBytes(content, f"stdin:{digest}"), id=f"stdin-{digest[:8]}")
