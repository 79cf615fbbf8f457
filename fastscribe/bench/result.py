"""What a benchmark leaves, printed and stored: one JSON object.

    {"benchmark", "fastscribe", "date", "command", "complete", .. settings ..,
     "case_keys": [..], "rows": [{..}, ..], "machine": {..}}

A row has the keys of `case_keys`, which tell it from the others, and measurements whose names end in
their unit (_ms, _s, _bytes, _share, _ratio, _per_s, _usd ..) or are `rtfx`. A measurement that was made several times is its
median, with all of them beside it under the name with `_runs`; from these comes what is noise. A case that could
not be measured has `error` in place of measurements. One that nothing is known of is null, never 0. Where the command was
interrupted or failed, `complete` is false. Where figures are worth nothing, `doubts` says why. What measures models
has `refused`: the fast paths that the machine refused, with their reasons (fastscribe/fast_paths.py).

Tables go to stderr; the object is the last line of stdout, unless that is a terminal.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Annotated, Any

import psutil
import typer

from fastscribe._system.file_kinds import safe_read
from fastscribe.cli.app import is_on_terminal, option
from fastscribe.cli.terminal import filter_mpg123_messages, say
from fastscribe.errors import OutputError
from fastscribe.report.files import check_place, write_page
from fastscribe.version import __version__

if TYPE_CHECKING:
    import torch

STDOUT = Path("-")
_MAX_BYTES = 64 * 2**20
_KEYS = {"benchmark", "case_keys", "rows"}  # of every result


def usable_json(path: Path | None) -> Path | None:
    """Check what --json names. Raises UsageError if it cannot be written, or if another file has its name."""
    return path if path in (None, STDOUT) else check_place("--json", path, _is_result, "benchmark's result")


def _is_result(path: Path) -> bool:
    """Return True for a result of a benchmark or an empty file."""
    try:
        text = safe_read(path, _MAX_BYTES)
        found = json.loads(text) if text else dict.fromkeys(_KEYS)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.keys() >= _KEYS


JsonFile = Annotated[
    Path | None,
    option("--json", help="Store the result in this file too; -: print it in a terminal too."),
]


@contextmanager
def result(name: str, device: torch.device, case_keys: Sequence[str], path: Path | None) -> Iterator[dict[str, Any]]:
    """Collect settings and "rows" in the mapping, and leave them as a document when the block ends.

    Doubts of the figures (of_load, of_spread) are printed, and stored as "doubts". The fast paths that were refused,
    which the block stores as "refused", are printed too.

    If the block is interrupted or fails, the rows so far are left with "complete": false. If no row was measured, nothing
    is. A block that ends without any exits with code 1.
    """
    found: dict[str, Any] = {"rows": []}
    share = busy_share()  # before there is work of our own
    try:
        with filter_mpg123_messages():
            yield found
    except BaseException:
        if _any_measured(found["rows"]):
            _leave_unfinished(name, device, found, case_keys, path)
        raise
    if doubts := [*of_load(share), *of_spread(found["rows"], case_keys)]:
        found["doubts"] = doubts
    for line in [*doubts, *(f"without {path}: {reason}" for path, reason in found.get("refused", {}).items())]:
        say(line)
    leave(document(name, device, found, case_keys), path)
    if not _any_measured(found["rows"]):
        say("nothing was measured")
        raise typer.Exit(1)


def _leave_unfinished(
    name: str, device: torch.device, found: dict[str, Any], case_keys: Sequence[str], path: Path | None
) -> None:
    try:
        leave(document(name, device, found, case_keys, complete=False), path)
    except (OutputError, OSError) as error:  # the exception under way sets the exit code
        say(str(error))
    say(f"{len(found['rows'])} measured before it ended: left as a result that is not complete")


def _any_measured(rows: Sequence[Mapping[str, Any]]) -> bool:
    return any("error" not in row for row in rows)


def leave(stored: Mapping[str, Any], path: Path | None) -> None:
    """Print a document as the last line of stdout, unless that is a terminal and `path` is not "-"; then store it."""
    stored = _finite(stored)
    if path == STDOUT or not is_on_terminal():
        print(json.dumps(stored, allow_nan=False), flush=True)
    if path not in (None, STDOUT):
        write_page(path, json.dumps(stored, indent=1, allow_nan=False) + "\n", _is_result)


def _finite(value: Any) -> Any:
    """Replace numbers that JSON cannot hold (NaN, infinity) by None."""
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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


_MAX_ERROR = 600  # characters


def describe_error(error: BaseException) -> str:
    """The `error` of a case that could not be measured: one line with the exception's type."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_MAX_ERROR]


def document(
    name: str,
    device: torch.device,
    results: Mapping[str, Any],
    case_keys: Sequence[str],
    complete: bool = True,
) -> dict[str, Any]:
    """`results` has the settings and "rows". One that is not complete has no machine if the device answers no query."""
    from fastscribe.bench import machine

    missing = {key for row in results["rows"] for key in case_keys if key not in row}
    assert not missing, f"rows without {missing}"
    found = {
        "benchmark": name,
        "fastscribe": __version__,
        "date": datetime.now(timezone.utc).date().isoformat(),
        "command": shlex.join(["fastscribe", *sys.argv[1:]]),
        "case_keys": list(case_keys),
        "device": str(device),
        "complete": complete,
        **results,
    }
    try:
        return found | {"machine": machine.facts(device, Path.cwd())}
    except RuntimeError:  # the device has failed
        if complete:
            raise
        return found
