"""The number of a run's inputs, for its progress: counted by listing them a second time, in a thread.

Only folders and regular files are looked at. A named pipe, a device and stdin can be read once only, and a list in a store or
on the web costs a request each time: a run with one of these has an unknown number of inputs.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from threading import Event, Thread

from fastscribe._system.urls import is_url
from fastscribe.audio.folder_inputs import is_taken
from fastscribe.audio.folders import match_depth, split_pattern, walk
from fastscribe.audio.formats import MAGIC, STDIN, is_audio_name, list_kind
from fastscribe.audio.inputs import expand, names_file
from fastscribe.audio.repeats import Repeats

_SAMPLE_BYTES = 1 << 20  # of a list


class InputCounter:
    """Counts a run's inputs. `number` is None until then, and where they cannot be counted.

    The rows of a list of more than a mebibyte are estimated from its first ones, because reading a large one twice takes
    time from the run.
    """

    def __init__(self, inputs: Sequence[str], num_shards: int) -> None:
        self.number: int | None = None
        self._inputs, self._num_shards = inputs, num_shards
        self._stop = Event()

    def start(self) -> None:
        """Count in a thread."""
        Thread(target=self._count, name="count-inputs", daemon=True).start()

    def stop(self) -> None:
        """End the thread soon."""
        self._stop.set()

    def _count(self) -> None:
        number, repeats = 0, Repeats()
        with suppress(_Unknown):
            for path in self._inputs:
                for found in _numbers(path, repeats):
                    number += found
                    if self._stop.is_set():
                        return
            self.number = number // self._num_shards


def has_many(inputs: Sequence[str], many: int) -> bool:
    """Return True if there are at least `many` inputs, or if their number is not known before they are read.

    The listing ends at that number. One recording at a URL is one; stdin, and folders and lists in a store, may be many.
    """
    number, repeats = 0, Repeats()
    for path in inputs:
        lists_nothing = path.lower().startswith(("http://", "https://"))
        if is_url(path) and (names_file(path) if lists_nothing else is_audio_name(path)):
            number += 1
            continue
        try:
            for found in _numbers(path, repeats):
                number += found
                if number >= many:
                    return True
        except _Unknown:
            return True
    return number >= many


class _Unknown(Exception):
    """An input can be read once only."""


def _numbers(path: str, repeats: Repeats) -> Iterator[int]:
    """Yield numbers of recordings, whose sum is that of an input. Raises _Unknown."""
    if path == STDIN or is_url(path):
        raise _Unknown
    is_pattern = MAGIC.search(path) is not None and not os.path.lexists(path)
    for match in _matches(path) if is_pattern else (path,):
        yield from _numbers_at(match, repeats)


def _matches(pattern: str) -> Iterator[str]:
    """Yield what a run takes of a pattern's matches: of a bare `*` only folders and audio by its name."""
    prefix, patterns = split_pattern(pattern)
    is_any = patterns[-1] in ("*", "**")
    if "**" not in patterns:
        yield from (one for one in glob.iglob(pattern) if not is_any or os.path.isdir(one) or is_taken(one, Counter()))
        return
    for entry in walk(prefix or "."):
        names = entry.split(os.sep) if isinstance(entry, str) else []
        depth = match_depth(names, patterns)
        path = os.path.join(prefix, *names)
        if depth is not None and ((depth == len(names) and not is_any) or is_taken(path, Counter())):
            yield path


def _numbers_at(path: str, repeats: Repeats) -> Iterator[int]:
    """Yield numbers of recordings at an existing or missing path."""
    if os.path.lexists(path) and not os.path.isdir(path) and not _can_be_read_twice(path):
        raise _Unknown
    if os.path.isfile(path) and (kind := list_kind(path)):
        if not repeats.is_repeated_manifest(path):
            yield _num_rows(path, kind)
        return
    for _ in expand([path], repeats=repeats):  # opens files of unknown names only, for it is no list
        yield 1


def _can_be_read_twice(path: str) -> bool:
    """Return True for a regular file that opens at its start each time; /dev/stdin shares its place on some systems."""
    return os.path.isfile(path) and not os.path.realpath(path).startswith("/dev/")


def _num_rows(path: str, kind: str) -> int:
    """Return the number of a list's rows, or an estimate for a large one; 1 for one that the run cannot read.

    Raises _Unknown for an archive, a compressed list and one in segments, whose rows are counted as they are read.
    """
    try:
        with open(path, "rb") as lines:
            sample, num_bytes = lines.read(_SAMPLE_BYTES), os.fstat(lines.fileno()).st_size
    except OSError:
        return 1
    is_in_segments = kind == "scp" and os.path.exists(os.path.join(os.path.dirname(path), "segments"))
    if kind == "tar" or sample[:2] == b"\x1f\x8b" or is_in_segments:
        raise _Unknown
    if len(sample) < num_bytes:
        return max(1, sample.count(b"\n") * num_bytes // len(sample))
    has_header = kind in ("csv", "tsv")
    return max(1, sum(1 for line in sample.splitlines() if line.strip()) - has_header)
