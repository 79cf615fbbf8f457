"""A plain run needs no room, and an option or a command of a room that is not installed says so."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from fastscribe import Options, UsageError, rooms
from fastscribe.rooms import ROOMS
from fastscribe.side_models import SIDE_MODELS
from tests.conftest import AUDIO, MODELS
from tests.helpers.warm_process import LIBRARIES_ALONE

CLIP, MODEL = sorted(AUDIO.glob("*.flac"))[0], MODELS / "tdt_demo" / "model.nemo"
ALL = [room.name for room in ROOMS]
# Hides folders of the package, as if they were deleted, and runs a program.
HIDING = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        for room in {rooms!r}:
            if (name + ".").startswith(f"fastscribe.{{room}}."):
                raise ModuleNotFoundError(f"No module named 'fastscribe.{{room}}'", name=f"fastscribe.{{room}}")

sys.meta_path.insert(0, Hidden())
{program}
"""
COMMAND = "import runpy; sys.argv = ['fastscribe', *{arguments!r}]; runpy.run_module('fastscribe', run_name='__main__')"
# Writes and reads a plain result, and one with a column, and prints what is wrong.
RESULT = """
import sys
from fastscribe import UsageError
from fastscribe.results.formats.writers import to_object
from fastscribe.results.stored import to_result
from fastscribe.types import AudioInfo, Transcript, Turn, Word

def problem(call, value):
    try:
        call(value)
    except UsageError as error:
        return str(error)

audio = AudioInfo("a.wav", "a.wav", 8000, 1, 8000)
row = to_object(Transcript(audio, "", (), ()))
to_result(row)
assert "fastscribe.results.columns" not in sys.modules
print(problem(to_object, Transcript(audio, "", (), (), {name}={value})))
print(problem(to_result, row | {{"{name}": []}}))
"""
COLUMNS = {
    "speakers": ("turns", "(Turn(0.0, 1.0, 'a'),)"),
    "readable": ("removed_words", "(Word('um', 0.0, 1.0, 0.5),)"),
}


def python(hidden: list[str], program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process that lacks these rooms."""
    return LIBRARIES_ALONE.python(HIDING.format(rooms=hidden, program=program), timeout_s=300)


def command(hidden: list[str], *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `fastscribe` in a process that lacks these rooms."""
    return python(hidden, COMMAND.format(arguments=[*map(str, arguments)]))


def text_of(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout.splitlines()[-1])["text"])


@pytest.fixture(scope="module")
def text() -> str:
    found = text_of(command([], "transcribe", CLIP, "-m", MODEL, "--dtype", "fp32", "--device", "cpu"))
    assert found
    return found


def test_options_with_paths_are_found_by_what_they_name() -> None:
    options = Options(align_with="a", lm="l", speakers="s", voices="v")
    assert list(rooms.paths_in(options, "model", "side model").items()) == [
        ("align_with", "a"),
        ("speakers", "s"),
        ("voices", "v"),
    ]
    assert rooms.paths_in(Options(speakers="channels", lm="channels"), "side model", "file") == {"lm": "channels"}
    for room in ROOMS:
        assert set(room.words) <= set(room.paths) <= set(room.options)
        side_models = {option for option, kind in room.paths.items() if kind == "side model"}
        assert side_models == {option for option, kind in SIDE_MODELS.items() if kind.room == room.name}


def test_a_plain_command_needs_no_room(text: str) -> None:
    assert text_of(command(ALL, "transcribe", CLIP, "-m", MODEL, "--dtype", "fp32", "--device", "cpu")) == text


@pytest.mark.parametrize("room", COLUMNS)
def test_a_result_with_a_column_needs_its_room_alone(room: str) -> None:
    name, value = COLUMNS[room]
    program = RESULT.format(name=name, value=value)
    told = f"the field {name} of a result: this installation lacks fastscribe.{room}, which has it"
    for hidden, lines in (([room], [told, told]), ([one for one in ALL if one != room], ["None", "None"])):
        done = python(hidden, program)
        assert done.stdout.splitlines() == lines, done.stderr


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_doors_have_what_the_table_offers(room: rooms.Room) -> None:
    if room.offers:
        door = rooms.enter(room.name, "room", "a test")
        assert [name for name in room.offers if not callable(getattr(door, name, None))] == []
    assert [name for name in room.options if name not in Options.__dataclass_fields__] == []


def test_a_field_with_its_default_needs_no_room() -> None:
    def doors(options: Options) -> list[str]:
        found = [*rooms.offered("check_options", options), *rooms.offered("open_edits", options)]
        return [offered.__module__.split(".")[1] for offered in found]

    assert doors(Options()) == []
    assert doors(Options(itn=False, boost=[], speakers=None)) == []  # type: ignore[arg-type]
    assert doors(Options(speakers="channels", itn=True)) == ["speakers", "readable"]
    with pytest.raises(UsageError, match="speaker_names"):
        Options(speaker_names=())


def test_a_row_that_needs_a_missing_room_fails_alone(tmp_path: Path, text: str) -> None:
    manifest = tmp_path / "rows.jsonl"
    given = [{"audio_filepath": str(CLIP)}, {"audio_filepath": str(CLIP), "offset": 0.0, "boost": ["blanket"]}]
    manifest.write_text("".join(json.dumps(row) + "\n" for row in given))
    done = command(["context"], "transcribe", manifest, "-m", MODEL, "--dtype", "fp32", "--device", "cpu")
    assert done.returncode == 1, done.stderr
    found = {"boost" in row: row for row in map(json.loads, done.stdout.splitlines())}
    assert found[False]["pred_text"] == text
    assert "this installation lacks fastscribe.context" in found[True]["error"]["message"]
