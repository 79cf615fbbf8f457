"""Values that the program converts without typer's pydantic: they are what typer makes of them, and all others are typer's."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from fastscribe.cli import plain_values
from fastscribe.cli.app import Application, new_app
from tests.helpers.warm_process import LIBRARIES_ALONE

Level = Literal["low", "High"]
WORDS = ["", "a", "-", "5", "05", "+5", " 5", "-1", "0", "11", "5.5", "5.", ".5", "1e1", "1_0", "inf", "nan", "9" * 12]
WORDS += ["true", "yes", "0x1", "low", "LOW", "High", "high", "./a", "a//b", "тест"]
FILES = ["file", "file/", "folder", "folder/", "none/x", "none/"]
HIDDEN = ["hidden", "hidden/", "hidden/."]


def made() -> tuple[Application, list[dict[str, Any]]]:
    """Return a command with options of each kind, and the values that it gets."""
    application, got = new_app(), []

    @application.command()
    def run(
        inputs: Annotated[list[str], typer.Argument()],
        text: Annotated[str | None, typer.Option()] = None,
        path: Annotated[Path | None, typer.Option()] = None,
        folder: Annotated[Path | None, typer.Option(file_okay=False)] = None,
        there: Annotated[Path | None, typer.Option(exists=True)] = None,
        whole: Annotated[int, typer.Option(min=0, max=10)] = 3,
        number: Annotated[float | None, typer.Option(min=0.5)] = None,
        clamped: Annotated[int, typer.Option(min=0, max=4, clamp=True)] = 1,
        level: Annotated[Level, typer.Option()] = "low",
        any_case: Annotated[Level, typer.Option(case_sensitive=False)] = "low",
        parsed: Annotated[int, typer.Option(parser=lambda word: int(str(word), 16))] = 0,
        flag: Annotated[bool, typer.Option(envvar="PLAIN_FLAG")] = False,
        texts: Annotated[list[str] | None, typer.Option()] = None,
        paths: Annotated[list[Path] | None, typer.Option()] = None,
    ) -> None:
        got.append(locals() | {"application": None, "got": None})

    return application, got


def outcomes(lines: list[tuple[list[str], dict[str, str]]]) -> list[tuple[Any, ...]]:
    """Return how each command line ends, what it prints, and its values."""
    application, got = made()
    command, found = typer.main.get_command(application), []  # once, which takes much longer than a line
    for arguments, environment in lines:
        got.clear()
        end: BaseException | None = None
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed, redirect_stderr(printed):
            for name, value in environment.items():
                patch.setenv(name, value)
            try:
                command.main(arguments, prog_name="run")
            except (Exception, SystemExit) as error:
                end = error
        found.append((type(end), str(end), printed.getvalue(), repr(got)))
    return found


OPTIONS = [
    "text",
    "path",
    "folder",
    "there",
    "whole",
    "number",
    "clamped",
    "level",
    "any-case",
    "parsed",
    "texts",
    "paths",
]


@pytest.mark.parametrize("option", [None, "flag", *OPTIONS])
def test_values_are_typers(option: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("file", "hidden"):
        (tmp_path / name).touch()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "hidden")  # the superuser may read all
    lines: list[tuple[list[str], dict[str, str]]] = [(["x"], {}), (["x", "y z", ""], {}), ([], {})]
    if option == "flag":
        lines = [(["x", "--flag"], {}), *((["x"], {"PLAIN_FLAG": word}) for word in WORDS)]
    elif option is not None:
        lines = [(["x", f"--{option}={word}"], {}) for word in WORDS + FILES + HIDDEN]
        lines += [(["x", f"--{option}=low", f"--{option}=5"], {})]
    ours = outcomes(lines)
    assert {one[1] == "0" for one in ours} == {True, False}
    monkeypatch.setattr(sys.modules["fastscribe.cli.app"], "skip_conversions_", lambda parameters: None)
    assert ours == outcomes(lines)


def test_an_argument_that_is_refused_is_named() -> None:
    application = new_app()

    @application.command()
    def run(count: int, share: Annotated[float, typer.Argument(metavar="SHARE", max=1)] = 1.0) -> None:
        """Do nothing."""

    runner = CliRunner()
    assert "COUNT x: not a whole number" in runner.invoke(application, ["x"]).output
    assert "SHARE 2: not a number up to 1" in runner.invoke(application, ["1", "2"]).output


COMMANDS = [
    ["--help"],
    ["transcribe", "--help"],
    ["transcribe", "none.wav", "-q", "--dtype", "bf16", "--beam", "2", "--format", "srt", "-o", "out"],
    ["bench", "--help"],
    ["models"],
]


PROGRAM = """
import sys
from fastscribe import cli
try:
    cli._run()
finally:
    assert "fastscribe.cli.app" in sys.modules
    print([name for name in sys.modules if "pydantic" in name])
"""


@pytest.mark.skipif(not hasattr(typer.core.TyperOption, "get_runtime_param"), reason="this typer has no pydantic")
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_plain_commands_do_without_pydantic(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = LIBRARIES_ALONE.python(PROGRAM, *arguments)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


def test_a_typer_of_another_kind_is_left_alone() -> None:
    parameter = object()
    plain_values.skip_conversions_([parameter])
