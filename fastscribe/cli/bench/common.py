"""The sub-application `fastscribe bench` and what its commands share. Tables go to stderr; the last line of stdout is one
JSON object (fastscribe/bench/document.py)."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from fastscribe import __version__
from fastscribe.cli.app import ReportHtml as ReportHtml
from fastscribe.cli.app import app
from fastscribe.errors import OutputError
from fastscribe.report.files import write_page

if TYPE_CHECKING:
    import torch

    from fastscribe.config import ModelConfig


class _Group(TyperGroup):
    """`fastscribe bench ..` is `fastscribe bench throughput ..`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "throughput" in self.commands and (not args or (args[0] not in self.commands and args[0] not in _HELP)):
            args = ["throughput", *args]
        return super().parse_args(ctx, args)


_HELP = ("-h", "--help")
bench = typer.Typer(cls=_Group, no_args_is_help=False, help="Measure this machine. Without a command: throughput.")
app.add_typer(bench, name="bench")

JSON_HELP = "Store the result in this file too."
DEVICE_HELP = "auto, cpu, cuda or cuda:N."


class BenchDtype(str, Enum):
    fp32 = "fp32"
    bf16 = "bf16"


def numbers(text: str) -> list[int]:
    """ "1,2,4" -> [1, 2, 4]"""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{text!r}: not whole numbers above 0, separated by commas")
    return [int(part) for part in parts]


def finish(
    name: str,
    device: torch.device,
    results: Mapping[str, Any],
    case_keys: Sequence[str],
    path: Path | None,
    report_html: Path | None = None,
) -> None:
    """Prints what was found, with what it was found on, as the last line of stdout; and stores it, and draws it."""
    from fastscribe.bench.document import document

    leave(document(name, device, results, case_keys, sys.argv[1:]), path, report_html)


def leave(stored: Mapping[str, Any], path: Path | None, report_html: Path | None = None) -> None:
    """Stores a document, prints it as the last line of stdout, and draws it."""
    if path is not None:
        try:
            path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise OutputError(str(path), error) from error
    print(json.dumps(stored), flush=True)
    if report_html is not None:
        from fastscribe.report.bench_page import render

        write_page(report_html, render(stored))


def not_measured(name: str, case_keys: Sequence[str], results: Mapping[str, Any]) -> dict[str, Any]:
    """A document about other documents: of no machine and no device."""
    made = {"fastscribe": __version__, "date": datetime.now(timezone.utc).date().isoformat()}
    command = shlex.join(["fastscribe", *sys.argv[1:]])
    return {"benchmark": name, **made, "command": command, "case_keys": list(case_keys), **results}


def shape(model: str | None, random: str | None) -> tuple[str, ModelConfig]:
    """What the model that was asked for is called, and its configuration."""
    if random is not None:
        from fastscribe.bench.shapes import SHAPES

        if random not in SHAPES:
            raise typer.BadParameter(f"--random {random}: not one of {', '.join(SHAPES)}")
        return random, SHAPES[random]
    from fastscribe.checkpoint import read_checkpoint
    from fastscribe.model_location import locate
    from fastscribe.terminal import say

    path = locate(model or "default", say)
    return model or "the packaged model", read_checkpoint(path).config
