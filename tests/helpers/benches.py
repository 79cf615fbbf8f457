"""Benchmarks' commands run inside the test's own process, which need not start one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fastscribe.cli import app


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[dict[str, Any], str]:
    """`fastscribe bench ARGUMENTS` -> the document on the last line of stdout, and stderr."""
    app(["bench", *map(str, arguments)], standalone_mode=False)
    said = capsys.readouterr()
    *others, last = said.out.splitlines()
    assert not others, "stdout holds the document and nothing else"
    return json.loads(last), said.err


def keep_models_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random models are made anew, and not among the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))


def table(said: str, heading: str) -> list[list[str]]:
    """The cells of the lines after the one that begins with `heading`."""
    lines = said.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(heading))
    return [line.split() for line in lines[start + 1 :]]
