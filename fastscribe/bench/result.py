"""What every benchmark does with its result: the options that name a device and a file, and the JSON document.

Tables go to stderr; the last line of stdout, unless that is a terminal, is one JSON object (fastscribe/bench/document.py).
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastscribe._system.safe_open import safe_read
from fastscribe.cli.app import is_on_terminal, option
from fastscribe.cli.terminal import filter_mpg123_messages, say
from fastscribe.errors import OutputError, UsageError
from fastscribe.report.files import check_place, write_page

if TYPE_CHECKING:
    import torch

DEVICE_HELP = "auto, cpu, cuda or cuda:N."
STDOUT = Path("-")
_MAX_BYTES = 64 * 2**20
_KEYS = {"benchmark", "case_keys", "rows"}  # of every result


def _usable_json(path: Path | None) -> Path | None:
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
    option("--json", callback=_usable_json, help="Store the result in this file too; -: print it in a terminal too."),
]


def numbers(text: str, option: str = "--batch-sizes") -> list[int]:
    """ "1,2,4" -> [1, 2, 4], each once"""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(f"{option} {text}: not whole numbers above 0, separated by commas")
    return list(dict.fromkeys(map(int, parts)))


def check_output(json_file: Path | None, inputs: Sequence[str | Path]) -> None:
    """Raise UsageError if the result would overwrite an input."""
    if json_file is not None and os.path.realpath(json_file) in {os.path.realpath(one) for one in inputs}:
        raise UsageError(f"--json {json_file}: it is one of the inputs: name another place")


@contextmanager
def result(
    name: str,
    device: torch.device,
    case_keys: Sequence[str],
    path: Path | None,
    program: str = "fastscribe",
) -> Iterator[dict[str, Any]]:
    """Collect settings and "rows" in the mapping; finish() prints and stores them when the block ends.

    finish() also prints doubts of the figures (fastscribe/bench/doubt.py) and stores them as "doubts". It prints the fast paths
    that were refused, which the block stores as "refused".

    If the block is interrupted or fails, the rows so far are printed and stored with "complete": false. If no row was
    measured, nothing is.
    """
    from fastscribe.bench import doubt

    found: dict[str, Any] = {"rows": []}
    busy_share = doubt.busy_share()  # before there is work of our own
    try:
        with filter_mpg123_messages():
            yield found
    except BaseException:
        if any_measured(found["rows"]):
            _leave_unfinished(name, device, found, case_keys, path, program)
        raise
    if doubts := [*doubt.of_load(busy_share), *doubt.of_spread(found["rows"], case_keys)]:
        found["doubts"] = doubts
    for line in [*doubts, *(f"without {path}: {reason}" for path, reason in found.get("refused", {}).items())]:
        say(line)
    finish(name, device, found, case_keys, path, program)


def _leave_unfinished(
    name: str, device: torch.device, found: dict[str, Any], case_keys: Sequence[str], path: Path | None, program: str
) -> None:
    from fastscribe.bench.document import document, not_measured

    try:
        made = document(name, device, found, case_keys, sys.argv[1:], complete=False, program=program)
    except RuntimeError:  # a device that failed answers no query
        made = not_measured(name, {**found, "complete": False}, case_keys, sys.argv[1:], program)
    try:
        leave(made, path)
    except (OutputError, OSError) as error:  # the exception under way sets the exit code
        say(str(error))
    say(f"{len(found['rows'])} measured before it ended: left as a result that is not complete")


def any_measured(rows: Sequence[Mapping[str, Any]]) -> bool:
    return any("error" not in row for row in rows)


def finish(
    name: str,
    device: torch.device,
    results: Mapping[str, Any],
    case_keys: Sequence[str],
    path: Path | None,
    program: str = "fastscribe",
) -> None:
    """Print the results and the machine as the last line of stdout, and store them.

    Exit with code 1 if nothing was measured.
    """
    from fastscribe.bench.document import document

    leave(document(name, device, results, case_keys, sys.argv[1:], program=program), path)
    if not any_measured(results["rows"]):
        say("nothing was measured")
        raise typer.Exit(1)


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
