"""Commands and options of rooms are loaded where a command line names them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import typer.main

from fastscribe import rooms
from fastscribe.cli import app
from fastscribe.cli.commands import LazyCommands
from tests.cli.test_cli import FIRST, MODEL
from tests.helpers.warm_process import LIBRARIES_ALONE

PROGRAM = """
import os, sys
from fastscribe.cli import _run
try:
    code = _run()
except SystemExit as end:
    code = end.code
names = (name.split(".")[1:2] for name, module in sys.modules.items() if name.startswith("fastscribe.") and module)
print(*sorted({name[0] for name in names}), file=open(os.environ["LOADED"], "w"))
sys.exit(code)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs a command line; returns it, and the packages that it has loaded."""
    loaded = tmp_path / "loaded"
    monkeypatch.setenv("LOADED", str(loaded))

    def called(*arguments: object) -> tuple[subprocess.CompletedProcess[str], set[str]]:
        done = LIBRARIES_ALONE.python(PROGRAM, *arguments)
        return done, set(loaded.read_text().split())

    return called


def test_a_plain_command_line_loads_no_room(run, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    plain = ("transcribe", FIRST, "-m", MODEL, "--device", "cpu", "-o", out, "-f", "jsonl,srt")
    again = ("export", out, "-f", "vtt", "-o", str(tmp_path / "vtt"))
    copy = ("convert", MODEL, str(tmp_path / "copy"))
    for line in (plain, again, copy, ("merge", "no-such-folder"), ("models", "--json")):
        done, loaded = run(*line)
        assert done.returncode == (2 if "merge" in line else 0) and not loaded & {room.name for room in rooms.ROOMS}, (
            line
        )


def test_commands_of_rooms_follow_those_of_the_core() -> None:
    names = "transcribe align doctor evaluate export merge inspect convert schema speakers train bench models"
    assert [name for name in LazyCommands() if name in names.split()] == names.split()  # others may stand between them
    assert set(LazyCommands()) >= {name for room in rooms.ROOMS for name in room.commands}


def test_the_table_has_the_options_that_rooms_declare() -> None:
    group = typer.main.get_command(app)
    for name in {name for room in rooms.ROOMS for name in room.flags}:
        command = group.commands[name]  # type: ignore[attr-defined]
        own = {flag for one in command.params for flag in one.opts}
        command.add_rooms()
        added = [flag for one in command.params for flag in one.opts if flag not in own]
        assert sorted(added) == sorted(flag for room in rooms.ROOMS for flag in room.flags.get(name, ()))


def test_a_variable_loads_the_room_of_its_option(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTSCRIBE_SPEAKER_NAMES", "a")
    done, loaded = run("transcribe", "no-such-file.wav", "-o", "x.json")
    assert done.returncode == 2 and "speakers" in loaded


def test_a_mistyped_option_of_a_room_is_suggested(run) -> None:
    done, _ = run("transcribe", FIRST, "-m", MODEL, "--sperakers", "channels")
    assert done.returncode == 2 and "--speakers" in done.stderr


@pytest.mark.parametrize("flag", ["--speakers", "--boost", "--beam"])
def test_an_option_before_the_command_names_the_command(run, flag: str) -> None:
    done, _ = run(flag, "x", "a.wav")
    assert done.returncode == 2
    assert f"{flag} belongs to a command: " in done.stderr and f" transcribe {flag} x a.wav" in done.stderr
