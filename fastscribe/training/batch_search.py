"""Search the largest batch size of each bucket that fits into the device's memory, and cache the result in a file.

As in "Training and inference efficiency of encoder-decoder speech models" (arXiv 2503.05931): a batch of a bucket's
extreme shape goes forward and backward, twice the rows each time until memory runs out, then by bisection. What a trial
is, and how running out shows (torch.OutOfMemoryError, a limit), is the caller's to say; no tensor is known here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastscribe._system.safe_files import write_atomic
from fastscribe._system.safe_open import safe_read
from fastscribe.errors import OutputError, UsageError
from fastscribe.training.buckets import Bucket

# (bucket, rows) -> whether a batch of that many rows of the bucket's largest shape fits into memory.
Fits = Callable[[Bucket, int], bool]
_FORMAT_VERSION = 1
_MAX_TABLE_BYTES = 1 << 20
_MARGIN = 0.1  # of the rows found, left free: other kernels, fragmented memory, an EMA made later
_PRECISION = 0.05  # of the rows found: bisection goes no further


def search_batch_sizes(buckets: Sequence[Bucket], fits: Fits, most: int = 1024) -> tuple[int, ...]:
    """Rows for each bucket, at most `most`, a margin below what fits.

    A bucket that is smaller in both dimensions starts from what was found for the larger one. Raises UsageError where
    one row of some bucket is too much.
    """
    found: dict[int, int] = {}
    for place in sorted(range(len(buckets)), key=lambda place: buckets[place], reverse=True):
        bucket = buckets[place]
        known = max((rows for other, rows in found.items() if _contains(buckets[other], bucket)), default=0)
        found[place] = _largest(bucket, fits, known, most)
    return tuple(max(1, int(found[place] * (1 - _MARGIN))) for place in range(len(buckets)))


def _contains(larger: Bucket, smaller: Bucket) -> bool:
    return larger.max_duration_s >= smaller.max_duration_s and larger.max_tokens >= smaller.max_tokens


def _largest(bucket: Bucket, fits: Fits, known: int, most: int) -> int:
    """The most rows that fit, or a little less; `known` do, if any."""
    low = high = max(1, known)
    if known == 0 and not fits(bucket, 1):
        seconds, tokens = bucket
        raise UsageError(
            f"no memory for one recording of {seconds:g} s with {tokens} tokens; set a smaller max_duration_s or model"
        )
    while low < most:  # doubling
        high = min(2 * low, most)
        if not fits(bucket, high):
            break
        low = high
    while high - low > max(1, _PRECISION * low):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(bucket, middle) else (low, middle)
    return low


def stored_or_searched(
    path: Path, holds_for: Mapping[str, Any], buckets: Sequence[Bucket], fits: Fits, most: int = 1024
) -> tuple[int, ...]:
    """What the file says where it was made for the very same; else a search, whose result the file then has.

    `holds_for` is all that decides besides the buckets: the model's config, the device's name and memory, the dtype; in
    values that JSON has. Raises UsageError as search_batch_sizes does, OutputError where the file cannot be written.
    """
    stored = read_batch_sizes(path, holds_for, buckets)
    if stored is not None:
        return stored
    batch_sizes = search_batch_sizes(buckets, fits, most)
    write_batch_sizes(path, holds_for, buckets, batch_sizes)
    return batch_sizes


def read_batch_sizes(path: Path, holds_for: Mapping[str, Any], buckets: Sequence[Bucket]) -> tuple[int, ...] | None:
    """None where there is no such file, or it is for something else, or it is damaged."""
    try:
        table = json.loads(safe_read(path, _MAX_TABLE_BYTES))
        if {**table, "batch_sizes": None} != _table(holds_for, buckets, None):
            return None
        batch_sizes = table["batch_sizes"]
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None
    right = isinstance(batch_sizes, list) and len(batch_sizes) == len(buckets)
    return tuple(batch_sizes) if right and all(type(n) is int and n >= 1 for n in batch_sizes) else None


def write_batch_sizes(
    path: Path, holds_for: Mapping[str, Any], buckets: Sequence[Bucket], batch_sizes: Sequence[int]
) -> None:
    """Whole or not at all. Raises OutputError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, (json.dumps(_table(holds_for, buckets, batch_sizes), indent=1) + "\n").encode())
    except OSError as error:
        raise OutputError(str(path), error) from error


def _table(
    holds_for: Mapping[str, Any], buckets: Sequence[Bucket], batch_sizes: Sequence[int] | None
) -> dict[str, Any]:
    """Return the table after a JSON round trip, so that it compares equal to a stored one."""
    table = {
        "format_version": _FORMAT_VERSION,
        "holds_for": holds_for,
        "margin": _MARGIN,
        "buckets": buckets,
        "batch_sizes": batch_sizes,
    }
    parsed: dict[str, Any] = json.loads(json.dumps(table))
    return parsed
