"""`-o s3://bucket/out` through the command line, against an S3-compatible server."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastscribe._system import remote
from fastscribe.cli import _report_error
from fastscribe.cli.job import using_folder
from fastscribe.errors import UsageError
from tests.cli.test_cli import MODEL, transcribe
from tests.conftest import AUDIO
from tests.helpers.object_store import FaultyStore, object_store
from tests.helpers.processes import fastscribe, refused

CLIPS = sorted(AUDIO.glob("0*.flac"))[:4]
URL = "s3://bucket/out"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    monkeypatch.chdir(tmp_path)
    with object_store() as store:
        yield store


def read(name: str) -> str:
    return remote.read_object(f"{URL}/{name}").data.decode()


def names() -> set[str]:
    found = [one.url.removeprefix(URL + "/") for one in list(remote.list_objects(URL))]
    return {name for name in found if not name.startswith(".fastscribe/")}


def texts() -> dict[str, str]:
    rows = [json.loads(line) for line in read("transcripts.jsonl").splitlines()]
    named = {Path(row["audio_filepath"]).name: row.get("text", "failed") for row in rows}
    assert len(named) == len(rows)
    return named


def test_shards_are_merged_and_overwritten(server: FaultyStore, tmp_path: Path) -> None:
    for clip in CLIPS:
        shutil.copy(clip, tmp_path)
    (tmp_path / "broken.wav").write_text("not audio")
    remote.write_object(f"{URL}/notes.txt", b"mine")
    codes = [transcribe(tmp_path, "-o", URL, "-f", "txt", "--shard", "0/2").returncode]
    assert "missing: 1/2" in fastscribe("merge", URL).stderr
    codes.append(transcribe(tmp_path, "-o", URL, "-f", "txt", "--shard", "1/2").returncode)
    assert sorted(codes) == [0, 1]
    assert fastscribe("merge", URL, "--ordered").returncode == 1  # a file failed
    assert list(texts()) == [*(clip.name for clip in CLIPS), "broken.wav"]
    assert json.loads(read("report.json"))["shards_incomplete"] == []
    assert transcribe(CLIPS[0], "-o", URL, "-f", "txt", "--overwrite").returncode == 0
    assert names() == {"notes.txt", f"{CLIPS[0].stem}.txt", "transcripts.jsonl", "report.json"}
    assert len(texts()) == 1


def test_inputs_are_retried_and_read_only_stores_named(server: FaultyStore, tmp_path: Path) -> None:
    (tmp_path / "broken.wav").write_text("not audio")
    for retry, files, code in ((), 1, 1), ((), 1, 3), (("--retry-failed",), 1, 1):
        assert transcribe(tmp_path / "broken.wav", "-o", URL, *retry).returncode == code
        assert json.loads(read("report.json"))["files"] == files
    server.fault("403", "PUT", times=100)
    denied = refused("transcribe", CLIPS[0], "-m", MODEL, "-o", URL)
    assert f"{URL}: cannot be used as output folder: {URL}/.fastscribe/" in denied
    assert "alive.json: access denied to these credentials" in denied


def test_reports_take_no_url() -> None:
    for option in ("--report-html", "--events", "--log-file"):
        assert f"'{option}': takes a local file, not a URL" in refused(
            "transcribe", CLIPS[0], option, "s3://bucket/file"
        )


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("https://host/out", "a web server takes no results"),
        ("file:///tmp/out", "without file://"),
        ("s3://", "no bucket"),
        ("s3://missing/out", "no such bucket: s3://missing"),
        ("nosuch://host/out", "nosuch"),
    ],
)
def test_urls_that_take_no_results(server: FaultyStore, tmp_path: Path, output: str, problem: str) -> None:
    assert problem in refused("transcribe", CLIPS[0], "-m", MODEL, "-o", output)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command", [("transcribe", CLIPS[0], "-m", MODEL, "-o"), ("merge",), ("evaluate",), ("export", "-f", "srt")]
)
def test_a_store_out_of_reach_ends_with_1(monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    """Another try may help, so the recipes for schedulers make one; 2 is final."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    done = fastscribe(*command, URL)
    assert done.returncode == 1 and "127.0.0.1:9 cannot be reached" in done.stderr


def test_a_full_disk_ends_with_1() -> None:
    for code, status in ((errno.ENOSPC, 1), (errno.EACCES, 2)):
        with pytest.raises(UsageError) as found, using_folder("out"):
            raise OSError(code, os.strerror(code))
        assert _report_error(found.value) == status


def test_the_output_is_no_input(server: FaultyStore) -> None:
    assert "what this run would write" in refused("transcribe", f"{URL}/transcripts.jsonl", "-m", MODEL, "-o", URL)


def test_export_reads_a_store(server: FaultyStore, tmp_path: Path) -> None:
    """Files go into a folder, and those of rows that came later with the next export; one format goes to stdout."""
    (tmp_path / "in").mkdir()
    shutil.copy(CLIPS[0], tmp_path / "in/a.flac")
    assert transcribe(tmp_path / "in", "-o", URL).returncode == 0
    made = fastscribe("export", URL, "-f", "srt,vtt", "-o", tmp_path / "local")
    assert made.returncode == 0 and "made files for 1 of 1 results" in made.stderr
    text = fastscribe("export", URL, "-f", "srt").stdout
    (file,) = (tmp_path / "local").rglob("a.srt")
    assert file.read_text() == text == fastscribe("export", f"{URL}/transcripts.jsonl", "-f", "srt").stdout
    shutil.copy(CLIPS[1], tmp_path / "in/b.flac")
    assert transcribe(tmp_path / "in", "-o", URL).returncode == 0
    again = fastscribe("export", URL, "-f", "srt,vtt", "-o", tmp_path / "local")
    assert "made files for 1 of 2 results" in again.stderr and len(list((tmp_path / "local").rglob("*.vtt"))) == 2
    for index in (0, 1):
        assert transcribe(tmp_path / "in", "-o", f"{URL}/shards", "--shard", f"{index}/2").returncode == 0
    assert "of 2 results" in fastscribe("export", f"{URL}/shards", "-f", "srt", "-o", tmp_path / "of-shards").stderr
    assert "s3://bucket/gone" in refused("export", "s3://bucket/gone", "-f", "srt", "-o", tmp_path / "none")
    there = f"--output-dir {URL}: export writes into a local folder"
    assert there in refused("export", tmp_path / "local", "-f", "srt", "-o", URL)
    assert {path.name for path in tmp_path.iterdir()} == {"in", "local", "of-shards"}
