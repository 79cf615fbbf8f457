"""A run replaces and deletes only files that its own journal lists, in command lines that once lost users' files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from fastscribe.cli.event_log import EventLog
from fastscribe.cli.terminal import _log, log_to
from fastscribe.errors import OutputError, UsageError
from fastscribe.report.files import check_page, write_page
from fastscribe.report.markup import page
from fastscribe.types import Failure
from tests.cli.test_cli import FIRST, transcribe
from tests.helpers.schemas import check_schema


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    folder = tmp_path / "recs"
    folder.mkdir()
    for name in ("a.flac", "b.flac"):
        shutil.copy(FIRST, folder / name)
    return folder


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("option", ["--events", "--log-file", "--report-html"])
def test_a_recording_is_never_a_log(recordings: Path, tmp_path: Path, option: str) -> None:
    before = snapshot(recordings)
    for path in (recordings / "a.flac", recordings / "b.flac"):
        done = transcribe(recordings / "a.flac", "-o", tmp_path / "out", option, path)
        assert done.returncode == 2, done.stderr
        assert str(path) in done.stderr and done.stderr.count("\n") == 1
    assert snapshot(recordings) == before


def test_two_options_cannot_share_a_file(recordings: Path, tmp_path: Path) -> None:
    both = tmp_path / "both"
    done = transcribe(recordings, "-o", tmp_path / "out", "--events", both, "--log-file", both)
    assert done.returncode == 2 and str(both) in done.stderr
    own = tmp_path / "out" / "transcripts.jsonl"
    (tmp_path / "out").mkdir()
    done = transcribe(recordings, "-o", tmp_path / "out", "--events", own)
    assert done.returncode == 2 and str(own) in done.stderr


def test_events_replace_only_earlier_events(tmp_path: Path) -> None:
    path = tmp_path / "events"
    for content in (None, b"", b'{"event": "started", "device": "cpu"}\n{"eve'):
        if content is not None:
            path.write_bytes(content)
        with EventLog(path) as event_log:
            event_log.failed(Failure("a", "a", "load", "E", "m"))
        told = json.loads(path.read_text())
        check_schema("event", [told])
        assert {**told, "time": ""} == {
            "event": "failed",
            "time": "",
            "audio_filepath": "a",
            "stage": "load",
            "message": "m",
        }
    for content in (b"RIFF....WAVE", b'{"audio_filepath": "a"}\n', b"\n"):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="something else"):
            EventLog(path)
        assert path.read_bytes() == content


@pytest.mark.linux
def test_events_go_to_pipes_and_descriptors(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with EventLog(Path(f"/dev/fd/{writer}")) as event_log:
        event_log._write_event("started", {})
    assert os.read(reader, 100).startswith(b'{"event": "started", "time": "')
    os.close(reader)
    os.close(writer)
    with EventLog(Path(os.devnull)):
        pass


def test_log_appends_only_to_a_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    try:
        for number in (1, 2):
            log_to(path)
            _log.warning("one line")
            _log.handlers[-1].close()
            _log.removeHandler(_log.handlers[-1])
            assert path.read_text().count("one line") == number
    finally:
        for handler in list(_log.handlers):
            _log.removeHandler(handler)
            handler.close()
    path.write_text("a diary\n")
    with pytest.raises(UsageError, match="something else"):
        log_to(path)
    assert path.read_text() == "a diary\n"


def test_users_html_page_stays(tmp_path: Path) -> None:
    path = tmp_path / "index.html"
    path.write_text("<!doctype html>\n<html><head></head>my own page</html>")
    with pytest.raises(UsageError, match="no page"):
        check_page(path)
    with pytest.raises(OutputError):  # nor where it was put there while the run was at work
        write_page(path, page("a run", [], None, []))
    assert "my own page" in path.read_text()
    path.unlink()
    for title in ("one", "two"):
        write_page(check_page(path), page(title, [], None, []))
        assert title in path.read_text()
