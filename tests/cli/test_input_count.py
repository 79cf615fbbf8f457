"""The number of inputs for the progress: equal to what a run lists, and never at the cost of an input."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from fastscribe.audio.inputs import expand
from fastscribe.audio.repeats import Repeats
from fastscribe.cli import input_count
from fastscribe.cli.input_count import InputCounter


def counted(*inputs: object, num_shards: int = 1) -> int | None:
    counter = InputCounter([str(path) for path in inputs], num_shards)
    counter._count()
    return counter.number


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "below").mkdir()
    for name in ("0.wav", "1.wav", "2.flac", "below/3.wav", "notes.txt", "below/4[x].mp3"):
        (tmp_path / name).touch()
    (tmp_path / "list.jsonl").write_text('{"audio_filepath": "0.wav"}\n\n{"audio_filepath": "0.wav"}')
    return tmp_path


@pytest.mark.parametrize(
    "inputs",
    [
        ["."],
        ["0.wav", "gone.wav", ".", "0.wav"],  # repeats are done once
        ["list.jsonl", "./list.jsonl", "0.wav"],
        ["*"],
        ["*.wav", "*.jsonl"],
        ["**/*", "**/*.jsonl"],
        ["**/below", "notes.*", "below/4[x].mp3"],
    ],
)
def test_the_number_is_that_of_the_run(folder: Path, inputs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    listed = list(expand(inputs, repeats=Repeats()))
    assert counted(*inputs) == len(listed) > 0
    assert counted(*inputs, num_shards=2) == len(listed) // 2


@pytest.mark.skipif(os.name == "nt", reason="named pipes are POSIX")
def test_what_can_be_read_once_is_left_alone(folder: Path) -> None:
    """Opening the pipe would wait here for ever, or take rows that are the run's."""
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "link.jsonl").symlink_to("pipe.jsonl")
    for path in (
        folder / "pipe.jsonl",
        folder / "link.jsonl",
        folder / "p*.jsonl",
        folder / "**" / "p*.jsonl",
        "/dev/null",
    ):
        assert counted(folder, path) is None
    assert counted("-") is counted("s3://bucket/folder", folder) is None


def test_a_large_manifest_is_not_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = tmp_path / "rows.jsonl"
    manifest.write_text('{"audio_filepath": "a.wav"}\n' * 10_000)
    monkeypatch.setattr(input_count, "_SAMPLE_BYTES", 1000)
    assert counted(manifest) == pytest.approx(10_000, rel=0.05)


def test_rows_of_other_lists(tmp_path: Path) -> None:
    """A table's first line is no row; what only reading tells is not known."""
    (tmp_path / "t.csv").write_text("path\na.wav\n\nb.wav\n")
    (tmp_path / "list.txt").write_text("a.wav\nb.wav\n")
    assert counted(tmp_path / "t.csv") == counted(tmp_path / "list.txt") == 2
    (tmp_path / "rows.jsonl").write_bytes(gzip.compress(b"{}\n"))
    (tmp_path / "s.tar").write_bytes(bytes(10240))
    (tmp_path / "wav.scp").write_text("one a.wav\n")
    assert counted(tmp_path / "rows.jsonl") is counted(tmp_path / "s.tar") is None
    assert counted(tmp_path / "wav.scp") == 1
    (tmp_path / "segments").touch()
    assert counted(tmp_path / "wav.scp") is None
