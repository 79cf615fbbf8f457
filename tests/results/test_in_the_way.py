"""A run replaces and deletes only files that its own journal lists, in command lines that once lost users' files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fastscribe.cli.event_log import EventLog
from fastscribe.cli.terminal import _log, log_to
from fastscribe.config import OutputStyle
from fastscribe.errors import OutputError, UsageError
from fastscribe.report.files import check_page, write_page
from fastscribe.report.markup import page
from fastscribe.results import compact as compact_module
from fastscribe.results.output import JournaledOutput, open_journaled
from fastscribe.results.outputs import OutputRun, check_new_folder
from fastscribe.results.paths import Paths
from fastscribe.results.shards import UNSHARDED, Shard
from tests.cli.test_cli import FIRST, rows, transcribe
from tests.results.test_output import failed, put, spoken


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    folder = tmp_path / "recs"
    folder.mkdir()
    for name in ("a.flac", "b.flac"):
        shutil.copy(FIRST, folder / name)
    return folder


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("options", [(), ("--overwrite",), ("--dry-run",)])
def test_references_beside_recordings_stay(recordings: Path, options: tuple[str, ...]) -> None:
    (recordings / "a.txt").write_text("the reference")
    (recordings / "b.txt").write_text("another one")
    before = snapshot(recordings)
    done = transcribe(recordings, "-o", recordings, "-f", "txt", *options)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{recordings / 'a.txt'} (and 1 more)" in done.stderr
    assert snapshot(recordings) == before


def test_file_in_the_way_costs_one_later_input(recordings: Path, tmp_path: Path) -> None:
    (recordings / "a.txt").write_text("the reference")
    names = "\n".join(str(recordings / name) for name in ("a.flac", "b.flac"))
    done = transcribe("-", "-o", recordings, "-f", "jsonl,txt", stdin=names)
    assert done.returncode == 1, done.stderr
    found = {Path(row["audio_filepath"]).name: row for row in rows((recordings / "transcripts.jsonl").read_text())}
    assert found["a.flac"]["error"]["stage"] == "write"
    assert str(recordings / "a.txt") in found["a.flac"]["error"]["message"]
    assert str(recordings / "a.txt") in done.stderr
    assert found["b.flac"]["text"] == (recordings / "b.txt").read_text().strip()
    assert (recordings / "a.txt").read_text() == "the reference"


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
        with EventLog(path):
            pass
        assert path.read_bytes() == b""
    for content in (b"RIFF....WAVE", b'{"audio_filepath": "a"}\n', b"\n"):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="something else"):
            EventLog(path)
        assert path.read_bytes() == content


@pytest.mark.linux
def test_events_go_to_pipes_and_descriptors(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with EventLog(Path(f"/dev/fd/{writer}")) as event_log:
        event_log._write_event("started")
    assert os.read(reader, 100) == b'{"event": "started"}\n'
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


@pytest.mark.posix
@pytest.mark.parametrize("kind", ["file", "link", "folder", "fifo"])
def test_inputs_are_checked_by_their_output_names(tmp_path: Path, kind: str) -> None:
    """Each shard checks its own names; two inputs that share a name both keep their extension."""
    names = ["x.wav", "x.mp3", "y.wav"]
    for name in names:
        (tmp_path / name).touch()
    inputs, out = [str(tmp_path / name) for name in names], tmp_path / "out"
    out.mkdir()
    (out / "x.txt").write_text("no input has this name")
    for theirs in ("x.wav.txt", "y.txt"):
        path = out / theirs
        makers: dict[str, Callable[[], object]] = {
            "file": lambda path=path: path.write_text("mine"),
            "link": lambda path=path: path.symlink_to("nowhere"),
            "folder": path.mkdir,
            "fifo": lambda path=path: os.mkfifo(path),
        }
        makers[kind]()
    check_new_folder(out, ("jsonl",), inputs, UNSHARDED)
    check_new_folder(out, ("srt",), inputs, UNSHARDED)
    check_new_folder(tmp_path / "new", ("txt",), inputs, UNSHARDED)
    with pytest.raises(UsageError, match=r"out/x\.wav\.txt \(and 1 more\)"):
        check_new_folder(out, ("txt",), inputs, UNSHARDED)
    problems = []
    for index in range(4):
        try:
            check_new_folder(out, ("txt",), inputs, Shard(index, 4))
        except UsageError as error:
            problems.append(str(error))
    assert len(problems) in (1, 2)


def test_users_file_of_a_failure_does_not_stop_a_resume(tmp_path: Path) -> None:
    """The run skips that recording, so its file is not in the way; --retry-failed would write it."""
    for name in ("a.wav", "b.wav"):
        (tmp_path / name).touch()
    inputs, out = [str(tmp_path / name) for name in ("a.wav", "b.wav")], tmp_path / "out"

    def output(**options: bool) -> JournaledOutput:
        return open_journaled(out, OutputRun(OutputStyle(("txt",)), {}, inputs=inputs, **options))

    first = [spoken("a.wav"), failed("b.wav", 1)]
    with output() as opened:
        for result in first:
            item = getattr(result, "audio", result)
            object.__setattr__(item, "path", str(tmp_path / item.id))
            put(opened, result)
    (out / "b.txt").write_text("by hand")
    output().close()
    with pytest.raises(UsageError, match=r"b\.txt"):
        output(retry_failed=True)
    assert (out / "b.txt").read_text() == "by hand"


def test_full_disk_while_sorting_rows_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = open_journaled(tmp_path, OutputRun(OutputStyle(), {}, ordered=True))
    for index in (1, 0):
        put(output, spoken(f"{index}.wav", index=index))

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compact_module, "sync", fail)
    with pytest.raises(OutputError, match=r"transcripts\.jsonl: its result cannot be written: No space left on device"):
        output.close()
    assert not list(tmp_path.glob(".*part")) and not Paths(tmp_path, "").swap.exists()
    monkeypatch.undo()
    again = open_journaled(tmp_path, OutputRun(OutputStyle(), {}, ordered=True))
    assert np.all(~again._previous.entries["failed"]) and len(again._previous) == 2
    again.close()
