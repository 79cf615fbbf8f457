"""What a benchmark does with its result: the JSON document, printed and stored.

Tables go to stderr; the last line of stdout, unless that is a terminal, is one JSON object (fastscribe/bench/document.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastscribe._system.safe_open import safe_read
from fastscribe.cli.app import is_on_terminal, option
from fastscribe.cli.terminal import filter_mpg123_messages, say
from fastscribe.errors import OutputError
from fastscribe.report.files import check_place, write_page

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

    Doubts of the figures (fastscribe/bench/doubt.py) are printed, and stored as "doubts". The fast paths that were refused,
    which the block stores as "refused", are printed too.

    If the block is interrupted or fails, the rows so far are left with "complete": false. If no row was measured, nothing
    is. A block that ends without any exits with code 1.
    """
    from fastscribe.bench import doubt
    from fastscribe.bench.document import document

    found: dict[str, Any] = {"rows": []}
    busy_share = doubt.busy_share()  # before there is work of our own
    try:
        with filter_mpg123_messages():
            yield found
    except BaseException:
        if _any_measured(found["rows"]):
            _leave_unfinished(name, device, found, case_keys, path)
        raise
    if doubts := [*doubt.of_load(busy_share), *doubt.of_spread(found["rows"], case_keys)]:
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
    from fastscribe.bench.document import document, not_measured

    try:
        made = document(name, device, found, case_keys, complete=False)
    except RuntimeError:  # a device that failed answers no query
        made = not_measured(name, {**found, "complete": False}, case_keys)
    try:
        leave(made, path)
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
