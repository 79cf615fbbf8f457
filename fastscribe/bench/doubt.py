"""What makes a measurement worth nothing: other work on the processors, and passes that differ too much."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

import psutil

_BUSY = 0.25  # of the processors, by others; one of four, or half of one of two
_SPREAD = 0.2  # largest less smallest, over the median; an idle machine stays below 0.1
_LOOK_S = 0.5


def busy_share() -> float:
    """Return how much of this process's processors is busy, over half a second in which the process itself waits."""
    shares = psutil.cpu_percent(_LOOK_S, percpu=True)
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(shares))
    return fmean([shares[number] for number in usable if number < len(shares)] or shares) / 100


def of_load(share: float) -> Iterator[str]:
    """Yield a line if other work takes so much of the processors that figures are too low."""
    if share >= _BUSY:
        yield f"other work kept {share:.0%} of the processors busy: these figures are worth nothing; wait until it has ended"


def of_spread(rows: Sequence[Mapping[str, Any]], case_keys: Sequence[str]) -> Iterator[str]:
    """Yield a line if measurements differ too much from pass to pass: the one that does most, and how many rows have such."""
    found = []
    for row in rows:
        spreads = {key: _spread(runs) for key, runs in row.items() if key.endswith("_runs") and isinstance(runs, list)}
        name = max(spreads, key=spreads.__getitem__, default="")
        if name and spreads[name] >= _SPREAD:
            case = ", ".join(str(row[key]) for key in case_keys)
            runs = f"{min(row[name]):.4g} to {max(row[name]):.4g}"
            found.append(
                (spreads[name], f"{name.removesuffix('_runs')} of {case} differs by {spreads[name]:.0%} ({runs})")
            )
    if found:
        others = f", and {len(found) - 1} more by {_SPREAD:.0%} or more" if len(found) > 1 else ""
        yield f"from pass to pass {max(found)[1]}{others}: such figures are worth nothing; measure again"


def _spread(runs: Sequence[Any]) -> float:
    known = [run for run in runs if isinstance(run, (int, float))]
    middle = median(known) if known else 0.0
    return (max(known) - min(known)) / middle if middle else 0.0
