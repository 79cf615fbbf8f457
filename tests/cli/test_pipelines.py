"""fastscribe with other programs: pipes, variables, logs, events."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from fastscribe._system.signals import Terminated
from fastscribe.cli.event_log import EventLog
from fastscribe.cli.job import using_folder
from fastscribe.errors import UsageError
from tests.cli.test_cli import FIRST, MODEL, SENTENCE, rows, transcribe
from tests.conftest import AUDIO
from tests.helpers.processes import command, fastscribe, refused
from tests.helpers.schemas import check_schema

pytestmark = pytest.mark.posix


def test_streams_on_stdin(tmp_path: Path) -> None:
    """A recording, and a list of find -print0 with a line break in a name."""
    shutil.copy(FIRST, tmp_path / "two\nlines.flac")
    recording = transcribe("-", "-f", "srt", stdin=FIRST.read_bytes())
    listed = transcribe("-", "-f", "txt", stdin=f"{tmp_path}/two\nlines.flac\0")
    cue, _, rest = recording.stdout.partition("\n\n")
    assert cue.startswith("1\n00:00:00,") and " ".join(cue.splitlines()[2:]) == SENTENCE and rest == ""
    assert listed.stdout == f"{tmp_path}/two\\nlines.flac\t{SENTENCE}\n"
    assert recording.stderr == listed.stderr == ""


def test_a_list_on_stdin_of_a_folder_that_is_elsewhere(tmp_path: Path) -> None:
    """The run stops before it decodes them again."""
    (old := tmp_path / "old").mkdir()
    shutil.copy2(FIRST, old / "a.flac")
    assert transcribe("-", "-o", tmp_path / "out", stdin=f"{old}/a.flac\n").returncode == 0
    old.rename(new := tmp_path / "new")
    given = ("-", "-o", tmp_path / "out")
    done = transcribe(*given, stdin=f"{new}/a.flac\n")
    assert done.returncode == 2 and f"--moved {old}={new} takes the results over" in done.stderr
    assert transcribe(*given, "--moved", f"{old}={new}", stdin=f"{new}/a.flac\n").returncode == 0
    of_url = transcribe(*given, "--moved", f"{old}=s3://bucket/new", stdin=f"{new}/a.flac\n")
    assert of_url.returncode == 2 and "takes over results of files alone" in of_url.stderr
    assert len((tmp_path / "out" / "transcripts.jsonl").read_text().splitlines()) == 1


def test_several_subtitles_or_a_list_of_them_need_a_folder() -> None:
    for inputs, stdin in (([AUDIO], ""), (["-"], f"{FIRST}\n")):
        assert "give a folder with -o" in refused("transcribe", *inputs, "-m", MODEL, "-f", "srt", stdin=stdin)


def test_option_variables() -> None:
    variables = {
        "FASTSCRIBE_MODEL": MODEL,
        "FASTSCRIBE_FORMAT": "txt,jsonl",
        "FASTSCRIBE_QUIET": "1",
        "FASTSCRIBE_MAX_UTTERANCE_S": "30",
        "FASTSCRIBE_BATCH_SIZE": "x",
    }
    wrong = fastscribe("transcribe", FIRST, env={**os.environ, **variables})
    assert wrong.returncode == 2
    assert "batch" in wrong.stderr.lower()
    several = fastscribe("transcribe", FIRST, env={**os.environ, **variables, "FASTSCRIBE_BATCH_SIZE": "2"})
    assert "--output-dir" in several.stderr  # because of two formats
    good = {**os.environ, **variables, "FASTSCRIBE_BATCH_SIZE": "2", "FASTSCRIBE_FORMAT": "txt"}
    done = fastscribe("transcribe", FIRST, env=good)
    assert (done.stdout, done.stderr, done.returncode) == (SENTENCE + "\n", "", 0)


def test_every_command_has_variables() -> None:
    import typer.main

    from fastscribe.cli import app

    group = typer.main.get_command(app)
    for name in ("transcribe", "merge", "evaluate"):
        one: Any = group.commands[name]  # type: ignore[attr-defined]
        one.make_context(name, [], resilient_parsing=True)  # with the options of all rooms
        for parameter in one.params:
            if parameter.param_type_name == "option" and parameter.name not in ("help", "help_all"):
                long = next(flag for flag in parameter.opts if flag.startswith("--"))
                assert parameter.envvar == "FASTSCRIBE_" + long[2:].replace("-", "_").upper(), long


def test_events_and_log(tmp_path: Path) -> None:
    (tmp_path / "broken.wav").write_text("not audio")
    log, events = tmp_path / "run.log", tmp_path / "events"
    given = ("--log-file", log, "--events", events, "-f", "txt")
    done = fastscribe("transcribe", FIRST, tmp_path / "broken.wav", "-m", MODEL, *given)
    assert done.returncode == 1
    assert done.stdout == f"{FIRST}\t{SENTENCE}\n"
    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert [event["event"] for event in told if event["event"] != "progress"] == ["started", "failed", "finished"]
    check_schema("event", told)
    check_schema("report", [told[-1]["report"]])
    assert told[0]["dtype"] == "fp32"
    assert told[-1]["report"]["failed"] == 1
    assert next(event for event in told if event["event"] == "failed")["stage"] == "probe"
    lines = log.read_text().splitlines()
    assert all(
        re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}[+-]\d{4} \d+ ", line) for line in lines if "broken.wav" in line
    )
    assert "broken.wav" in log.read_text()
    assert "RTFx" in log.read_text()
    assert "RTFx" in done.stderr
    fastscribe("transcribe", FIRST, "-m", "nowhere.nemo", "--device", "cpu", "--log-file", log, "--events", events)
    assert "nowhere.nemo" in log.read_text()  # appended, errors too
    event = json.loads(events.read_text().splitlines()[-1])
    assert event["event"] == "stopped" and "nowhere.nemo" in event["message"]


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (KeyError("words"), [(1, "KeyError 'words'")]),
        (OSError("no room"), [(1, "no room")]),
        (UsageError("no such folder"), [(2, "no such folder")]),
        (BrokenPipeError(32, "Broken pipe"), [(141, "[Errno 32] Broken pipe")]),
        (Terminated(), [(143, "terminated")]),
        (typer.Exit(1), []),
    ],
    ids=["a defect", "expected", "usage", "stdout closed", "a signal", "failed recordings"],
)
def test_each_error_that_ends_a_run_is_its_last_event(
    tmp_path: Path, error: BaseException, ends: list[tuple[int, str]]
) -> None:
    with pytest.raises(type(error)), EventLog(tmp_path / "events"):
        raise error
    told = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert [(one["event"], one["exit_code"], one["message"]) for one in told] == [("stopped", *end) for end in ends]


@pytest.mark.linux
def test_a_file_of_the_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as found, using_folder(tmp_path):
        raise OSError(1, "Operation not permitted", str(tmp_path / "transcripts.jsonl"))
    assert str(found.value) == (
        f"{tmp_path}: cannot be used as output folder: {tmp_path}/transcripts.jsonl: Operation not permitted"
    )


@pytest.mark.parametrize("option", ["--log-file", "--events"])
def test_unwritable_path(option: str, tmp_path: Path) -> None:
    assert option in refused("transcribe", FIRST, option, tmp_path / "no" / "such" / "folder")


def test_dry_run(tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for clip in sorted(AUDIO.glob("0*.flac"))[:4]:
        shutil.copy(clip, folder / clip.name)
    (folder / "broken.wav").write_text("not audio")
    given = ("transcribe", folder, "-m", MODEL, "-o", out, "--price-per-hour", 2)
    done = fastscribe(*given, "--dry-run")
    assert done.returncode == 1
    assert not out.exists()
    plan = json.loads(done.stdout)
    assert plan | {"files": 4, "failed": 1, "skipped": 0} == plan
    assert plan["batches"] >= 1
    assert 10 < plan["audio_s"] < 40
    assert plan["estimated_s"] > 0
    assert (
        plan["estimated_usd"] == pytest.approx(2 * plan["estimated_s"] / 3600, rel=1e-2) and plan["estimated_usd"] > 0
    )
    assert "broken.wav" in done.stderr
    assert fastscribe(*given, "-q").returncode == 1
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    plan = json.loads(fastscribe(*given, "--dry-run", "-q").stdout)
    assert plan | {"files": 0, "failed": 0, "skipped": 5, "batches": 0, "estimated_s": 0.0} == plan
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert rows(before["transcripts.jsonl"].decode())


def test_an_empty_list_on_stdin_removes_and_makes_nothing(tmp_path: Path) -> None:
    """Nor does it say so."""
    out, given = tmp_path / "out", ("transcribe", "-", "-m", MODEL, "-o", tmp_path / "out")
    assert fastscribe(*given, stdin="").returncode == 2 and not out.exists()
    assert fastscribe(*given, stdin=f"{FIRST}\n").returncode == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for overwrite in ((), ("--overwrite",)):
        empty = fastscribe(*given, *overwrite, stdin="\n")
        assert (empty.returncode, empty.stderr) == (2, "fastscribe: no input at all: nothing was given to transcribe\n")
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before


BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.mark.parametrize(("given", "code"), [(("-m", MODEL, "-o", "out"), 1), (("-m", "."), 2)], ids=["run", "usage"])
def test_stderr_lost(given: tuple[str, ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The `tee` that reads stderr dies. A message that comes after the run is still in Python's buffer at exit."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.wav").write_text("not audio")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command("transcribe", tmp_path, FIRST, *given), stderr=writer, timeout=100, env=BUFFERED)
    os.close(writer)
    assert done.returncode == code
    assert code == 2 or json.loads((tmp_path / "out" / "report.json").read_text())["files"] == 2


def test_log_write_error(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    (tmp_path / "broken.wav").write_text("not audio")
    done = transcribe(tmp_path, "--log-file", "/dev/full", "--events", "/dev/full")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 3
    for option in ("--log-file", "--events"):
        assert done.stderr.count(f"{option} /dev/full: cannot be written any more: [Errno 28]") == 1
