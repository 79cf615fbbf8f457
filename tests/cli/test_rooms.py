"""Commands and options of rooms: loaded where a command line names them, and one clear line where a room is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from fastscribe import rooms
from fastscribe.cli import app
from fastscribe.cli.commands import LazyCommands
from fastscribe.errors import UsageError
from tests.cli.test_cli import FIRST, MODEL
from tests.helpers.warm_process import LIBRARIES_ALONE

PROGRAM = """
import os, sys
for room in sys.argv.pop(1).split():
    sys.modules[f"fastscribe.{room}"] = None
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
    """Runs a command line without some rooms; returns it, and the packages that it has loaded."""
    loaded = tmp_path / "loaded"
    monkeypatch.setenv("LOADED", str(loaded))

    def called(*arguments: object, hidden: str = "") -> tuple[subprocess.CompletedProcess[str], set[str]]:
        done = LIBRARIES_ALONE.python(PROGRAM, hidden, *arguments)
        return done, set(loaded.read_text().split())

    return called


def test_a_plain_command_line_loads_no_options_of_rooms(run) -> None:
    for line in (("transcribe", "no-such-file.wav", "-o", "x.json"), ("merge", "no-such-folder"), ("models", "--json")):
        _, loaded = run(*line)
        assert not loaded & {room.name for room in rooms.ROOMS}, line


@pytest.mark.parametrize(("room", "flags"), [(room.name, room.flags.get("transcribe", ())) for room in rooms.ROOMS])
def test_the_option_of_a_missing_room(run, room: str, flags: tuple[str, ...]) -> None:
    for flag in flags[:1]:
        done, _ = run("transcribe", "a.wav", flag, "x", hidden=room)
        message = f"fastscribe: {flag}: this installation lacks fastscribe.{room}, which has it\n"
        assert (done.returncode, done.stderr) == (2, message)
    done, _ = run("transcribe", "--help-all", hidden=room)
    assert done.returncode == 0 and not [flag for flag in flags if flag in done.stdout]


def test_commands_of_rooms_follow_those_of_the_core() -> None:
    names = "transcribe align doctor evaluate export merge inspect convert schema speakers train bench models"
    assert list(LazyCommands()) == names.split()
    assert set(LazyCommands()) >= {name for room in rooms.ROOMS for name in room.commands}


def test_the_variable_of_a_missing_room(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTSCRIBE_SPEAKERS", "channels")
    done, _ = run("transcribe", "a.wav", hidden="speakers")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "fastscribe: FASTSCRIBE_SPEAKERS in the environment (--speakers): this installation lacks"
    )


def test_commands_of_missing_rooms(run) -> None:
    hidden = " ".join(room.name for room in rooms.ROOMS)
    done, _ = run("--help", hidden=hidden)
    assert done.returncode == 0 and "merge" in done.stdout and "doctor" not in done.stdout.partition("Commands:")[2]
    for room in rooms.ROOMS:
        for name in room.commands:
            done, _ = run(name, hidden=hidden)
            message = f"fastscribe: {name}: this installation lacks fastscribe.{room.name}, which has it\n"
            assert (done.returncode, done.stderr) == (2, message)
    done, _ = run("mrge", hidden=hidden)
    assert done.returncode == 2 and "merge" in done.stderr


def test_a_room_that_another_room_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fastscribe.training.recipe", "fastscribe.evaluation.scores"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "fastscribe.evaluation", None)
    with pytest.raises(UsageError, match=r"^train: .* lacks fastscribe\.evaluation, which fastscribe\.training needs$"):
        rooms.enter("training", "recipe", "train")


def test_the_table_has_the_options_that_rooms_declare() -> None:
    group = typer.main.get_command(app)
    for name in {name for room in rooms.ROOMS for name in room.flags}:
        command = group.commands[name]  # type: ignore[attr-defined]
        own = {flag for one in command.params for flag in one.opts}
        command.add_rooms()
        added = [flag for one in command.params for flag in one.opts if flag not in own]
        assert sorted(added) == sorted(flag for room in rooms.ROOMS for flag in room.flags.get(name, ()))


def test_a_mistyped_option_of_a_room_is_suggested(run) -> None:
    done, _ = run("transcribe", FIRST, "-m", MODEL, "--sperakers", "channels")
    assert done.returncode == 2 and "--speakers" in done.stderr


@pytest.mark.parametrize("flag", ["--speakers", "--boost", "--beam"])
def test_an_option_before_the_command_names_the_command(run, flag: str) -> None:
    done, _ = run(flag, "x", "a.wav")
    assert done.returncode == 2
    assert f"{flag} belongs to a command: " in done.stderr and f" transcribe {flag} x a.wav" in done.stderr
