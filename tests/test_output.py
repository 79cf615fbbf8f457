"""Folder and stream output: nothing is overwritten, nothing is half written, nothing leaves the folder."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.audio.source import Source
from fastscribe.config import OutputStyle
from fastscribe.output import folder as output_module
from fastscribe.output.folder import FolderOutput
from fastscribe.output.names import OutputNames, names_of
from fastscribe.output.stream import StreamOutput
from fastscribe.plain_text import clean_text
from fastscribe.resume.journal import Appender
from fastscribe.types import AudioInfo, Failure, Transcript

OURS = (".lock", "journal.jsonl")


def spoken(id: str, text: str | None = None, index: int = 0) -> Transcript:
    audio = AudioInfo("/in/" + id, id, sample_rate=16_000, channels=1, num_samples=16_000, index=index)
    return Transcript(audio, id if text is None else text, (), ())


def failed(id: str, index: int = 0) -> Failure:
    return Failure("/in/" + id, id, "load", "AudioError", "broken", None, index)


def folder_output(directory: Path, *formats: str, **options: bool) -> FolderOutput:
    return FolderOutput(directory, OutputStyle(formats), {}, **options)


def put(output: FolderOutput | StreamOutput, result: Transcript | Failure) -> None:
    """Announces an input and writes its result."""
    item = result if isinstance(result, Failure) else result.audio
    source = Source(item.path, item.path, item.id, index=item.index)
    assert output.expect(source)
    if not output.is_done(source):
        output.write(result)


def write_all(directory: Path, ids: Iterable[str], *formats: str) -> dict[str, str]:
    """Writes a transcript for each id, whose text is the id; returns what then lies in the folder."""
    with folder_output(directory, *formats) as output:
        for index, id in enumerate(ids):
            put(output, spoken(id, index=index))
    return contents(directory)


def contents(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {
        path.relative_to(directory).as_posix(): path.read_text(encoding="utf-8").strip()
        for path in files
        if path.name not in OURS
    }


def rows(directory: Path, name: str = "transcripts.jsonl") -> list[str]:
    lines = (directory / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["audio_filepath"] for line in lines]


def test_jsonl_holds_a_row_a_file_failures_too_as_soon_as_it_is_written(tmp_path: Path) -> None:
    with folder_output(tmp_path / "new" / "folder", "jsonl") as output:
        for number, result in enumerate((spoken("a.wav"), failed("b.wav", 1), spoken("c/d.wav", index=2)), start=1):
            put(output, result)
            assert len(rows(tmp_path / "new" / "folder")) == number
    assert rows(tmp_path / "new" / "folder") == ["/in/a.wav", "/in/b.wav", "/in/c/d.wav"]


def test_files_mirror_the_folders_and_lose_their_extension(tmp_path: Path) -> None:
    assert set(write_all(tmp_path, ["a.wav", "x/y/b.c.flac"], "srt", "txt", "jsonl")) == {
        "a.srt", "a.txt", "x/y/b.c.srt", "x/y/b.c.txt", "transcripts.jsonl",
    }  # fmt: skip


def test_rows_without_a_journal_are_kept(tmp_path: Path) -> None:
    for number in range(4):
        write_all(tmp_path, [f"{number}.wav"], "jsonl")
        (tmp_path / "journal.jsonl").unlink()
    assert rows(tmp_path) == ["/in/3.wav"]
    assert rows(tmp_path, "transcripts.previous.jsonl") == ["/in/0.wav"]
    assert rows(tmp_path, "transcripts.previous.3.jsonl") == ["/in/2.wav"]


def test_an_empty_file_of_rows_is_not_worth_keeping(tmp_path: Path) -> None:
    write_all(tmp_path, [], "jsonl")
    assert set(write_all(tmp_path, ["a.wav"], "jsonl")) == {"transcripts.jsonl"}


@pytest.mark.parametrize("ids", list(permutations(["x/a.wav", "x/a.mp3", "x/a.flac"])))
def test_inputs_that_would_share_a_name_all_keep_their_extension(tmp_path: Path, ids: tuple[str, ...]) -> None:
    assert write_all(tmp_path, [*ids, "x/b.wav"], "txt") == {
        "x/a.flac.txt": "x/a.flac",
        "x/a.mp3.txt": "x/a.mp3",
        "x/a.wav.txt": "x/a.wav",
        "x/b.txt": "x/b.wav",
    }


def test_a_name_shared_with_a_file_that_has_no_extension(tmp_path: Path) -> None:
    expected = {"a.txt": "a", "a.wav.txt": "a.wav"}
    assert write_all(tmp_path / "1", ["a", "a.wav"], "txt") == expected
    assert write_all(tmp_path / "2", ["a.wav", "a"], "txt") == expected


def test_equal_ids_are_numbered_as_they_come(tmp_path: Path) -> None:
    assert write_all(tmp_path, ["a.wav", "a.wav", "A.WAV"], "txt") == {
        "a.txt": "a.wav",
        "a.2.txt": "a.wav",
        "A.3.txt": "A.WAV",
    }


@pytest.mark.parametrize("ids", sorted(set(permutations(["a.wav", "a.wav", "a.mp3"]))))
def test_equal_ids_beside_another_extension(tmp_path: Path, ids: tuple[str, ...]) -> None:
    assert set(write_all(tmp_path, ids, "txt")) == {"a.wav.txt", "a.wav.2.txt", "a.mp3.txt"}


def test_cuts_are_told_apart_by_their_offset(tmp_path: Path) -> None:
    assert write_all(tmp_path, ["d/a.wav@1500", "d/a.wav@0", "d/a.wav@0"], "txt") == {
        "d/a_1500.txt": "d/a.wav@1500",
        "d/a_0.txt": "d/a.wav@0",
        "d/a_0.2.txt": "d/a.wav@0",
    }
    assert names_of("d/a.wav@1500") == ("d/a_1500", "d/a.wav_1500")
    assert names_of("rec@5.wav") == ("rec@5", "rec@5.wav")


def test_the_runs_own_report_is_not_overwritten(tmp_path: Path) -> None:
    assert set(write_all(tmp_path, ["report.wav", "x/report.wav"], "json")) == {"report.wav.json", "x/report.json"}


def test_failures_leave_no_file_but_json_and_keep_their_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("of an earlier run")
    with folder_output(tmp_path, "txt", "json") as output:
        put(output, failed("a.wav"))
        put(output, spoken("a.mp3", index=1))
    files = contents(tmp_path)
    assert set(files) == {"a.txt", "a.wav.json", "a.mp3.txt", "a.mp3.json"}
    assert files["a.txt"] == "of an earlier run"
    assert json.loads(files["a.wav.json"])["error"]["stage"] == "load"


PARTS = st.sampled_from(["a", "A", "b", "a.2", "a.wav", "..", ".", "", "é", "\udce9", "x" * 300, "\0", "c\\d"])
IDS = st.builds(
    lambda parts, extension, cut: "/".join(parts) + extension + cut,
    st.lists(PARTS, min_size=1, max_size=3),
    st.sampled_from(["", ".wav", ".WAV", ".mp3", ".2.wav", ".wav.mp3"]),
    st.sampled_from(["", "", "@5"]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(IDS, max_size=14))
def test_every_input_ends_up_with_a_name_of_its_own(ids: list[str]) -> None:
    names, files = OutputNames(["report"]), {}
    for number, id in enumerate(ids):
        name, renames = names.claim(id)
        for rename in renames:
            assert rename.new.casefold() not in files
            files[rename.new.casefold()] = files.pop(rename.old.casefold())
        assert name.casefold() not in files
        files[name.casefold()] = number
    assert sorted(files.values()) == list(range(len(ids)))
    assert "report" not in files


@settings(max_examples=200, deadline=None)
@given(st.one_of(IDS, st.text()))
def test_names_stay_below_the_folder(id: str) -> None:
    for name in names_of(id):
        parts = name.split("/")
        assert not {"", ".", ".."} & set(parts)
        assert all(len(part.encode()) <= 200 for part in parts)
        assert "\0" not in name


@pytest.mark.parametrize(
    "id", ["../../etc/a.wav", "/etc/a.wav", "..", "", "a\0b.wav", "x" * 5000, "d/" * 3000 + "a.wav"]
)
def test_hostile_ids_are_written_below_the_folder(tmp_path: Path, id: str) -> None:
    assert list(write_all(tmp_path / "out", [id], "txt").values()) == [clean_text(id)]
    assert os.listdir(tmp_path) == ["out"]


def test_over_long_names_stay_apart(tmp_path: Path) -> None:
    ids = ["é" * 300 + end for end in ("1.wav", "2.wav", "2.mp3")]
    assert sorted(write_all(tmp_path, ids, "txt").values()) == sorted(ids)


def test_a_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("a.wav")

    def fail(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    with folder_output(tmp_path, "txt", "jsonl") as output:
        with monkeypatch.context() as patch:
            patch.setattr(output_module.os, "replace", fail)
            with pytest.raises(OSError, match="No space"):
                put(output, spoken("a.wav", "longer text"))
        assert contents(tmp_path) == {"a.txt": "a.wav", "transcripts.jsonl": ""}
        output.write(spoken("a.wav", "second try"))
    assert contents(tmp_path)["a.txt"] == "second try"
    assert rows(tmp_path) == ["/in/a.wav"]


def test_a_row_that_does_not_fit_is_taken_back(tmp_path: Path) -> None:
    class FullDisk(io.FileIO):
        is_full = False

        def write(self, content: bytes) -> int:  # type: ignore[override]
            if not self.is_full:
                return super().write(content[:5])
            super().write(content[:3])
            raise OSError(28, "No space left on device")

    path = tmp_path / "rows"
    with FullDisk(path, "a") as file:
        rows = Appender(file)
        rows.append(b"first row\n")
        file.is_full = True
        with pytest.raises(OSError, match="No space"):
            rows.append(b"second row\n")
        file.is_full = False
        rows.append(b"third row\n")
    assert path.read_bytes() == b"first row\nthird row\n"


def test_without_files_no_names_are_remembered(tmp_path: Path) -> None:
    with folder_output(tmp_path, "jsonl") as output:
        put(output, spoken("a.wav"))
        assert not output._all_names._owners


def test_streams_get_utf8_and_are_flushed_but_not_closed() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(io.BufferedWriter(raw), encoding="ascii")
    with StreamOutput(stream, OutputStyle()) as output:
        output.write(spoken("ä.wav"))
        assert json.loads(raw.getvalue())["text"] == "ä.wav"
        output.write(failed("b.wav"))
    assert len(raw.getvalue().splitlines()) == 2
    assert not stream.closed
    stream.detach()


def test_streams_take_any_format() -> None:
    stream = io.StringIO()
    output = StreamOutput(stream, OutputStyle(("txt",)))
    for result in (spoken("a.wav"), failed("b.wav"), spoken("c.wav")):
        output.write(result)
    assert stream.getvalue() == "a.wav\nc.wav\n"


def test_a_closed_pipe_is_the_callers_business() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    with pytest.raises(BrokenPipeError):
        StreamOutput(stream, OutputStyle()).write(spoken("a.wav"))
    with pytest.raises(BrokenPipeError):
        stream.close()


@given(st.permutations(range(6)))
def test_ordered_streams_wait_for_what_comes_first(order: list[int]) -> None:
    stream = io.StringIO()
    output = StreamOutput(stream, OutputStyle(), ordered=True)
    results = [failed("b.wav", 1) if n == 1 else spoken(f"{n}.wav", index=n) for n in range(6)]
    for n in range(6):
        assert output.expect(Source("x", "x", "x", index=n))
    for count, n in enumerate(order, start=1):
        output.write(results[n])
        num_out = next((first for first in range(6) if first not in order[:count]), 6)
        assert len(stream.getvalue().splitlines()) == num_out
    paths = [json.loads(line)["audio_filepath"] for line in stream.getvalue().splitlines()]
    assert paths == ["/in/b.wav" if n == 1 else f"/in/{n}.wav" for n in range(6)]


def test_a_new_input_of_like_name_costs_no_earlier_one_its_text(tmp_path: Path) -> None:
    write_all(tmp_path, ["a.wav"], "txt")
    files = write_all(tmp_path, ["a.mp3", "a.wav"], "txt")
    assert files["a.mp3.txt"] == "a.mp3"
    assert files["a.wav.txt"] == "a.wav"


def test_a_name_that_another_input_took_is_written_again(tmp_path: Path) -> None:
    for id in ("a.wav", "a.flac", "a.wav"):
        assert write_all(tmp_path, [id], "txt") == {"a.txt": id}
