"""Run `fastscribe bench` in the test's process, which saves starting one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fastscribe.cli import app


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[dict[str, Any], str]:
    """Run `fastscribe bench ARGUMENTS`; return the document on the last line of stdout, and stderr without what is said of
    the load of the machine that runs the tests."""
    app(["bench", *map(str, arguments)], standalone_mode=False)
    said = capsys.readouterr()
    *others, last = said.out.splitlines()
    assert not others, "stdout holds the document and nothing else"
    return json.loads(last), "".join(line for line in said.err.splitlines(keepends=True) if "worth nothing" not in line)


def table(said: str, heading: str) -> list[list[str]]:
    """Return the cells of the lines after the one that begins with `heading`."""
    lines = said.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(heading))
    return [line.split() for line in lines[start + 1 :]]
