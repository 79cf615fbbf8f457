"""The sub-application `fastscribe bench` and what its commands share. Tables go to stderr; the last line of stdout is one
JSON object (fastscribe/bench/document.py)."""

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
from typer.core import TyperGroup

from fastscribe.cli.app import ReportHtml as ReportHtml
from fastscribe.cli.app import app, option
from fastscribe.cli.terminal import filter_mpg123_messages, say
from fastscribe.errors import OutputError, UsageError
from fastscribe.report.files import check_place, write_page

if TYPE_CHECKING:
    import torch


class _Group(TyperGroup):
    """`fastscribe bench ..` is `fastscribe bench throughput ..`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "throughput" in self.commands and (not args or (args[0] not in self.commands and args[0] not in _HELP)):
            args = ["throughput", *args]
        return super().parse_args(ctx, args)


_HELP = ("-h", "--help")
bench = typer.Typer(cls=_Group, no_args_is_help=False, help="Measure this machine. Without a command: throughput.")
app.add_typer(bench, name="bench")

DEVICE_HELP = "auto, cpu, cuda or cuda:N."


def _usable_json(path: Path | None) -> Path | None:
    return None if path is None else check_place("--json", path, _is_result, "benchmark's result")


def _is_result(path: Path) -> bool:
    """Or empty."""
    from fastscribe.bench.stored import read

    if not path.stat().st_size:
        return True
    try:
        read(path)
    except UsageError:
        return False
    return True


JsonFile = Annotated[Path | None, option("--json", callback=_usable_json, help="Store the result in this file too.")]


def numbers(text: str) -> list[int]:
    """ "1,2,4" -> [1, 2, 4], each once"""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{text!r}: not whole numbers above 0, separated by commas")
    return list(dict.fromkeys(map(int, parts)))


def check_places(json_file: Path | None, report_html: Path | None, inputs: Sequence[str | Path] = ()) -> None:
    """Raises UsageError where what is left would lie on one another, or on an input. The options' own checks are done."""
    read = {os.path.realpath(one) for one in inputs}
    for name, place in (("--json", json_file), ("--report-html", report_html)):
        if place is not None and os.path.realpath(place) in read:
            raise UsageError(f"{name} {place}: it is one of the inputs: name another place")
    if json_file is not None and report_html is not None and json_file == report_html:
        raise UsageError(f"--json and --report-html {json_file}: one file for both: name two")


@contextmanager
def result(
    name: str, device: torch.device, case_keys: Sequence[str], path: Path | None, report_html: Path | None
) -> Iterator[dict[str, Any]]:
    """What the block puts into the mapping (settings, and "rows" as they come) is left at its end as finish() leaves it.

    Where the block is interrupted or fails, the rows so far are, with "complete": false; where none was measured, nothing.
    """
    found: dict[str, Any] = {"rows": []}
    try:
        with filter_mpg123_messages():
            yield found
    except BaseException:
        if any_measured(found["rows"]):
            _leave_unfinished(name, device, found, case_keys, path, report_html)
        raise
    finish(name, device, found, case_keys, path, report_html)


def _leave_unfinished(
    name: str,
    device: torch.device,
    found: dict[str, Any],
    case_keys: Sequence[str],
    path: Path | None,
    report_html: Path | None,
) -> None:
    from fastscribe.bench.document import document, not_measured

    try:
        made = document(name, device, found, case_keys, sys.argv[1:], complete=False)
    except RuntimeError:  # of a device that failed, which answers no question
        made = not_measured(name, {**found, "complete": False}, case_keys, sys.argv[1:])
    try:
        leave(made, path, report_html)
    except (OutputError, OSError) as error:  # the reason why it ended is said too, and is the exit code
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
    report_html: Path | None = None,
) -> None:
    """Prints what was found, with what it was found on, as the last line of stdout; and stores it, and draws it.

    Ends the command with exit code 1 where nothing was measured.
    """
    from fastscribe.bench.document import document

    leave(document(name, device, results, case_keys, sys.argv[1:]), path, report_html)
    if not any_measured(results["rows"]):
        say("nothing was measured")
        raise typer.Exit(1)


def leave(stored: Mapping[str, Any], path: Path | None, report_html: Path | None = None) -> None:
    """Prints a document as the last line of stdout, then stores it and draws it, in the hope that one of these goes well."""
    stored = _finite(stored)
    print(json.dumps(stored, allow_nan=False), flush=True)
    if path is not None:
        write_page(path, json.dumps(stored, indent=1, allow_nan=False) + "\n", _is_result)
    if report_html is not None:
        from fastscribe.report.bench_page import render

        write_page(report_html, render(stored))


def _finite(value: Any) -> Any:
    """With None for numbers that JSON does not have, which nobody could read again."""
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
