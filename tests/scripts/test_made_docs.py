"""The man page has every command and option of the program, and the wheel brings it."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

import fastscribe
from scripts.command_tree import commands
from scripts.made_docs import MAN_PAGE, STALE, _paragraph, _table, man_page
from tests.test_project import PYPROJECT

TEXT = MAN_PAGE.read_text(encoding="utf-8")


def test_the_page_is_of_this_program() -> None:
    """Versions of typer show defaults and ranges otherwise, so words are compared."""
    assert f'"fastscribe {fastscribe.__version__}"' in TEXT, STALE
    for command in commands():
        section = TEXT.split(f".SS {command.name}\n")[1].split("\n.SS ")[0].split("\n.SH ")[0]
        assert _paragraph(command.help) in section and _paragraph(command.example) in section, STALE
        records = [record for options in command.groups.values() for record in options]
        options = {name for names, _ in records for name in re.findall(r"--[a-z][a-z-]*", names)}
        lines = [line.replace("\\-", "-") for line in section.splitlines() if line.startswith(".B \\-")]
        assert {name for line in lines for name in re.findall(r"--[a-z][a-z-]*", line)} == options, STALE
        for _, meaning in records:
            assert _paragraph(meaning.partition(" [")[0]) in section, STALE


def test_a_field_without_when_is_named() -> None:
    definition = {"title": "Row", "properties": {"mood": {"type": "string", "description": "How it sounds."}}}
    with pytest.raises(SystemExit, match="Row: mood is neither required nor says when it is present"):
        list(_table(definition, {}))


def test_roff_finds_no_requests_in_text() -> None:
    assert not [line for line in man_page().splitlines() if line.startswith((".", "'")) and not re.match(
        r"\.(TH|SH|SS|PP|TP|B|I)\b", line)]  # fmt: skip


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not installed")
def test_mandoc_finds_no_fault() -> None:
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "error", MAN_PAGE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_wheel_brings_it() -> None:
    assert PYPROJECT["tool"]["setuptools"]["data-files"] == {"share/man/man1": ["man/fastscribe.1"]}
