"""The inputs of a run in windows, and these in blocks, of which a worker gets one at a time. The workers open them.

The longest recordings of a window come first. Its blocks get smaller towards the end, so that no worker is left with a long one
while the others idle.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from fastscribe.audio.failures import input_failure
from fastscribe.audio.given import all_of, sources
from fastscribe.audio.media import is_held, medium_of
from fastscribe.audio.remote_file import RemoteFile
from fastscribe.config import Options
from fastscribe.pipeline.stats import Progress
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.pipeline.window_buffer import Preparers, WindowBuffer, WindowSize
from fastscribe.pipeline.windows import expected_sources
from fastscribe.results.interfaces import Ledger
from fastscribe.types import Failure, File, Source

if TYPE_CHECKING:
    from fastscribe.audio.given import Inputs

WINDOW = 100_000  # recordings for each worker: minutes of work on a GPU, since a worker loads the model in each window
MAX_WINDOW = 1_000_000  # for all workers together: a gigabyte of the driver's memory, and the next window as much
MAX_WAIT_S = 30.0  # a window with recordings waits this long for others
MAX_WORK_S = 600.0  # of a worker's time
MIN_RTFX = {True: 300.0, False: 3.0}  # on a GPU and on processors: what a worker does at the least, for that limit
MIN_BLOCK_S = 60.0  # of audio; a smaller block would hardly fill a batch
MAX_RECORDINGS = 4096  # of a block
_SHARES = 2  # blocks that each worker should still get, at the least, from what is left
_BYTES_PER_S = 16_000  # of a recording whose length no manifest states
_UNKNOWN_S = 30.0  # of an object whose size only a request would tell


@dataclass(frozen=True)
class Recording:
    """A recording that waits for its result, and its length: stated by a manifest, or estimated from the size of its file."""

    source: Source
    seconds: float


def list_inputs(
    inputs: Inputs,
    ledger: Ledger | None,
    options: Options,
    progress: Progress,
    pool: ReplacingThreadPool,
    num_workers: int,
) -> WindowBuffer[Source | Failure, Recording | Failure]:
    """Return windows of the inputs that this run must transcribe. The next one is listed while workers have the last one.

    A window has recordings for workers, and failures of inputs that cannot be listed or given to a worker.

    Args:
        inputs: As Transcriber.transcribe(), or Sources and Failures.
        ledger: Decides which inputs belong to the run and are not done; None: all.
        options: `channel` and `track` count.
        progress: Counts what is left out and repeated.
        pool: Asks for the sizes of files: file systems may be slow.
        num_workers: Number of workers, by which windows are large.
    """
    found = sources(all_of(inputs), progress.left_out, None if ledger is None else progress.repeats)

    def look(source: Source | Failure) -> Recording | Failure | None:
        if ledger is not None and ledger.skip(source):
            return None
        return _recording(source)

    size = min(WINDOW * num_workers, MAX_WINDOW)
    expected = expected_sources(found, ledger, options)
    whole = WindowSize(size, math.inf, MAX_WAIT_S, first_items=size)
    return WindowBuffer(expected, Preparers.threads(look), seconds_of, pool, whole)


def seconds_of(item: Recording | Failure) -> float:
    """Return a recording's length in seconds; 0 of a failure."""
    return 0.0 if isinstance(item, Failure) else item.seconds


def in_blocks(recordings: Iterable[Recording], num_workers: int, is_gpu: bool) -> Iterator[Sequence[Recording]]:
    """Yield the recordings in blocks, each at most 10 minutes of a worker's time by their lengths; a longer one is alone."""
    waiting = sorted(recordings, key=lambda one: -one.seconds)
    left_s, max_s = sum(one.seconds for one in waiting), MAX_WORK_S * MIN_RTFX[is_gpu]
    begin = 0
    while begin < len(waiting):
        most_s = min(max_s, max(MIN_BLOCK_S, left_s / (_SHARES * num_workers)))
        end, block_s = begin + 1, waiting[begin].seconds
        while end < min(len(waiting), begin + MAX_RECORDINGS) and block_s + waiting[end].seconds <= most_s:
            block_s, end = block_s + waiting[end].seconds, end + 1
        yield waiting[begin:end]
        begin, left_s = end, left_s - block_s


def _recording(source: Source | Failure) -> Recording | Failure:
    """Return a source as a worker needs it: its file by an absolute path, without the caller's key."""
    if isinstance(source, Failure):
        return source
    if is_held(source.file):
        problem = "is in this process's memory, where the workers cannot read it: give a path or a URL"
        return replace(input_failure(source.path, problem), id=source.id, index=source.index)
    seconds = source.duration_s
    if seconds is None:
        seconds = _num_bytes(source.file) / _BYTES_PER_S or _UNKNOWN_S
    file = os.path.abspath(source.file) if isinstance(source.file, str) else source.file
    return Recording(replace(source, file=file, given_key=None), seconds)


def _num_bytes(file: File) -> int:
    """Return the size of a file; 0 if it is missing, or only a request would tell."""
    if isinstance(file, RemoteFile):
        return file.stated_bytes or 0
    try:
        return medium_of(cast(str, file)).num_bytes()
    except (OSError, ValueError):  # the worker says what is wrong with it
        return 0
