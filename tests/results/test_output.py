"""Folder and stream output: files are not overwritten, are written whole, and stay inside the folder."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from fastscribe.results.block import Appender
from fastscribe.results.output_run import OutputRun
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe._system.file_kinds import InTheWay, starts_with
from fastscribe._system.text_layout import clean_text
from fastscribe.config import OutputStyle, SubtitleStyle
from fastscribe.errors import OutputError, UsageError
from fastscribe.results.names import OutputNames, names_of
from fastscribe.results.output import FileLedger, JournaledOutput, open_journaled
from fastscribe.results.stream import StreamOutput
from fastscribe.types import AudioInfo, Failure, Segment, Source, Transcript, Word

OURS = (".lock", "journal.jsonl", "transcripts.jsonl")


def spoken(id: str, text: str | None = None, index: int = 0) -> Transcript:
    audio = AudioInfo("/in/" + id, id, sample_rate=16_000, channels=1, num_samples=16_000, index=index)
    return Transcript(audio, id if text is None else text, (), ())


def failed(id: str, index: int = 0) -> Failure:
    return Failure("/in/" + id, id, "load", "AudioError", "broken", None, index)


def folder_output(directory: Path, *formats: str, **options: bool) -> JournaledOutput:
    return open_journaled(directory, OutputRun(OutputStyle(formats), {}, **options))


def put(output: JournaledOutput | StreamOutput, result: Transcript | Failure) -> None:
    """Announce an input and write its result."""
    item = result if isinstance(result, Failure) else result.audio
    source = Source(item.path, item.path, item.id, index=item.index)
    assert output.ledger.expect(source)
    if not output.ledger.is_done(source):
        output.write(result)


def write_all(directory: Path, ids: Iterable[str], *formats: str) -> dict[str, str]:
    """Write a transcript for each id, with the id as its text; return the folder's contents."""
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


def test_jsonl_has_a_row_per_file_once_flushed(tmp_path: Path) -> None:
    with folder_output(tmp_path / "new" / "folder", "jsonl") as output:
        for number, result in enumerate((spoken("a.wav"), failed("b.wav", 1), spoken("c/d.wav", index=2)), start=1):
            put(output, result)
            output.flush()
            assert len(rows(tmp_path / "new" / "folder")) == number
    assert rows(tmp_path / "new" / "folder") == ["/in/a.wav", "/in/b.wav", "/in/c/d.wav"]


def test_output_files_mirror_the_folders(tmp_path: Path) -> None:
    assert set(write_all(tmp_path, ["a.wav", "x/y/b.c.flac"], "srt", "txt", "jsonl")) == {
        "a.srt", "a.txt", "x/y/b.c.srt", "x/y/b.c.txt",
    }  # fmt: skip


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["transcripts.jsonl", "journal.jsonl", "report.json", ".swap", ".block", ".lock"])
def test_users_file_with_an_output_name_is_an_error(tmp_path: Path, name: str, overwrite: bool) -> None:
    (tmp_path / name).write_text("mine\n")
    with pytest.raises(UsageError, match=re.escape(str(tmp_path / name))):
        folder_output(tmp_path, "jsonl", "txt", overwrite=overwrite)
    assert set(tmp_path.iterdir()) <= {tmp_path / name, tmp_path / ".lock"}
    assert (tmp_path / name).read_text() == "mine\n"


@pytest.mark.posix
@pytest.mark.parametrize("name", ["transcripts.jsonl", "journal.jsonl", "report.json", ".swap", ".block", ".lock"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo", "folder"])
def test_only_regular_files_are_written(tmp_path: Path, name: str, kind: str) -> None:
    out, target = tmp_path / "out", tmp_path / "target"
    out.mkdir()
    path = out / name
    if "link" in kind:
        path.symlink_to(target)
        if kind == "link":
            target.write_text("")
    else:
        os.mkfifo(path) if kind == "fifo" else path.mkdir()
    before = os.lstat(path)
    with pytest.raises(UsageError, match=re.escape(str(path))):
        folder_output(out, "jsonl", "txt")
    assert os.lstat(path) == before
    assert kind != "link" or target.read_text() == ""
    assert kind == "link" or not target.exists()


def test_empty_rows_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "transcripts.jsonl").touch()
    write_all(tmp_path, ["a.wav"], "jsonl")
    assert rows(tmp_path) == ["/in/a.wav"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_result_replaces_only_journaled_files(tmp_path: Path, kind: str, overwrite: bool) -> None:
    out, target = tmp_path / "out", tmp_path / "target"
    out.mkdir()
    target.write_text("mine")
    theirs = out / "a.txt"
    {"file": lambda: theirs.write_text("mine"), "link": lambda: theirs.symlink_to(target), "folder": theirs.mkdir}[
        kind
    ]()
    before = os.lstat(theirs)
    with folder_output(out, "jsonl", "txt", "json", overwrite=overwrite) as output:
        with pytest.raises(InTheWay, match=re.escape(str(theirs))):
            put(output, spoken("a.wav"))
        output.write(failed("a.wav"))
        put(output, spoken("b.wav", index=1))
    assert os.lstat(theirs) == before and target.read_text() == "mine"
    assert {path.name for path in out.iterdir()} == {*OURS, "a.txt", "a.json", "b.txt", "b.json"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_failure_deletes_only_journaled_files(tmp_path: Path, overwrite: bool) -> None:
    write_all(tmp_path, ["a.wav"], "txt", "json")
    (tmp_path / "b.txt").write_text("mine")
    with folder_output(tmp_path, "txt", "json", overwrite=overwrite) as output:
        put(output, failed("a.wav"))
        put(output, failed("b.wav", 1))
    assert contents(tmp_path)["b.txt"] == "mine"


def test_users_json_of_a_failure_stays(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("mine")
    with folder_output(tmp_path, "json") as output:
        put(output, failed("a.wav"))
    assert contents(tmp_path) == {"a.json": "mine"}


@pytest.mark.parametrize("name", [".a.txt.fastscribe.part"])
def test_temporary_name_is_never_followed(tmp_path: Path, name: str) -> None:
    out, target = tmp_path / "out", tmp_path / "target"
    out.mkdir()
    target.write_text("mine")
    (out / name).symlink_to(target)
    with folder_output(out, "txt") as output, pytest.raises(InTheWay, match=re.escape(name)):
        put(output, spoken("a.wav"))
    assert target.read_text() == "mine" and (out / name).is_symlink()


CUES = Segment("very curious", 0.0, 1.0, 1.0, (Word("very", 0.0, 0.4, 1.0), Word("curious", 0.4, 1.0, 1.0)))
MADE = SubtitleStyle(max_line_width=20)


def cues_again(directory: Path, said: list[str], style: SubtitleStyle = MADE, **options: bool) -> str:
    """Run over two recordings with subtitles, and return the first one's."""
    with open_journaled(
        directory, OutputRun(OutputStyle(("srt",), subtitles=style), {}, **options), said.append
    ) as output:
        for index, id in enumerate(("a.wav", "b.wav")):
            put(output, replace(spoken(id, CUES.text, index), segments=(CUES,)))
    return (directory / "a.srt").read_text()


@pytest.mark.parametrize("layout", [MADE, SubtitleStyle(max_line_width=10)], ids=["same layout", "another layout"])
@pytest.mark.parametrize("word", ["most curious", "a rather curious", "VERY"])
def test_an_edited_file_stays_and_is_named(tmp_path: Path, layout: SubtitleStyle, word: str) -> None:
    """Other files are made again if the layout is another. An edit of the same length needs no naming where nobody reads it."""
    edited = cues_again(tmp_path, []).replace("very", word)
    (tmp_path / "a.srt").write_text(edited)
    for _ in range(2):
        said: list[str] = []
        assert cues_again(tmp_path, said, layout) == edited
        is_noticed = word != "VERY" or layout is not MADE
        assert [str(tmp_path / "a.srt") in line and "--overwrite" in line for line in said] == [True] * is_noticed
    assert ("very\ncurious" in (tmp_path / "b.srt").read_text()) == (layout is not MADE)
    assert sorted(contents(tmp_path)) == ["a.srt", "b.srt"]
    (tmp_path / "a.srt").unlink()
    assert cues_again(tmp_path, said := [], layout) == (tmp_path / "b.srt").read_text() and said == []


@pytest.mark.parametrize("damaged", [b"", b"\0" * 30, b"1\n00:00"])
def test_a_damaged_file_is_made_again(tmp_path: Path, damaged: bytes) -> None:
    """As a power cut leaves it: empty, zeros or the beginning. That is nobody's edit."""
    whole = cues_again(tmp_path, [])
    (tmp_path / "a.srt").write_bytes(damaged)
    assert cues_again(tmp_path, said := []) == whole and said == []
    assert sorted(contents(tmp_path)) == ["a.srt", "b.srt"]


def test_overwrite_keeps_an_edited_file_beside_and_names_it(tmp_path: Path) -> None:
    whole = cues_again(tmp_path, [])
    (tmp_path / "a.srt").write_text("by hand")
    assert cues_again(tmp_path, said := [], overwrite=True) == whole
    assert (tmp_path / "a.previous.srt").read_text() == "by hand"
    assert len(said) == 1 and said[0].startswith(f"{tmp_path / 'a.srt'}: edited") and "a.previous.srt" in said[0]


def test_a_changed_recording_sets_an_edited_file_aside_and_names_it(tmp_path: Path) -> None:
    write_all(tmp_path, ["a.wav"], "txt")
    (tmp_path / "a.txt").write_text("by hand")
    said: list[str] = []
    with open_journaled(tmp_path, OutputRun(OutputStyle(("txt",)), {}), said.append) as output:
        source = Source("/in/a.wav", "/in/a.wav", "a.wav", row={"changed": True})
        assert output.ledger.expect(source) and not output.ledger.is_done(source)
        output.write(spoken("a.wav", "new"))
    assert contents(tmp_path) == {"a.txt": "new", "a.previous.txt": "by hand"}
    assert len(said) == 1 and "a.previous.txt" in said[0]


@pytest.mark.posix
@pytest.mark.parametrize("cut", [0, 3])
def test_a_file_of_another_size_is_made_again(tmp_path: Path, cut: int) -> None:
    """The journal has each file's size, also of files that are rightly empty. Nothing is decoded."""
    files = write_all(tmp_path, ["a.wav", "b.wav"], "txt", "json", "srt")
    assert files["a.srt"] == ""
    os.truncate(tmp_path / "a.json", cut)
    with folder_output(tmp_path, "txt", "json", "srt") as output:
        for index, id in enumerate(("a.wav", "b.wav")):
            source = Source("/in/" + id, "/in/" + id, id, index=index)
            assert output.ledger.expect(source)
            assert output.ledger.is_done(source)
        assert isinstance(output.ledger, FileLedger) and output.ledger.num_made_again == 1
    assert contents(tmp_path) == files


def test_overwrite_removes_only_journaled_files(tmp_path: Path) -> None:
    write_all(tmp_path, ["x/a.wav", "b.wav", "c.wav", "c.mp3"], "txt", "json", "jsonl")
    (tmp_path / "x" / "mine.txt").write_text("mine")
    with folder_output(tmp_path, "srt", overwrite=True):
        assert contents(tmp_path) == {"x/mine.txt": "mine"}


def test_overwrite_removes_renamed_files(tmp_path: Path) -> None:
    write_all(tmp_path, ["a.wav"], "txt")
    assert set(write_all(tmp_path, ["a.wav", "a.mp3"], "txt")) == {"a.wav.txt", "a.mp3.txt"}
    with folder_output(tmp_path, "txt", overwrite=True):
        assert contents(tmp_path) == {}


def test_overwrite_spares_files_of_replaced_results(tmp_path: Path) -> None:
    write_all(tmp_path, ["a.wav"], "txt", "json")
    with folder_output(tmp_path, "txt", "json") as output:
        put(output, failed("a.flac"))  # takes the name, and has no text
    assert set(contents(tmp_path)) == {"a.json"}
    (tmp_path / "a.txt").write_text("mine")
    with folder_output(tmp_path, "txt", "json", overwrite=True):
        assert contents(tmp_path) == {"a.txt": "mine"}


@pytest.mark.parametrize("ids", [("a.wav", "b.wav", "a.mp3"), ("a.mp3", "a.wav", "b.wav")])
def test_what_a_run_does_to_earlier_files_is_counted(tmp_path: Path, ids: tuple[str, ...]) -> None:
    """Renamed for an input with the same name, and laid out again; a new format is neither."""
    write_all(tmp_path, ["a.wav", "b.wav"], "vtt")
    style = OutputStyle(("srt", "vtt"), subtitles=SubtitleStyle(max_line_width=20))
    with open_journaled(tmp_path, OutputRun(style, {})) as output:
        for index, id in enumerate(ids):
            put(output, spoken(id, index=index))
        assert isinstance(output.ledger, FileLedger)
        assert output.ledger.renamed == [("a", "a.wav")]
        assert output.ledger.laid_out_again == {"vtt"}
    with open_journaled(tmp_path, OutputRun(style, {})) as output:
        for index, id in enumerate(ids):
            put(output, spoken(id, index=index))
        assert isinstance(output.ledger, FileLedger)
        assert not output.ledger.renamed and not output.ledger.laid_out_again


def test_a_rename_replaces_nothing(tmp_path: Path) -> None:
    write_all(tmp_path, ["a.wav"], "txt")
    (tmp_path / "a.wav.txt").write_text("mine")
    assert write_all(tmp_path, ["a.wav", "a.mp3"], "txt") == {
        "a.txt": "a.wav",
        "a.wav.txt": "mine",
        "a.mp3.txt": "a.mp3",
    }


@pytest.mark.parametrize("ids", list(permutations(["x/a.wav", "x/a.mp3", "x/a.flac"])))
def test_inputs_sharing_a_name_keep_their_extension(tmp_path: Path, ids: tuple[str, ...]) -> None:
    assert write_all(tmp_path, [*ids, "x/b.wav"], "txt") == {
        "x/a.flac.txt": "x/a.flac",
        "x/a.mp3.txt": "x/a.mp3",
        "x/a.wav.txt": "x/a.wav",
        "x/b.txt": "x/b.wav",
    }


def test_name_shared_with_a_file_without_extension(tmp_path: Path) -> None:
    expected = {"a.txt": "a", "a.wav.txt": "a.wav"}
    assert write_all(tmp_path / "1", ["a", "a.wav"], "txt") == expected
    assert write_all(tmp_path / "2", ["a.wav", "a"], "txt") == expected


def test_equal_ids_are_numbered_as_they_come(tmp_path: Path) -> None:
    assert write_all(tmp_path, ["a.wav", "a.wav", "A.WAV"], "txt") == {
        "a.txt": "a.wav",
        "a.2.txt": "a.wav",
        "A.3.txt": "A.WAV",
    }


def test_cuts_are_named_by_their_offset(tmp_path: Path) -> None:
    assert write_all(tmp_path, ["d/a.wav@1500", "d/a.wav@0", "d/a.wav@0"], "txt") == {
        "d/a_1500.txt": "d/a.wav@1500",
        "d/a_0.txt": "d/a.wav@0",
        "d/a_0.2.txt": "d/a.wav@0",
    }
    assert names_of("d/a.wav@1500") == ("d/a_1500", "d/a.wav_1500")
    assert names_of("rec@5.wav") == ("rec@5", "rec@5.wav")


def test_the_runs_own_report_is_not_overwritten(tmp_path: Path) -> None:
    ids = ["report.wav", "x/report.wav", "report.shard-0-of-2.wav", "Report"]
    expected = {"report.wav.json", "x/report.json", "report.shard-0-of-2.wav.json", "Report.2.json"}
    assert set(write_all(tmp_path, ids, "json")) == expected


def test_failures_leave_only_json_and_keep_their_name(tmp_path: Path) -> None:
    with folder_output(tmp_path, "txt", "json") as output:
        put(output, failed("a.wav"))
        put(output, spoken("a.mp3", index=1))
    files = contents(tmp_path)
    assert set(files) == {"a.wav.json", "a.mp3.txt", "a.mp3.json"}
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
def test_every_input_gets_its_own_name(ids: list[str]) -> None:
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


@settings(max_examples=100, deadline=None)
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


def test_files_are_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_all(tmp_path, ["a.wav"], "txt", "jsonl")

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    done = ["a.wav"]
    for call, id in (("replace", "b.wav"), ("fsync", "c.wav")):
        with monkeypatch.context() as patch:
            output = folder_output(tmp_path, "txt", "jsonl")
            patch.setattr(os, call, fail)
            source = Source("/in/" + id, "/in/" + id, id, index=0)
            assert output.ledger.expect(source) and not output.ledger.is_done(source)
            output.write(spoken(id))
            with pytest.raises(OutputError, match="cannot be written: No space left on device"):
                output.flush()
            with pytest.raises(OutputError):
                output.close()
        assert contents(tmp_path)["a.txt"] == "a.wav"
        done.append(id)
        assert write_all(tmp_path, done, "txt", "jsonl") == {id.replace("wav", "txt"): id for id in done}
        assert rows(tmp_path) == [f"/in/{id}" for id in done]


def test_unwritable_file_costs_one_input(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a file where a folder belongs")
    with folder_output(tmp_path, "txt", "jsonl") as output:
        with pytest.raises(OSError, match="x"):
            put(output, spoken("x/a.wav"))
        output.write(failed("x/a.wav"))
        put(output, spoken("b.wav", index=1))
    assert set(contents(tmp_path)) == {"x", "b.txt"}


def test_row_that_does_not_fit_is_rolled_back(tmp_path: Path) -> None:
    class FullDisk(io.FileIO):
        is_full = False

        def write(self, content: bytes) -> int:  # type: ignore[override]
            if not self.is_full:
                return super().write(content[:5])
            super().write(content[:3])
            raise OSError(28, "No space left on device")

    path = tmp_path / "rows"
    with FullDisk(path, "a") as file:
        rows = Appender(file, path)
        rows.append(b"first row\n")
        file.is_full = True
        with pytest.raises(OSError, match="No space"):
            rows.append(b"second row\n")
        file.is_full = False
        rows.append(b"third row\n")
    assert path.read_bytes() == b"first row\nthird row\n"


def test_streams_get_utf8_and_are_flushed_but_not_closed() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(io.BufferedWriter(raw), encoding="ascii")
    with StreamOutput(stream, OutputRun(OutputStyle(), {})) as output:
        output.write(spoken("ä.wav"))
        assert json.loads(raw.getvalue())["text"] == "ä.wav"
        output.write(failed("b.wav"))
    assert len(raw.getvalue().splitlines()) == 2
    assert not stream.closed
    stream.detach()


def test_closed_pipe_is_raised_to_the_caller() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    with pytest.raises(BrokenPipeError):
        StreamOutput(stream, OutputRun(OutputStyle(), {})).write(spoken("a.wav"))
    with pytest.raises(BrokenPipeError):
        stream.close()


@given(st.permutations(range(6)))
def test_ordered_streams_wait_for_earlier_results(order: list[int]) -> None:
    stream = io.StringIO()
    output = StreamOutput(stream, OutputRun(OutputStyle(), {}, ordered=True))
    results = [failed("b.wav", 1) if n == 1 else spoken(f"{n}.wav", index=n) for n in range(6)]
    for n in range(6):
        assert output.ledger.expect(Source("x", "x", "x", index=n))
    for count, n in enumerate(order, start=1):
        output.write(results[n])
        num_out = next((first for first in range(6) if first not in order[:count]), 6)
        assert len(stream.getvalue().splitlines()) == num_out
    paths = [json.loads(line)["audio_filepath"] for line in stream.getvalue().splitlines()]
    assert paths == ["/in/b.wav" if n == 1 else f"/in/{n}.wav" for n in range(6)]


def test_name_taken_by_another_input_is_rewritten(tmp_path: Path) -> None:
    for id in ("a.wav", "a.flac", "a.wav"):
        assert write_all(tmp_path, [id], "txt") == {"a.txt": id}


def test_overwrite_without_inputs_removes_nothing(tmp_path: Path) -> None:
    write_all(tmp_path, ["a.wav"], "jsonl", "txt")
    before = contents(tmp_path)
    with pytest.raises(UsageError, match="no input is there, so --overwrite removes nothing"):
        folder_output(tmp_path, "jsonl", "txt", overwrite=True, inputs=[str(tmp_path / "mistyped")])
    assert contents(tmp_path) == before


def test_zeros_before_users_data_are_not_our_file(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(5000) + b"precious")
    assert not starts_with(path, re.compile(b"ours"))
    path.write_bytes(bytes(5000))
    assert starts_with(path, re.compile(b"ours"))


@pytest.mark.parametrize("finished", [True, False])
def test_an_unfinished_run_forgets_and_sorts_nothing(tmp_path: Path, finished: bool) -> None:
    """Inputs that it has not listed yet are no inputs that are gone."""
    bad = Failure("/in/list.jsonl:1", "list.jsonl:1", "input", "ManifestError", "no path", None, 0)
    for result in (bad, spoken("b.wav", index=2), spoken("a.wav", index=1)):
        with suppress(KeyboardInterrupt), folder_output(tmp_path, "jsonl", ordered=True) as output:
            put(output, result)
            output.flush()
            if not finished:
                raise KeyboardInterrupt
    unsorted = ["/in/list.jsonl:1", "/in/b.wav", "/in/a.wav"]
    assert rows(tmp_path) == (["/in/a.wav", "/in/b.wav"] if finished else unsorted)
